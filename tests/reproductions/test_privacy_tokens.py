"""The reproduction of the privacy-token paper: its tables follow from its results, and its parts work."""

import importlib.util
import json
import math
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from leakgauge.errors import BadInput

FOLDER = Path(__file__).parents[2] / "reproductions" / "privacy_tokens"


@pytest.fixture(scope="module")
def parts():
    """The scripts of the folder as modules, under names of their own."""
    found = {}
    sys.path.insert(0, str(FOLDER))
    try:
        for name in ("setups", "run", "tables"):
            spec = importlib.util.spec_from_file_location(f"privacy_tokens_{name}", FOLDER / f"{name}.py")
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
            found[name] = module
    finally:
        sys.path.remove(str(FOLDER))
        sys.modules.pop("setups", None)
    return found


def test_the_readme_is_made_from_the_results(parts):
    assert parts["tables"].main(["--check"]) == 0


def test_published_numbers_are_those_of_table_1(parts):
    published = parts["tables"].PUBLISHED
    assert published["lenet"][60] == (0.4745, 4.15026, 4.30479, 0.057305)
    assert published["cnn"][20][2] > math.log(200)  # more nats than 200 evaluation batches can certify
    for rows in published.values():
        assert len(rows) == 7
        assert min(rows, key=lambda s: rows[s][3]) == 0  # its lowest MSE is always the one before training


def test_published_gap_does_not_follow_the_published_attack(parts):
    """Spearman of the autoencoder's gap with −MSE, as computed from Table 1: mostly of the wrong sign."""
    from scipy.stats import spearmanr

    found = {
        name: spearmanr([r[1] for r in rows.values()], [-r[3] for r in rows.values()])[0]
        for name, rows in parts["tables"].PUBLISHED.items()
    }
    assert found == pytest.approx({"lenet": -0.68, "alexnet": 0.11, "cnn": -0.89, "mlp": -0.39}, abs=0.005)


@pytest.mark.parametrize("name", ["lenet", "cnn", "mlp"])
def test_setups_name_layers_that_exist(parts, name):
    setup = parts["setups"].SETUPS[name]
    with torch.device("meta"):
        model = setup.make(0)
        assert model(torch.zeros(2, *setup.shape)).shape[0] == 2
    for layer in (setup.feature_layer, *setup.gradient_layers):
        model.get_submodule(layer)


def test_sheets_are_read_row_by_row(parts, tmp_path):
    side = 4
    numbers = np.arange(100, dtype=np.uint8).reshape(10, 10)
    sheet = numbers.repeat(side, 0).repeat(side, 1)
    Image.fromarray(sheet).save(tmp_path / "sheet_0000.png")
    np.save(tmp_path / "labels.npy", np.arange(60))
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for name in ("sheet_0000.png", "labels.npy"):
            archive.write(tmp_path / name, name)
    images, labels = parts["setups"].sheets(tmp_path / "all.zip")
    assert images.shape == (60, 1, side, side)
    assert torch.equal((images[:, 0, 0, 0] * 255).round().long(), labels)
    with pytest.raises(BadInput, match="3 channels are expected"):
        parts["setups"].data_for(parts["setups"].SETUPS["lenet"], tmp_path / "all.zip")


def test_sketch_keeps_inner_products_on_average(parts):
    rng = torch.Generator().manual_seed(0)
    g, h = (
        {"a.weight": torch.randn(30, 20, generator=rng), "a.bias": torch.randn(30, generator=rng)} for _ in range(2)
    )
    mixed = {name: g[name] + 0.5 * h[name] for name in g}
    truth = sum(float((g[n] * mixed[n]).sum()) for n in g)
    sketches = [parts["setups"].BucketSketch(64, seed=7 * s) for s in range(200)]
    found = [float((sketch(g) * sketch(mixed)).sum()) for sketch in sketches]
    assert sketches[0](g).shape == (1, 64)
    assert np.mean(found) == pytest.approx(truth, abs=4 * np.std(found) / 200**0.5)


def test_correlations_by_hand(parts):
    rows = [
        {"kind": "attack", "sub_epoch": s, "mean_mse": m, "mse": [1 - m, m], "infonce_nats": -m}
        for s, m in ((0, 0.1), (1, 0.2), (5, 0.3))
    ]
    gaps = {0: 0.0, 1: 1.0, 5: 2.0}
    rows += [
        {
            "kind": "paper",
            "token": "t",
            "reading": "once",
            "sub_epoch": s,
            "gap": g,
            "collected": None if s == 0 else g,
            "held_out": 0.0,
        }
        for s, g in gaps.items()
    ]
    found = parts["run"].correlations("m", rows)
    assert found["infonce"] == {"rho": pytest.approx(1.0), "rho_first_target": pytest.approx(-1.0), "checkpoints": 3}
    assert found["t/once: gap"]["rho"] == pytest.approx(-1.0)
    assert found["t/once: collected"] == {"rho": None, "rho_first_target": None, "checkpoints": 2}
    assert found["t/once: held_out"]["rho"] is None


@pytest.mark.slow
def test_quick_run(tmp_path):
    import subprocess

    out = tmp_path / "quick.jsonl"
    subprocess.run([sys.executable, FOLDER / "run.py", "--quick", "--out", out], check=True, stdout=subprocess.DEVNULL)
    kinds = [json.loads(line)["kind"] for line in out.read_text().splitlines()]
    assert kinds == ["paper"] * 5 + ["cost"] + ["attack"] * 5 + ["correlation"]
