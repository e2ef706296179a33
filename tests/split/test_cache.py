"""Cached features: those of the channel, from one pass, whole or not at all on disk."""

from __future__ import annotations

import pytest
import torch

from leakgauge.channels import Features
from leakgauge.core import Pixels, Victim
from leakgauge.defenses import GaussianNoise, Quantize
from leakgauge.errors import BadInput
from leakgauge.graphs import trace_of
from leakgauge.models.seeded import seeded
from leakgauge.split import cache
from leakgauge.split.cache import cache_features, feature_bytes, sent_shape
from tests.zoo import SmallResNet

CUTS = ["features.relu1_1", "features.pool2"]


def direct(victim, images, cut):
    return next(iter(Features(cut)(victim, victim.space.encode(images), torch.zeros(len(images))).values())).detach()


@pytest.fixture
def passes(victim, monkeypatch):
    """Counts how often the model was run."""
    seen: list[tuple[str, ...]] = []
    traced = trace_of(victim)
    plain = type(traced).values

    def counted(self, x, names):
        seen.append(tuple(names))
        return plain(self, x, names)

    monkeypatch.setattr(type(traced), "values", counted)
    return seen


@pytest.mark.parametrize("on_disk", [False, True])
def test_equals_the_channel(victim, some, tmp_path, on_disk, passes):
    images = some(20).images
    folder = tmp_path / "features" if on_disk else None
    found = cache_features(victim, images, CUTS, folder=folder, dtype=torch.float32, batch=8)
    for cut in CUTS:
        torch.testing.assert_close(found[cut], direct(victim, images, cut))
    assert len(passes) == 3  # 8 + 8 + 4 images, both cuts in one pass


def test_half_precision_is_rounding(victim, some):
    images = some(10).images
    found = cache_features(victim, images, CUTS)
    assert found[CUTS[0]].dtype == torch.bfloat16
    torch.testing.assert_close(found[CUTS[0]].float(), direct(victim, images, CUTS[0]), rtol=0.01, atol=1e-6)


def test_a_second_call_does_not_run_the_model(victim, some, tmp_path, passes):
    images = some(10).images
    first = cache_features(victim, images, CUTS, folder=tmp_path)
    ran = len(passes)
    again = cache_features(victim, images, CUTS, folder=tmp_path)
    assert len(passes) == ran
    assert all(torch.equal(first[cut], again[cut]) for cut in CUTS)
    cache_features(victim, images, [*CUTS, "head"], folder=tmp_path)
    assert passes[ran:] == [("head",)]  # only what is new


@pytest.mark.parametrize("change", ["weights", "images", "defense", "dtype"])
def test_what_changes_the_features_changes_the_file(victim, some, tmp_path, change):
    images = some(10).images
    cache_features(victim, images, CUTS[:1], folder=tmp_path)
    options: dict = {}
    if change == "weights":
        victim = Victim(victim.model, victim.space)
        victim.model.get_parameter("features.conv1_1.weight").data.mul_(2)
    if change == "images":
        images = images.flip(0)
    if change == "defense":
        options = {"defenses": [Quantize(4)]}
    if change == "dtype":
        options = {"dtype": torch.float16}
    found = cache_features(victim, images, CUTS[:1], folder=tmp_path, **options)
    assert len(list(tmp_path.iterdir())) == 2
    if change == "weights":
        torch.testing.assert_close(found[CUTS[0]].float(), direct(victim, images, CUTS[0]), rtol=0.02, atol=1e-2)


def test_nothing_is_left_of_an_interrupted_run(victim, some, tmp_path, monkeypatch):
    def stop(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, "apply_defenses", stop)
    with pytest.raises(KeyboardInterrupt):
        cache_features(victim, some(10).images, CUTS, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_defended_tensor_is_kept(victim, some):
    images = some(6).images
    plain, noisy, again, coarse = (
        cache_features(victim, images, CUTS[:1], defenses=d, dtype=torch.float32)[CUTS[0]]
        for d in ([], [GaussianNoise(std=0.5)], [GaussianNoise(std=0.5)], [Quantize(2)])
    )
    assert float((noisy - plain).std()) == pytest.approx(0.5, rel=0.1)
    assert torch.equal(noisy, again)
    assert max(len(row.unique()) for row in coarse) <= 3


def test_several_tensors_lie_side_by_side():
    victim = Victim(SmallResNet(), Pixels((3, 16, 16)))
    images = torch.rand(3, 3, 16, 16)
    found = cache_features(victim, images, ["layer1.0.conv1"], dtype=torch.float32)["layer1.0.conv1"]
    sent = Features("layer1.0.conv1")(victim, images, torch.zeros(3))
    assert sent_shape(victim, "layer1.0.conv1") == (2 * 4 * 256,)
    torch.testing.assert_close(found, torch.cat([value.flatten(1) for value in sent.values()], 1))


def test_refusals(victim, some, tmp_path):
    images = some(4).images
    assert feature_bytes(victim, CUTS, 4) == 4 * 2 * (6 * 64 + 8 * 4)
    with pytest.raises(BadInput, match="give a folder"):
        cache_features(victim, images, CUTS, in_memory=100)
    with pytest.raises(BadInput, match="images of shape"):
        cache_features(victim, images[:, :, :4], CUTS)
    with pytest.raises(BadInput, match="bfloat16, float16 or float32"):
        cache_features(victim, images, CUTS, dtype=torch.int8)
    with pytest.raises(BadInput, match="did you mean"):
        cache_features(victim, images, ["features.pool_2"])
    cache_features(victim, images, CUTS[:1], folder=tmp_path)
    next(tmp_path.iterdir()).write_bytes(b"rubbish")
    with pytest.raises(BadInput, match="is damaged"):
        cache_features(victim, images, CUTS[:1], folder=tmp_path)


class Scaled(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        with seeded(0):
            self.first, self.factor = torch.nn.Linear(64, 4), factor

    def forward(self, x):
        return self.first(self.factor * x.flatten(1))


def test_a_model_of_other_code_and_the_same_weights_has_its_own_file(some, tmp_path):
    images = some(4).images
    one, two = (
        cache_features(Victim(Scaled(factor), Pixels((1, 8, 8))), images, ["first"], folder=tmp_path)["first"]
        for factor in (1.0, 2.0)
    )
    assert not torch.equal(one, two)
