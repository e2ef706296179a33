"""The features channel against a plain forward pass of the layers before the cut."""

from __future__ import annotations

import pytest
import torch

from leakgauge import share
from leakgauge.channels import Features
from leakgauge.core import Pixels, Victim
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.testing import tiny_case
from tests.zoo import SmallResNet


@pytest.mark.parametrize("layers", [1, 3, 6])
def test_equals_the_layers_before_the_cut(layers):
    victim, x, y = tiny_case("cnn", count=3)
    sent = Features(f"features.{layers - 1}")(victim, x, y)
    assert list(sent) == [f"features.{layers - 1}"]
    body = victim.model.get_submodule("features")
    torch.testing.assert_close(sent[f"features.{layers - 1}"], body[:layers](x))


def test_the_cloud_goes_on():
    victim, x, y = tiny_case("vit", count=3)
    channel = Features("blocks.0")
    torch.testing.assert_close(channel.resume(victim, channel(victim, x, y)), victim(x))
    with pytest.raises(Inapplicable, match=r"not shared: blocks.0"):
        channel.resume(victim, {})


def test_several_tensors_are_named_one_by_one():
    victim = Victim(SmallResNet(), Pixels((3, 16, 16)))
    x, y = torch.rand(2, 3, 16, 16), torch.zeros(2, dtype=torch.long)
    channel = Features("layer1.0.conv1")
    sent = channel(victim, x, y)
    assert list(sent) == ["relu", "layer1.0.conv1"]
    assert {name: value.shape for name, value in channel.like(victim, 2).items()} == {
        n: v.shape for n, v in sent.items()
    }
    torch.testing.assert_close(channel.resume(victim, sent), victim(x))


def test_a_wrong_name_is_answered_with_the_nearest():
    victim, x, y = tiny_case("cnn")
    with pytest.raises(BadInput, match=r"there is no cut 'feature.2'; did you mean features.2"):
        Features("feature.2")(victim, x, y)


def test_inference_in_eval_mode_is_no_special_knowledge():
    victim, x, y = tiny_case("cnn")
    assert [a.kind for a in share(victim, Features("features.2"), x, y).assumptions] == ["deployable"]  # the batch size
    with pytest.raises(BadInput, match="eval mode"):
        share(tiny_case("cnn", mode="train")[0], Features("features.2"), x, y)
