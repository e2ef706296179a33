"""Every example runs as a reader would run it, finds what it says it finds, and writes into its own folder alone."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from leakgauge.audit import records
from leakgauge.data import MEAN, STD, fashion
from leakgauge.models.pretrained import pretrained

FOLDER = Path(__file__).parents[2] / "examples"
Check = Callable[[str, Path], None]


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"(?<![\w.])[-+]?\d+(?:\.\d+)?", text)]


def decibels(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"(-?\d+(?:\.\d+)?) dB", text)]


def table_rows(said: str, out: Path) -> None:
    first = (out / "patients.csv").read_text().splitlines()[1].split(",")
    read = dict(part.split(": ") for part in (out / "first_row.txt").read_text().split(", "))
    assert read["ward"] == first[3]
    assert float(read["age"]) == float(first[0])
    assert float(read["weight"]) == pytest.approx(float(first[1]), abs=0.01)
    assert "a single row is certified exact" in said
    found, guessed = (int(share) for share in re.findall(r"(\d+)%", said))
    assert found > guessed + 20


def series_ecg(said: str, out: Path) -> None:
    (record,) = records.read(out)
    found, null = re.findall(r"correlation of (\d\.\d+), the null run has (-?\d\.\d+)", said)[0]
    assert float(found) == pytest.approx(record.scores.mean("correlation"), abs=0.006)
    assert float(found) > float(null) + 0.3
    assert "Series 2: correlation" in (out / "report.html").read_text()


def text_tokens(said: str, out: Path) -> None:
    sentence = "the patient said that the new pills make the pain in the left knee worse at night"
    assert f"both tables: {sentence}\n" in (out / "read.txt").read_text()
    assert said == (
        "the whole sentence is read, word by word: both tables; APRIL on bare attention. "
        "Refused: both tables, positions withheld."
    )


def gate_federation(said: str, out: Path) -> None:
    assert said == "the gate refused 5 of 5 plain updates and 0 of 5 with DP-SGD."
    assert len((out / "gate.jsonl").read_text().splitlines()) == 10


def lora_finetuning(said: str, out: Path) -> None:
    assert said == (
        "rank 4, after 3 steps: nothing; rank 64, first step: 0 of 2 sentences, 0 certified; "
        "rank 64, after 3 steps: 2 of 2 sentences, 2 certified."
    )
    assert "after 3 steps: Two hours of my life are gone.\n" in (out / "read.txt").read_text()


def own_model(said: str, out: Path) -> None:
    attack, null = decibels(said)
    assert "was reconstructed" in said
    assert attack > 18 > null
    assert [r.outcome for r in records.read(out)] == ["feasible"]
    assert (out / "report.html").is_file()


def huggingface_vit(said: str, out: Path) -> None:
    assert decibels(said)[0] > 60  # a closed form: exact up to float32
    opened, withheld, standard = records.read(out)
    assert (opened.outcome, withheld.status, standard.status) == ("feasible", "refused", "refused")
    assert "position_embedding" in withheld.reason
    assert (out / "report.html").is_file()


def lightning_training(said: str, out: Path) -> None:
    step, steps, auc, low, *_, fired = numbers(said)
    assert step == steps == 60
    assert auc == 1
    assert low > 0.8
    assert 16 <= fired <= 60
    assert "The alarm fired at step" in (out / "report.html").read_text()


def compose_an_attack(said: str, out: Path) -> None:
    assert decibels(said)[0] > 3
    assert len(list((out / "pictures").glob("*.png"))) == 1


def controlled_start(said: str, out: Path) -> None:
    by_model = {r.case.model: r for r in records.read(out) if "noisy_copy:0.5" in r.case.reveal}
    gained = {name: r.scores.mean("ssim") - r.null.mean("ssim") for name, r in by_model.items()}
    assert gained["cnn"] > 0.15 > 0.05 > gained["vit"]
    assert f"{by_model['cnn'].scores.mean('ssim'):.2f}" in said


def defenses(said: str, out: Path) -> None:
    assert said.startswith("behind 1 of 2 defenses")
    assert "gaussian_noise:relative=10 (in" in said.replace("gaussian noise", "gaussian_noise")
    assert [r.outcome is not None and r.outcome.leaks for r in records.read(out)] == [True, True, False]


def split_over_http(said: str, out: Path) -> None:
    found, blind = decibels(said)
    assert found > blind + 6
    (sent,) = torch.load(out / "features.pool1" / "sent.pt", weights_only=True)
    model = pretrained("vgg")
    with torch.no_grad():
        expected = model.features[:7]((fashion("test")[0][:8] - MEAN[0]) / STD[0])
    torch.testing.assert_close(sent, expected)


def timm_model(said: str, out: Path) -> None:
    share, *_ = numbers(said)
    assert share > 75
    assert "No cut of this network protects by itself" in said
    assert "layer3.0.act2" in (out / "report.html").read_text()


def opacus_training(said: str, out: Path) -> None:
    epsilon = numbers(said)[0]
    plain, clipped, noised = decibels(said)
    assert 0 < epsilon < 5
    assert min(plain, clipped) > 20 > 12 > noised
    assert said.count("(feasible)") == 2
    assert "(infeasible)" in said or "(inconclusive)" in said


def ray_run(said: str, out: Path) -> None:
    assert said == "2 cases run as Ray tasks gave the same records as here, to the last digit."
    here, there = records.read(out / "here"), records.read(out / "ray")
    assert [r.key for r in here] == [r.key for r in there]
    assert [r.scores for r in here] == [r.scores for r in there]
    assert (out / "ray" / there[0].pictures["reconstruction"]).is_file()


def flower_simulation(said: str, out: Path) -> None:
    plain, noised = decibels(said)
    assert plain > 13 > 10 > noised
    model, (images, labels) = pretrained("cnn"), fashion("test")
    loss = F.cross_entropy(model((images[:1] - MEAN[0]) / STD[0]), labels[:1])
    gradient = torch.autograd.grad(loss, list(model.parameters()))
    sent = load_file(out / "round-1-client-0/update.safetensors")
    for (name, before), expected in zip(model.named_parameters(), gradient, strict=True):
        torch.testing.assert_close(sent[name], before.detach() - 0.01 * expected)
    for client in range(2):
        assert (out / f"round-1-client-{client}/report.html").is_file()


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        table_rows,
        series_ecg,
        text_tokens,
        lora_finetuning,
        own_model,
        gate_federation,
        huggingface_vit,
        lightning_training,
        compose_an_attack,
        controlled_start,
        defenses,
        split_over_http,
        timm_model,
        opacus_training,
        ray_run,
        flower_simulation,
    )
}
"""What the quick run of each example must have found; the fast ones first."""


def test_every_example_is_checked_and_listed():
    found = {path.stem for path in FOLDER.glob("*.py")}
    listed = set(re.findall(r"^\| \[(\w+)\.py\]\(\1\.py\) \|", (FOLDER / "README.md").read_text(), re.M))
    assert found == set(CHECKS) == listed


@pytest.mark.parametrize("name", CHECKS)
def test_quick(name, tmp_path):
    places = {place: tmp_path / place for place in ("cwd", "home", "out")}
    for place in ("cwd", "home"):
        places[place].mkdir()
    # Lightning imports matplotlib, which lists the fonts of a machine once; that list is not the example's
    fonts = os.environ.get("MPLCONFIGDIR", str(Path.home() / ".cache" / "matplotlib"))
    done = subprocess.run(
        [sys.executable, FOLDER / f"{name}.py", "--quick", "--out", places["out"]],
        cwd=places["cwd"], env={**os.environ, "HOME": str(places["home"]), "MPLCONFIGDIR": fonts},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("Finding: ")
    CHECKS[name](last.removeprefix("Finding: "), places["out"])
    assert [str(path) for place in ("cwd", "home") for path in places[place].rglob("*")] == []


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("timm_model", "timm", "timm"),
        ("huggingface_vit", "transformers", "huggingface"),
        ("lightning_training", "lightning", "lightning"),
        ("opacus_training", "opacus", "opacus"),
        ("flower_simulation", "flwr", "flower"),
        ("flower_simulation", "ray", "ray"),
        ("ray_run", "ray", "ray"),
        ("lora_finetuning", "peft", "peft"),
    ],
)
def test_a_missing_extra_is_one_sentence(name, package, extra, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--quick", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert said == f"{package} is not installed; install it with: pip install '.[{extra}]' in your clone of leakgauge\n"
