"""Nothing reads a sentence or a name back: a run in which all of them are replaced has the same verdicts, findings, advice and gate."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from leakgauge import audit
from leakgauge.audit import gate, records
from leakgauge.audit.advice import advise, conditions
from leakgauge.audit.compare import compare
from leakgauge.audit.findings import Findings, read_findings
from leakgauge.audit.questions import defense_records as defenses
from leakgauge.audit.questions import split_records, training
from leakgauge.audit.verdict import Outcome
from tests.report.eight_setups import store_eight
from tests.report.made_defenses import store_defenses
from tests.report.made_scan import make_scan
from tests.report.made_training import make_monitored, store_monitored

OLD = Path(__file__).parents[1] / "golden" / "run_0_1"
SENTENCES = {"reason", "notes", "stated", "command", "training", "why", "message"}
"""Fields that hold words for people, wherever they are."""
REPRESENTATIONS = {"attack", "channel"}
"""Fields of a record that print what was built; in a case they are the facts it is built from."""


def made_by_hand(folder: Path) -> None:
    folder.mkdir()
    store_eight(folder)
    store_monitored(folder, make_monitored())
    make_scan(folder)
    store_defenses(folder)


def of_version_0_1(folder: Path) -> None:
    """The run of 0.1 in the format of today."""
    shutil.copytree(OLD, folder)
    for store in (records, defenses):
        found = store.read(OLD)
        (folder / store.FILE).unlink()
        for one in found:
            store.append(folder, one)
    split_records.save_plan(folder, split_records.read_plan(OLD))
    watched = training.read(OLD)
    (folder / training.FILE).unlink()
    store_monitored(folder, watched)


def replaced(value: Any, count: list[int], *, within: str = "") -> Any:
    """The same with every sentence and every name of a case replaced by other words."""
    if isinstance(value, dict):
        top = within == "record"
        is_case = {"model", "attack", "local_steps"} <= set(value)
        words = SENTENCES | (REPRESENTATIONS if top else set()) | ({"name"} if is_case else set())
        return {k: _words(v, count) if k in words else replaced(v, count) for k, v in value.items()}
    return [replaced(one, count) for one in value] if isinstance(value, list) else value


def _words(value: Any, count: list[int]) -> Any:
    if isinstance(value, str):
        count[0] += 1
        return f"word {count[0]}" if value else value
    if isinstance(value, list):
        return [_words(one, count) for one in value]
    return replaced(value, count)


def rename(folder: Path) -> int:
    """Rewrites every file of the run; returns how many texts were replaced."""
    count = [0]
    for path in folder.glob("*.jsonl"):
        within = "record" if path.name in (records.FILE, defenses.FILE) else ""
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        path.write_text(
            "".join(json.dumps(replaced(one, count, within=within)) + "\n" for one in lines), encoding="utf-8"
        )
    for name in (split_records.PLAN, split_records.CONCLUSION):
        path = folder / name
        path.write_text(json.dumps(replaced(json.loads(path.read_text(encoding="utf-8")), count)), encoding="utf-8")
    return count[0]


def facts(value: Any) -> Any:
    """All that is not words for people."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            one.name: facts(getattr(value, one.name))
            for one in fields(value)
            if one.name not in SENTENCES | {"name", "refused"}
        }
    if isinstance(value, dict):
        return {key: facts(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [facts(one) for one in value]
    return value.value if isinstance(value, Enum) else value


@pytest.fixture(params=[made_by_hand, of_version_0_1], scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    make: Callable[[Path], None] = request.param
    before, after = (tmp_path_factory.mktemp("runs") / name for name in ("before", "after"))
    make(before)
    shutil.copytree(before, after)
    assert rename(after) > 20
    return before, after


def both(runs: tuple[Path, Path]) -> tuple[Findings, Findings]:
    before, after = runs
    return read_findings(before), read_findings(after)


def test_verdicts_and_findings_are_the_same(runs):
    before, after = both(runs)
    assert not before.unanswered
    assert facts(before) == facts(after)


def test_advice_is_the_same(runs):
    before, after = ([(one.rule, one.severity, one.because) for one in advise(found)] for found in both(runs))
    assert before
    assert before == after


@pytest.mark.parametrize("limit", [None, *Outcome])
def test_the_gate_is_the_same(runs, limit):
    before, after = (gate.exit_code(records.read(folder), limit) for folder in runs)
    assert before == after


def test_a_comparison_with_the_renamed_run_finds_no_difference(runs, tmp_path):
    found = compare(*runs)
    itself = compare(runs[0], shutil.copytree(runs[0], tmp_path / "copy"))
    assert found.cases
    assert [one.direction for one in (*found.cases, *found.changes)] == [
        one.direction for one in (*itself.cases, *itself.changes)
    ]
    assert (found.only_before, found.only_after) == ((), ())


def test_advice_does_not_depend_on_its_own_words(runs, monkeypatch):
    before, _ = both(runs)
    expected = [one.rule for one in advise(before)]
    for name in ("cheapest", "effort", "interval", "points", "quality", "seen", "waiting", "number", "plural"):
        monkeypatch.setattr(conditions, name, lambda *a, **k: "words")
    assert [one.rule for one in advise(before)] == expected


@pytest.mark.parametrize("module", ["findings/*", "verdict", "records", "questions/updates"])
def test_what_decides_does_not_import_what_words(module):
    files = list(Path(audit.__file__).parent.glob(f"{module}.py"))
    assert files
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert "leakgauge.audit.wording" not in imported
