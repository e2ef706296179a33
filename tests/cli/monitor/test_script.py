"""A user's script under the monitor: it runs as by python, the right optimizer is found, mistakes are one sentence."""

from __future__ import annotations

import subprocess
import sys

import pytest
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from leakgauge.audit.questions import training
from leakgauge.cli.monitor.training import named_loss, run_script
from leakgauge.errors import BadInput


@pytest.fixture(autouse=True)
def _nothing_stays_behind():
    argv, path = list(sys.argv), list(sys.path)
    hooks = (modules._global_forward_pre_hooks, optimizers._global_optimizer_pre_hooks)
    hooks = (*hooks, optimizers._global_optimizer_post_hooks)
    before = [len(h) for h in hooks]
    yield
    assert (sys.argv, sys.path) == (argv, path)
    assert [len(h) for h in hooks] == before


def test_model_optimizer_and_loss_are_found(write, recording):
    made, seen = recording()
    run_script(made, write(), ["3"])
    made.finish("finished")
    found = training.read(made.folder)
    assert (found.about["model"], found.about["optimizer"], found.about["loss"]) == (
        "Sequential",
        "SGD",
        "CrossEntropyLoss",
    )
    assert found.about["parameters"] == 12 * 16 + 16 + 16 * 3 + 3
    assert [report["step"] for report in found.reports] == [10, 20, 30, 40, 50, 60]  # three epochs of 20
    assert found.reports[-1]["scalars"]["privacy/whitebox/auc"] > 0.5
    assert "no input" not in found.reports[-1]["skipped"]
    assert found.end["how"] == "finished"
    assert seen[-1].end == found.end


def test_the_script_trains_as_it_does_without_us(write, recording, capfd):
    made, _ = recording()
    script = write()
    run_script(made, script, [])
    watched = capfd.readouterr().out
    alone = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout
    assert watched == alone
    assert watched.startswith("weights ")


def test_the_outermost_model_is_watched(write, recording):
    made, _ = recording()
    wrapped = "torch.optim.SGD((model := nn.Sequential(nn.Sequential(model), nn.Identity())).parameters(), lr=0.1)"
    run_script(made, write(optimizer=wrapped), ["5"])
    made.finish("finished")
    assert set(training.read(made.folder).reports[-1]["layers"]) >= {"0.0.0.weight", "0.0.2.weight"}


def test_a_closure_is_read_after_it_ran(write, recording):
    made, _ = recording()
    run_script(made, write(step="optimizer.step(lambda: criterion(model(a), b))"), [])
    made.finish("finished")
    assert training.read(made.folder).reports[-1]["step"] == 40


@pytest.mark.parametrize(
    ("called", "given"),
    [
        ("nn.functional.cross_entropy", None),
        ("nn.functional.cross_entropy", "cross_entropy"),
        ("nn.functional.cross_entropy", "CrossEntropyLoss"),
        ("__import__('functools').partial(nn.functional.cross_entropy, label_smoothing=0.1)", "own.py:smoothed"),
    ],
)
def test_the_probe_works_with_a_loss_that_is_a_function(write, recording, tmp_path, monkeypatch, called, given):
    monkeypatch.chdir(tmp_path)
    own = "from functools import partial\nfrom torch.nn import functional as F\n"
    (tmp_path / "own.py").write_text(own + "smoothed = partial(F.cross_entropy, label_smoothing=0.1)\n")
    made, _ = recording()
    run_script(made, write(loss=called), [], loss=None if given is None else named_loss(given))
    made.finish("finished")
    newest = training.read(made.folder).reports[-1]
    assert not any("white-box probe off" in note for note in newest["notes"])
    assert newest["scalars"]["privacy/whitebox/pooled_auc"] > 0.5


def test_another_loss_turns_the_probe_off_and_says_so(write, recording):
    made, _ = recording()
    run_script(made, write(loss="lambda z, y: nn.functional.mse_loss(z, nn.functional.one_hot(y, 3).float())"), [])
    made.finish("finished")
    newest = training.read(made.folder).reports[-1]
    assert any("white-box probe off: the loss is not cross entropy" in note for note in newest["notes"])
    assert newest["scalars"]["privacy/pairs"] > 0


@pytest.mark.parametrize("spec", ["cross_entropie", "math:tau", "CrossEntropyLoss:"])
def test_a_loss_that_is_none_is_refused(spec):
    with pytest.raises(BadInput):
        named_loss(spec)


def test_several_optimizers_are_refused_with_a_hint(write, recording):
    made, _ = recording()
    two = "torch.optim.SGD(model[0].parameters(), lr=0.1); other = torch.optim.Adam(model[2].parameters())"
    caught = "\n        try:\n            optimizer.step(); other.step()\n        except Exception: pass"
    with pytest.raises(BadInput, match=r"several optimizers \(Adam, SGD\); call leakgauge.monitor.watch\(model"):
        run_script(made, write(optimizer=two, step=caught), [])


def test_parameters_of_no_module_are_refused(write, recording):
    made, _ = recording()
    loose = "torch.optim.SGD([*model.parameters(), torch.zeros(2, requires_grad=True)], lr=0.1)"
    with pytest.raises(BadInput, match="no single module that the script called"):
        run_script(made, write(optimizer=loose), [])


def test_what_the_monitor_refuses_is_said(write, recording):
    made, _ = recording()
    lbfgs = "torch.optim.LBFGS(model.parameters())"
    with pytest.raises(BadInput, match="LBFGS evaluates many gradients"):
        run_script(made, write(optimizer=lbfgs, step="optimizer.step(lambda: criterion(model(a), b))"), [])


@pytest.mark.parametrize(
    "compiled", ["torch.compile(model, backend='eager')", "(model.compile(backend='eager'), model)[1]"]
)
def test_compiled_models_are_refused_before_they_are_compiled(write, recording, compiled):
    made, _ = recording()
    with pytest.raises(BadInput, match=r"torch\.compile traces through the monitor's hooks"):
        run_script(made, write(optimizer=f"torch.optim.SGD((model := {compiled}).parameters(), lr=0.1)"), [])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("raise ValueError('three\\nlines')", r"raised ValueError: three lines in line 1"),
        ("import math\ndef f():\n    math.sqrt(-1)\nf()", r"raised ValueError: .* in line 3"),
        ("import sys\nsys.exit(3)", "ended with exit code 3"),
        ("import sys\nsys.exit()", "ended without a step of a torch optimizer, so nothing was measured"),
        ("x = 1", "ended without a step of a torch optimizer, so nothing was measured"),
        ("def f(:", "raised SyntaxError"),
        ("raise GeneratorExit", "raised GeneratorExit in line 1"),
    ],
)
def test_mistakes_are_one_sentence(recording, tmp_path, text, sentence):
    made, _ = recording()
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(BadInput, match=sentence) as mistake:
        run_script(made, tmp_path / "bad.py", [])
    assert "\n" not in str(mistake.value)
    assert not training.exists(made.folder)


def test_a_missing_script(recording, tmp_path):
    made, _ = recording()
    with pytest.raises(BadInput, match="there is no file"):
        run_script(made, tmp_path / "nope.py", [])


def test_neighbours_of_the_script_can_be_imported(write, recording, tmp_path):
    made, _ = recording()
    (tmp_path / "my_neighbour.py").write_text("RATE = 0.1\n")
    run_script(made, write(optimizer="torch.optim.SGD(model.parameters(), lr=__import__('my_neighbour').RATE)"), [])
    assert sys.modules.pop("my_neighbour").RATE == 0.1


def test_an_interrupted_script_keeps_what_was_seen(write, recording):
    made, _ = recording()
    with pytest.raises(KeyboardInterrupt):
        run_script(made, write(end="raise KeyboardInterrupt"), [])
    made.finish("interrupted")
    found = training.read(made.folder)
    assert [report["step"] for report in found.reports] == [10, 20]
