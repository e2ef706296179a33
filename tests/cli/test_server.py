"""A malicious server on the command line, in records and in the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakgauge.audit import records
from leakgauge.audit.findings import read_findings


def test_a_malicious_server_is_read_by_its_own_attack_and_named_everywhere(leakgauge, tmp_path):
    said = leakgauge("attack", "cnn", "--server", "imprint:bins=64", "--batch-size", 4, "--out", "run")
    assert said.code == 0, said.err
    assert "What a malicious server could reconstruct" in said.out
    (record,) = records.read(tmp_path / "run")
    assert (record.case.attack, record.case.server) == ("imprint", "imprint:bins=64")
    assert record.outcome == "feasible"
    sent = "server sends another model than the agreed one: ImprintServer(bins=64, change=0.01, gain=1.0)"
    assert sent in record.assumed("malicious")
    assert "--server imprint:bins=64" in record.command
    page = (tmp_path / "run/report.html").read_text("utf-8")
    assert "malicious: imprint:bins=" in page
    assert 'class="kind malicious"' in page
    assert "Check the model the server sends" in page
    assert "A malicious server could reconstruct private images" in page
    assert "an honest-but-curious server" not in page


def test_the_recorded_command_runs_the_same_case(leakgauge, tmp_path):
    leakgauge("attack", "cnn", "--server", "fishing:target=1", "--option", "steps=2", "--batch-size", 3, "--out", "run")
    (record,) = records.read(tmp_path / "run")
    words = record.command.split()[1:]
    assert leakgauge(*words, "--out", "again").code == 0
    (again,) = records.read(tmp_path / "again")
    assert (again.key, again.scores, again.notes) == (record.key, record.scores, record.notes)


def test_any_attack_may_be_tried_on_what_was_sent(leakgauge, tmp_path):
    said = leakgauge(
        "attack", "cnn", "--server", "imprint", "--attack", "inverting_gradients", "--option", "steps=2", "--out", "run"
    )
    assert said.code == 0, said.err
    (record,) = records.read(tmp_path / "run")
    assert record.case.attack == "inverting_gradients"
    assert record.status == "done"


def test_auxiliary_images_are_the_servers_too(leakgauge, tmp_path):
    for name, more in (("without", ()), ("with", ("--reveal", "auxiliary:32"))):
        leakgauge("attack", "cnn", "--server", "imprint:bins=24", "--batch-size", 16, *more, "--out", name)
    found = {name: records.read(tmp_path / name)[0] for name in ("without", "with")}
    filled = {name: int(record.notes[0].split(" of ")[0]) for name, record in found.items()}
    assert filled["with"] > filled["without"]


def test_a_refusal_is_recorded(leakgauge, tmp_path):
    said = leakgauge("attack", "cnn", "--server", "trap_weights", "--out", "run")
    assert said.code == 0, said.err
    (record,) = records.read(tmp_path / "run")
    assert (record.status, record.verdict) == ("refused", None)
    assert "the first layer is a Conv2d" in record.reason


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("imprnt", "unknown server 'imprnt'; did you mean imprint?"),
        ("imprint:bin=3", "server imprint has no option 'bin'; it takes bins, change"),
        ("imprint:bins=many", "server imprint takes a number as bins, got 'many'"),
        ("fishing:target=99", "the model has classes 0 to 9, but fishing asks for 99"),
    ],
)
def test_mistakes_end_with_one_sentence(leakgauge, tmp_path, spec, sentence):
    said = leakgauge("attack", "cnn", "--server", spec, "--out", "run")
    assert said.code == 2
    assert sentence in said.err
    assert not Path(tmp_path / "run" / "report.html").exists()


def test_a_captured_update_has_a_server_of_its_own(leakgauge, tmp_path):
    said = leakgauge("attack", "cnn", "--server", "imprint", "--update", "gone.safetensors")
    assert said.code == 2
    assert "--server" in said.err


def test_findings_keep_malicious_set_ups_apart(leakgauge, tmp_path):
    leakgauge("attack", "cnn", "--server", "imprint", "--out", "run")
    found = read_findings(tmp_path / "run").updates
    assert found is not None
    (update,) = found.every
    assert update.malicious
    assert not update.plain


def test_inspect_tells_a_malicious_model_from_the_agreed_one(leakgauge):
    honest = leakgauge("inspect", "cnn", "--batch-size", 8)
    assert honest.code == 0, honest.err
    assert "None of the 8 samples is isolated" in honest.out
    sent = leakgauge("inspect", "cnn", "--batch-size", 8, "--server", "imprint", "--first", 16)
    assert sent.code == 3, sent.err
    assert "samples are isolated" in sent.out
    assert "imprint.measure.weight" in sent.out
    assert leakgauge("inspect", "cnn", "--server", "imprint", "--quiet").out == ""


def test_inspect_refuses_in_one_sentence(leakgauge):
    said = leakgauge("inspect", "cnn", "--server", "trap_weights")
    assert said.code == 2
    assert "this model cannot be inspected: the first layer is a Conv2d" in said.err
