"""The privacy-token study: its page follows from its rows, and its parts run."""

import dataclasses
import math
import xml.etree.ElementTree as ET
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from leakgauge.errors import BadInput
from leakgauge.measures.image import ssim
from reproductions.common import gates
from reproductions.common.networks.privacy_tokens import TokenLeNet
from reproductions.common.runner import Rows, read
from reproductions.common.verdicts import Word
from reproductions.privacy_tokens import (
    batch_sizes,
    claims,
    figures,
    known_channels,
    leakage,
    noise_schedules,
    private_training,
    run,
    setups,
    table1,
    tables,
)  # fmt: skip
from reproductions.privacy_tokens.published import PUBLISHED

CPU = torch.device("cpu")
OPTIONS = table1.Options(quick=True, device=CPU, out=Path())


def rows_in(folder, name):
    return Rows.resume(dataclasses.replace(OPTIONS, out=folder), name)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """One quick run of each kind of part."""
    folder = tmp_path_factory.mktemp("quick")
    table1.run("lenet", OPTIONS, rows_in(folder, "lenet"))
    batch_sizes.run("lenet", OPTIONS, rows_in(folder, "batch_sizes_lenet"))
    noise_schedules.run(OPTIONS, rows_in(folder, "noise"))
    return folder


def test_rows_that_fail_a_gate_enter_nothing(tmp_path):
    dead = gates.above_chance(0.1, 0.01, 10).row()
    shared = {"seed": 3, "quick": False, "gap_error": 0.1}
    rows = [
        {"kind": "gates", "sub_epoch": 0, "gates": [], **shared},
        {"kind": "gates", "sub_epoch": 200, "gates": [dead], **shared},
        {"kind": "paper", "sub_epoch": 0, "token": "t", "reading": "once", "gap": 9.0, **shared},
        {"kind": "paper", "sub_epoch": 0, "token": "t", "reading": "once", "gap": 1.0, **shared, "seed": 0},
    ]
    out = Rows(tmp_path, "lenet", {})
    for number, row in enumerate(rows):
        out.add(str(number), row)
    assert [row["gap"] for row in claims.gaps(claims.rows_of(tmp_path, "lenet"))] == [1.0]


def test_a_failing_gate_removes_reproduces(faulty):
    """A CNN that is dead at its end takes all claims about it away; a constant critic only its own row."""

    def about(folder, name):
        return {claim.word for claim in claims.claims(folder) if claim.paper.startswith(name)}

    assert Word.REPRODUCES in about(tables.RESULTS, "cnn")
    dead = {"gates": [gates.above_chance(0.5, 0.01, 2).row()]}
    for part in ("cnn", "cnn_seed1", "cnn_seed2"):
        folder = faulty(tables.RESULTS, part, lambda row: dead if row.get("kind") == "gates" else {})
    assert about(folder, "cnn") == {Word.NOT_TESTED}
    assert Word.REPRODUCES in about(folder, "mlp")
    constant = {"kind": "paper", "gap": 0.3, "gap_error": 0.0}
    assert not gates.hold([claims.own(constant)])
    assert not gates.hold([claims.own({"kind": "noise", "fraction": 1.0, "accuracy": 0.12})])
    most = {"kind": "batch_size", "model": "cnn", "sub_epoch": 100, "accuracy": 570 / 800}
    assert not gates.hold([claims.own(most)])  # always the larger class


def test_the_published_difference_follows_the_published_attack_while_it_falls():
    assert PUBLISHED["lenet"][60][:5] == (0.4745, 4.15026, 4.30479, 0.057305, 0.998919)
    found = {model: claims.published_correlation(model) for model in PUBLISHED}
    assert found == pytest.approx({"lenet": -0.68, "alexnet": 0.07, "cnn": -0.86, "mlp": -0.68}, abs=0.005)
    late = {model: claims.published_correlation(model, from_peak=True) for model in PUBLISHED}
    assert late == pytest.approx({"lenet": 1.0, "alexnet": 0.8, "cnn": 1.0, "mlp": 1.0})


def test_ssim_has_a_limit_that_every_published_row_exceeds():
    rng = torch.Generator().manual_seed(0)
    a = torch.rand(40, 3, 32, 32, generator=rng) * torch.linspace(0, 1, 40)[:, None, None, None]
    pairs = [(a, a.flip(0)), (1 - 0.1 * a, 1 - 0.5 * a), (torch.ones_like(a), torch.full_like(a, 0.6)), (a, a**2)]
    for one, other in pairs:
        error = (one - other).square().flatten(1).mean(1)
        assert (ssim(one, other) <= 1e-6 + 1 - error / 2.0001).all()
    assert claims.ssim_limit(0.153886) == pytest.approx(0.923, abs=5e-4)
    assert all(row[4] > claims.ssim_limit(row[3]) for rows in PUBLISHED.values() for row in rows.values())


def test_all_parts_run_in_their_order_where_none_is_named(monkeypatch, tmp_path, capsys):
    ran = []
    monkeypatch.setattr(run, "run_part", lambda part, _options: ran.append(part.name))
    run.main(["--quick", "--out", str(tmp_path)])
    assert ran == list(run.PARTS)
    run.main(["--list"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ran


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


def test_faces_sorted_by_label_are_shuffled_before_the_split(tmp_path):
    write_sheets(tmp_path / "smile_faces64_4000.zip", np.array([0] * 700 + [1] * 300), side=64, mode="L")
    train, held = setups.data_for(setups.SETUPS["cnn"], tmp_path)
    assert (len(train[0]), len(held[0])) == (800, 200)
    for x, y in (train, held):
        assert 0.25 < float(y.float().mean()) < 0.35
        assert gates.shuffled(y).passed
        assert torch.equal((x[:, 0, 0, 0] * 255 / 20).round().long(), y)  # images go with their labels
    with pytest.raises(BadInput, match="3 channels are expected"):
        setups.data_for(dataclasses.replace(setups.SETUPS["lenet"], data="faces"), tmp_path)


def test_alexnet_takes_images_less_their_mean(tmp_path):
    for name in ("cifar10_train", "cifar10_test"):
        write_sheets(tmp_path / f"{name}.zip", np.arange(200) % 10, side=32, mode="RGB")
    (plain, _), _ = setups.data_for(setups.SETUPS["lenet"], tmp_path)
    (scaled, _), _ = setups.data_for(setups.SETUPS["alexnet"], tmp_path)
    assert scaled.shape[1:] == (3, 64, 64)
    torch.testing.assert_close(setups.SETUPS["alexnet"].space.decode(scaled)[:, :, 0, 0], plain[:, :, 0, 0])


def test_a_network_that_stays_at_chance_gets_another_seed(tmp_path, monkeypatch):
    accuracies = iter([(0.1, 0.01), (0.1, 0.01), (0.5, 0.01)])
    monkeypatch.setattr(table1.gates, "balanced_accuracy", lambda *_: next(accuracies))
    setup = dataclasses.replace(setups.quick("lenet"), least_accuracy=0.45)
    rows = rows_in(tmp_path, "lenet")
    assert table1._living_seed(setup, OPTIONS, OPTIONS.images(setup), rows) == 2
    assert rows.rows[0]["accuracy_early"] == {"0": 0.1, "1": 0.1, "2": 0.5}


@pytest.mark.parametrize("dimensions", [4800, 8136])
def test_identification_of_known_channels(dimensions):
    """As in the study: 64 candidates, four draws, the dimensions of CNN and LeNet; ``known_channels.py`` has the larger networks'.

    Without noise nothing is left open, and equal gradients cannot be told apart.
    """
    for length in known_channels.LENGTHS:
        rows, known = known_channels.channel(length, dimensions), known_channels.known(length)
        found = leakage.identified(rows, 1.0)
        assert found["low"] < known < found["high"]
        assert found["nats"] == pytest.approx(known, abs=0.15)
        assert leakage.identified(rows, 0.0)["nats"] == pytest.approx(math.log(64))
    assert leakage.identified(torch.zeros(4, 9), 0.0)["nats"] == pytest.approx(0.0)


def test_sketch_keeps_inner_products_on_average():
    rng = torch.Generator().manual_seed(0)
    g, h = ({"a.weight": torch.randn(30, 20, generator=rng)} for _ in range(2))
    mixed = {name: g[name] + 0.5 * h[name] for name in g}
    truth = sum(float((g[n] * mixed[n]).sum()) for n in g)
    sketches = [setups.BucketSketch(64, seed=7 * s) for s in range(200)]
    found = [float((sketch(g) * sketch(mixed)).sum()) for sketch in sketches]
    assert np.mean(found) == pytest.approx(truth, abs=4 * np.std(found) / 200**0.5)


def test_epsilon_does_not_know_the_order():
    of = private_training.epsilon
    early, late = (of(h, rate=0.01, delta=1e-5) for h in ([(2.0, 50), (0.7, 50)], [(0.7, 50), (2.0, 50)]))
    assert early == pytest.approx(late)
    assert of([(2.0, 50), (0.0, 1)], rate=0.01, delta=1e-5) == math.inf
    # the plain Gaussian mechanism once: α/(2σ²) + ln(1/δ)/(α - 1) at its best α
    known = min(a / 8 + math.log(1e5) / (a - 1) for a in range(2, 65))
    assert of([(2.0, 1)], rate=1.0, delta=1e-5) == pytest.approx(known)
    noise = private_training.constant_noise(2.0, steps=500, rate=0.02, delta=1e-5)
    assert of([(noise, 500)], rate=0.02, delta=1e-5) == pytest.approx(2.0, abs=1e-6)


def test_private_training_takes_the_gradient_that_autograd_gives():
    """Clipped sums of stacked models against one backward pass per sample; a sample of weight 0 has no part."""
    models = [TokenLeNet(in_channels=1, side=12, seed=s) for s in range(2)]
    rng = torch.Generator().manual_seed(0)
    x, y = torch.rand(2, 3, 1, 12, 12, generator=rng), torch.randint(10, (2, 3), generator=rng)
    names = [n for n, _ in models[0].named_parameters()]
    stacked = {n: torch.stack([dict(m.named_parameters())[n].detach() for m in models]) for n in names}
    found = private_training.clipped_sums(stacked, x, y, torch.tensor([[1.0, 1.0, 0.0]] * 2), 0.5)
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


def test_quick_run_fills_every_column(quick):
    rows = read(quick / "lenet.jsonl")
    kinds = [row["kind"] for row in rows]
    counts = {"paper": 16, "cost": 4, "gates": 4, "leakage": 4, "attack": 4, "single": 4}
    assert {kind: kinds.count(kind) for kind in kinds} == counts
    for row in rows:
        assert {"device", "torch", "seed", "commit", "quick"} <= set(row)
        if "each_matched" in row:
            assert np.mean(row["each_matched"]) == pytest.approx(row["matched"], abs=2e-4)
        if row["kind"] == "leakage":
            assert row["identification"][0]["nats"] == pytest.approx(row["identification"][0]["ceiling"])
            assert row["decoder"][0]["auc"] == pytest.approx(1.0, abs=0.01)  # without noise it is linear algebra
        if row["kind"] == "attack":
            assert min(row["ssim_data_range_255"]) > 0.97 > max(row["ssim"])  # noise passes for a perfect copy


def test_noise_schedules_have_one_budget(quick):
    rows = read(quick / "noise.jsonl")
    end = {r["schedule"]: r["epsilon"] for r in rows if r["kind"] == "noise" and r["fraction"] == 1.0}
    advice, reverse, constant = list(end)[1:4]
    assert end[reverse] == pytest.approx(end[advice])
    assert end[constant] == pytest.approx(end[advice], rel=1e-3)
    assert [name for name, value in end.items() if value is None] == [next(iter(end)), *list(end)[4:]]
    assert "∞" in tables.noise(rows)


def test_figures_are_drawn_from_results(quick):
    made = figures.draw(quick)
    kinds = [f"{kind}_lenet.svg" for kind in ("batches", "differences", "trends", "heat")]
    assert {path.name for path in made} == {*kinds, "strips_lenet.png", "noise.svg"}
    for path in made:
        if path.suffix == ".svg":
            ET.parse(path)
    assert (quick / "heat_lenet.svg").read_text().count("<rect x=") == 2 * 3 * 4  # panels, batch sizes, checkpoints


def test_a_stopped_part_resumes(tmp_path):
    rows_in(tmp_path, "batch_sizes_mlp").add("batch 4", {"kind": "batch_size", "mark": "from before"})
    batch_sizes.run("mlp", OPTIONS, rows_in(tmp_path, "batch_sizes_mlp"))
    rows = read(tmp_path / "batch_sizes_mlp.jsonl")
    assert [row["unit"] for row in rows] == ["batch 4"] + ["batch 16"] * 8
    assert rows[0]["mark"] == "from before"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnn", "mlp", "alexnet"])
def test_quick_run_of_the_other_models(name, tmp_path):
    table1.run(name, OPTIONS, rows_in(tmp_path, name))
    assert {"paper", "attack", "leakage", "gates"} <= {row["kind"] for row in read(tmp_path / f"{name}.jsonl")}
