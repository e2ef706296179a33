"""Two real processes under DistributedDataParallel: each watches its own gradient, and the training does not notice."""

from __future__ import annotations

import subprocess
import sys

import torch

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from leakgauge.monitor import watch

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
criterion = nn.CrossEntropyLoss()


def made():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


def trained(watched):
    model, seen = made(), []
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    if watched:
        monitor = watch(parallel, optimizer, loss=criterion, every=4, view="raw", strict=True, seed=rank)
        finish = monitor.finish
        monitor.finish = lambda signal: (seen.append({n: g.clone() for n, g in signal.items()}), finish(signal))
    rng = torch.Generator().manual_seed(100 + rank)
    first = None
    for _ in range(6):
        x, y = torch.rand(5, 1, 4, 4, generator=rng), torch.randint(3, (5,), generator=rng)
        optimizer.zero_grad()
        criterion(parallel(x), y).backward()
        if first is None:
            first = (x, y, {n: p.grad.clone() for n, p in model.named_parameters()})
        optimizer.step()
    return model.state_dict(), seen, first


watched, seen, (x, y, averaged) = trained(True)
plain, _, _ = trained(False)
alone = made()
criterion(alone(x), y).backward()
local = {n: p.grad for n, p in alone.named_parameters()}
torch.save({"watched": watched, "plain": plain, "seen": seen[0], "local": local, "averaged": averaged}, f"{folder}/{rank}.pt")
dist.destroy_process_group()
"""


def test_each_process_sees_its_own_gradient_and_training_stays_the_same(tmp_path):
    command = [sys.executable, "-c", SCRIPT]
    both = [subprocess.Popen([*command, str(rank), str(tmp_path)]) for rank in range(2)]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for one in found:
        assert all(torch.equal(one["watched"][name], one["plain"][name]) for name in one["plain"])
        for name, gradient in one["local"].items():
            torch.testing.assert_close(one["seen"][name], gradient)
            mean = (found[0]["local"][name] + found[1]["local"][name]) / 2
            torch.testing.assert_close(one["averaged"][name], mean)
    weight = "1.weight"
    assert not torch.allclose(found[0]["seen"][weight], found[1]["seen"][weight])
