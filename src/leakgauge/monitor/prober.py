"""Decides when the white-box probe runs and on which samples, and says why if it cannot run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from leakgauge.channels.rows import as_rows
from leakgauge.core import Loss
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.monitor.whitebox import Protection, WhiteBox, preserve_randomness, probe

RECENT_BYTES = 2_000_000
"""Memory for samples of recent batches, which serve as non-members if no candidates are given."""
COLLECT = 4
"""How many steps before a probe samples are kept, if a number of non-members was requested."""


class Samples(Protocol):
    """A map-style dataset with items that start with a sample and its label."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class Prober:
    """Collects the members of the step and candidates, and runs :func:`leakgauge.monitor.whitebox.probe` when it is due."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss | None,
        *,
        every: int,
        candidates: Samples | tuple[Tensor, Tensor] | None,
        others: int | None,
        protection: Callable[[], Protection],
        seed: int,
    ) -> None:
        if others is not None and others < 1:
            raise BadInput(f"the white-box probe needs at least one non-member, got others={others}")
        if candidates is not None and not isinstance(candidates, tuple) and len(candidates) == 0:
            raise BadInput("candidates is empty; give a dataset of (sample, label), or leave it out")
        self._model, self._loss, self._every, self._seed = model, loss, every, seed
        self._candidates, self._others, self._protection = candidates, others, protection
        self._batches = 1 if others is None else COLLECT
        self._rng = torch.Generator().manual_seed(seed)
        self._x: list[Tensor] = []
        self._y: list[Tensor] = []
        self._marked = (0, 0)
        self._recent: list[tuple[Tensor, Tensor]] = []
        self._repeatable = True
        self.off = None if loss is not None else "loss was not given"

    def due(self, step: int) -> bool:
        return step % self._every == 0 or (step == 1 and self._candidates is not None)

    def wants(self, step: int) -> bool:
        """Whether the samples of this step are needed, as members or as non-members later."""
        if self._loss is None:
            return False
        return self.due(step) or (self._candidates is None and -step % self._every <= self._batches)

    def see(self, x: Tensor, *, repeatable: bool) -> None:
        self._x.append(x.detach().clone())
        self._repeatable = self._repeatable and repeatable

    def see_labels(self, y: Tensor, *, unless_seen: bool = False) -> None:
        if not unless_seen or len(self._y) < len(self._x):
            self._y.append(y.detach().clone())

    def mark(self) -> None:
        """Marks what was seen so far, for :meth:`drop_marked`."""
        self._marked = len(self._x), len(self._y)

    def drop_marked(self) -> None:
        """Forgets the samples before the mark, because their gradient was discarded."""
        del self._x[: self._marked[0]], self._y[: self._marked[1]]
        self._marked = (0, 0)

    def drop(self) -> None:
        self._x, self._y, self._repeatable, self._marked = [], [], True, (0, 0)

    def forget(self) -> None:
        """Drops all samples."""
        self.drop()
        self._recent = []

    def finish(self, step: int, signal: Mapping[str, Tensor | None]) -> WhiteBox | None:
        """Runs the probe if it is due at ``step``; afterwards the samples of the step are dropped."""
        x, y, repeatable = self._x, self._y, self._repeatable
        self.drop()
        if not self.wants(step):
            return None
        if not repeatable:
            self.off = "the model takes more than one tensor"
            return None
        if not x or sum(map(len, x)) != sum(map(len, y)):
            self.off = (
                "labels were not seen; pass loss= the torch.nn.Module that your loop calls, or call monitor.labels(y)"
            )
            return None
        members = torch.cat(x), torch.cat(y)
        if not len(members[0]):
            self.off = "the batch was empty"
            return None
        if not self.due(step):
            self._keep(members)
            return None
        others = self._non_members(members)
        missing = self._why_no_others()
        if self._every == 1:  # with no step between two probes, the members of this one are the others of the next
            self._keep(members)
        if others is None:
            self.off = missing
            return None
        shared = {name: g for name, g in signal.items() if g is not None}
        if not shared:
            raise Inapplicable("no parameter has a gradient")
        assert self._loss is not None
        self.off = f"it failed at step {step}"
        found = probe(
            self._model, self._loss, shared, members, others, protection=self._protection(), step=step, seed=self._seed
        )
        self.off = None
        return found

    def _keep(self, batch: tuple[Tensor, Tensor]) -> None:
        x, y = batch
        self._recent.append((x, y))
        while self._recent and sum(a.nbytes + b.nbytes for a, b in self._recent) > RECENT_BYTES:
            self._recent.pop(0)
        del self._recent[: -self._batches]

    def _non_members(self, members: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor] | None:
        wanted = self._others or len(members[0])
        if self._candidates is None:
            if not self._recent:
                return None
            x, y = (torch.cat(part) for part in zip(*self._recent, strict=True))
        else:
            x, y = self._draw_candidates(2 * wanted)
        new = ~_same_rows(x.to(members[0]), members[0])
        x, y = x[new.to(x.device)][-wanted:], y[new.to(y.device)][-wanted:]
        return (x.to(members[0].device), y.to(members[1].device)) if len(x) else None

    def _why_no_others(self) -> str:
        if self._candidates is not None:
            return "no non-members: all candidates drawn were in the batch; give candidates from outside"
        if self._recent:
            return "no non-members: earlier batches had the same samples; give candidates="
        return "no non-members yet: recent batches did not fit into memory, or there were none"

    def _draw_candidates(self, count: int) -> tuple[Tensor, Tensor]:
        source = self._candidates
        assert source is not None
        total = len(source[0]) if isinstance(source, tuple) else len(source)
        index = torch.randperm(total, generator=self._rng)[:count]
        if isinstance(source, tuple):
            return source[0][index], source[1][index]
        with preserve_randomness(self._seed, torch.device("cpu")):  # augmentations use the global generators
            items = [source[i] for i in index.tolist()]
        x = torch.stack([torch.as_tensor(item[0]) for item in items])
        return x, torch.stack([torch.as_tensor(item[1]) for item in items])

    def nbytes(self) -> int:
        return sum(x.nbytes + y.nbytes for x, y in self._recent)


def _same_rows(a: Tensor, b: Tensor) -> Tensor:
    """Which rows of ``a`` are also in ``b``, by a random projection in double precision."""
    flat = as_rows(a).double()
    direction = torch.randn(flat.shape[1], generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(flat)
    ours, theirs = flat @ direction, as_rows(b).double() @ direction
    return ((ours[:, None] - theirs).abs() <= 1e-12 * theirs.abs().clamp_min(1.0)).any(1)
