"""Sums over known participants: what follows for single clients, against numpy's least squares."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leakgauge.errors import BadInput
from leakgauge.measures.participation import unmix


def drawn(clients: int, rounds: int, share: float, seed: int):
    rng = np.random.default_rng(seed)
    updates = [
        {"w": torch.from_numpy(rng.normal(size=(3, 2))), "b": torch.from_numpy(rng.normal(size=2))}
        for _ in range(clients)
    ]
    lists = [[k for k in range(clients) if rng.random() < share] or [0] for _ in range(rounds)]
    sums = [{n: sum(updates[k][n] for k in those) for n in ("w", "b")} for those in lists]
    return updates, lists, sums


@pytest.mark.parametrize("seed", range(8))
def test_what_is_said_to_be_determined_is_right_and_nothing_else_is_said(seed):
    updates, lists, sums = drawn(6, 3 + seed, 0.5, seed)
    found = unmix(lists, sums)
    seen = sorted({k for those in lists for k in those})
    taking = np.array([[float(k in those) for k in seen] for those in lists])
    for place, client in enumerate(seen):
        unit = np.eye(len(seen))[place]
        inside = np.linalg.matrix_rank(np.vstack([taking, unit])) == np.linalg.matrix_rank(taking)
        assert (client in found.updates) == inside
        assert (client in found.hidden) == (not inside)
        if inside:
            for name in ("w", "b"):
                assert torch.allclose(found.updates[client][name], updates[client][name])
    assert found.misfit < 1e-9


def test_clients_that_changed_what_they_send_are_seen():
    _, lists, sums = drawn(3, 12, 0.6, 1)
    moved = [
        {n: v + 2 * torch.randn(v.shape, generator=torch.Generator().manual_seed(k)) for n, v in one.items()}
        for k, one in enumerate(sums)
    ]
    assert unmix(lists, moved).misfit > 0.1


def test_the_gain_is_that_of_noise():
    updates, lists, sums = drawn(4, 20, 0.5, 3)
    found, rng = unmix(lists, sums), torch.Generator().manual_seed(0)
    off = []
    for _ in range(300):
        noisy = [{n: v + torch.randn(v.shape, generator=rng, dtype=v.dtype) for n, v in one.items()} for one in sums]
        off.append(unmix(lists, noisy).updates[2]["w"] - updates[2]["w"])
    assert float(torch.stack(off).std()) == pytest.approx(found.gain[2], rel=0.06)


@pytest.mark.parametrize(
    ("lists", "sums", "message"),
    [
        ([], [], "participants of every sum"),
        ([(0,)], [{}], "the same tensors"),
        ([()], [{"w": torch.ones(1)}], "at least one participant"),
        ([(0, 0)], [{"w": torch.ones(1)}], "each only once"),
        ([(0,), (1,)], [{"w": torch.ones(1)}, {"b": torch.ones(1)}], "the same tensors"),
    ],
)
def test_mistakes(lists, sums, message):
    with pytest.raises(BadInput, match=message):
        unmix(lists, sums)
