"""The reproduction of the privacy-token paper: its tables follow from its results, and its parts work."""

import dataclasses
import importlib
import math
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from leakgauge.errors import BadInput
from reproductions.common import gates

NAMES = (
    "setups",
    "results_file",
    "published",
    "correlations",
    "verdicts",
    "tables",
    "private_training",
    "attacked",
    "leakage",
)
NAMES += ("table1", "batch_sizes", "noise_schedules", "cost", "figures")


@pytest.fixture(scope="module")
def parts():
    """The scripts of the folder by name."""
    return {name: importlib.import_module(f"reproductions.privacy_tokens.{name}") for name in NAMES}


def options(parts, **given):
    default = {"quick": True, "device": torch.device("cpu"), "data": None, "lpips": None, "seed": 0}
    return parts["table1"].Options(**(default | given))


def results(parts, folder, name):
    return parts["results_file"].Results.resumed(folder, name, seed=0, quick=True, device=torch.device("cpu"))


@pytest.fixture(scope="module")
def quick(parts, tmp_path_factory):
    """One quick run of each kind of part, and the folder with what it wrote."""
    folder = tmp_path_factory.mktemp("quick")
    parts["table1"].run("lenet", options(parts), results(parts, folder, "lenet"))
    parts["batch_sizes"].run("lenet", options(parts), results(parts, folder, "batch_sizes_lenet"))
    parts["noise_schedules"].run(options(parts), results(parts, folder, "noise"))
    return folder


def test_the_readme_is_made_from_the_results(parts):
    assert parts["tables"].main(["--check"]) == 0


def test_published_numbers_are_those_of_table_1(parts):
    published = parts["published"].PUBLISHED
    assert published["lenet"][60][:5] == (0.4745, 4.15026, 4.30479, 0.057305, 0.998919)
    assert published["cnn"][20][2] > math.log(200)  # more nats than 200 evaluation batches can certify
    for rows in published.values():
        assert len(rows) == 7
        assert min(rows, key=lambda s: rows[s][3]) == 0  # its lowest MSE is always the one before training


def test_published_gap_does_not_follow_the_published_attack(parts):
    """Spearman of the autoencoder's gap with −MSE, as computed from Table 1: mostly of the wrong sign."""
    from scipy.stats import spearmanr

    found = {
        name: spearmanr([r[1] for r in rows.values()], [-r[3] for r in rows.values()])[0]
        for name, rows in parts["published"].PUBLISHED.items()
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


def write_sheets(path, labels, *, side, mode):
    """Grey sheets in which a picture's value is its label, in the order given."""
    with zipfile.ZipFile(path, "w") as archive:
        with archive.open("labels.npy", "w") as file:
            np.save(file, labels)
        for start in range(0, len(labels), 100):
            numbers = (labels[start : start + 100].reshape(10, 10) * 20).astype(np.uint8)
            picture = Image.fromarray(numbers.repeat(side, 0).repeat(side, 1)).convert(mode)
            with archive.open(f"sheet_{start // 100:04d}.png", "w") as file:
                picture.save(file, "PNG")


def test_faces_sorted_by_label_are_shuffled_before_the_split(parts, tmp_path):
    labels = np.array([0] * 700 + [1] * 300)
    write_sheets(tmp_path / "smile_faces64_4000.zip", labels, side=64, mode="L")
    train, held = parts["setups"].data_for(parts["setups"].SETUPS["cnn"], tmp_path)
    assert (len(train[0]), len(held[0])) == (800, 200)
    for x, y in (train, held):
        assert 0.25 < float(y.float().mean()) < 0.35
        assert gates.shuffled(y).passed
        assert torch.equal((x[:, 0, 0, 0] * 255 / 20).round().long(), y)  # images go with their labels
    with pytest.raises(BadInput, match="3 channels are expected"):
        parts["setups"].data_for(dataclasses.replace(parts["setups"].SETUPS["lenet"], data="faces"), tmp_path)


def test_alexnet_takes_images_less_their_mean(parts, tmp_path):
    for name in ("cifar10_train", "cifar10_test"):
        write_sheets(tmp_path / f"{name}.zip", np.arange(200) % 10, side=32, mode="RGB")
    of = parts["setups"]
    (plain, _), _ = of.data_for(of.SETUPS["lenet"], tmp_path)
    (scaled, _), _ = of.data_for(of.SETUPS["alexnet"], tmp_path)
    assert scaled.shape[1:] == (3, 64, 64)
    torch.testing.assert_close(of.SETUPS["alexnet"].space.decode(scaled)[:, :, 0, 0], plain[:, :, 0, 0])
    assert float(scaled.min()) < -1


def test_identification_of_known_channels(parts):
    """Two gradients at a distance d in noise s are bits over a Gaussian channel; without noise nothing is left open."""
    identified = parts["leakage"].identified
    wide = 5000
    rows = torch.zeros(2, wide)
    rows[1, :100] = 0.3  # d = 3
    found = identified(rows, 1.0, draws=4000)
    z = torch.randn(200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    known = math.log(2) - float(torch.nn.functional.softplus(-(4.5 + 3 * z)).mean())
    assert found["nats"] == pytest.approx(known, abs=0.01)
    assert identified(rows, 0.0)["nats"] == pytest.approx(math.log(2))
    assert identified(torch.zeros(4, 9), 0.0)["nats"] == pytest.approx(0.0)
    assert identified(rows, 100.0, draws=200)["nats"] == pytest.approx(0.0, abs=0.01)


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
        {"kind": "attack", "sub_epoch": s, "mse": [1 - m, 3 * m]} for s, m in ((0, 0.1), (1, 0.2), (5, 0.3), (8, 0.4))
    ]
    gaps = {0: 0.0, 1: 1.0, 5: 2.0, 8: 3.0}
    rows += [
        {"kind": "paper", "token": "t", "reading": "once", "sub_epoch": s, "gap": g, "collected": None if s < 5 else g, "held_out": 0.0}
        for s, g in gaps.items()
    ]  # fmt: skip
    rows += [
        {"kind": "leakage", "sub_epoch": s, "infonce_nats": -g, "decoder": [{"noise": 0.0, "auc": 1.0}]}
        for s, g in gaps.items()
    ]
    found = {r["measure"]: r for r in parts["correlations"].correlations(rows)}
    assert found["InfoNCE"]["rho"] == pytest.approx(1.0)
    assert found["InfoNCE"]["first"] == pytest.approx(-1.0)
    assert found["InfoNCE"]["targets"] == pytest.approx((-1.0, 1.0))  # either target alone decides the sign
    assert found["t, once: gap"]["rho"] == pytest.approx(-1.0)
    assert found["t, once: collected"]["rho"] is None
    assert found["t, once: held_out"]["rho"] is None
    assert found["decoder AUC, noise 0"]["rho"] is None


def test_interval_of_a_rank_correlation(parts):
    """ρ = 0.5 at n = 7: artanh ½ ± 1.96 √(1.125/4), by hand; with three checkpoints nothing is known."""
    low, high = parts["correlations"].interval(0.5, 7)
    assert (low, high) == pytest.approx((math.tanh(0.549306 - 1.039433), math.tanh(0.549306 + 1.039433)), abs=1e-5)
    assert parts["correlations"].interval(0.9, 3) == (-1.0, 1.0)


def test_epsilon_does_not_know_the_order(parts):
    of = parts["private_training"].epsilon
    early, late = (of(h, rate=0.01, delta=1e-5) for h in ([(2.0, 50), (0.7, 50)], [(0.7, 50), (2.0, 50)]))
    assert early == pytest.approx(late)
    assert of([(2.0, 50), (0.0, 1)], rate=0.01, delta=1e-5) == math.inf
    assert of([(2.0, 50), (0.0, 0)], rate=0.01, delta=1e-5) < early
    # the plain Gaussian mechanism once: α/(2σ²) + ln(1/δ)/(α - 1) at its best α
    known = min(a / 8 + math.log(1e5) / (a - 1) for a in range(2, 65))
    assert of([(2.0, 1)], rate=1.0, delta=1e-5) == pytest.approx(known)


def test_constant_noise_spends_the_budget(parts):
    of = parts["private_training"]
    noise = of.constant_noise(2.0, steps=500, rate=0.02, delta=1e-5)
    assert of.epsilon([(noise, 500)], rate=0.02, delta=1e-5) == pytest.approx(2.0, abs=1e-6)


def test_private_training_takes_the_gradient_that_autograd_gives(parts):
    """Clipped sums of stacked models against one backward pass per sample; a sample of weight 0 has no part."""
    from reproductions.common.networks.privacy_tokens import TokenLeNet

    models = [TokenLeNet(in_channels=1, side=12, seed=s) for s in range(2)]
    rng = torch.Generator().manual_seed(0)
    x, y = torch.rand(2, 3, 1, 12, 12, generator=rng), torch.randint(10, (2, 3), generator=rng)
    stacked = {
        n: torch.stack([dict(m.named_parameters())[n].detach() for m in models])
        for n, _ in models[0].named_parameters()
    }
    weights = torch.tensor([[1.0, 1.0, 0.0]] * 2)
    found = parts["private_training"].clipped_sums(stacked, x, y, weights, 0.5)
    for m, model in enumerate(models):
        total = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
        for i in range(2):
            loss = torch.nn.functional.cross_entropy(model(x[m, i : i + 1]), y[m, i : i + 1])
            grads = torch.autograd.grad(loss, list(model.parameters()))
            length = torch.cat([g.flatten() for g in grads]).norm()
            for name, g in zip(total, grads, strict=True):
                total[name] += g * min(1.0, 0.5 / float(length))
        for name, value in total.items():
            torch.testing.assert_close(found[name][m], value, atol=1e-6, rtol=1e-4)


def test_lpips_weights_are_read_without_their_package(parts, tmp_path):
    from safetensors.torch import save_file

    from leakgauge.measures.lpips import NAMES as WANTED

    rng = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(2, 3, generator=rng) for name in sorted(WANTED)}
    save_file(weights, tmp_path / "w.safetensors", metadata={"format": "pt"})
    found = parts["attacked"].lpips_from(tmp_path / "w.safetensors").weights
    assert all(torch.equal(found[name], value) for name, value in weights.items())
    save_file({name: value.half() for name, value in weights.items()}, tmp_path / "half.safetensors")
    with pytest.raises(BadInput, match="float32"):
        parts["attacked"].lpips_from(tmp_path / "half.safetensors")


def test_quick_run_fills_every_column(parts, quick):
    facts, rows = parts["results_file"].read(quick / "lenet.jsonl")
    assert facts["complete"]
    kinds = [row["kind"] for row in rows]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "paper": 16,
        "cost": 4,
        "gates": 4,
        "leakage": 4,
        "attack": 4,
        "single": 4,
    }
    for row in rows:
        if row["kind"] == "paper":
            assert np.mean(row["each_matched"]) == pytest.approx(row["matched"], abs=2e-4)
        assert {"device", "torch", "seed", "commit"} <= set(row)
        if row["kind"] == "gates":
            assert not gates.void(row["gates"][:3])
        if row["kind"] == "leakage":
            assert row["identification"][0]["nats"] == pytest.approx(row["identification"][0]["ceiling"])
            assert row["decoder"][0]["auc"] == pytest.approx(1.0, abs=0.01)  # without noise it is linear algebra
        if row["kind"] == "attack":
            assert (
                min(row["ssim_data_range_255"]) > 0.97 > max(row["ssim"])
            )  # a guess of noise passes for a perfect copy
    text = "".join(parts["tables"].of_model("lenet", rows))
    for words in ("SSIM, data range 255", "decoder AUC, noise 0.5", "95 % over targets", "as in the paper"):
        assert words in text
    assert all(v.line().count("|") == 6 for v in parts["verdicts"].of_model("lenet", rows))


def test_noise_schedules_have_one_budget(parts, quick):
    _, rows = parts["results_file"].read(quick / "noise.jsonl")
    end = {r["schedule"]: r["epsilon"] for r in rows if r["kind"] == "noise" and r["fraction"] == 1.0}
    advice, reverse, constant = list(end)[1:4]
    assert end[reverse] == pytest.approx(end[advice])
    assert end[constant] == pytest.approx(end[advice], rel=1e-3)
    assert [name for name, value in end.items() if value is None] == [next(iter(end)), *list(end)[4:]]
    assert "∞" in parts["tables"].of_noise(rows)
    assert all(v.line().count("|") == 6 for v in parts["verdicts"].noise(rows))


def test_figures_are_drawn_from_results(parts, quick):
    import xml.etree.ElementTree as ET

    made = parts["figures"].draw(quick)
    names = {path.name for path in made}
    assert names == {
        *(f"{kind}_lenet.svg" for kind in ("batches", "differences", "trends", "heat")), "strips_lenet.png", "noise.svg",
    }  # fmt: skip
    for path in made:
        if path.suffix == ".svg":
            ET.parse(path)
    cells = (quick / "heat_lenet.svg").read_text().count("<rect x=")
    assert cells == 2 * 3 * 4  # two panels, three batch sizes, four checkpoints


def test_a_stopped_part_goes_on_where_it_was(parts, tmp_path):
    first = results(parts, tmp_path, "batch_sizes_mlp")
    first.add("batch 4", {"kind": "batch_size", "mark": "from before"})
    assert not parts["results_file"].read(first.path)[0]["complete"]
    parts["batch_sizes"].run("mlp", options(parts), results(parts, tmp_path, "batch_sizes_mlp"))
    facts, rows = parts["results_file"].read(first.path)
    assert facts["complete"]
    assert [row["unit"] for row in rows] == ["batch 4"] + ["batch 16"] * 8
    assert rows[0]["mark"] == "from before"


def test_the_plan_names_every_part(parts):
    text = parts["cost"].table()
    assert all(f"**{name}**" in text for name in ("lenet", "alexnet", "cnn", "mlp", "batch_sizes_mlp", "noise"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnn", "mlp", "alexnet"])
def test_quick_run_of_the_other_models(parts, name, tmp_path):
    parts["table1"].run(name, options(parts), results(parts, tmp_path, name))
    assert parts["results_file"].read(tmp_path / f"{name}.jsonl")[0]["complete"]
