"""The scripts of the split-inference reproduction: their arithmetic by hand, and a part from start to end on tiny networks."""

import importlib
import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from leakgauge.attacks import fit_on
from leakgauge.attacks.decoders import Deconvolution
from leakgauge.models import IR152, SplitViT

FOLDER = Path(__file__).parents[2] / "reproductions" / "golden_partition_zone"
SCRIPTS = ("splits", "targets", "leaks", "parts", "run", "tables", "decoders_quick")


@pytest.fixture
def scripts(monkeypatch):
    """The scripts import each other by plain names, which must not stay behind for other tests."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield {name: importlib.import_module(name) for name in SCRIPTS}
    for name in SCRIPTS:
        sys.modules.pop(name, None)


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


def test_equal_counts_for_any_number_of_classes(scripts, whole):
    splits = scripts["splits"].split("x", whole, shares=(0.6, 0.2, 0.2))
    for classes in (2, 3):
        few = scripts["splits"].of_classes(splits, classes, total=12)
        assert few.train.labels.bincount().tolist() == [12 // classes] * classes
        assert few.classes == classes


def test_bytes_survive_the_way_to_the_device(scripts, whole):
    floats = whole.images.float() / 255
    assert torch.equal(scripts["splits"].enlarged(floats, torch.device("cpu")), whole.images)
    assert scripts["splits"].enlarged(floats[:2, :, :32, :32], torch.device("cpu")).shape == (2, 3, 64, 64)


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


def test_a_ledger_goes_on_where_it_stopped(scripts, tmp_path):
    file = tmp_path / "deep" / "results.jsonl"
    scripts["leaks"].Ledger(file).add("a", {"value": 1})
    ledger = scripts["leaks"].Ledger(file)
    assert ledger.done["a"]["value"] == 1
    ledger.add("b", {"value": 2})
    assert [json.loads(line)["key"] for line in file.read_text().splitlines()] == ["a", "b"]


def test_a_part_runs_and_is_not_measured_twice(scripts, monkeypatch, tmp_path):
    small = partial(IR152, units=(1, 1), widths=(4, 8), embedding=8)
    monkeypatch.setitem(scripts["targets"].NETWORKS, "ir152", small)
    options = scripts["run"].options_of(["--quick"])
    study = scripts["run"].study_of(options, tmp_path)
    scripts["parts"].predictions(study)
    rows = study.ledger.done
    assert {row["decoder"] for row in rows.values() if "decoder" in row} == {"Normal", "LS+", "LS-", "Log", "Power"}
    assert sum(key.startswith("target/") for key in rows) == 3
    assert all(row["fvu"] > 0 for row in rows.values() if "fvu" in row)
    before = (tmp_path / "run.jsonl").read_text()
    again = scripts["run"].study_of(options, tmp_path)
    scripts["parts"].predictions(again)
    assert (tmp_path / "run.jsonl").read_text() == before


def test_own_data_from_an_npz_at_full_length(scripts, monkeypatch, tmp_path):
    """Everything but the size of the network and the number of epochs is as in the real study."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.integers(0, 256, (120, 32, 32, 3), dtype=np.uint8), y=np.arange(120) % 10)
    small = partial(IR152, units=(1, 1), widths=(4, 8), embedding=8)
    monkeypatch.setitem(scripts["targets"].NETWORKS, "ir152", small)
    files = ["--data", "data.npz", "--results", "out/run.jsonl", "--weights", "weights"]
    files = [str(tmp_path / word) if not word.startswith("--") else word for word in files]
    settings = ["--target-epochs", "1", "--decoder-epochs", "1", "--batch", "16", "--part", "predictions"]
    ledger = scripts["run"].main([*files, *settings])
    assert {row["auxiliary_images"] for row in ledger.done.values() if "fvu" in row} == {20}
    assert len((tmp_path / "out" / "run.jsonl").read_text().splitlines()) == 3 + 5
    assert len(list((tmp_path / "weights").iterdir())) == 3


def test_a_part_without_its_data_says_so(scripts, tmp_path):
    with pytest.raises(SystemExit, match="--data"):
        scripts["run"].main(["--part", "predictions", "--results", str(tmp_path / "run.jsonl")])


def test_a_spent_budget_stops_a_part_and_keeps_what_is_there(scripts, capsys):
    ledger = scripts["run"].main(["--quick", "--part", "predictions", "--budget", "-1"])
    assert ledger.done == {}
    assert "budget spent" in capsys.readouterr().out


def test_tables_show_the_paper_beside_us_and_say_what_is_missing(scripts, capsys, monkeypatch, tmp_path):
    about = {"part": "vgg19-curve", "labels": "one-hot", "decoder": "deconvolution, paper"}
    ledger = scripts["leaks"].Ledger(tmp_path / "run.jsonl")
    for seed, factor in ((0, 1.0), (1, 1.2)):
        for block, error in ((26, 0.01), (30, 0.02), (39, 0.05)):
            row = {
                **about,
                "seed": seed,
                "block": block,
                "test_mse": error * factor,
                "test_mse_paper": 3 * error * factor,
            }
            ledger.add(f"{seed}/{block}", row)
    monkeypatch.setattr(sys, "argv", ["tables", str(tmp_path / "run.jsonl")])
    scripts["tables"].main()
    said = capsys.readouterr().out
    assert "| VGG19 block 30 | 0.06649 | 0.066 (0.06 to 0.072) | -1% |" in said
    assert "| claim: error of deep over shallow blocks | 4 | 5 (5 to 5) | +25% |" in said
    assert "| Table 3, Normal | 0.1693 | not measured | |" in said


def test_the_committed_comparison_of_decoders_is_complete(scripts):
    rows = [json.loads(line) for line in (FOLDER / "results" / "decoders_quick.jsonl").read_text().splitlines()]
    quick = scripts["decoders_quick"]
    assert {(row["cut"], row["decoder"]) for row in rows} == {(c, d) for c in quick.CUTS for d in quick.DECODERS}
    assert {row["public_images"] for row in rows} == {1500}
