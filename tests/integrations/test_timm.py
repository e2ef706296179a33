from __future__ import annotations

import sys

import pytest
import torch
from safetensors.torch import save_file

from leakgauge.core import Pixels
from leakgauge.errors import BadInput, MissingExtra
from leakgauge.families import find_roles
from leakgauge.integrations.timm import load


@pytest.fixture(scope="module")
def loaded():
    return load("test_vit", classes=5, seed=3)


def test_model_and_pixels(loaded):
    model, space = loaded
    assert space == Pixels((3, 160, 160), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    assert model(torch.zeros(1, *space.shape)).shape == (1, 5)
    assert find_roles(model).family == "vit"


def test_same_seed_same_weights_and_no_global_randomness(loaded):
    before = torch.get_rng_state()
    again, _ = load("test_vit", classes=5, seed=3)
    other, _ = load("test_vit", classes=5, seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    weights = [model.state_dict()["blocks.0.attn.qkv.weight"] for model in (loaded[0], again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_default_number_of_classes_is_timms_own():
    assert load("test_vit")[0].get_submodule("head").out_features == 1000


def test_a_model_without_classifier_needs_the_number_of_classes():
    with pytest.raises(BadInput, match="without a classifier; give the number of classes"):
        load("vit_small_patch14_reg4_dinov2")
    with pytest.raises(BadInput, match="without a classifier"):
        load("test_vit", classes=0)


@pytest.mark.parametrize("name", ["test_vit", "test_resnet"])
def test_double_backward(name, input_gradient_of_gradient_norm):
    model, _ = load(name, classes=5)
    shape = (3, 160, 160) if name == "test_vit" else (3, 32, 32)
    gradient = input_gradient_of_gradient_norm(model, shape)
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0


def test_weights_from_a_local_file(tmp_path, loaded):
    save_file(loaded[0].state_dict(), tmp_path / "weights.safetensors")
    filled, _ = load("test_vit", classes=5, seed=9, pretrained=tmp_path / "weights.safetensors")
    assert all(torch.equal(value, loaded[0].state_dict()[name]) for name, value in filled.state_dict().items())


def test_unfit_weights_are_refused(tmp_path, loaded):
    with pytest.raises(BadInput, match="there is no file"):
        load("test_vit", pretrained=tmp_path / "absent.safetensors")
    (tmp_path / "text.safetensors").write_text("no tensors here")
    with pytest.raises(BadInput, match="is no safetensors file"):
        load("test_vit", pretrained=tmp_path / "text.safetensors")
    save_file(loaded[0].state_dict(), tmp_path / "five.safetensors")
    with pytest.raises(BadInput, match=r"head\.bias in .*five.* has shape \(5,\), the model's has \(7,\)") as raised:
        load("test_vit", classes=7, pretrained=tmp_path / "five.safetensors")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_225", "vit_tiny_patch16_224.no_such_tag", "hf-hub:timm/vit", ""])
def test_unknown_name(name):
    with pytest.raises(BadInput, match="timm has no model"):
        load(name)


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(BadInput, match=r"did you mean .*vit_tiny_patch16_224"):
        load("vit_tiny_patch16_225")


@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_missing_package_names_the_extra(monkeypatch, package):
    for name in [name for name in sys.modules if name.partition(".")[0] in ("timm", package)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"^{package} is not installed; .*\.\[timm\]"):
        load("test_vit")
