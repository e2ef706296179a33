"""Finds which parts each row is the sum of: every part belongs to one row, and each row is the sum of its parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:  # functions import scipy.optimize themselves: it takes longer to import than this whole package
    from scipy.optimize import LinearConstraint

NONE = -1
SWEEPS = 50
"""Most rounds in which every part may be moved."""
NODES = 5000
"""Most branches of the integer search. A count, unlike a time limit, gives the same result everywhere."""
ENTRIES = 4_000_000
"""Largest system, in nonzero numbers, for the integer search."""
SOLVER = 1e-5
"""The smallest value that the integer search distinguishes from zero, for parts of size 1."""


@dataclass(frozen=True, eq=False)
class Cover:
    """``owner`` (parts,) is the row of each part, ``NONE`` if it belongs to none.

    ``residual`` is ‖rows − sums of parts‖ / ‖rows‖. ``exact``: every row is matched up to rounding. ``unique``: it was also
    shown that no other ownership matches.
    """

    owner: Tensor
    residual: float
    exact: bool
    unique: bool


def cover(rows: Tensor, parts: Tensor, *, relative: float, absolute: float = 0.0, loose: bool = False) -> Cover:
    """Solves rows_v = Σ_{p: owner_p = v} parts_p for the owners.

    ``rows`` (N, W) and ``parts`` (P, W). Two numbers of size s count as equal within ``relative``·s + ``absolute``.
    A row of one part is found by equality. The rest follows by least squares if the remaining parts are linearly independent,
    else as an integer system. If neither matches the rows, as under noise, parts are also moved one at a time to where the
    error falls most, and the ownership with the least error is kept. With ``loose`` a part may belong to no row.
    """
    task = _Task(rows.double().cpu(), parts.double().cpu(), relative, absolute, loose)
    task.match_equal()
    task.solve_rest()
    exact = task.exact()
    return Cover(task.owner.to(rows.device), task.residual(), exact, exact and task.only_one())


class _Task:
    """One system of rows and parts, and the owners found so far."""

    def __init__(self, rows: Tensor, parts: Tensor, relative: float, absolute: float, loose: bool) -> None:
        self.rows, self.parts, self.loose = rows, parts, loose
        self.relative, self.absolute = relative, absolute
        self.owner = torch.full((len(parts),), NONE)
        self.sizes = parts.norm(dim=1)

    def match_equal(self) -> None:
        """A row that equals exactly one part consists of that part alone."""
        # the faster method of cdist, by products, loses the small differences that matter here
        far = torch.cdist(self.rows, self.parts, compute_mode="donot_use_mm_for_euclid_dist")
        equal = far <= self.relative * self.sizes + self.absolute
        sure = equal & (equal.sum(0) == 1) & (equal.sum(1, keepdim=True) == 1)
        row, part = sure.nonzero(as_tuple=True)
        self.owner[part] = row

    def solve_rest(self) -> None:
        """Find owners of the parts that are still free."""
        free = (self.owner == NONE).nonzero().flatten()
        if len(free) == 0:
            return
        before, found = self.owner.clone(), list[tuple[float, Tensor]]()
        for way in (self.least_squares, self.whole_numbers, self.pursue):
            self.owner = before.clone()
            way(free)
            found.append((self.residual(), self.owner))
            if self.exact():
                return
        self.owner = min(found, key=lambda one: one[0])[1]

    def _remainder(self, free: Tensor) -> Tensor:
        """Rows minus the parts that they own outside ``free``."""
        owned = self.owner.clone()
        owned[free] = NONE
        kept = owned != NONE
        return self.rows.index_add(0, owned[kept], self.parts[kept], alpha=-1)

    def _directions(self, free: Tensor) -> Tensor:
        return self.parts[free] / self.sizes[free].clamp_min(torch.finfo(self.parts.dtype).tiny)[:, None]

    def independent(self, free: Tensor) -> bool:
        """Whether the free parts, each scaled to length one, are linearly independent beyond rounding."""
        if len(free) > self.parts.shape[1] or bool((self.sizes[free] == 0).any()):
            return False
        values = torch.linalg.svdvals(self._directions(free))
        floor = self.relative + self.absolute / float(self.sizes[free].min())
        return float(values[-1]) > floor * float(values[0])

    def least_squares(self, free: Tensor) -> None:
        """The coefficient of a part in a row is 1 if the row owns it, else 0."""
        shares = torch.linalg.lstsq(self._directions(free).T, self._remainder(free).T, driver="gelsd").solution
        best, row = (shares / self.sizes[free, None]).max(1)
        self.owner[free] = torch.where(best > 0.5, row, NONE) if self.loose else row

    def whole_numbers(self, free: Tensor) -> None:
        """Coefficients 0 or 1 that match the rows, by branch and cut; no owners if none are found."""
        system = self._system(free)
        found = None if system is None else _whole(*system[1:])
        if system is None or not isinstance(found, np.ndarray):
            return
        open_rows = system[0]
        grid = torch.from_numpy(found.reshape(len(open_rows), len(free)))
        self.owner[free] = torch.where(grid.max(0).values > 0.5, open_rows[grid.argmax(0)], NONE)

    def only_one(self) -> bool:
        """Whether it can be shown that no other ownership matches the rows: the parts are independent, or a search for
        another one ended without success.
        """
        from scipy import sparse
        from scipy.optimize import LinearConstraint

        everything = torch.arange(len(self.parts))
        if self.independent(everything):
            return True
        system = self._system(everything)
        if system is None:
            return False
        open_rows, unknowns, limits = system
        chosen = (self.owner == open_rows[:, None]).double().numpy().ravel()
        other = LinearConstraint(sparse.csr_matrix(2 * chosen - 1), -np.inf, chosen.sum() - 1)
        return _whole(unknowns, [*limits, other]) is None

    def _system(self, free: Tensor) -> tuple[Tensor, int, list[LinearConstraint]] | None:
        """Rows not matched without the ``free`` parts, and the constraints of one unknown per row and free part; None if too large."""
        from scipy import sparse
        from scipy.optimize import LinearConstraint

        left = self._remainder(free)
        open_rows = (left.norm(dim=1) > self.relative * self.rows.norm(dim=1) + self.absolute).nonzero().flatten()
        rows, parts, width = len(open_rows), len(free), self.parts.shape[1]
        unit = float(self.sizes[free].median())
        if not 0 < rows <= parts or rows * parts * width > ENTRIES or unit == 0:
            return None  # more rows than parts cannot be matched
        sums = sparse.kron(sparse.eye(rows), (self.parts[free].T / unit).numpy(), format="csr")
        wanted = (left[open_rows] / unit).numpy().ravel()
        sizes = left[open_rows].norm(dim=1) + unit * parts
        slack = ((self.relative * sizes + parts**0.5 * self.absolute) / unit).clamp_min(SOLVER)
        slack = np.repeat(slack.numpy(), width)
        low, high = (cast(Any, wanted + sign * slack) for sign in (-1, 1))  # scipy's types only allow single bounds
        once = sparse.kron(np.ones((1, rows)), sparse.eye(parts), format="csr")
        limits = [LinearConstraint(sums, low, high), LinearConstraint(once, 0 if self.loose else 1, 1)]
        return open_rows, rows * parts, limits

    def pursue(self, free: Tensor) -> None:
        """Move each part, largest first, to the row where ‖rows − sums‖ falls most; repeat until none moves.

        Giving part d to row v changes the squared error by ‖d‖² − 2⟨remainder of v, d⟩.
        """
        left = self._remainder(free)
        order = free[self.sizes[free].argsort(descending=True)]
        self.owner[free] = NONE
        for _ in range(SWEEPS):
            moved = False
            for part in order.tolist():
                d, now = self.parts[part], int(self.owner[part])
                if now != NONE:
                    left[now] += d
                gains = left @ d
                best = int(gains.argmax())
                if self.loose and float(gains[best]) <= 0.5 * float(d @ d):
                    best = NONE
                if best != NONE:
                    left[best] -= d
                moved |= best != now
                self.owner[part] = best
            if not moved:
                return

    def errors(self) -> Tensor:
        """The unmatched part of each row."""
        return self._remainder((self.owner == NONE).nonzero().flatten()).norm(dim=1)

    def residual(self) -> float:
        return float(self.errors().norm() / self.rows.norm().clamp_min(torch.finfo(self.rows.dtype).tiny))

    def exact(self) -> bool:
        owned = self.owner != NONE
        nothing = self.rows.new_zeros(len(self.rows))
        size = nothing.index_add(0, self.owner[owned], self.sizes[owned])
        count = nothing.index_add(0, self.owner[owned], torch.ones_like(self.sizes[owned]))
        return bool((self.errors() <= self.relative * size + self.absolute * (count + 1)).all())


def _whole(unknowns: int, limits: list[LinearConstraint]) -> np.ndarray | bool | None:
    """Any 0-1 vector within ``limits``; None if there is none, False if the search did not decide."""
    from scipy.optimize import milp

    nothing, whole = np.zeros(unknowns), np.ones(unknowns)
    done = milp(nothing, constraints=limits, integrality=whole, bounds=(0, 1), options={"node_limit": NODES})
    if done.x is not None:
        return done.x
    infeasible = 2
    return None if done.status == infeasible else False
