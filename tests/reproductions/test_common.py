"""What the reproductions share: gates that catch what they must, the five words, rows that survive a stop, and lanes."""

import hashlib
import os
import re
import runpy
import sys
import tarfile
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from reproductions.april import run as april
from reproductions.common import cut, gates, lanes, runner, scripts
from reproductions.common.runner import Rows, read
from reproductions.common.sheets import sheets
from reproductions.common.verdicts import Evidence, Word, judged
from reproductions.practical_feasibility import run as feasibility

CPU = torch.device("cpu")


def labels(n=1000, classes=10, seed=0):
    return torch.randint(classes, (n,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("classes", [2, 10])
def test_sorted_labels_are_caught(classes):
    mixed = labels(classes=classes)
    assert gates.shuffled(mixed).passed
    assert not gates.shuffled(mixed.sort().values).passed


def test_a_test_set_of_one_class_is_caught():
    assert gates.all_classes(labels(), 10).passed
    assert not gates.all_classes(torch.ones(800, dtype=torch.long), 2).passed


class Fixed(nn.Module):
    """Says what it was built to say."""

    def __init__(self, answers):
        super().__init__()
        self.answers = nn.Parameter(answers.float(), requires_grad=False)

    def forward(self, x):
        return self.answers[x.flatten().long()]


def test_a_dead_network_is_caught_even_where_one_class_is_frequent():
    y = (torch.arange(800) % 4 == 0).long()
    x = torch.arange(800)[:, None].float()
    always_zero = Fixed(torch.tensor([[1.0, 0.0]]).repeat(800, 1))
    balanced, error = gates.balanced_accuracy(always_zero, (x, y), 2)
    assert balanced == pytest.approx(0.5)  # its plain accuracy is 0.75
    assert not gates.above_chance(balanced, error, 2).passed
    right = Fixed(torch.eye(2)[y])
    assert gates.above_chance(*gates.balanced_accuracy(right, (x, y), 2), 2).passed


def test_zero_gradients_are_caught():
    assert gates.gradients_alive({"w": torch.randn(20)}).passed
    assert not gates.gradients_alive({"w": torch.zeros(20)}).passed
    assert not gates.gradients_alive({"w": torch.full((20,), 1e-9)}).passed
    assert not gates.gradients_alive({"w": torch.full((20,), float("nan"))}).passed


def test_an_unconverged_search_is_caught():
    assert gates.converged(2e-5, 0.0).passed
    assert gates.converged(0.02, 0.01).passed  # the truth itself is off by that much, in coarse arithmetic
    assert not gates.converged(0.013, 0.0).passed


def test_a_failed_control_and_a_collapsed_critic_are_caught():
    assert gates.control([19.0, 22.0]).passed
    assert not gates.control([12.3]).passed
    assert gates.critic_open(0.2, 0.4, known_leak=True).passed
    assert gates.critic_open(-0.1, 0.1, known_leak=False).passed
    for low, high in ((0.0, 0.0), (-0.07, -0.01)):
        assert not gates.critic_open(low, high, known_leak=True).passed


def test_void_rows_say_why():
    found = [gates.control([12.3]), gates.control([25.0]).row()]
    assert gates.void(found) == ["positive control: 12.3 dB, mean of 1 images; needed 20"]


def test_rows_hold_unless_data_or_network_fail():
    """A search that did not converge is no reason to drop what it found."""
    unconverged, failed = gates.converged(0.1, 0.0).row(), gates.control([12.3]).row()
    assert gates.hold([{}, {"gates": [unconverged, failed, gates.accurate(0.5, 100).row()]}])
    assert not gates.hold([{"gates": [gates.accurate(0.2, 100).row()]}])  # 0.19 is needed, less two errors
    assert gates.accurate(0.2, 10_000).passed
    assert not gates.accurate(0.72, 10_000, chance=0.72).passed


FULL = {"papers_scale": True, "papers_setting": True, "papers_metric": True, "repeats": 3}


@pytest.mark.parametrize(
    ("evidence", "word"),
    [
        ({"agrees": True}, Word.REPRODUCES),
        ({"agrees": False, **FULL}, Word.CONTRADICTS),
        ({"agrees": False, **FULL, "repeats": 2}, Word.UNDECIDED),
        ({"agrees": False, **FULL, "papers_metric": False}, Word.UNDECIDED),
        ({"agrees": False, **FULL, "control_passed": False}, Word.NOT_REACHED),
        ({"agrees": False, **FULL, "finished": False}, Word.NOT_REACHED),
        ({"agrees": False, **FULL, "gates_passed": False}, Word.NOT_TESTED),
        ({"agrees": True, "tested": False}, Word.NOT_TESTED),
        ({"agrees": None, **FULL}, Word.UNDECIDED),
    ],
)
def test_words_follow_their_rules(evidence, word):
    assert judged(Evidence(**evidence)) is word
    assert word.rule


def options(folder, **changes):
    return runner.Options(**({"quick": True, "device": CPU, "out": folder} | changes))


def test_rows_survive_a_stop(tmp_path):
    rows = Rows.resume(options(tmp_path, seed=3), "part")
    assert rows.path.name == "part_seed3.jsonl"  # rows of several seeds are not mixed
    rows.add("first", {"value": 1}, pictures={"a b/c": torch.rand(2, 1, 4, 4)})
    model = nn.Linear(3, 2)
    rows.save("net", model, half=True)
    with rows.path.open("a") as file:
        file.write('{"unit": "cut sh')
    again = Rows.resume(options(tmp_path, seed=3), "part")
    assert again.has("first")
    assert again.has(value=1)
    assert not again.has("cut sh")
    again.add("second", value=2, infinite=float("inf"), missing=float("nan"), several=(1, 2))
    with pytest.raises(ValueError, match="has the unit"):
        again.add("second", value=3)
    found = read(rows.path)
    assert [row["value"] for row in found] == [1, 2]
    assert (found[1]["infinite"], found[1]["missing"], found[1]["several"]) == (999.0, None, [1, 2])
    assert all({"device", "torch", "seed", "commit", "quick"} <= set(row) for row in found)
    assert list(again.pictures) == ["a b/c"]
    other = nn.Linear(3, 2)
    assert again.load("net", other)
    torch.testing.assert_close(other.weight, model.weight, atol=1e-3, rtol=1e-3)


def test_quick_and_full_rows_are_never_mixed(tmp_path):
    Rows.resume(options(tmp_path), "part").add("a", value=1)
    full = Rows.resume(options(tmp_path, quick=False), "part")
    assert not full.rows  # a trial is no result
    full.add("a", value=2)
    with pytest.raises(SystemExit, match="holds full results"):
        Rows.resume(options(tmp_path), "part")
    assert [row["value"] for row in read(full.path)] == [2]


def test_two_processes_share_a_file(tmp_path):
    one, two = (Rows.resume(options(tmp_path), "part") for _ in range(2))
    one.add("a", value=1)
    two.add("a", value=2)  # measured by both: the first stays
    two.add("b", value=3)
    one.add("c", value=4)
    assert {unit: row["value"] for unit, row in one.done.items()} == {"a": 1, "b": 3, "c": 4}


def test_a_part_says_when_it_is_complete(tmp_path):
    def run(options, rows):
        if not rows.has("easy"):
            rows.add("easy", value=1)
        with rows.attempt("hard"):
            if not options.allows(0):
                raise runner.NoTimeLeft("2 s")
            rows.add("hard", value=1 / options.seconds)

    part, drawn = runner.Part("part", run, lambda rows, _pictures, _out: drawn.append(len(rows))), []
    runner.run_part(part, options(tmp_path, until=0.0))
    path = tmp_path / "part.jsonl"
    assert "Stopped before its end" in runner.measured_on(path)
    with pytest.raises(SystemExit, match="failed, see above: hard"):  # options have no seconds
        runner.run_part(part, options(tmp_path))
    easier = runner.Part("part", lambda _options, rows: rows.has("hard") or rows.add("hard", value=2))
    for _ in range(2):  # the second time nothing is left to do
        assert runner.run_part(easier, options(tmp_path)).complete
        assert "Stopped" not in runner.measured_on(path)
        assert path.read_text().count('"unit": "end"') == 1
    Rows.resume(options(tmp_path), "part").add("more", value=3)
    assert "Stopped" in runner.measured_on(path)  # a script that has grown has work again
    assert drawn == [1, 1]


def test_every_committed_row_says_where_it_comes_from():
    files = sorted(runner.ROOT.glob("reproductions/*/results/*.jsonl"))
    assert len(files) > 30
    for path in files:
        rows = read(path)
        assert rows
        assert len({row["unit"] for row in rows}) > 1
        for row in rows:
            assert re.fullmatch(r"(before )?[0-9a-f]{12}(, [0-9a-f]{12})*", row["commit"]), (path, row["commit"])
            old = row["commit"].startswith("before")  # measured before the scripts noted it
            assert re.match(r"\d+\.\d+\.\d+", row["torch"]) or (old and row["torch"] == "unknown"), path
            assert row["device"].startswith(("NVIDIA ", "cpu")), path
            assert isinstance(row["seed"], int), path
            assert row["quick"] is False, path


def test_lanes_stop_in_time_and_pack_what_is_there(tmp_path, monkeypatch, capsys):
    """One lane ends, one is stopped; both leave their rows, and what must travel is cut into pieces."""
    monkeypatch.setattr(lanes, "GRACE", 0.0)
    monkeypatch.setattr(lanes, "PIECE", 1000)
    folder = tmp_path / "root" / "reproductions"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "fake.py").write_text(
        "import os, pathlib, sys, time\n"
        "out = pathlib.Path(sys.argv[sys.argv.index('--out') + 1])\n"
        "out.mkdir(parents=True, exist_ok=True)\n"
        "(out / f'{sys.argv[1]}.jsonl').write_text(os.environ['REPRODUCTION_COMMIT'])\n"
        "kept = out / 'weights' / 'fake' / f'{sys.argv[1]}.safetensors'\n"
        "kept.parent.mkdir(parents=True, exist_ok=True)\n"
        "kept.write_bytes(bytes(1500))\n"
        "time.sleep(float(sys.argv[1]))\n"
    )
    monkeypatch.setattr(lanes, "ROOT", folder.parent)
    plan = (
        lanes.Lane((lanes.Job("fake", ("0",)),)),
        lanes.Lane((lanes.Job("fake", ("60",)), lanes.Job("fake", ("1",)))),
    )
    monkeypatch.setitem(lanes.PLANS, "fake", plan)
    data = tmp_path / "data"
    data.mkdir()
    (data / "commit").write_text("abc123\n")
    out = tmp_path / "out"
    given = f"fake --out {out} --work {tmp_path / 'work'} --data {data} --limit 12 --device cpu"
    lanes.main(given.split())
    said = capsys.readouterr().out
    assert "fake_0: exit 0" in said
    assert "fake_60: exit -15" in said
    assert "fake_1: no time left" in said
    with tarfile.open(out / "rows.tar.gz") as archive:
        names = set(archive.getnames())
        assert {"fake/results/0.jsonl", "fake/results/60.jsonl", "logs/fake_0.log"} <= names
        assert archive.extractfile("fake/results/0.jsonl").read() == b"abc123"
    pieces = sorted(out.glob("weights.tar.*"))
    assert len(pieces) > 2
    whole = tmp_path / "weights.tar"
    whole.write_bytes(b"".join(piece.read_bytes() for piece in pieces))
    with tarfile.open(whole) as archive:
        assert len(archive.getnames()) == 2


def test_a_daemon_of_the_caller_is_tried_and_left_alone(monkeypatch):
    """Without a GPU the trial fails, and the lanes run without it; nothing is started or ended."""
    monkeypatch.setattr(lanes.shutil, "which", lambda name: pytest.fail("looked for a daemon of its own"))
    environment = {**os.environ, lanes.PIPE: "/nowhere", "CUDA_VISIBLE_DEVICES": ""}
    sharing = lanes.Sharing(environment)
    assert not sharing.works
    sharing.end()


def test_a_plan_without_its_data_does_not_begin(tmp_path):
    assert set(lanes.NEEDS) == set(lanes.PLANS)
    (tmp_path / "cifar10_train.zip").write_text("")
    with pytest.raises(SystemExit, match=r"has no cifar10_test.zip, which trained needs"):
        lanes.main(["trained", "--data", str(tmp_path), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_weights_that_do_not_fit_are_named_with_their_hash(tmp_path, monkeypatch):
    monkeypatch.setattr(lanes, "ALL", 8000)
    work, out = tmp_path / "work", tmp_path / "out"
    folder = work / "fake" / "results" / "weights"
    folder.mkdir(parents=True)
    out.mkdir()
    for name, size in (("small", 100), ("large", 9000)):
        (folder / f"{name}.safetensors").write_bytes(bytes(size))
    lanes.pack(work, out)
    with tarfile.open(out / "weights.tar.00") as archive:
        assert archive.getnames() == ["fake/results/weights/small.safetensors"]
    said = (work / "logs" / "weights.log").read_text()
    assert "large.safetensors" in said
    assert hashlib.sha256(bytes(9000)).hexdigest() in said


def test_a_study_runs_its_scripts_in_order_and_refuses_others(monkeypatch, capsys):
    ran = []
    monkeypatch.setattr(scripts.runpy, "run_module", lambda name, run_name: ran.append((name, sys.argv[1:])))
    scripts.run_scripts("reproductions.april", april.PARTS, ["width", "table1", "--quick"])
    assert ran == [(f"reproductions.april.{name}", ["--quick"]) for name in ("table1", "width")]
    scripts.run_scripts("reproductions.april", april.PARTS, ["noise_unscaled", "--quick"])
    assert ran[2:] == [("reproductions.april.noise", ["--unscaled", "--quick"])]
    with pytest.raises(SystemExit, match="2"):
        scripts.run_scripts("reproductions.april", april.PARTS, ["nothing"])
    for study, folder in ((april, "april"), (feasibility, "practical_feasibility")):
        scripts.run_scripts(f"reproductions.{folder}", study.PARTS, ["--list"])
    assert "Table 1" in capsys.readouterr().out


def test_archives_are_cut_to_their_first_images(tmp_path):
    labels = np.arange(300) % 10
    with zipfile.ZipFile(tmp_path / "whole.zip", "w") as archive:
        for number in range(3):
            with archive.open(f"sheet_{number:04d}.png", "w") as file:
                Image.fromarray(np.full((40, 40), number, np.uint8)).save(file, "PNG")
        with archive.open("labels.npy", "w") as file:
            np.save(file, labels)
    cut.main([str(tmp_path / "whole.zip"), str(tmp_path / "data" / "cut.zip"), "--images", "200"])
    (x, y), (whole, _) = sheets(tmp_path / "data" / "cut.zip"), sheets(tmp_path / "whole.zip")
    assert torch.equal(x, whole[:200])
    assert y.tolist() == labels[:200].tolist()
    with pytest.raises(SystemExit, match="multiple of 100"):
        cut.main([str(tmp_path / "whole.zip"), str(tmp_path / "cut.zip"), "--images", "250"])
    np.savez(tmp_path / "all.npz", x_test=np.ones((4, 2)), x_train=np.ones((9, 2)))
    cut.main([str(tmp_path / "all.npz"), str(tmp_path / "few.npz"), "--only", "x_test"])
    assert list(np.load(tmp_path / "few.npz")) == ["x_test"]


@pytest.mark.parametrize("name", sorted(lanes.PLANS))
def test_every_job_of_a_plan_takes_its_arguments(name, monkeypatch, capsys):
    """Each script reads its part of the command line; ``--help`` at the end stops it before it measures."""
    for job in (job for lane in lanes.PLANS[name] for job in lane.jobs):
        module = f"reproductions.{job.module}"
        assert job.seconds > 0
        monkeypatch.setattr(
            sys, "argv", [module, *job.arguments, "--out", "x", "--within", "1", "--device", "cpu", "--help"]
        )
        script = lanes.ROOT / f"{module.replace('.', '/')}.py"
        with pytest.raises(SystemExit) as stop:
            runpy.run_path(str(script), run_name="__main__")
        assert stop.value.code == 0, job
    lanes.main([name, "--list"])
    assert "the longest lane" in capsys.readouterr().out
