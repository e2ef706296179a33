"""The commands as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import typer

from leakgauge.audit import plan, records, request
from tests.comparing import table

FAST = ("--option", "steps=2")


def test_attack_with_ones_own_model_and_pictures(leakgauge, model, photos, tmp_path):
    said = leakgauge(
        "attack", f"{model}:make", "--data", photos, "--option", "steps=20", "--option", "restarts=2", "--batch-size", 2,
        "--defense", "prune:0.1", "--defense", "clip:10", "--reveal", "labels", "--first", 2, "--seed", 5, "--out", "run",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert "report: run/report.html" in said.out
    assert "dB" in said.out
    (record,) = records.read(tmp_path / "run")
    assert record.status == "done"
    assert record.case.model == "my_model.py:make"
    assert record.case.first == 2
    assert record.defenses == ("Prune(fraction=0.1)", "Clip(norm=10)")
    assert record.victim.classes == 3
    assert record.victim.shape == (3, 8, 8)
    assert record.scores.mean("labels") == 1.0
    assert (tmp_path / "run/report.html").stat().st_size > 1000


def test_the_closed_form_recovers_a_rearranged_transformer_and_says_so_before(leakgauge, tmp_path):
    said = leakgauge("attack", "attention_first:vit", "--attack", "april_closed_form", "--out", "run")
    assert said.code == 0, said.err
    (record,) = records.read(tmp_path / "run")
    assert record.case.data == "fashion"
    assert record.scores.mean("psnr") > 50
    assert dict(record.stated)["unknown tokens against width"] == "49 against 64: enough"
    assert dict(record.stated)["predicted"] == "everything is recovered"
    page = (tmp_path / "run/report.html").read_text("utf-8")
    assert "What can be identified" in page
    assert "49 against 64: enough" in page


def test_a_declared_noise_is_among_what_the_adversary_is_taken_to_know(leakgauge, tmp_path):
    words = ("--option", "ridge=auto", "--option", "noise=1e-4", "--defense", "gaussian_noise:std=1e-4")
    said = leakgauge("attack", "attention_first:vit", "--attack", "april_closed_form", *words, "--out", "run")
    assert said.code == 0, said.err
    (record,) = records.read(tmp_path / "run")
    known = "deviation of the noise on each shared entry known (0.0001)"
    assert known in record.assumed("deployable")
    assert known in (tmp_path / "run/report.html").read_text("utf-8")


def test_the_closed_form_refuses_a_standard_transformer_with_the_reason(leakgauge, tmp_path):
    assert leakgauge("attack", "vit", "--attack", "april_closed_form", "--out", "run").code == 0
    (record,) = records.read(tmp_path / "run")
    assert record.status == "refused"
    assert "normalisation" in record.reason


def test_only_a_transformer_can_be_rearranged(leakgauge):
    said = leakgauge("attack", "attention_first:cnn", "--out", "run")
    assert said.code == 2
    assert "needs a vision transformer" in said.err


def test_attack_by_default_replaces_its_last_run(leakgauge, tmp_path):
    for seed in (1, 2):
        assert leakgauge("attack", *FAST, "--seed", seed, "-q").code == 0
    (record,) = records.read(tmp_path / "leakgauge-runs/attack")
    assert record.case.seed == 2
    shown = {record.pictures["truth"], *(frame.picture for frame in record.progress)}
    assert all((tmp_path / "leakgauge-runs/attack" / name).is_file() for name in shown)


def test_quiet_prints_nothing(leakgauge):
    said = leakgauge("attack", *FAST, "-q")
    assert (said.code, said.out, said.err) == (0, "", "")


def test_the_recorded_command_gives_the_same_record(leakgauge, tmp_path):
    import shlex

    assert leakgauge("attack", "vit", "--defense", "withhold:head", *FAST, "--seed", 3, "--out", "a", "-q").code == 0
    (first,) = records.read(tmp_path / "a")
    words = shlex.split(first.command)
    assert leakgauge(*words[1:], "--out", "b", "-q").code == 0
    assert table(records.read(tmp_path / "a")) == table(records.read(tmp_path / "b"))


def test_a_resumed_audit_gives_the_same_table(leakgauge, tmp_path):
    words = ("audit", "cnn", "--only", "updates", "--defense", "prune:0.5", "--batch-size", 1, *FAST, "--seed", 7, "-q")
    assert leakgauge(*words, "--out", "whole").code == 0
    found = records.read(tmp_path / "whole")
    assert [(r.case.mode, r.case.defenses) for r in found[:4]] == [
        (mode, guard) for mode in ("eval", "train") for guard in ((), ("prune:0.5",))
    ]
    assert found[4:]  # the ladder of train mode with the defense, but for what the grid holds
    assert all(r.change is not None for r in found[4:])
    assert not {"no defense", "eval mode"} & {r.change.name for r in found[4:]}
    assert leakgauge(*words, "--out", "cut").code == 0
    path = tmp_path / "cut" / records.FILE
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:100])  # killed in the middle of the third
    assert leakgauge(*words, "--resume", "--out", "cut").code == 0  # the same command again
    assert table(records.read(tmp_path / "cut")) == table(records.read(tmp_path / "whole"))
    assert leakgauge("audit", "--resume", "--out", "cut", "-q").code == 0


def test_a_resumed_audit_refuses_what_it_would_pass_over(leakgauge):
    small = ("audit", "cnn", "--only", "updates", "--mode", "eval", "--batch-size", 1, *FAST, "--out", "run")
    assert leakgauge(*small, "-q").code == 0
    said = leakgauge("audit", "vit", "--resume", "--out", "run", "--seed", 5, "--option", "steps=9").sentence
    assert "continues the audit as it was planned (MODEL was cnn, --option was steps=2, --seed was not given)" in said
    assert leakgauge("audit", "cnn", "--mode", "eval", "--resume", "--out", "run", "-q").code == 0
    assert leakgauge("audit", "--resume", "--out", "run", "--json", "gate.json", "--workers", 1, "-q").code == 0


def test_the_default_audit(leakgauge, tmp_path, monkeypatch):
    """All eight cases, with one step each; one of them explains itself by the others."""
    whole = request.default_cases
    monkeypatch.setattr(request, "default_cases", lambda **options: whole(**{**options, "steps": 1}))
    said = leakgauge("audit", "--only", "updates", "--seed", 2)
    assert said.code == 0, said.err
    found = records.read(tmp_path / "leakgauge-runs/audit")
    assert [r.key for r in found if r.change is None] == [c.key() for c in whole(steps=1, seed=2)]
    assert [r.case.server for r in found if r.change is not None] == ["imprint"]
    assert {r.status for r in found} == {"done"}
    assert "What an honest-but-curious server could reconstruct" in said.out
    explained = json.loads((tmp_path / "leakgauge-runs/audit/explanation.json").read_text())
    assert {step["name"] for step in explained["steps"]} == {
        "train mode", "batch four times as large", "Gaussian noise with 10× the gradient's norm"
    }  # fmt: skip


@pytest.fixture
def asked(leakgauge, monkeypatch):
    """What a command line asks for, without doing it."""
    from leakgauge.cli.audit import request_of

    found = []

    def stop_after(*options, **more):
        found.append(request_of(*options, **more))
        raise typer.Exit(0)

    monkeypatch.setattr("leakgauge.cli.audit.request_of", stop_after)

    def ask(*words):
        said = leakgauge("audit", *words)
        assert said.code == 0, said.err
        return found.pop()

    return ask


def test_which_audit_is_the_default(asked):
    for words, expected in [
        ((), request.default_cases()),
        (("--seed", 4), request.default_cases(seed=4)),
        (("--device", "cuda"), request.default_cases(device="cuda")),
    ]:
        made = asked(*words)
        assert list(made.cases[:-1]) == expected
        assert made.cases[-1].server == "imprint"
        assert (made.main, made.ladder, made.budget) == (expected[0], (), None)
        assert (made.split.model, made.split.data) == ("vgg", "fashion")
        assert made.questions == ("updates", "training", "split", "defenses")
    assert asked("--budget", "2m").budget == 120.0


def test_what_is_audited_of_ones_own(asked):
    request = asked("cnn", "--defense", "prune:0.5", "--skip", "training")
    assert [(c.mode, c.batch_size, c.defenses) for c in request.cases if c.change is None] == [
        (m, b, d) for m in ("eval", "train") for b in (1, 4) for d in ((), ("prune:0.5",))
    ]
    assert (request.main.mode, request.main.batch_size, request.main.defenses) == ("train", 4, ("prune:0.5",))
    assert request.ladder[0] == request.main
    assert len(request.ladder) > 5
    assert request.split.model == "cnn"
    assert request.split.defenses == ()
    assert request.budget == 600.0
    assert request.questions == ("updates", "split", "defenses")
    fixed = asked("cnn", "--option", "steps=5", "--training-steps", 7, "--epochs", 1)
    assert (fixed.effort.steps, fixed.effort.training, fixed.effort.epochs) == (5, 7, 1)
    assert fixed.budget is None  # nothing is left to be decided by time
    assert asked("cnn", "--option", "steps=5").budget == 600.0
    assert asked("cnn", "--option", "steps=5", "--only", "updates").budget is None
    explained = asked("cnn", "--explain", "--batch-size", 2)
    assert explained.questions == ("updates",)
    assert explained.cases[0] == explained.main
    assert explained.ladder == ()


def test_a_budget_is_planned_and_kept(leakgauge, model, photos, tmp_path):
    said = leakgauge(
        "audit", f"{model}:make", "--data", photos, "--only", "updates", "--mode", "eval", "--batch-size", 1, "--budget",
        "1s", "-q",
    )  # fmt: skip
    assert said.code == 0, said.err
    folder = tmp_path / "leakgauge-runs/audit"
    ready = plan.read(folder)
    main = next(case for case in ready.cases if not case.server)
    planned = {case.server for case in ready.cases} == {"", "imprint"}
    assert planned or any("malicious imprint" in note and "was left out" in note for note in ready.notes)
    assert ready.ladder == ()
    assert "single changes of the set-up were left out" in ready.notes[0]
    assert main.key() in {
        record.key for record in records.read(folder)
    }  # the set-up that counts is attacked whatever the time


def test_a_refusal_is_no_failure_and_a_crash_is(leakgauge, model, photos, monkeypatch, tmp_path):
    from leakgauge.attacks import ATTACKS

    said = leakgauge("attack", "--attack", "idlg", "--batch-size", 2, "--out", "refused")
    assert said.code == 0
    assert "refused: the sign rule" in said.out

    class Crashes:
        def __call__(self, victim, seen, /, *, seed=0):
            raise RuntimeError("boom [bold]")

    monkeypatch.setitem(ATTACKS, "crashes", Crashes)
    said = leakgauge("attack", "--attack", "crashes", "--out", "crashed")
    assert said.code == 1
    assert "error: RuntimeError: boom [bold]" in said.out


def test_local_steps_share_a_weight_update(leakgauge, tmp_path):
    """Two steps on a batch of three are six images, in the update and in what the report says."""
    training = ("--batch-size", 3, "--local-steps", 2, "--local-epochs", 2, "--local-lr", 0.1, "--optimizer", "adamw")
    assert leakgauge("attack", *training, *FAST, "--out", "run", "-q").code == 0
    (found,) = records.read(tmp_path / "run")
    assert found.channel.startswith("ShuffledFedAvg(epochs=2, lr=0.1, minibatch=3, optimizer=AdamW(")
    assert found.verdict.images == 6
    written = json.loads((tmp_path / "run/records.jsonl").read_text())["local"]
    assert written == {
        "steps": 4, "minibatch": 3, "images": 6, "epochs": 2.0, "lr": 0.1, "optimizer": "AdamW", "secret_order": True,
    }  # fmt: skip
    said = "4 on batches of 3 (2 epochs of 6 images, shuffled), learning rate 0.1, AdamW"
    assert said in (tmp_path / "run/report.html").read_text()


def test_other_data_for_an_embedded_model(leakgauge, photos, tmp_path):
    assert leakgauge("attack", "cnn", "--data", photos, "--resize", *FAST, "--out", "run", "-q").code == 0
    assert leakgauge("attack", "cnn", "--data", "photographs", *FAST, "--out", "more", "-q").code == 0
    assert records.read(tmp_path / "more")[0].victim.shape == (1, 28, 28)


def test_embedded_data_for_ones_own_model(leakgauge, model, tmp_path):
    assert leakgauge("attack", f"{model}:sized", *FAST, "--out", "run", "-q").code == 0
    (record,) = records.read(tmp_path / "run")
    assert record.case.data == "photographs"
    assert record.victim.shape == (3, 8, 8)
    assert (
        leakgauge("attack", f"{model}:sized", "--data", "fashion", "--resize", *FAST, "--first", 0, "-q").code == 2
    )  # 10 classes


def test_a_model_of_timm(leakgauge, tmp_path):
    said = leakgauge("attack", "timm:test_vit", "--classes", 5, *FAST, "--out", "run")
    assert said.code == 0, said.err
    (record,) = records.read(tmp_path / "run")
    assert record.victim.classes == 5
    assert record.status == "done"


def test_the_report_is_written_again(leakgauge, tmp_path):
    assert leakgauge("attack", *FAST, "--out", "run", "-q").code == 0
    page = tmp_path / "run/report.html"
    page.unlink()
    said = leakgauge("report", "run")
    assert said.out == "report: run/report.html\n"
    assert "<html" in page.read_text()
    assert leakgauge("report", "run", "-q").out == ""


def test_list_names_everything(leakgauge):
    from leakgauge.attacks import ATTACKS
    from leakgauge.channels import CHANNELS
    from leakgauge.defenses import DEFENSES
    from leakgauge.models import PRETRAINED

    said = leakgauge("list")
    assert said.code == 0
    by_options = {"gradient", "fedavg", "shuffled_fedavg"}  # said with --local-steps and the like
    for name in (*ATTACKS, *DEFENSES, *(set(CHANNELS) - by_options), *PRETRAINED):
        assert any(line.split()[:1] == [name] for line in said.out.splitlines()), name


def test_version(leakgauge):
    from leakgauge import __version__

    assert leakgauge("--version").out == f"leakgauge {__version__}\n"


# --- in a process of its own -------------------------------------------------------------------------------------------


def test_a_mistake_in_a_process_of_its_own(tmp_path):
    command = [sys.executable, "-m", "leakgauge", "attack", "missing.py:make"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "leakgauge: there is no file missing.py\n"


def test_a_real_interrupt(tmp_path):
    """Ctrl-C while the second case runs: the first is kept, the folder can be resumed."""
    command = [
        sys.executable,
        "-m",
        "leakgauge",
        "audit",
        "cnn",
        "--only",
        "updates",
        "--mode",
        "eval",
        "--option",
        "steps=200",
        "--out",
        "run",
    ]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=one_thread,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores Ctrl-C
    )  # fmt: skip
    try:
        path = tmp_path / "run" / records.FILE
        patience = time.monotonic() + 240
        while not (path.exists() and path.stat().st_size) and time.monotonic() < patience and run.poll() is None:
            time.sleep(0.05)
        time.sleep(0.5)  # an interrupt while the line is brought to the disk takes it back
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=120)
    finally:
        run.kill()
    assert run.returncode == 130, said
    assert said.strip().splitlines()[-1] == (
        "leakgauge: interrupted; finished work is kept, resume with: leakgauge audit cnn --resume --out run"
    )
    assert "Traceback" not in said
    assert len(records.read(tmp_path / "run")) == 1
    assert not list((tmp_path / "run").rglob("*.part"))


def test_explain_walks_the_ladder(leakgauge, tmp_path):
    said = leakgauge("audit", "cnn", "--explain", "--batch-size", 2, *FAST, "--out", "run")
    assert said.code == 0, said.err
    found = json.loads((tmp_path / "run/explanation.json").read_text())
    assert found["case"]["mode"] == "train"
    assert {"eval mode", "batch of 1", "running statistics shared"} <= {s["name"] for s in found["steps"]}
    assert "changes that flip the verdict:" in said.out
    (tmp_path / "run/explanation.json").unlink()
    assert leakgauge("audit", "--explain", "--resume", "--out", "run", "-q").code == 0
    assert json.loads((tmp_path / "run/explanation.json").read_text()) == found


def test_the_gate(leakgauge, tmp_path):
    words = ("attack", "cnn", "--attack", "inverting_gradients", "--option", "tv=0.01", "-q")
    files = ("--json", "gate.json", "--junit", "gate.xml")
    said = leakgauge(*words, "--option", "steps=200", "--fail-over", "partial", *files, "--out", "leaks")
    assert said.code == 3
    found = json.loads((tmp_path / "gate.json").read_text())
    assert [c["verdict"] for c in found["cases"]] == ["feasible"]
    assert 'failures="1"' in (tmp_path / "gate.xml").read_text()
    calm = ("--defense", "gaussian_noise:relative=1000.0")
    attack = ("attack", "cnn", *calm, *FAST, "--fail-over", "inconclusive", "--out", "calm", "-q")
    assert leakgauge(*attack).code == 0
    assert "takes infeasible, inconclusive or partial" in leakgauge("attack", "--fail-over", "never").sentence
    assert "no folder nowhere" in leakgauge("attack", "--json", "nowhere/x.json").sentence


def test_the_gate_judges_what_was_asked_for_and_not_the_changes(leakgauge, tmp_path):
    words = ("audit", "cnn", "--only", "updates", "--mode", "eval", "--batch-size", 1, *FAST, "-q")
    assert leakgauge(*words, "--json", "gate.json", "--out", "run").code == 0
    found = json.loads((tmp_path / "gate.json").read_text())["cases"]
    assert [case["name"] for case in found if "protocol" not in case["name"]] == ["cnn, eval mode, batch 1, strongest"]
    assert len(records.read(tmp_path / "run")) > 3
