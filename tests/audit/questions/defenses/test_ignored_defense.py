"""An adversary who knows a defense may ignore it: where that shows more, it is what counts."""

from __future__ import annotations

import pytest

from leakgauge.audit.questions.defenses import shows_more
from leakgauge.audit.verdict import Outcome, Verdict
from tests.made import verdict


@pytest.mark.parametrize(
    ("unaware", "aware", "counts"),
    [
        (Outcome.FEASIBLE, Outcome.INFEASIBLE, True),
        (Outcome.FEASIBLE, Outcome.PARTIAL, True),
        (Outcome.PARTIAL, Outcome.INCONCLUSIVE, True),
        (Outcome.FEASIBLE, Outcome.FEASIBLE, False),
        (Outcome.PARTIAL, Outcome.FEASIBLE, False),
        (Outcome.INCONCLUSIVE, Outcome.INFEASIBLE, False),
        (Outcome.INFEASIBLE, Outcome.INCONCLUSIVE, False),
    ],
)
def test_only_a_graver_leak_counts(unaware: Outcome, aware: Outcome, counts: bool):
    one: Verdict = verdict(unaware)
    assert shows_more(one, verdict(aware)) is counts
