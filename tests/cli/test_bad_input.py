"""Every mistake of a user: one sentence on stderr, exit code 2, nothing half-written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from leakgauge.audit import plan, records
from leakgauge.audit.questions import answers

FAST = ("--option", "steps=2")


@pytest.fixture(autouse=True)
def _nothing_half_written(tmp_path):
    yield
    assert not [p for p in tmp_path.rglob("*") if p.suffix in (".part", ".tmp")]


@pytest.mark.parametrize("command", ["audit", "attack"])
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["missing.py:make"], "there is no file missing.py"),
        (["my_model.py:mkae"], "has no 'mkae'; did you mean make"),
        (
            ["my_model.py:number", "--data", "photos"],
            "must return a torch.nn.Module, a module and its Pixels (or Series, Table, Tokens), a Victim or a LanguageModel; got int",
        ),
        (["my_model.py:broken"], "broken() in my_model.py raised RuntimeError: no weights here"),
        (["my_model.py:make"], "does not say which images it takes"),
        (["nonsense"], "cannot read 'nonsense' as a model"),
        (["my_model.py:make", "--data", "nowhere"], "nowhere does not exist"),
        (["my_model.py:liar"], "does not take images of shape 3x9x9: RuntimeError"),
        (["my_model.py:liar", "--data", "photos", "--resize"], "does not take images of shape 3x9x9: RuntimeError"),
        (["my_model.py:liar", "--data", "photos"], "8 × 8 pixels (height × width) but the model takes 9 × 9"),
        (["my_model.py:nan", "--data", "photos"], "holds NaN or Inf"),
        (["--attack", "inverting_gradient"], "unknown attack 'inverting_gradient'; did you mean inverting_gradients"),
        (["--defense", "prunne:0.5"], "unknown defense 'prunne'; did you mean prune"),
        (["--defense", "withhold:haed"], "'haed' is not a role of a model; did you mean head"),
        (["--defense", "prune:1.5"], "fraction between 0 and 1, got 1.5"),
        (["--reveal", "label"], "did you mean labels"),
        (["--batch-size", "0"], "batch size must be at least 1, got 0"),
        (["--batch-size", "-2"], "batch size must be at least 1, got -2"),
        (["--local-steps", "0"], "local steps must be at least 1, got 0"),
        (["--local-steps", "2", "--local-lr", "0"], "positive learning rate, got 0"),
        (["--classes", "0"], "number of classes must be at least 1, got 0"),
        (["--option", "steps=0"], "steps of at least 1"),
        (["--option", "steps=-5"], "steps of at least 1"),
        (["--option", "restarts=0"], "restarts of at least 1"),
        (["--option", "steps"], "written NAME=VALUE"),
        (["--option", "stesp=3"], "no option 'stesp'; it takes steps, restarts"),
        (["--mode", "test"], "needs mode as 'train' or 'eval', got 'test'"),
        (["--device", "tpu"], "device must be cpu or cuda, got 'tpu'"),
        (["--batch-size", "5000"], "the data holds 1000"),
        (["--out", "a_file/run"], "cannot make the output folder a_file/run"),
        (["--out", "a_file"], "cannot make the output folder a_file"),
    ],
)
def test_one_sentence(command, words, sentence, leakgauge, model, photos, tmp_path):
    (tmp_path / "a_file").write_text("I am a file")
    quick = () if any("steps" in word for word in words) else FAST
    assert sentence in leakgauge(command, *words, *quick).sentence


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["my_model.py:liar"], "does not take images of shape 3x9x9"),
        (["my_model.py:nan", "--data", "photos"], "holds NaN or Inf"),
        (["--batch-size", "0"], "batch size must be at least 1, got 0"),
        (["--budget", "soon"], "positive time such as 90s"),
        (["--budget", "0"], "positive time such as 90s"),
        (["--resume"], "nothing to resume"),
        (["--resume", "--out", "photos"], "nothing to resume"),
        (
            ["--only", "update"],
            "--only takes a question, one of updates, training, split, defenses, properties; got 'update'",
        ),
        (["--skip", "everything"], "--skip takes a question"),
        (["--only", "split", "--skip", "training"], "either --only or --skip"),
        (["--skip", "updates", "--skip", "training", "--skip", "split", "--skip", "defenses"], "nothing is left to do"),
        (["--skip", "updates", "--explain"], "--explain tries changes of a case"),
        (["--skip", "updates", "--fail-over", "partial"], "judge the cases of the question updates"),
        (["--epochs", "-1"], "--epochs must be at least 0, got -1"),
        (["--training-steps", "0"], "--training-steps must be at least 1, got 0"),
        (["my_model.py:make", "--data", "photos", "--only", "split"], "a scan needs at least 50 images"),
        (["my_model.py:make", "--data", "photos", "--only", "training"], "needs at least 32 images"),
    ],
)
def test_one_sentence_where_the_steps_are_planned_from_a_budget(words, sentence, leakgauge, model, photos):
    assert sentence in leakgauge("audit", *words).sentence


def test_a_model_file_that_raises(leakgauge, tmp_path):
    (tmp_path / "bad.py").write_text("import torch\nraise ValueError('three\\nlines\\nlong')")
    assert "bad.py raised ValueError: three lines long" in leakgauge("attack", "bad.py:make").sentence


def test_an_unreadable_image(leakgauge, model, photos, tmp_path):
    (tmp_path / "photos/class1/9.png").write_bytes(b"\x89PNG no picture")
    assert "9.png cannot be read as an image" in leakgauge("attack", f"{model}:make", "--data", photos).sentence


def test_a_folder_without_images(leakgauge, model, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "empty holds no images" in leakgauge("attack", f"{model}:make", "--data", "empty").sentence


def test_images_of_mixed_sizes(leakgauge, model, photos, picture):
    picture("photos/class2/9.png", size=(9, 8))
    assert "the images differ in size" in leakgauge("attack", f"{model}:make", "--data", photos).sentence


def test_labels_out_of_range(leakgauge, model, photos, picture):
    picture("photos/class9/9.png")
    said = leakgauge("attack", f"{model}:make", "--data", photos, *FAST)
    assert "labels must be in 0..2 for a model with 3 classes, the data has 0..3" in said.sentence
    said = leakgauge("audit", f"{model}:make", "--data", photos)
    assert "labels must be in 0..2" in said.sentence


def test_a_run_is_not_overwritten(leakgauge):
    assert leakgauge("attack", *FAST, "--out", "run", "-q").code == 0
    assert "run already holds a run" in leakgauge("attack", *FAST, "--out", "run").sentence


def test_a_device_that_is_not_there(leakgauge, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "no CUDA device is available here" in leakgauge("attack", "--device", "cuda", *FAST).sentence


def test_a_report_of_nothing(leakgauge, tmp_path):
    assert "is not a run folder" in leakgauge("report", "nowhere").sentence
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / records.FILE).write_text("{}\n")
    assert "line 1 of" in leakgauge("report", "run").sentence


def test_a_folder_that_cannot_be_written_to(leakgauge, monkeypatch, tmp_path):
    """As root every folder can be written to, so the answer of the system is played."""
    (tmp_path / "locked").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: not (str(path).endswith("locked") and mode == os.W_OK))
    assert "cannot write to the output folder locked" in leakgauge("attack", *FAST, "--out", "locked").sentence


def test_a_full_disk(leakgauge, monkeypatch, tmp_path):
    """The first record fits, the second does not: the first is kept whole."""
    write, full = os.write, [False]

    def short(descriptor, data):
        if Path(f"/proc/self/fd/{descriptor}").readlink().name != records.FILE:
            return write(descriptor, data)
        if full[0] and len(data) > 50:
            return write(descriptor, data[:50])
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        full[0] = True
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", short)
    said = leakgauge("audit", "--only", "updates", "--batch-size", 1, *FAST, "--out", "run", "-q")
    assert "No space left on device" in said.sentence
    assert "finished work is kept" in said.sentence
    monkeypatch.setattr(os, "write", write)
    (kept,) = records.read(tmp_path / "run")
    assert kept.status == "done"
    assert leakgauge("audit", "--resume", "--out", "run", "-q").code == 0
    every = plan.read(tmp_path / "run").every_case
    assert [(r.key, r.status) for r in records.read(tmp_path / "run")] == [(case.key(), "done") for case in every]


def test_a_full_disk_while_a_picture_is_written(leakgauge, monkeypatch, tmp_path):
    opened = os.fdopen

    def full(descriptor, *how):
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if path.endswith(".part") and "reconstruction" in path:
            os.write(descriptor, b"half")
            os.close(descriptor)
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return opened(descriptor, *how)

    monkeypatch.setattr(os, "fdopen", full)
    assert "No space left on device" in leakgauge("attack", *FAST, "--out", "run", "-q").sentence
    assert not (tmp_path / "run" / records.FILE).exists()


def test_ctrl_c_in_the_middle(leakgauge, model, photos, tmp_path):
    words = ("audit", f"{model}:interrupted", "--data", photos, "--only", "updates", "--mode", "eval")
    said = leakgauge(*words, *FAST, "--out", "run", "-q")
    assert said.code == 130
    assert said.err.startswith("leakgauge: interrupted; finished work is kept")
    assert "Traceback" not in said.err
    (kept,) = records.read(tmp_path / "run")
    assert kept.case.batch_size == 4  # the set-up that counts comes first


def test_ctrl_c_while_the_plan_is_made(leakgauge, model, photos, tmp_path):
    words = ("audit", f"{model}:impatient", "--data", photos, "--skip", "defenses", "--mode", "eval", "--batch-size", 1)
    said = leakgauge(*words, *FAST, "--training-steps", 5, "--epochs", 1, "--out", "run", "-q")
    assert said.code == 130
    assert said.err.endswith("resume with: leakgauge audit my_model.py:impatient --resume --out run\n")
    (tmp_path / "go_on").touch()
    said = leakgauge("audit", f"{model}:impatient", "--resume", "--out", "run")
    assert said.code == 0, said.err
    assert "split: refused: a scan needs at least 50 images" in said.out
    assert [(q, a.status) for q, a in answers.read(tmp_path / "run").items()] == [
        ("updates", "answered"), ("training", "refused"), ("split", "refused")
    ]  # fmt: skip


def test_a_mistake_leaves_nothing_to_resume(leakgauge, model, photos, tmp_path):
    """The same folder can be used once the mistake is corrected."""
    words = ("audit", "--data", photos, "--only", "updates", *FAST, "--out", "run", "-q")
    assert "must return a torch.nn.Module" in leakgauge(*words, f"{model}:number").sentence
    assert "does not take images" in leakgauge(*words, "--resize", f"{model}:liar").sentence
    assert "nothing to resume" in leakgauge("audit", "--resume", "--out", "run").sentence
    assert leakgauge(*words, f"{model}:make", "--mode", "eval").code == 0
    assert "run already holds a run" in leakgauge(*words, f"{model}:make").sentence
