from pathlib import Path

import pytest
import torch

import leakgauge.models
from leakgauge.data.embedded import MEAN, STD, fashion
from leakgauge.errors import BadInput
from leakgauge.models.pretrained import PRETRAINED, pretrained

WEIGHTS = Path(leakgauge.models.__file__).parent / "weights"


@pytest.mark.parametrize("name", PRETRAINED)
def test_accuracy_on_the_embedded_test_images(name):
    state = torch.get_rng_state()
    model = pretrained(name)
    assert torch.get_rng_state().equal(state)
    assert not model.training
    assert all(p.dtype == torch.float32 and p.requires_grad for p in model.parameters())
    x, y = fashion("test")
    with torch.no_grad():
        hits = model((x - MEAN[0]) / STD[0]).argmax(1) == y
    assert hits.float().mean() >= 0.85


@pytest.mark.parametrize("name", PRETRAINED)
def test_weights_are_small_and_documented(name):
    assert (WEIGHTS / f"{name}.safetensors").stat().st_size <= 1_000_000
    assert f"`{name}`" in (WEIGHTS / "README.md").read_text("utf-8")


def test_unknown_name():
    with pytest.raises(BadInput, match="cnn, vit, vgg"):
        pretrained("bert")
