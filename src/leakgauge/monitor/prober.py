"""Decides when the white-box probe runs and on which samples, and says why if it cannot run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.channels.rows import as_rows
from leakgauge.core import Loss
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.monitor.keywords import OwnLoss, Packing, as_given
from leakgauge.monitor.whitebox import Protection, WhiteBox, preserve_randomness, probe

RECENT_BYTES = 2_000_000
"""Memory for samples of recent batches, which serve as non-members if no candidates are given."""
ENDS = 8
"""Lowest and highest entries of the output's gradient that are tried as the label."""
FIT = 0.99
"""Cosine from which a gradient at the output is that of a label; half precision costs 0.001 at most."""
SILENT = 1e-5
"""Share of the longest row below which the gradient at the output says nothing about its label; more in half precision."""
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
        self._model, self._every, self._seed = model, every, seed
        self._loss: Loss | None = F.cross_entropy if loss is None else loss
        self._assumed = loss is None
        self._candidates, self._others, self._protection = candidates, others, protection
        self._batches = 1 if others is None else COLLECT
        self._rng = torch.Generator().manual_seed(seed)
        self._x: list[Tensor] = []
        self._y: list[Tensor] = []
        self._outputs: dict[int, tuple[Tensor, Tensor]] = {}
        self._marked = (0, 0)
        self._dropped = 0  # forward passes of this step that were discarded
        self._recent: list[tuple[Tensor, Tensor]] = []
        self._repeatable = True
        self._packing: Packing | None = None  # of batches passed by name, and the longest of them
        self._length = 0
        self.off: str | None = None

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

    def see_named(self, given: Mapping[str, Any]) -> bool:
        """A batch passed by name, with its labels; False if it cannot be repeated from these alone."""
        packing = Packing.of(given)
        if packing is None or self._packing not in (None, packing):
            return False
        x = packing.pack(given)
        if not packing.fits(x.shape[2], self._length or x.shape[2]):
            return False
        self._packing = packing
        self._x.append(x)
        self._y.append(self._x[-1].new_zeros(len(self._x[-1])))  # labels are packed too
        self._length = max(self._length, self._x[-1].shape[2])
        return True

    def _joined(self, parts: list[Tensor]) -> Tensor:
        """Samples of several batches; those passed by name are made equally long."""
        return torch.cat([self._wide(x) for x in parts])

    def _wide(self, x: Tensor) -> Tensor:
        return x if self._packing is None else self._packing.widen(x, self._length)

    def see_labels(self, y: Tensor, *, unless_seen: bool = False) -> None:
        if not unless_seen or len(self._y) < len(self._x):
            self._y.append(y.detach().clone())

    def expect_output(self) -> Callable[[Tensor, Tensor], None] | None:
        """Takes the output of the newest forward pass and its gradient, from which labels are read if nobody passes them."""
        place = len(self._x) - 1
        if place < 0:
            return None

        def keep(output: Tensor, gradient: Tensor) -> None:
            place_now = place - self._dropped
            if 0 <= place_now < len(self._x):
                self._outputs[place_now] = output.detach(), gradient.detach().clone()

        return keep

    def mark(self) -> None:
        """Marks what was seen so far, for :meth:`drop_marked`."""
        self._marked = len(self._x), len(self._y)

    def drop_marked(self) -> None:
        """Forgets the samples before the mark, because their gradient was discarded."""
        gone = self._marked[0]
        del self._x[:gone], self._y[: self._marked[1]]
        self._outputs = {place - gone: pair for place, pair in self._outputs.items() if place >= gone}
        self._dropped += gone
        self._marked = (0, 0)

    def drop(self) -> None:
        self._x, self._y, self._outputs, self._repeatable, self._marked = [], [], {}, True, (0, 0)
        self._dropped = 0

    def forget(self) -> None:
        """Drops all samples."""
        self.drop()
        self._recent = []

    def finish(self, step: int, signal: Mapping[str, Tensor | None]) -> WhiteBox | None:
        """Runs the probe if it is due at ``step``; afterwards the samples of the step are dropped."""
        x, y, outputs, repeatable = self._x, self._y, self._outputs, self._repeatable
        self.drop()
        if not self.wants(step):
            return None
        if not repeatable:
            self.off = "the model takes more than one tensor, or batches of different lengths without an attention mask"
            return None
        if x and not y and len(outputs) == len(x):
            y = self._read_labels([outputs[place] for place in range(len(x))])
        if not x or sum(map(len, x)) != sum(map(len, y)):
            if self._assumed:
                self.off = (
                    "the loss is not cross entropy on class labels; pass loss=, and labels with monitor.labels(y)"
                )
            else:
                self.off = "labels were not seen, and cannot be read from the output's gradient; call monitor.labels(y)"
            return None
        members = self._joined(x), torch.cat(y)
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
        model, loss = self._model, self._loss
        if self._packing is not None:
            model, loss, members = OwnLoss(model, self._packing), as_given, (self._wide(members[0]), members[1])
            shared = {f"model.{name}": g for name, g in shared.items()}
        found = probe(model, loss, shared, members, others, protection=self._protection(), step=step, seed=self._seed)
        self.off = None
        return found

    def _read_labels(self, outputs: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """The labels of all forward passes; none if one of them cannot be read."""
        assert self._loss is not None
        with preserve_randomness(self._seed, outputs[0][0].device):
            found = [labels_from_gradient(self._loss, output, gradient) for output, gradient in outputs]
        return [y for y in found if y is not None] if all(y is not None for y in found) else []

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
            parts = [list(part) for part in zip(*self._recent, strict=True)]
            x, y = self._joined(parts[0]), torch.cat(parts[1])
        else:
            x, y = self._draw_candidates(2 * wanted)
        ours, theirs = x.to(members[0]), self._wide(members[0])
        if self._packing is not None:
            ours, theirs = self._packing.attended(ours), self._packing.attended(theirs)
        new = ~_same_rows(ours, theirs)
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
        if self._packing is not None:
            rows = {name: torch.stack([torch.as_tensor(item[name]) for item in items]) for name in self._packing.names}
            x = self._packing.pack(rows)
            if not self._packing.fits(x.shape[2], self._length):
                raise BadInput(
                    f"candidates have {x.shape[2]} places, batches {self._length}, and no attention mask; make them equally long"
                )
            self._length = max(self._length, x.shape[2])
            return self._joined([x]), x.new_zeros(len(x))
        x = torch.stack([torch.as_tensor(item[0]) for item in items])
        return x, torch.stack([torch.as_tensor(item[1]) for item in items])

    def nbytes(self) -> int:
        return sum(x.nbytes + y.nbytes for x, y in self._recent)


def labels_from_gradient(loss: Loss, output: Tensor, gradient: Tensor) -> Tensor | None:
    """Class labels (n,) with which ``loss`` has this ``gradient`` at the class scores ``output`` (n, K), up to a factor per row.

    Every class that the gradient could belong to is tried as the label; the one for which the loss has the same direction is it, and
    of several the one with the usual length. None if a row fits no class: then the loss is another one, or has no class labels. A
    row with a gradient lost in rounding, because the model is certain of it, takes the class with the highest score.
    """
    if output.dim() != 2 or output.shape != gradient.shape or output.shape[1] < 2:
        return None
    scores, wanted = output.float(), gradient.float()
    classes = scores.shape[1]
    order = wanted.argsort(
        1
    )  # a label pulls its own score up, so its entry is the lowest, or the highest past its target
    ends = order if classes <= 2 * ENDS else torch.cat([order[:, :ENDS], order[:, -ENDS:]], 1)
    slopes: list[Tensor] = []
    for candidate in ends.T:
        with torch.enable_grad():
            at = scores.clone().requires_grad_()
            try:
                slopes.append(torch.autograd.grad(loss(at, candidate), at)[0])
            except (RuntimeError, ValueError, TypeError, IndexError):  # a loss that takes no class labels
                return None
    tried, lengths = torch.stack(slopes), wanted.norm(dim=1)
    fits = F.cosine_similarity(tried, wanted[None], dim=2, eps=1e-30)
    silent = lengths <= max(SILENT, 4 * torch.finfo(gradient.dtype).eps) * lengths.max()
    if bool(silent.all()) or bool((fits.amax(0)[~silent] < FIT).any()):
        return None
    ratio = (tried.norm(dim=2) / lengths.clamp_min(1e-30)).log()
    best = fits.argmax(0)
    usual = ratio.gather(0, best[None])[0][~silent].median()
    best = (ratio - usual).abs().masked_fill(fits < FIT, torch.inf).argmin(0)
    return torch.where(silent, scores.argmax(1), ends.gather(1, best[:, None])[:, 0])


def _same_rows(a: Tensor, b: Tensor) -> Tensor:
    """Which rows of ``a`` are also in ``b``, by a random projection in double precision."""
    flat = as_rows(a).double()
    direction = torch.randn(flat.shape[1], generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(flat)
    ours, theirs = flat @ direction, as_rows(b).double() @ direction
    return ((ours[:, None] - theirs).abs() <= 1e-12 * theirs.abs().clamp_min(1.0)).any(1)
