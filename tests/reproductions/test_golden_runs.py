"""How the split-inference study stops, fails and goes on: tries apart from measurements, finished parts, late decoders."""

import gc
import json
import weakref
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from reproductions.common.networks import IR152, VGG19


def test_a_quick_try_and_a_measurement_never_share_a_file(scripts, tmp_path):
    ledger = scripts["leaks"].Ledger
    ledger(tmp_path / "try.jsonl", quick=True).add("a", {"value": 1})
    assert json.loads((tmp_path / "try.jsonl").read_text()) == {"key": "a", "value": 1, "quick": True}
    with pytest.raises(SystemExit, match="holds a quick try, not full measurements; give another file with --results"):
        ledger(tmp_path / "try.jsonl")
    ledger(tmp_path / "run.jsonl").add("a", {"value": 1})
    with pytest.raises(SystemExit, match="holds full measurements, not a quick try"):
        ledger(tmp_path / "run.jsonl", quick=True)


def small_ir152(scripts, monkeypatch):
    monkeypatch.setitem(scripts["targets"].NETWORKS, "ir152", partial(IR152, units=(1, 1), widths=(4, 8), embedding=8))


def test_a_quick_try_is_kept_where_a_place_is_named(scripts, monkeypatch, tmp_path):
    small_ir152(scripts, monkeypatch)
    places = [
        "--results",
        str(tmp_path / "run.jsonl"),
        "--weights",
        str(tmp_path / "w"),
        "--pictures",
        str(tmp_path / "p"),
    ]
    scripts["run"].main(["--quick", "--part", "predictions", *places])
    rows = scripts["lookup"].read(tmp_path / "run.jsonl")
    assert len(rows) == 3 + 5
    assert all(row["quick"] for row in rows)
    shown = scripts["figures"].pictures_of(tmp_path / "p")
    assert set(shown) == {row["key"] for row in rows if "decoder" in row} | {"truth/quick"}
    assert len(shown["truth/quick"]) == len(shown["predictions/one-hot/Log"])


def test_a_finished_part_needs_no_network_on_a_fresh_machine(scripts, monkeypatch, tmp_path):
    small_ir152(scripts, monkeypatch)
    arguments = ["--quick", "--part", "predictions", "--results", str(tmp_path / "run.jsonl"), "--weights"]
    scripts["run"].main([*arguments, str(tmp_path / "one")])
    scripts["run"].main([*arguments, str(tmp_path / "other")])
    assert not (tmp_path / "other").exists(), "nothing was trained again"


def test_a_part_that_fails_does_not_stop_the_others_and_is_told(scripts, monkeypatch, capsys):
    done = []

    def broken(study):
        raise RuntimeError("CUDA error: something")

    monkeypatch.setitem(scripts["run"].PARTS, "faces", broken)
    monkeypatch.setitem(scripts["run"].PARTS, "zone", done.append)
    with pytest.raises(SystemExit, match="failed, see above: faces"):
        scripts["run"].main(["--quick", "--part", "faces", "--part", "zone"])
    assert len(done) == 1
    told = capsys.readouterr()
    assert "CUDA error: something" in told.err
    assert "== faces: failed" in told.out


def test_a_decoder_begun_in_time_may_end_within_the_grace(scripts, monkeypatch, tmp_path):
    small_ir152(scripts, monkeypatch)
    made = scripts["study"]
    study = scripts["run"].study_of(scripts["run"].options_of(["--quick"]), tmp_path)
    scripts["decoder_tables"].predictions(study)
    before = dict(study.ledger.done)
    now = made.time.monotonic()
    study.deadline = now - made.GRACE / 2
    study.stop_late()
    study.deadline = now - 2 * made.GRACE
    with pytest.raises(made.BudgetSpent):
        study.stop_late()
    monkeypatch.setattr(study, "go_on", lambda: None)
    del study.ledger.done["predictions/one-hot/Log"]
    (tmp_path / "run.jsonl").write_text("".join(json.dumps(row) + "\n" for row in study.ledger.done.values()))
    with pytest.raises(made.BudgetSpent):
        scripts["decoder_tables"].predictions(study)
    assert set(before) - set(study.ledger.done) == {"predictions/one-hot/Log"}


def test_a_log_of_training_that_cannot_be_made_does_not_stop_the_training(scripts, monkeypatch, tmp_path):
    def refuses(*_, **__):
        raise NotImplementedError("no derivative")

    monkeypatch.setattr(scripts["parts"], "snapshot", refuses)
    study = scripts["run"].study_of(scripts["run"].options_of(["--quick"]), tmp_path)
    scripts["parts"]._radius_watch(study, study.cifar(), "LS+", 0, block=52)(1, VGG19().eval())
    assert study.ledger.done["training/vgg19/quick/LS+/0/52/1"]["refused"] == "no derivative"


def test_logits_for_the_prediction_attack_are_exact(scripts, monkeypatch):
    """On a GPU features are bfloat16; the CPU is told to be one."""
    splits, leaks = scripts["splits"], scripts["leaks"]
    monkeypatch.setattr(leaks, "in_bfloat16", lambda device: torch.autocast("cpu", torch.bfloat16))
    model = IR152(units=(1, 1), widths=(4, 8), embedding=8).eval()
    images = splits.embedded(4, torch.device("cpu")).images
    with torch.no_grad():
        expected = model(splits.as_input(images))
    assert torch.equal(leaks.features_at(model, [], images, exact=True)["output"], expected)
    assert not torch.equal(leaks.features_at(model, [], images)["output"], expected)


def test_a_training_that_is_closed_lets_go_of_everything(scripts):
    """A recorded step and its training hold each other; features of the next part would find the memory taken."""
    targets, splits = scripts["targets"], scripts["splits"]
    part = splits.embedded(8, torch.device("cpu"))
    model = IR152(units=(1, 1), widths=(4, 8), embedding=8)
    training = targets.Training(model, part, targets.LABELS["LS+"], targets.Recipe(1, 1e-3, 0.0), 1, 4, 0)
    training.step = SimpleNamespace(owner=training)  # as a recording would
    kept = weakref.ref(training)
    training._once()
    assert any(p.grad is not None for p in model.parameters())
    gc.disable()
    try:
        training.close()
        del training
        assert kept() is None
    finally:
        gc.enable()
    assert all(p.grad is None for p in model.parameters())
