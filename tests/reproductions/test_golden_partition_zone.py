"""The scripts of the split-inference reproduction: their arithmetic by hand, and a part from start to end on tiny networks."""

import importlib
import io
import json
import math
import zipfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from leakgauge.attacks import fit_on
from leakgauge.attacks.decoder import Deconvolution
from reproductions.common import gates
from reproductions.common.networks import IR152, VGG19, SplitViT
from reproductions.common.runner import Options, Part, Rows, read, run_part
from reproductions.common.verdicts import Word
from reproductions.golden_partition_zone import claims, entropy, results_rows, tables
from tests.engine.recordable import PlayedBack

CPU = torch.device("cpu")
FOLDER = Path(__file__).parents[2] / "reproductions" / "golden_partition_zone"
SCRIPTS = (
    "splits",
    "targets",
    "leaks",
    "study",
    "decoder_tables",
    "zone_part",
    "run",
    "decoders_quick",
    "check_splits",
)


@pytest.fixture
def scripts():
    return {name: importlib.import_module(f"reproductions.golden_partition_zone.{name}") for name in SCRIPTS}


@pytest.fixture
def whole(scripts):
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(256, (60, 3, 64, 64), generator=rng, dtype=torch.uint8)
    return scripts["splits"].Part(images, torch.arange(60) % 3)


def test_parts_share_no_image(scripts, whole):
    made = scripts["splits"].split("x", whole, shares=(0.5, 0.3, 0.2))
    assert [len(p.labels) for p in (made.train, made.auxiliary, made.test)] == [30, 18, 12]
    every = torch.cat([p.images for p in (made.train, made.auxiliary, made.test)]).flatten(1)
    assert len(every.unique(dim=0)) == 60
    assert made.classes == 3
    again = scripts["splits"].split("x", whole, shares=(0.5, 0.3, 0.2))
    assert torch.equal(made.test.images, again.test.images)
    assert scripts["splits"].apart(made).passed


def test_augmentation_only_mirrors_and_rolls(scripts):
    image = torch.arange(64 * 64).view(1, 1, 64, 64).remainder(251).to(torch.uint8)
    batch = image.expand(40, -1, -1, -1).contiguous()
    made = scripts["targets"].augmented(batch, torch.Generator().manual_seed(0))
    assert made.shape == batch.shape
    possible = {
        picture.roll((down, across), (1, 2)).numpy().tobytes()
        for picture in (image[0], image[0].flip(2))
        for down in range(-8, 9)
        for across in range(-8, 9)
    }
    assert all(one.contiguous().numpy().tobytes() in possible for one in made)
    assert len({one.contiguous().numpy().tobytes() for one in made}) > 20


def test_features_are_those_of_a_plain_forward_pass(scripts, whole):
    model = SplitViT(width=16, heads=2, depth=2, classes=3).eval()
    cuts = [model.cut(1), model.cut(2)]
    found = scripts["leaks"].features_at(model, cuts, whole.images[:5])
    x = scripts["splits"].as_input(whole.images[:5])
    with torch.no_grad():
        tokens = torch.cat([model.cls_token.expand(5, -1, -1), model.patch_embed(x)], 1) + model.pos_embed
        first = model.blocks[0](tokens)
    torch.testing.assert_close(found[cuts[0]].float(), first, atol=2e-2, rtol=2e-2)
    assert found["output"].shape == (5, 3)
    assert not model.blocks[0]._forward_hooks


def test_errors_by_hand(scripts):
    part = scripts["splits"].Part
    black, white = (torch.full((4, 3, 64, 64), v, dtype=torch.uint8) for v in (0, 255))
    images = torch.cat([black, white])
    leaks = scripts["leaks"]
    assert leaks.mean_image_error(images, images) == pytest.approx(0.25)
    assert leaks.mean_image_error(black, white) == pytest.approx(1.0)
    assert leaks.class_mean_error(part(images, torch.tensor([0] * 4 + [1] * 4))) == pytest.approx(0.0)
    assert leaks.class_mean_error(part(images, torch.tensor([0, 1] * 4))) == pytest.approx(0.25)


def test_the_papers_error_is_summed_over_channels(scripts, whole):
    features = whole.images[:, :, ::8, ::8].float() / 255
    fitted = fit_on(features, whole.images, decoder=Deconvolution(), epochs=1)
    found = scripts["leaks"].measured(fitted, features, whole.images)
    direct = (fitted.decode(features) - whole.images.float() / 255).square().mean().item()
    assert found["mse"] == pytest.approx(direct, rel=1e-5)
    assert found["mse_paper"] == pytest.approx(3 * direct, rel=1e-5)
    assert found["psnr_batches"] == pytest.approx(-10 * torch.tensor(direct).log10().item(), rel=1e-4)
    assert found["mse_best_twentieth"] <= found["mse"]


def test_sheets_are_cut_up_row_by_row(scripts, tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (150, 4, 4, 3), dtype=np.uint8)
    padded = np.concatenate([images, np.zeros((50, 4, 4, 3), np.uint8)])
    with zipfile.ZipFile(tmp_path / "cifar10_train_a.zip", "w") as archive:
        for number, hundred in enumerate(np.split(padded, 2)):
            sheet = np.zeros((40, 40, 3), np.uint8)
            for i, image in enumerate(hundred):
                sheet[4 * (i // 10) :, 4 * (i % 10) :][:4, :4] = image
            stream = io.BytesIO()
            Image.fromarray(sheet).save(stream, "PNG")
            archive.writestr(f"sheet_{number:04}.png", stream.getvalue())
        stream = io.BytesIO()
        np.save(stream, np.arange(150) % 10)
        archive.writestr("labels.npy", stream.getvalue())
    x, y = scripts["splits"].sheets(tmp_path / "cifar10_train_a.zip")
    assert torch.equal((x * 255).round().byte(), torch.from_numpy(images).permute(0, 3, 1, 2))
    assert y.tolist() == [i % 10 for i in range(150)]
    for other in ("cifar10_train_b.zip", "cifar10_train.zip"):  # the second is a cut of the same images
        (tmp_path / other).write_bytes((tmp_path / "cifar10_train_a.zip").read_bytes())
    with pytest.raises(SystemExit, match=r"lacks cifar10_test\.zip"):
        scripts["splits"].load(tmp_path, torch.device("cpu"))
    (tmp_path / "cifar10_test.zip").write_bytes((tmp_path / "cifar10_train_a.zip").read_bytes())
    files = scripts["study"].Files.of(tmp_path)
    assert (files.cifar, files.mnist) == (tmp_path, None)
    every = scripts["splits"].load(files.cifar, torch.device("cpu"))
    assert every.images.shape == (450, 3, 64, 64)
    assert every.labels.bincount().tolist() == [45] * 10
    made = scripts["splits"].split("x", every, shares=(0.5, 0.3, 0.2))
    assert not scripts["splits"].apart(made).passed


class Stop(Exception):
    pass


def test_a_stopped_training_goes_on_as_if_it_had_not_been(scripts, whole, monkeypatch, tmp_path):
    targets, splits = scripts["targets"], scripts["splits"].split("x", whole, shares=(0.5, 0.3, 0.2))
    monkeypatch.setitem(targets.NETWORKS, "vit", partial(SplitViT, width=8, heads=2, depth=1))
    cpu = torch.device("cpu")
    straight = targets.Shelf(tmp_path / "a", cpu, 8, 3).get("vit", splits, "LS+", 1)
    asked = []

    def go_on():
        asked.append(1)
        if len(asked) == 3:
            raise Stop

    shelf = targets.Shelf(tmp_path / "b", cpu, 8, 3)
    with pytest.raises(Stop):
        shelf.get("vit", splits, "LS+", 1, go_on=go_on)
    assert len(list((tmp_path / "b").glob("*.partial"))) == 1
    resumed = shelf.get("vit", splits, "LS+", 1, go_on=go_on)
    assert len(asked) == 3 + 1  # one epoch was left
    for name, value in straight.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
    assert straight.accuracy == resumed.accuracy


def test_a_recorded_step_trains_the_same_network(scripts, whole, monkeypatch, tmp_path):
    """As on a GPU, where the step is recorded: rows and rate change in place, everything else is drawn anew within it."""
    adam = importlib.import_module("torch.optim.adam")
    monkeypatch.setattr(adam, "_get_capturable_supported_devices", lambda **_: ["cpu"])
    targets, states = scripts["targets"], []
    for played in (False, True):
        model = SplitViT(width=8, heads=2, depth=1, classes=3)
        recipe = targets.Recipe(3, 1e-2, 1e-4)
        training = targets.Training(model, whole, targets.LABELS["LS+"], recipe, 3, 8, 0)
        training.optimizer = torch.optim.Adam(model.parameters(), lr=training.rate, capturable=True, foreach=False)
        if played:
            training.step = PlayedBack(training._once)
        training.run(tmp_path / "x.partial")
        states.append(model.state_dict())
    assert training.step.operations  # it was played back
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value)
    assert not torch.equal(states[0]["head.weight"], SplitViT(width=8, heads=2, depth=1, classes=3).head.weight)


def test_the_papers_rate_falls_at_a_plateau(scripts):
    plateau = scripts["targets"].Plateau(3e-4, patience=2)
    rates = []
    for loss in (1.0, 0.5, 0.5, 0.5, 0.5, 0.4):
        plateau.after(loss)
        rates.append(plateau.rate)
    assert rates == pytest.approx([3e-4] * 4 + [3e-5] * 2)


def test_the_zone_by_three_ways(scripts, tmp_path):
    """On a curve that is known: the search names the same cut, and its time is that of the decoders it trained."""
    zone_part, study = scripts["zone_part"], scripts["study"]
    names = [f"cut{i:02}" for i in range(20)]

    class Known(zone_part.Attacks):
        def __post_init__(self):
            pass

        def _fitted(self, cut, epochs, enough):
            final = names.index(cut) / 20
            held = [final + (1 - final) / (1 + 10 * epoch) for epoch in range(1, epochs + 1)]
            if enough is not None:
                held = held[: next((i for i, value in enumerate(held) if value < enough), epochs - 1) + 1]
            return {"fvu": held[-1], "seconds": len(held), "trained_epochs": len(held), "held_out_fvu": held}

    ledger = Rows.resume(Options(quick=True, device=CPU, out=tmp_path), "run")
    attacks = Known(study.Study(study.Files(), None, ledger, torch.device("cpu")), None, None, 100)
    curve = [min(1.0, i / 20 + 0.16) for i in range(20)]
    for name, fvu in zip(names, curve, strict=True):
        ledger.add(f"zone/ridge/{name}", {"fvu": fvu, "seconds": 0.5})
    row = zone_part.compared(names, curve, attacks, 0.54, 100, 25)
    assert row["exhaustive"] == {"cut": "cut11", "decoders": 20, "epochs": 2000, "seconds": 2010.0}
    assert row["find_zone"]["cut"] == row["bisection"]["cut"] == "cut11"
    assert row["find_zone"]["same_cut"]
    trained = [r for key, r in ledger.done.items() if key.endswith("/0.54")]
    assert row["find_zone"]["epochs"] == sum(r["trained_epochs"] for r in trained) + 100  # cut11 is that of the table
    before = ledger.done["zone/decoder/cut10/100/0.54"]["trained_epochs"]
    assert row["at_best"] == {"epochs": 100 + before, "seconds": 110 + before, "ratio": 2010 / (110 + before)}
    assert row["find_zone"]["ratio"] == pytest.approx(2010 / (row["find_zone"]["epochs"] + 10))
    assert row["find_zone"]["ratio"] > 10 > row["bisection"]["ratio"]


def test_todays_search_asks_for_the_decoders_of_the_committed_comparison(scripts):
    """On VGG19's decoders, trained once on a GPU, the search of the product still costs what the page says."""
    zone_part = scripts["zone_part"]
    rows = {row["unit"]: row for row in read(results_rows.RESULTS) if row.get("part") == "zone"}
    names = [row["cut"] for row in rows.values() if row.get("attack") == "ridge"]

    class Committed(zone_part.Attacks):
        def __init__(self):
            self.study = SimpleNamespace(rows=SimpleNamespace(done=rows))

        def _line(self, key, about, fit):
            return rows[key]

    for threshold in zone_part.THRESHOLDS:
        curve = [rows[f"zone/ridge/{name}"]["fvu"] for name in names]
        found = zone_part.compared(names, curve, Committed(), threshold, zone_part.EPOCHS, zone_part.SCOUT)
        committed = rows[f"zone/compared/{threshold}"]
        assert found["find_zone"] == pytest.approx(committed["find_zone"])
        assert found["find_zone"]["same_cut"]


def test_a_decoder_that_cannot_end_in_time_is_given_up_early(scripts, tmp_path, monkeypatch):
    study, clock = scripts["study"], iter([100.0, *(100.0 + 2.0 * k for k in range(1, 50))])
    monkeypatch.setattr(study.time, "time", lambda: next(clock))
    rows = Rows.resume(Options(quick=True, device=CPU, out=tmp_path), "run")

    def ended(deadline):
        after = study.Study(study.Files(), None, rows, CPU, deadline=deadline).stop_late()
        for done in range(1, 11):
            after(done, 10)

    ended(100.0)  # 2 s an epoch: done at 118, within the grace
    with pytest.raises(study.NoTimeLeft):
        ended(118.0 - study.GRACE + 15)  # begun at 120, it would end at 138
    assert next(clock) == 132.0  # given up after the sixth epoch, at 130


def test_baselines_are_those_of_the_curve(scripts, tmp_path):
    rows = Rows.resume(Options(quick=True, device=CPU, out=tmp_path), "run")
    study = scripts["study"].Study(scripts["study"].Files(), None, rows, CPU)
    about = {"part": "ir152-curve", "network": "ir152", "block": 40, "test_mse_paper": 0.5, "commit": "abc"}
    rows.add("ir152-curve/cifar10/one-hot/0/40/deconvolution, paper", {**about, "decoder": "deconvolution, paper"})
    for _ in range(2):
        scripts["decoder_tables"]._take_baselines(study, "attention", "cifar10")
    (taken,) = [row for row in rows.rows if row["part"] == "attention"]
    facts = ("unit", "decoder", "block", "test_mse_paper", "commit")
    assert [taken[name] for name in facts] == ["attention/40/baseline", "baseline", 40, 0.5, "abc"]


def test_own_data_from_an_npz_at_full_length(scripts, monkeypatch, tmp_path):
    """Everything but the size of the network and the number of epochs is as in the real study."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.integers(0, 256, (120, 32, 32, 3), dtype=np.uint8), y=np.arange(120) % 10)
    small = partial(IR152, units=(1, 1), widths=(4, 8), embedding=8)
    monkeypatch.setitem(scripts["targets"].NETWORKS, "ir152", small)
    settings = ["--target-epochs", "1", "--decoder-epochs", "1", "--batch", "16", "--device", "cpu"]
    given = ["predictions", "--data", str(tmp_path / "data.npz"), "--out", str(tmp_path / "out"), *settings]
    rows = run_part(Part("run", scripts["run"].run), scripts["run"].options_of(given))
    assert {row["auxiliary_images"] for row in rows.done.values() if "fvu" in row} == {20}
    assert len(rows.rows) == 3 + 5
    decoded = {unit for unit in rows.done if not unit.startswith("target/")}
    assert set(rows.pictures) == decoded | {"truth/cifar10"}
    assert all(images.shape == (6, 3, 64, 64) and images.dtype == np.uint8 for images in rows.pictures.values())
    assert len(list((tmp_path / "out" / "weights" / "1_target").glob("*.pt"))) == 3


def test_a_part_without_its_data_or_time_says_so(scripts, tmp_path, capsys):
    out = ["predictions", "--out", str(tmp_path)]
    with pytest.raises(SystemExit, match="--data"):
        run_part(Part("run", scripts["run"].run), scripts["run"].options_of(out))
    rows = run_part(Part("run", scripts["run"].run), scripts["run"].options_of([*out, "--quick", "--within", "-1"]))
    assert not rows.rows
    assert "no time for predictions" in capsys.readouterr().out


def test_fewer_auxiliary_images(scripts, tmp_path):
    """Other images are left out; the ones that stay keep their features."""
    given = ["sample-size", "--quick", "--device", "cpu", "--out", str(tmp_path)]
    rows = run_part(Part("run", scripts["run"].run), scripts["run"].options_of(given))
    found = [(row["auxiliary_images"], row["block"]) for row in rows.rows if row.get("part") == "sample-size"]
    assert found == [(16, 30), (16, 43), (40, 30), (40, 43)]
    target = next(row for row in rows.rows if row["unit"].startswith("target/"))
    assert [gate["gate"] for gate in target["gates"]] == ["all classes", "above chance", "parts apart"]


def test_splits_are_gated(scripts, tmp_path):
    rows = Rows.resume(Options(quick=True, device=CPU, out=tmp_path), "splits")
    scripts["check_splits"].run(Options(quick=True, device=CPU, out=tmp_path), rows)
    assert len(rows.rows) == 4
    assert gates.hold(rows.rows)
    data = results_rows.all_rows()
    assert results_rows.learned(data, "vgg19", "faces")
    ordered = [gates.shuffled(torch.arange(800) // 570).row()]
    data = [row | {"gates": ordered} if row["unit"] == "splits/faces" else row for row in data]
    assert not results_rows.learned(data, "vgg19", "faces")
    assert results_rows.learned(data, "vgg19", "kmnist")


def test_parts_are_listed_in_their_order(scripts, capsys):
    with pytest.raises(SystemExit) as stop:
        scripts["run"].options_of(["--list"])
    assert not stop.value.code
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(scripts["run"].PARTS)


def test_a_network_at_chance_removes_reproduces():
    rows = results_rows.all_rows()
    before = claims.claims(rows)
    dead = [row | {"accuracy": 0.72} if row["unit"].startswith("target/vgg19/faces") else row for row in rows]
    dead = [row | {"accuracy": 0.11} if row["unit"].startswith("target/vit/") else row for row in dead]
    changed = {one.paper: (one.word, other.word) for one, other in zip(before, claims.claims(dead), strict=True)}
    assert changed["faces: the error climbs steeply after block 30"] == (Word.REPRODUCES, Word.NOT_TESTED)
    inverted = next(paper for paper in changed if paper.startswith("ViT: the last block"))
    assert changed[inverted] == (Word.REPRODUCES, Word.NOT_TESTED)
    others = [pair for paper, pair in changed.items() if not paper.lower().startswith(("vit", "faces"))]
    assert all(one is other for one, other in others)


def test_tables_have_both_numbers_of_epochs(tmp_path):
    """What ran 100 epochs stands beside the 30, and the baseline is that of the curve; what did not run says so."""
    short = [row for row in read(results_rows.RESULTS) if row.get("part") in ("attention", "ir152-curve")]
    longer = [row | {"epochs": 100, "test_mse_paper": 0.05} for row in short if row["part"] == "ir152-curve"]
    for name, rows in (("run", short), (results_rows.LONGER, longer)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = tables.table("table5", results_rows.all_rows(tmp_path)).splitlines()[2:]
    assert lines[0].startswith("| block 50, baseline | 0.05701 | 0.05 | -12% | 0.05799 |")
    assert lines[1].startswith("| block 50, MHA | 0.05216 | not run | -3% | 0.05065 |")


def test_the_subtracted_term_by_hand():
    """D/2·ln(2πe R_c²/D) + ln K for D = 8192, R_c²/D = 0.05, ten classes."""
    assert entropy.subtracted(0.05, 8192) == pytest.approx(4096 * math.log(2 * math.pi * math.e * 0.05) + math.log(10))
    assert entropy.dimensions(VGG19, [13, 52]) == {13: 128 * 32 * 32, 52: 512 * 4 * 4}
