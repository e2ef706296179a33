"""A replay by rules and the reference, compared in every number and its derivative; shared by the tests of rules."""

import torch
from torch import Tensor, nn

from leakgauge.channels import DPSGD, Gradient
from leakgauge.core import Victim
from leakgauge.engine import ByRules, Observed, Reference
from leakgauge.engine.clipped import Clipped


class Anything:
    """A space without pixels: the rules do not care what the data is."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def start(self, n: int, rng: torch.Generator) -> Tensor:
        return torch.randn(n, *self.shape, generator=rng)

    def project(self, x: Tensor) -> Tensor:
        return x

    encode = decode = project


def squared(output: Tensor, target: Tensor) -> Tensor:
    """A loss that is not cross entropy and depends on every output."""
    return (output.flatten(1).sin().sum(1) * (1 + target)).square().mean()


def agree(
    module: nn.Module,
    shape: tuple[int, ...],
    *,
    rows: int,
    batch: int,
    own: bool,
    dtype=torch.float64,
    mode="eval",
    clip=None,
):
    """All numbers of a replay, and the derivative of each with respect to the candidates, equal the reference's; with ``clip`` those of
    a clipped gradient."""
    rng = torch.Generator().manual_seed(rows + 10 * batch)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.5)
    victim = Victim(module.to(dtype), Anything(*shape), loss=squared, mode=mode)
    y = torch.randint(3, (rows, batch), generator=rng)

    def observation() -> Observed:
        return Observed({n: torch.randn(p.shape, generator=rng).to(dtype) for n, p in victim.parameters().items()})

    observed = Observed.stack([observation() for _ in range(rows)]) if own else observation()
    x = torch.randn(rows, batch, *shape, generator=rng).to(dtype).requires_grad_()
    rules, channel = ByRules(victim, observed), Gradient()
    if clip is not None:
        rules, channel = Clipped(victim, observed, clip=clip), DPSGD(clip=clip, noise=0.0)
    fast, slow = rules(x, y), Reference(victim, channel, observed)(x, y)
    weights = {name: 0.5 + i for i, name in enumerate(observed.signal)}
    exact = {"atol": 1e-8, "rtol": 1e-6} if dtype == torch.float64 else {"atol": 1e-3, "rtol": 1e-3}
    for what in ("dot", "square", "l2", "l1"):
        ours, theirs = getattr(fast, what)(weights), getattr(slow, what)(weights)
        torch.testing.assert_close(ours, theirs, **exact)
        (ours,), (theirs,) = (torch.autograd.grad(v.sum(), x, retain_graph=True) for v in (ours, theirs))
        torch.testing.assert_close(ours, theirs, **exact)
    for name in weights:
        torch.testing.assert_close(fast.gradient(name), slow.gradient(name), **exact)
    return fast
