"""The diffusion prior: what it computes, how it is trained, kept and resumed, and what it says about itself."""

import pytest
import torch
from torch import nn

from leakgauge.errors import BadInput
from leakgauge.inversion.progress import watching
from leakgauge.priors import Diffusion, Training, fit, fit_diffusion, gallery, load_diffusion, sample
from leakgauge.priors.diffusion import EMBEDDED, LEVELS, noisy, velocity
from leakgauge.priors.fit import Schedule, nearest
from leakgauge.priors.unet import UNet
from leakgauge.testing import tiny_images

SMALL = {"width": 8, "batch": 16, "lr": 5e-3}
FACTS = Training(10, 2, 5, 8, 0, "", (0.1,) * len(LEVELS), 1.0)


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch):
    monkeypatch.setattr(fit, "_RECENT", {})


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 64, 64), (1, 13, 22)])
def test_the_network_takes_images_of_any_shape(shape):
    network = UNet(shape, width=8, classes=3)
    nn.init.normal_(network.out.weight)
    x = torch.randn(2, *shape)
    made = network(x, torch.tensor([0.2, 0.9]), torch.tensor([0, 3]))
    assert made.shape == x.shape
    assert made.std() > 0


class Knowing(UNet):
    """Knows the velocity."""

    def __init__(self, true):
        super().__init__((1, 8, 8), width=8)
        self.true = true

    def forward(self, x, level, label):
        return self.true


def test_the_true_velocity_gives_the_image_back():
    x, noise, level = torch.rand(3, 1, 8, 8) * 2 - 1, torch.randn(3, 1, 8, 8), torch.tensor([0.1, 0.6, 1.0])
    prior = Diffusion(Knowing(velocity(x, level, noise)), FACTS)
    assert torch.allclose(prior(noisy(x, level, noise), level), x, atol=1e-5)
    assert noisy(x, level, noise).var() == pytest.approx(float(x.var()), abs=1.0)


def test_it_learns_what_its_images_look_like():
    images, labels = tiny_images(100)
    prior = fit_diffusion(images, labels=labels, steps=120, **SMALL)
    assert prior.trained.unexplained[0] < 0.1
    assert sorted(prior.trained.unexplained) == list(prior.trained.unexplained)  # more noise, less known
    drawn = sample(prior, 20, steps=20)
    assert drawn.shape == (20, 1, 12, 12)
    assert 0 <= float(drawn.min()) <= float(drawn.max()) <= 1
    off, chance = float(nearest(drawn, images)[0].mean()), float(nearest(torch.rand_like(drawn), images)[0].mean())
    assert off < 0.5 * chance
    assert prior.trained.images + prior.trained.held_out == 100
    assert str(prior).startswith(f"diffusion prior from {prior.trained.images} images, 120 steps: at 70 % noise ")


class Stopped(Exception):
    pass


def test_an_interrupted_training_is_resumed_as_if_it_had_never_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(fit, "EVERY", 4)
    images, labels = tiny_images(40)
    whole = fit_diffusion(images, labels=labels, steps=14, **SMALL)
    monkeypatch.setattr(fit, "_RECENT", {})
    seen = []

    def stop(done, total):
        seen.append(done)
        if len(seen) == 10:
            raise Stopped

    with pytest.raises(Stopped), watching(stop):
        fit_diffusion(images, labels=labels, steps=14, cache=tmp_path, **SMALL)
    with watching(lambda done, total: seen.append(done)):
        resumed = fit_diffusion(images, labels=labels, steps=14, cache=tmp_path, **SMALL)
    assert seen[10] == 9  # after the checkpoint of step 8
    assert resumed.digest() == whole.digest()
    assert [file.suffix for file in tmp_path.iterdir()] == [".safetensors"]


def test_the_same_images_and_settings_are_trained_on_once(tmp_path, monkeypatch):
    images = tiny_images(40)[0]
    first = fit_diffusion(images, steps=3, cache=tmp_path, **SMALL)
    steps = []
    with watching(lambda done, total: steps.append(done)):
        assert fit_diffusion(images, steps=3, cache=tmp_path, **SMALL) is first
        monkeypatch.setattr(fit, "_RECENT", {})
        again = fit_diffusion(images, steps=3, cache=tmp_path, **SMALL)
        assert not steps
        assert again.digest() == first.digest()
        assert again.trained == first.trained
        other = fit_diffusion(images.flip(-1), steps=3, cache=tmp_path, **SMALL)
    assert len(steps) == 3
    assert other.digest() != first.digest()


def test_a_saved_prior_is_read_back(tmp_path):
    prior = fit_diffusion(tiny_images(40)[0], labels=torch.arange(40) % 3, classes=5, steps=2, **SMALL)
    prior.save(tmp_path / "a.safetensors")
    again = load_diffusion(tmp_path / "a.safetensors")
    assert (again.digest(), again.trained, again.classes) == (prior.digest(), prior.trained, 5)
    prior.save(tmp_path / "half.safetensors", half=True)
    assert (tmp_path / "half.safetensors").stat().st_size < 0.6 * (tmp_path / "a.safetensors").stat().st_size
    x, level = torch.randn(2, 1, 12, 12), torch.tensor([0.3, 0.8])
    assert torch.allclose(load_diffusion(tmp_path / "half.safetensors")(x, level), prior(x, level), atol=0.02)


def test_an_unknown_class_is_asked_for_without_one():
    prior = fit_diffusion(tiny_images(40)[0], labels=torch.arange(40) % 3, steps=2, **SMALL)
    x, level = torch.randn(1, 1, 12, 12), torch.tensor([0.5])
    assert torch.equal(prior(x, level, torch.tensor([7])), prior(x, level))


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_embedded_priors_are_small_and_say_what_they_learned_from(name):
    prior = load_diffusion(name)
    assert sum(2 * p.numel() for p in prior.network.parameters()) < 2_000_000
    assert prior.trained.images + prior.trained.held_out == 57_000  # without the 3,000 embedded ones
    assert prior.trained.unexplained[2] < 0.2
    assert 0.5 < prior.trained.copies < 2


@pytest.mark.parametrize(
    ("images", "options", "words"),
    [
        (torch.rand(15, 1, 8, 8), {}, "at least 16 images"),
        (torch.rand(20, 64), {}, "N, C, H, W"),
        (torch.rand(20, 1, 8, 80), {}, "8 to 64 pixels a side"),
        (torch.rand(20, 1, 8, 8), {"width": 9}, "multiple of 8"),
        (torch.rand(20, 1, 8, 8), {"steps": 0}, "at least 1 as steps"),
        (torch.rand(20, 1, 8, 8), {"labels": torch.zeros(3, dtype=torch.long)}, "one class per image"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(images, options, words):
    with pytest.raises(BadInput, match=words):
        fit_diffusion(images, **options)


def test_files_that_are_no_priors_are_refused(tmp_path):
    with pytest.raises(BadInput, match="no prior 'nowhere'"):
        load_diffusion("nowhere")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(BadInput, match="not a prior"):
        load_diffusion(tmp_path / "text")


def test_the_nearest_image_is_found_in_pieces_too(monkeypatch):
    monkeypatch.setattr(fit, "PIECE", 7)
    images, others = torch.rand(5, 1, 3, 3), torch.rand(30, 1, 3, 3)
    distance, which = nearest(images, others)
    every = (images[:, None] - others[None]).square().flatten(2).mean(2).sqrt()
    assert torch.allclose(distance, every.min(1).values, atol=1e-5)
    assert torch.equal(which, every.argmin(1))


def test_the_rate_rises_and_falls():
    plan = Schedule(1000, 8, 1.0, 0.999)
    assert plan.rate(0) < plan.rate(100) < plan.rate(199) > plan.rate(700) > plan.rate(999) >= 0
    assert plan.decay(0) < plan.decay(100) < plan.decay(10**6) == 0.999


def test_mirrored_images_are_learned_too():
    """Images that are bright on the left alone: samples of the plain prior are too, those of the mirrored one are of both kinds."""
    images = torch.rand(60, 1, 12, 12, generator=torch.Generator().manual_seed(0)) * 0.2
    images[..., :6] += 0.8
    brighter: dict[bool, int] = {}
    for mirrored in (False, True):
        drawn = sample(fit_diffusion(images, steps=150, mirrored=mirrored, **SMALL), 24, steps=15)
        brighter[mirrored] = int((drawn[..., :6].mean((1, 2, 3)) > drawn[..., 6:].mean((1, 2, 3))).sum())
    assert brighter[False] == 24
    assert 3 <= brighter[True] <= 21


def test_a_gallery_shows_what_it_makes_and_states_what_it_learned():
    prior = load_diffusion("fashion")
    shown = gallery(prior)
    assert shown.shape == (8, 1, 28, 28)
    assert 0 <= float(shown.min()) <= float(shown.max()) <= 1
    learned = prior.learned()
    assert (learned.images, learned.steps) == (prior.trained.images, prior.trained.steps)
    assert dict(zip(learned.levels, learned.unexplained, strict=True))[0.7] == prior.trained.unexplained[3]
