"""The feasibility study: its page follows from its rows, its parts run with --quick, its optimizers are torch's."""

import runpy
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from leakgauge.audit.verdict import OUTLINED
from leakgauge.channels import Gradient
from leakgauge.core import Labels, Pixels, Size, Victim, share
from leakgauge.data.embedded import photographs
from leakgauge.inversion import Cosine
from leakgauge.inversion.latent import SPREAD
from reproductions.common import gates
from reproductions.common.networks import ResNet18
from reproductions.common.runner import Options, Rows, measured_on, read
from reproductions.common.sheets import CIFAR_SPACE
from reproductions.common.verdicts import Word
from reproductions.practical_feasibility import (
    claims,
    closed_form,
    confusion,
    control,
    control_longer,
    freeze_layout,
    large,
    start_scores,
    starts,
    stems,
    tables,
    train_mode,
    train_mode_longer,
)  # fmt: skip
from reproductions.practical_feasibility.image_network import ImageNetwork
from reproductions.practical_feasibility.networks import Network
from reproductions.practical_feasibility.optimizers import Muon, Nesterov
from reproductions.practical_feasibility.setting import RESULTS

FOLDER = Path(tables.__file__).parent
PARTS = ("accuracy", "small", "large", "shared_statistics", "detection", "freeze_thresholds", "freeze_layout")


def test_a_figure_whose_pictures_are_not_here_stays_as_it_is(tmp_path, monkeypatch):
    for path in RESULTS.glob("*.jsonl"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "control.png").write_text("from before")
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    tables.draw()
    assert {path.name for path in tmp_path.iterdir() if path.suffix != ".jsonl"} == {"control.png", "starts.svg"}
    assert (tmp_path / "control.png").read_text() == "from before"


def test_the_positive_control_passed_on_images_that_chose_nothing():
    won = claims.finals(RESULTS) | claims.longer_finals(RESULTS)
    assert claims.control_passed(RESULTS)
    assert set(won) == set(control.CASES)
    for row in won.values():
        assert gates.control(row["psnr"]).passed
        assert len(row["psnr"]) == control.IMAGES
        assert not gates.void(row["alive"])
    options = Options(quick=True, device=torch.device("cpu"), out=Path())
    reported, tuned_on = (control.targets(options, place, 2)[0] for place in (0, 1))
    assert not torch.equal(reported, tuned_on)


@pytest.mark.parametrize("part", [control, control_longer, stems, train_mode, train_mode_longer, starts])
def test_a_quick_control_runs_and_resumes(part, tmp_path, monkeypatch):
    monkeypatch.setattr(control, "UNTRAINED", control.UNTRAINED[:2])
    monkeypatch.setattr(control, "TRAINED", control.TRAINED[:2])
    monkeypatch.setattr(control, "FINALISTS", 1)
    monkeypatch.setattr(train_mode_longer, "SETTINGS", train_mode_longer.SETTINGS[1:2])
    monkeypatch.setattr(train_mode_longer, "FORMS", ("post",))
    networks = {"networks": ("swin_t",)} if part is starts else {}
    kind = starts.Options if part is starts else Options
    options = kind(quick=True, device=torch.device("cpu"), out=tmp_path, **networks)
    rows = Rows.resume(options, "part")
    part.run(options, rows)
    assert {row.get("kind") for row in rows.rows} & {"final", None}
    before = len(rows.rows)
    part.run(options, Rows.resume(options, "part"))
    assert len(read(rows.path)) == before


def test_vit_is_read_where_its_tokens_are_wider_than_there_are_patches(tmp_path):
    """Quick networks are 24 wide: 4 and 16 patches are solved for, 49 and 64 are not, and nothing is certified then."""
    rows = Rows.resume(quick(tmp_path), "closed_form")
    closed_form.run(quick(tmp_path), rows)
    found = {unit: (row["certified"], min(row["psnr"])) for unit, row in rows.done.items()}
    for unit in ("32, patches of 8", "32, patches of 16"):
        assert found[unit][0] == 2
        assert found[unit][1] > 80
    for unit in ("224, patches of 16", "32, patches of 4"):
        assert found[unit][0] == 0
        assert found[unit][1] < 40


def test_vit_of_large_images_is_trained_and_other_sizes_wait_for_weights(tmp_path, capsys):
    options = quick(tmp_path, trained=True)
    rows = Rows.resume(options, "closed_form")
    closed_form.run(options, rows)
    assert set(rows.done) == {"224, patches of 16, trained"}
    assert rows.rows[0]["gates"][0]["gate"] == "above chance"
    assert "no weights" in capsys.readouterr().out


def quick(out: Path, *, trained: bool = False) -> closed_form.Options:
    return closed_form.Options(quick=True, device=torch.device("cpu"), out=out, trained=trained)


def test_the_plain_power_is_the_cosine_over_all_parameters():
    model = ResNet18(width=4).eval()
    victim = Victim(model, Pixels((3, 32, 32), **CIFAR_SPACE))
    x, y = victim.space.encode(photographs(32)[:2]), torch.tensor([1, 2])
    seen = [share(victim, Gradient(), x[i : i + 1], y[i : i + 1], reveal=[Size(), Labels()]) for i in range(2)]
    attack = control.Setting(tv=0.0).attack(1, 1)
    plain = control.replace(attack, objective=Cosine())
    ours, theirs = (one.many(victim, seen) for one in (attack, plain))
    assert [a.loss for a in ours] == pytest.approx([b.loss for b in theirs], abs=1e-6)


def test_an_image_network_is_the_usual_modules_with_each_rows_weights():
    """Against torch's own layers, the weights of one row copied into them."""
    small = ImageNetwork(width=6, depth=2, inputs=4, side=16)
    weights = torch.randn(3, small.size, generator=torch.Generator().manual_seed(0)) * SPREAD
    made = small(weights)
    x = torch.rand(1, 4, 16, 16, generator=torch.Generator().manual_seed(0)) - 0.5
    left = weights[1]
    for number, (before, after) in enumerate([(4, 6), (6, 6), (6, 6), (6, 6), (6, 3)]):
        last, side = number == 4, 1 if number == 4 else 3
        layer = torch.nn.Conv2d(
            before, after, side, stride=2 if number < 2 else 1, padding=side // 2, padding_mode="reflect", bias=False
        )
        count = layer.weight.numel()
        values, shift, gain, left = left.split([count, after, after, len(left) - count - 2 * after])
        layer.weight.data = values.view_as(layer.weight) / SPREAD * ((1 if last else 2) / (before * side**2)) ** 0.5
        x = layer(torch.nn.Upsample(scale_factor=2, mode="bilinear")(x) if number in (2, 3) else x)
        if last:
            x = (x + shift.view(1, -1, 1, 1)).sigmoid()
        else:
            norm = torch.nn.InstanceNorm2d(after, affine=True)
            norm.weight.data, norm.bias.data = 1 + gain, shift
            x = torch.nn.functional.leaky_relu(norm(x), 0.2)
    assert not len(left)
    torch.testing.assert_close(made[1:2], x.detach(), atol=1e-5, rtol=1e-5)


def test_steps_that_fit_do_not_count_the_start_for_every_step():
    options = Options(quick=False, device=torch.device("cpu"), out=Path(), until=time.time() + 100)
    assert control.steps_within(options, lambda steps: 5 + 0.01 * steps) == pytest.approx(8500, rel=0.01)


def test_blocks_move_together():
    rng = torch.Generator().manual_seed(0)
    gradient = torch.randn(2, 1, 3, 8, 8, generator=rng)
    moved = control.Blocks(4)(gradient)
    assert moved.shape == gradient.shape
    assert torch.equal(moved[..., :4, :4], moved[..., :1, :1].expand(2, 1, 3, 4, 4))
    torch.testing.assert_close(moved[..., 0, 0], gradient[..., :4, :4].mean((-1, -2)))


def run_part(name: str, out: Path, monkeypatch) -> dict:
    monkeypatch.setattr(sys, "argv", [name, "--quick", "--device", "cpu", "--out", str(out)])
    return runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")


@pytest.mark.parametrize("name", PARTS)
def test_a_quick_part_gives_rows_and_a_table(name, tmp_path, monkeypatch):
    module = run_part(name, tmp_path, monkeypatch)
    assert "Stopped" not in measured_on(tmp_path / f"{name}.jsonl")
    cases = [row for row in read(tmp_path / f"{name}.jsonl") if row["unit"] != "image"]
    assert sum("refused" not in row for row in cases) >= 2
    for row in cases:
        if isinstance(row.get("attack"), dict):
            assert all(-1 <= value <= 1 for value in row["attack"]["ssim"])
            assert sum(row["oracle"]["ssim"]) >= sum(row["attack"]["ssim"]) - 1e-4
    lines = [line for line in module["table"](cases).splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines[:3]}) == 1
    assert [*tmp_path.glob("*.svg"), *tmp_path.glob("*.png")]
    before = (tmp_path / f"{name}.jsonl").read_text("utf-8")
    run_part(name, tmp_path, monkeypatch)  # nothing is left to do
    assert (tmp_path / f"{name}.jsonl").read_text("utf-8") == before


def test_pictures_of_imagenet_are_not_drawn_under_a_name_that_is_published(tmp_path):
    pictures = {f"net/{kind}": np.zeros((2, 3, 8, 8), np.uint8) for kind in ("truth", "attack", "oracle", "null")}
    large.draw([{"unit": "net", "data": "ImageNet"}], pictures, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["large.unpublished.png"]
    path = FOLDER / "results" / "large.unpublished.png"
    assert subprocess.run(["git", "check-ignore", "-q", str(path)], cwd=FOLDER, check=False).returncode == 0


@pytest.mark.parametrize(("name", "millions"), [("swin_t", 28.3), ("convnext_t", 28.6), ("resnet18_post", 11.7)])
def test_canonical_networks_have_the_published_size(name, millions):
    model, space, changes = Network(name, side=224, adapted=False).made(classes=1000, seed=0, quick=False)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.1)
    assert space.shape == (3, 224, 224)
    assert changes == "canonical"


def test_the_library_has_the_threshold_that_was_frozen():
    rows = read(RESULTS / "freeze_layout.jsonl")
    assert freeze_layout.freeze(rows)["layout"] == OUTLINED[0].margin


def test_agreement_with_the_paper_is_said_with_kappa():
    """6 Yes and 12 No, none of them feasible by us: 12 agree, which is what answering No would score."""
    counts = {(word, outcome): 0 for word in ("Yes", "No") for outcome in confusion.OUTCOMES}
    counts |= {("Yes", "partial"): 3, ("Yes", "inconclusive"): 3}
    counts |= {("No", "partial"): 4, ("No", "inconclusive"): 8}
    assert confusion.kappa(counts, ("feasible",)) == pytest.approx(0.0)
    assert confusion.kappa(counts, ("feasible", "partial")) == pytest.approx(0.16, abs=0.005)


@pytest.mark.parametrize("ours", [Muon, Nesterov])
def test_optimizers_are_those_of_torch(ours):
    rng = torch.Generator().manual_seed(0)
    start = [torch.randn(*shape, generator=rng) for shape in ((9, 4), (4, 9), (9, 4), (8, 3))]
    own, theirs = ([p.clone().requires_grad_() for p in start] for _ in range(2))
    rate = torch.tensor(0.1)
    if ours is Muon:
        mine = Muon([{"params": own, "weight_decay": 0.05}], rate)
        torchs = torch.optim.Muon(theirs, lr=0.1, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
    else:
        mine = Nesterov([{"params": own, "weight_decay": 0.05}], rate, 0.9)
        torchs = torch.optim.SGD(theirs, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.05)
    for number in range(4):
        if number == 2:  # a new rate is taken up without a new optimizer
            rate.fill_(0.02)
            torchs.param_groups[0]["lr"] = 0.02
        for parameters, optimizer in ((own, mine), (theirs, torchs)):
            optimizer.zero_grad()
            sum((p.sin().square().sum() for p in parameters), torch.zeros(())).backward()
            optimizer.step()
    for a, b, was in zip(own, theirs, start, strict=True):  # Muon orthogonalises in bfloat16
        assert (a - b).norm() < (0.15 if ours is Muon else 1e-5) * (a - was).norm()


def test_a_failing_gate_removes_reproduces(faulty):
    """A network at chance, or gradients of zero, take away what was found on it."""

    def words(folder):
        return {claim.paper: claim.word for claim in claims.claims(folder)}

    before = words(RESULTS)
    stem = next(paper for paper in before if paper.startswith("adapting ConvNeXt's stem"))
    swin = next(paper for paper in before if paper.startswith("Swin-T is recovered from starts"))
    post = "post-activation ResNet18 in inference mode: feasible"
    assert {before[stem], before[swin], before[post]} == {Word.REPRODUCES}
    folder = faulty(RESULTS, "accuracy", lambda row: {"accuracy": 0.11} if row["unit"] == "convnext_t" else {})
    still = gates.gradients_alive({"w": torch.zeros(3)}).row()
    faulty(folder, "starts", lambda row: {"alive": still} if row["unit"] == "final swin_t" else {})
    chance = gates.above_chance(0.1, 0.01, 10).row()
    faulty(folder, "control_longer", lambda row: {"gates": [chance]} if row["unit"] == "trained post" else {})
    after = words(folder)
    assert {after[stem], after[swin], after[post]} == {Word.NOT_TESTED}


def test_what_contradicts_needs_every_image_and_a_trained_network(faulty):
    paper = "ViT-B adapted to low resolution: not feasible"

    def word(change):
        folder = faulty(
            RESULTS, "closed_form", lambda row: change if row["unit"] == "32, patches of 4, trained" else {}
        )
        return next(claim.word for claim in claims.claims(folder) if claim.paper == paper)

    assert word({}) is Word.CONTRADICTS
    assert word({"ssim": [1.0] * 7 + [0.4]}) is Word.UNDECIDED
    assert word({"gates": [gates.above_chance(0.1, 0.01, 10).row()]}) is Word.NOT_TESTED


def test_a_difference_of_stems_within_its_error_is_undecided(faulty):
    paper = next(one.paper for one in claims.claims(RESULTS) if one.paper.startswith("Swin-T: ImageNet's stem"))

    def word(best):
        folder = faulty(RESULTS, "stems", lambda row: {"best": [best, best]} if row["unit"] == "final imagenet" else {})
        return next(claim.word for claim in claims.claims(folder) if claim.paper == paper)

    assert word([0.9] * 8) is Word.REPRODUCES
    assert word([0.3] * 8) is Word.UNDECIDED


def test_starts_of_many_images_are_scored(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["start_scores", "--quick", "--out", str(tmp_path)])
    start_scores.main()
    scores = [row["ssim"] for row in read(tmp_path / "start_scores.jsonl")]
    assert scores == sorted(scores, reverse=True)
    assert "first 2 test images" in start_scores.sentence(tmp_path)
