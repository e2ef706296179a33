"""Keeps the budget of an audit while it runs: what a set-up really costs, and who gets the time that is left.

A plan is made from trials of a moment, on a machine that others may use too. So each set-up is timed while it is attacked, a search that
would end too late is begun again with fewer steps, and time that nobody used goes to what it can change most: set-ups that are
inconclusive, what was left out for lack of time, and set-ups that leak in part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from leakgauge.audit import records
from leakgauge.audit.case import Case, accepted_options, enough_steps, tries_enough, with_steps
from leakgauge.audit.control import Extent
from leakgauge.audit.plan import Plan, save
from leakgauge.audit.planner import SHARES, NoTime, Planner, ends
from leakgauge.audit.questions import Question
from leakgauge.audit.questions.updates import same_work
from leakgauge.audit.records import Record
from leakgauge.audit.timing import READING, Cost, alike
from leakgauge.audit.verdict import Outcome
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion.progress import also_watching

OVER = 0.08
"""Share of the budget by which a search may end late before it is begun again with fewer steps."""
AIM = 0.95
"""Share of the time that is left which a search is planned to take."""
GROWTH = 1.5
"""A set-up is attacked again only with this many times the steps that it had: fewer would hardly change the outcome."""
REST = 0.05
"""Share of the budget that is too little to begin anything with."""
ALONE = 0.75
"""Share of the time that is left for a question that was left out, if nothing else is open: nobody can end it early."""
CHEAP = 0.25
"""Share of the time that is left within which a question that was left out comes before further steps for set-ups that had enough for a
verdict."""
CERTAIN = 2.0
"""Seconds of steps after which their time is known well enough to end a search."""


class TooSlow(BaseException):
    """Ends a search that would end too late; ``step`` is what a step of it takes. It is no error, so nobody on the way may record it."""

    def __init__(self, step: float) -> None:
        super().__init__(f"{step:.3g} s a step")
        self.step = step


@dataclass
class Stopwatch:
    """Watches the steps of a case. Everything between the first and the last report grows with the steps: search, null run, controls."""

    steps: int
    latest: float
    first: float | None = None
    last: float = 0.0
    searched: bool = False
    _began_at: int = 0

    def __call__(self, done: int, total: int) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.last = time.perf_counter()
        if self.first is None:
            self.first, self._began_at = self.last, done
            return
        self.searched = self.searched or done >= total
        taken, moved = self.last - self.first, done - self._began_at
        if self.searched or moved < 2 or taken < CERTAIN:
            return
        step = taken / moved
        if self.last + (total - done) * step > self.latest:
            raise TooSlow(step * total / self.steps)

    def cost(self, seconds: float) -> Cost | None:
        """The cost of the whole case, which took ``seconds``; None if it took no steps."""
        if self.first is None or self.last <= self.first:
            return None
        stepping = self.last - self.first
        return Cost(max(0.0, seconds - stepping), stepping / self.steps)


Attack = Callable[[Case, Extent], Record]
"""Attacks one case with these controls and keeps its record."""


@dataclass
class Pace:
    """The clock of one audit. ``attack`` runs a case; ``elsewhere`` means in other processes, whose steps nobody sees here."""

    planner: Planner
    folder: Path
    attack: Attack
    elsewhere: bool = False
    measured: dict[str, Cost] = field(default_factory=dict)
    tried: dict[str, int] = field(default_factory=dict)
    """The last number of steps that each set-up was given, also where it was too slow or showed less."""

    def __post_init__(self) -> None:
        assert self.planner.request.budget is not None, "without a budget there is nothing to keep"
        self.budget: float = self.planner.request.budget
        self.planned: dict[str, Cost] = dict(self.planner.costs)
        self.until: float = ends(self.planner.began, self.budget)

    def left(self) -> float:
        """Seconds until the report has to be written."""
        return self.until - time.perf_counter()

    def cost(self, case: Case) -> Cost:
        """As measured in this run; for a set-up that was not attacked yet as planned, and as much slower as the others were."""
        key = alike(case)
        if key in self.measured:
            return self.measured[key]
        ratios = sorted(self.measured[k].step / self.planned[k].step for k in self.measured if self.planned[k].step)
        factor = ratios[len(ratios) // 2] if ratios else 1.0
        found = self.planned[key]
        return Cost(factor * found.fixed, factor * found.step)

    # One case.

    def look(self, plan: Plan, case: Case, *, before: Record | None = None) -> Plan:
        """Attacks ``case`` as it is, or with the steps that there is time for; the plan then holds what was done.

        With ``before``, an earlier record of the same work, what shows more of the two is kept, and nothing happens if the time does not
        allow for clearly more steps.
        """
        kept, extent = plan, plan.controls if plan.controls != "none" or before is None else "plain"
        while True:
            self.tried[same_work(case)] = case.steps or 0
            plan = _with(plan, case)
            save(self.folder, plan)
            try:
                with self._timed(case):
                    record = self.attack(case, extent)
                break
            except TooSlow as slow:
                steps = int((AIM * self.left() - self.cost(case).fixed) / slow.step)
                if before is not None:
                    least = GROWTH * (before.case.steps or 0)
                elif _same(case, plan.request.main):  # it is always attacked
                    steps = least = max(1, steps)
                else:
                    least = enough_steps(case)
                if steps < least:
                    save(self.folder, kept)
                    return kept
                case = with_steps(case, max(1, min(steps, (case.steps or 0) - 1)))
        if before is None:
            return plan
        if _shown(record) < _shown(before):
            plan, record, before = kept, before, record
            save(self.folder, plan)
        records.drop(self.folder, before)
        return plan

    @contextmanager
    def _timed(self, case: Case) -> Iterator[None]:
        latest = self.until + OVER * self.budget - self.cost(case).fixed
        watch = Stopwatch(max(1, (case.steps or 0)), latest)
        began = time.perf_counter()
        if self.elsewhere:
            yield
        else:
            with also_watching(watch):
                yield
        found = watch.cost(time.perf_counter() - began)
        if found is not None:
            self.measured[alike(case)] = self.planner.costs[alike(case)] = found

    # All of them.

    def first_look(self, plan: Plan, cases: Sequence[Case]) -> Plan:
        """Attacks the planned cases one after another, with fewer steps than planned where they take longer than planned.

        A set-up for which there is no time any more leaves the plan, except for the first.
        """
        for number, case in enumerate(cases):
            steps, cost = (case.steps or 0), self.cost(case)
            affordable = cost.affordable(AIM * self.left(), fewest=0) if cost.step else steps
            if number and (cost.fixed > AIM * self.left() or affordable < min(steps, enough_steps(case))):
                plan = _without(plan, case)
            else:
                plan = self.look(plan, with_steps(case, min(steps, affordable) if number else steps))
        return plan

    def spend(self, plan: Plan, ask: Callable[[Plan, Question], Plan]) -> Plan:
        """Gives the time that is left to what it can change most; ``ask`` answers a question of the plan."""
        refused: set[Question] = set()
        while self.left() > REST * self.budget:
            found = [record for record in records.read(self.folder) if not record.broken]
            by_work = {same_work(record.case): record for record in found}
            doubtful = self._worth_more(plan, by_work, Outcome.INCONCLUSIVE)
            question = None
            if doubtful is None or tries_enough(by_work[same_work(doubtful)].case):
                question = self._affordable_question(plan, refused, CHEAP if doubtful else 1.0)
            if question is not None:
                share = SHARES[question] / (SHARES[question] + SHARES["updates"]) if doubtful else ALONE
                try:
                    plan = self.planner.also(plan, question, share)
                except (BadInput, Inapplicable) as refusal:
                    refused.add(question)
                    plan = _refused(plan, question, refusal)
                    save(self.folder, plan)
                    continue
                save(self.folder, plan)
                plan = ask(plan, question)
                continue
            partial = self._worth_more(plan, by_work, Outcome.PARTIAL)
            further = doubtful or self._left_out(plan, by_work) or partial
            if further is None:
                break
            plan = self.look(plan, further, before=by_work.get(same_work(further)))
        return plan

    def _worth_more(self, plan: Plan, by_work: dict[str, Record], outcome: Outcome) -> Case | None:
        """The first of the set-ups with this outcome, with the steps that all of them can have in the time that is left.

        Of those that had fewest steps so far, first the one that counts, then those that take longest. The last ones are passed over if
        there is no time for clearly more steps of all.
        """
        those = [
            record.case
            for case in plan.every_case
            if (record := by_work.get(same_work(case))) is not None
            and record.outcome is outcome
            and "steps" in accepted_options(case)
        ]
        had = {case.key(): max((case.steps or 0), self.tried.get(same_work(case), 0)) for case in those}
        those = [case for case in those if had[case.key()] < GROWTH * min(had.values())]
        those.sort(key=lambda case: (not _same(case, plan.request.main), -self.cost(case).step))
        while those:
            steps = self._steps_for(those)
            if steps >= GROWTH * max(had[case.key()] for case in those):
                return with_steps(next(c for c in plan.every_case if same_work(c) == same_work(those[0])), steps)
            those.pop()
        return None

    def _steps_for(self, cases: Sequence[Case]) -> int:
        """Steps that all of them can have in the time that is left.

        One that had too few for a verdict gets what a negative needs, its control and its truth test, only with enough of them.
        """
        total = sum((self.cost(case) for case in cases), Cost())
        short = [case for case in cases if (case.steps or 0) < enough_steps(case)]
        enough = max(map(enough_steps, short), default=0)
        controls = sum((self.planner.control(case) for case in short), Cost())
        reading = sum(READING * self.cost(case).step for case in short)
        most, earned = (
            one.affordable(AIM * self.left(), fewest=0) for one in (total, total + controls + Cost(reading))
        )
        return earned if earned >= enough else min(most, enough - 1)

    def _left_out(self, plan: Plan, by_work: dict[str, Record]) -> Case | None:
        """A set-up or a single change that was left out, or was late, and for which there is time now; it gets the steps of the others."""
        steps = max(((case.steps or 0) for case in plan.cases), default=0)
        for case in (*plan.request.cases, *plan.request.ladder):
            if same_work(case) not in by_work and same_work(case) not in self.tried:
                cost, room, enough = self.cost(case), AIM * self.left(), enough_steps(case)
                if cost.seconds(enough) <= room:
                    return with_steps(case, min(max(steps, enough), max(enough, cost.affordable(room, fewest=0))))
        return None

    def _affordable_question(self, plan: Plan, refused: set[Question], share: float) -> Question | None:
        for question in plan.questions:
            if question not in refused and plan.waiting.get(question, float("inf")) <= share * self.left():
                return question
        return None


def _refused(plan: Plan, question: Question, refusal: Exception) -> Plan:
    """The plan in which a question that was tried again is refused, and asked no more unless only time was lacking."""
    waiting = {q: s for q, s in plan.waiting.items() if q != question}
    if isinstance(refusal, NoTime):
        waiting[question] = refusal.least
    return replace(plan, refusals={**plan.refusals, question: str(refusal)}, waiting=waiting)


def _with(plan: Plan, case: Case) -> Plan:
    """The plan that has the case, in place of the same work with other steps."""

    def put(some: Sequence[Case]) -> tuple[Case, ...]:
        return tuple(
            replace(one, options=dict(case.options)) if same_work(one) == same_work(case) else one for one in some
        )

    made = replace(plan, cases=put(plan.cases), ladder=put(plan.ladder))
    if all(same_work(one) != same_work(case) for one in made.every_case):
        own = any(same_work(one) == same_work(case) for one in plan.request.cases)
        made = replace(made, cases=(*made.cases, case)) if own else replace(made, ladder=(*made.ladder, case))
    return made


def _without(plan: Plan, case: Case) -> Plan:
    left = [tuple(one for one in some if not _same(one, case)) for some in (plan.cases, plan.ladder)]
    return replace(plan, cases=left[0], ladder=left[1])


def _same(case: Case, other: Case) -> bool:
    return same_work(case) == same_work(other)


def _shown(record: Record) -> int:
    """How much a record shows: a leak more than a negative of either kind, and any of them more than a crash."""
    if record.outcome is None:
        return -1
    return record.outcome.severity if record.outcome.leaks else 0
