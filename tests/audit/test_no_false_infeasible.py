"""On the embedded models, no verdict is *infeasible* where another attack succeeds under the same assumptions. Run with ``make slow``."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakgauge.audit.case import Case
from leakgauge.audit.records import Record
from leakgauge.audit.run import run_all
from leakgauge.audit.session import Session, embedded
from leakgauge.audit.verdict import Outcome

ATTACKS = {
    "inverting_gradients": {"steps": 480},
    "tag_read_labels": {"steps": 480},
    "dlg": {"steps": 30},
    "strongest": {"steps": 500},
    "linear": {},
}
"""Attacks that need nothing beyond the batch size, each with enough steps for a negative to count."""
DEFENSES = ((), ("gaussian_noise:relative=1.0",), ("gaussian_noise:relative=10.0",), ("prune:0.9",))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["cnn", "vit", "vgg"])
def test_no_verdict_is_infeasible_where_another_attack_succeeds(model: str, tmp_path: Path) -> None:
    cases = [
        Case(model=model, batch_size=size, defenses=defenses, attack=attack, options=options)
        for size in (1, 4)
        for defenses in DEFENSES
        for attack, options in ATTACKS.items()
    ]
    found = run_all(cases, load=Session(embedded), folder=tmp_path)
    by_setup: dict[tuple[int, tuple[str, ...]], list[Record]] = {}
    for record in found:
        by_setup.setdefault((record.case.batch_size, record.case.defenses), []).append(record)
    false = [
        (name, [(one.case.attack, one.outcome, one.verdict and one.verdict.cause) for one in setup])
        for name, setup in by_setup.items()
        if any(one.outcome is Outcome.INFEASIBLE for one in setup)
        and any(one.outcome is not None and one.outcome.leaks for one in setup)
    ]
    assert false == []
