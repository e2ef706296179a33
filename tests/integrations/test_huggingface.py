from __future__ import annotations

import json
import sys

import pytest
import torch

from leakgauge.core import Pixels, Victim
from leakgauge.errors import BadInput, MissingExtra
from leakgauge.families import find_roles
from leakgauge.integrations import huggingface
from leakgauge.integrations.huggingface import load


@pytest.mark.parametrize("kind", ["vit", "deit", "dinov2"])
def test_transformers_from_a_small_configuration(small_config, kind, input_gradient_of_gradient_norm):
    model, space = load(str(small_config(kind)), classes=5, seed=1)
    assert space == Pixels((3, 32, 32), mean=(0.5,), std=(0.5,))
    assert model(torch.zeros(2, *space.shape)).shape == (2, 5)
    roles = find_roles(model)
    assert (roles.family, roles.head) == ("vit", "model.classifier")
    assert roles.attention[0].heads == 3
    gradient = input_gradient_of_gradient_norm(model, space.shape)
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0


def test_eager_attention_needs_no_context(small_config):
    model, space = load(str(small_config("vit")))
    x = torch.zeros(1, *space.shape, requires_grad=True)
    first = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)[0]
    assert torch.autograd.grad(first.sum(), model.get_parameter("model.classifier.weight"))[0].isfinite().all()


SMALL_CONVOLUTIONAL = {
    "resnet": {"depths": [1, 1], "hidden_sizes": [8, 16], "embedding_size": 8},
    "convnext": {"depths": [1, 1], "hidden_sizes": [8, 16], "num_stages": 2, "patch_size": 4},
    "swin": {"depths": [1, 1], "embed_dim": 8, "num_heads": [1, 2], "patch_size": 4, "window_size": 4},
}


@pytest.mark.parametrize("kind", SMALL_CONVOLUTIONAL)
def test_other_architectures(tmp_path, kind, input_gradient_of_gradient_norm):
    settings = {"model_type": kind, "image_size": 32, **SMALL_CONVOLUTIONAL[kind]}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    model, space = load(str(tmp_path / "config.json"), classes=5)
    assert space.shape == (3, 32, 32)
    assert input_gradient_of_gradient_norm(model, space.shape).isfinite().all()


def test_architecture_by_keyword():
    model, space = load("resnet", classes=7)
    assert space.shape == (3, 224, 224)
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 7)


def test_same_seed_same_weights_and_no_global_randomness(small_config):
    folder = str(small_config("vit"))
    before = torch.get_rng_state()
    weights = [load(folder, seed=seed)[0].state_dict()["model.classifier.weight"] for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_victim_runs_on_the_wrapped_model(small_config):
    model, space = load(str(small_config("vit")), classes=5)
    victim = Victim(model, space)
    assert victim(torch.zeros(1, 3, 32, 32), parameters=victim.parameters()).shape == (1, 5)


def saved(folder, **preprocessor):
    model, _ = load(str(folder), classes=5, seed=1)
    model.model.save_pretrained(folder)
    if preprocessor:
        (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return model


def test_pretrained_from_a_local_folder(small_config, capfd):
    folder = small_config("vit")
    model = saved(folder, image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.5, 0.6])
    assert huggingface.has_weights(folder)
    capfd.readouterr()
    restored, space = load(str(folder), seed=8, pretrained=True)
    assert (space.mean, space.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in restored.state_dict().items())
    assert restored.model.config._attn_implementation == "eager"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "settings",
    [
        {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]},
        {"do_normalize": False, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]},
        {"do_rescale": False, "image_mean": [100.0, 90.0, 80.0], "image_std": [50.0, 60.0, 70.0]},
        {"rescale_factor": 1 / 127.5, "image_mean": [1.0, 1.0, 1.0], "image_std": [1.0, 0.5, 2.0]},
    ],
)
def test_images_reach_the_model_as_the_folders_preprocessor_would_give_them(small_config, settings):
    import transformers

    folder = small_config("vit")
    saved(folder, **settings)
    _, space = load(str(folder))
    picture = torch.randint(256, (3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    process = transformers.ViTImageProcessor(do_resize=False, **settings)
    theirs = process(picture, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(space.encode(picture[None] / 255), theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("twice", [True, False])
def test_what_the_preprocessor_of_efficientnet_does_more_is_followed(small_config, normalised, twice):
    from transformers.models.efficientnet.image_processing_efficientnet import EfficientNetImageProcessor

    folder = small_config("vit")
    settings = {
        "rescale_factor": 1 / 127.5, "rescale_offset": True, "do_normalize": normalised, "include_top": twice,
        "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6],
    }  # fmt: skip
    saved(folder, **settings)
    picture = torch.randint(256, (3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    process = EfficientNetImageProcessor(do_resize=False, do_center_crop=False, **settings)
    theirs = process(picture, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(load(str(folder))[1].encode(picture[None] / 255), theirs, atol=1e-5, rtol=1e-5)


def test_pretrained_weights_that_do_not_fit(small_config):
    folder = small_config("vit")
    with pytest.raises(BadInput, match=r"holds no model\.safetensors"):
        load(str(folder), pretrained=True)
    saved(folder)
    with pytest.raises(BadInput, match=r"do not load|lack"):
        load(str(folder), classes=9, pretrained=True)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "num_hidden_layers": 2}))
    with pytest.raises(BadInput, match="lack 16 parameters of the model, first vit"):
        load(str(folder), pretrained=True)
    (folder / "model.safetensors").write_text("no tensors here")
    with pytest.raises(BadInput, match="do not load"):
        load(str(folder), pretrained=True)


def test_an_architecture_has_no_weights():
    with pytest.raises(BadInput, match=r"resnet is an architecture without weights; write \./resnet"):
        load("resnet", pretrained=True)


def test_bad_names(tmp_path):
    with pytest.raises(BadInput, match=r"'vitt' is no image classifier of transformers; did you mean .*vit"):
        load("vitt")
    with pytest.raises(BadInput, match=r"there is no google/vit-base-patch16-224; give a config\.json"):
        load("google/vit-base-patch16-224")
    with pytest.raises(BadInput, match="there is no configuration at"):
        load(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "must hold a JSON object, got a list"),
        ("{}", "'None' is no image classifier"),
        ('{"model_type": "bert"}', "'bert' is no image classifier"),
        ('{"model_type": "vit", "hidden_size": "wide"}', "is wrong: .*hidden_size"),
        ('{"model_type": "vit", "hidden_size": 24, "num_attention_heads": 0}', "cannot build the configuration"),
    ],
)
def test_bad_configurations(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(BadInput, match=message) as raised:
        load(str(tmp_path))
    assert "\n" not in str(raised.value)


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"transformers is not installed; .*\.\[huggingface\]"):
        load("vit")
