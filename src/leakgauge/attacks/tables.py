"""The strongest attack on tables: closed forms first, a search for the rows that they leave."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakgauge.attacks.linear import linear
from leakgauge.attacks.relu_batches import relu_batches
from leakgauge.attacks.tableak import TabLeak, tableak
from leakgauge.core import Attack, Observation, Reconstruction, Table, Use, Victim
from leakgauge.core.examples import example
from leakgauge.errors import Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.inversion.labels import batch_size, infer_labels, labels_or_none
from leakgauge.measures.table import right_cells

CLOSED_FORMS_UP_TO = 32
"""Samples: separating more takes minutes."""


@dataclass(frozen=True)
class Tables:
    """The attack made by :func:`tables`."""

    search: TabLeak

    def uses(self) -> frozenset[Use]:
        return self.search.uses()

    def effort(self) -> tuple[str, int]:
        return "tables", self.search.search.solver.steps

    def blind(self) -> TabLeak:
        """The search without the signal; closed forms find nothing without one."""
        return self.search.blind()

    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        if not isinstance(victim.space, Table):
            raise Inapplicable("this attack needs a victim that takes rows of a table")
        exact, refused = _exact(victim, seen, seed)
        if exact is not None and len(exact.x) == batch_size(seen):
            return replace(
                exact, made_by=repr(self), notes=(*exact.notes, "every row is certified, so nothing was searched")
            )
        found = self.search(victim, seen, seed=seed)
        notes = (*found.notes, *refused)
        if exact is None:
            return replace(found, made_by=repr(self), notes=notes)
        x, certified = on_top(exact.x, found.x, victim.space)
        assert found.confidence is not None
        confidence = torch.where(certified[:, None].to(found.confidence.device), 1.0, found.confidence)
        notes = (*notes, f"{len(exact.x)} rows are certified and take the place of those that were searched")
        return replace(found, x=x, certified=certified, confidence=confidence, made_by=repr(self), notes=notes)


def _exact(victim: Victim, seen: Observation, seed: int) -> tuple[Reconstruction | None, list[str]]:
    """The rows that a closed form certifies; None without any, with the reasons."""
    size, refused = batch_size(seen), list[str]()
    forms: dict[str, Attack] = {"linear": linear()} if size == 1 else {"relu_batches": relu_batches()}
    for name, form in forms.items():
        if size > CLOSED_FORMS_UP_TO:
            refused.append(f"{name} was left out: it takes up to {CLOSED_FORMS_UP_TO} samples")
            continue
        try:
            found = form(victim, seen, seed=seed)
        except Inapplicable as reason:
            refused.append(f"{name} does not apply: {reason}")
            continue
        if found.certified is not None and bool(found.certified.any()):
            labels = labels_or_none(infer_labels(), victim, seen, seed=seed) if found.y is None else found.y
            kept = found.certified
            y = labels if bool(kept.all()) and size == 1 else None  # which label belongs to which row is not known
            return replace(found, x=found.x[kept], y=y, certified=kept[kept]), refused
        refused.append(f"{name} certifies no row")
    return None, refused


def on_top(exact: Tensor, found: Tensor, space: Table) -> tuple[Tensor, Tensor]:
    """``found`` (B, entries) with the rows most like the ``exact`` ones replaced by these, and which they are."""
    from scipy.optimize import linear_sum_assignment  # here, because it takes longer to import than this whole package

    rows, wanted = space.decode(found).cpu(), space.decode(exact).cpu()
    right = right_cells(rows[None], wanted[:, None], space.slack).double().sum(2)
    known, replaced = linear_sum_assignment(-right.numpy())
    x, certified = found.clone(), torch.zeros(len(found), dtype=torch.bool, device=found.device)
    x[torch.as_tensor(replaced)] = exact[torch.as_tensor(known)].to(found)
    certified[torch.as_tensor(replaced)] = True
    return x, certified


@example("table", steps=60, restarts=3)
@checked
def tables(*, steps: int = 1500, restarts: int = 30) -> Tables:
    """Closed forms first (``linear`` for one row, ``relu_batches`` for up to 32), then :func:`tableak` for the rows they do not certify.

    Not from a paper. Deviations: none, since no paper describes the combination; those of its parts are said there.
    """
    return Tables(tableak(steps=steps, restarts=restarts))
