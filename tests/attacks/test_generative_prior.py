"""A generator learned from images of the adversary's own, and the attack that searches among what it makes."""

import numpy as np
import pytest
import torch

from leakgauge.attacks import fit_generator, generative_prior, inverting_gradients
from leakgauge.audit import Case, embedded, score
from leakgauge.audit.null import null_run
from leakgauge.channels import Gradient
from leakgauge.core import Auxiliary, Size, Victim, share
from leakgauge.data.embedded import fashion
from leakgauge.errors import BadInput
from leakgauge.priors.generator import whitened_components


def test_principal_components_are_those_of_the_covariance():
    images = fashion("train")[0][:200]
    found = whitened_components(images, 5).double().numpy()
    flat = images.flatten(1).double().numpy()
    values, vectors = np.linalg.eigh(np.cov(flat.T, bias=True))
    expected = (flat - flat.mean(0)) @ vectors[:, ::-1][:, :5] / np.sqrt(values[::-1][:5])
    assert np.allclose(np.abs(found), np.abs(expected), atol=1e-3)
    assert np.allclose(found.T @ found / len(found), np.eye(5), atol=1e-4)


def test_a_generator_makes_images_of_its_kind():
    images = fashion("train")[0][:400]
    generator = fit_generator(images, latents=16, epochs=20)
    assert generator.history.held_out_fvu < 0.4
    made = generator(whitened_components(images, 16)[:20])
    assert made.shape == (20, 1, 28, 28)
    assert 0 <= float(made.min()) <= float(made.max()) <= 1
    assert (made - images[:20]).square().mean() < 0.4 * (images[:20] - images.mean(0)).square().mean()
    assert not any(p.requires_grad for p in generator.network.parameters())
    assert generator(torch.zeros(2, 16, dtype=torch.float64)).dtype == torch.float64
    assert str(generator).startswith("generator of 16 latents, from 400 images: ")


def test_the_same_seed_gives_the_same_generator_and_the_callers_randomness_stays():
    images = fashion("train")[0][:40]
    before = torch.get_rng_state()
    first, again, other = (fit_generator(images, latents=4, epochs=1, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    z = torch.ones(1, 4)
    assert torch.equal(first(z), again(z))
    assert not torch.equal(first(z), other(z))


def test_there_are_fewer_latents_than_images():
    assert fit_generator(fashion("train")[0][:20], latents=64, epochs=1).size == 19


@pytest.mark.parametrize(
    ("images", "options", "words"),
    [
        (torch.rand(15, 1, 8, 8), {}, "at least 16 images"),
        (torch.rand(20, 64), {}, "N, C, H, W"),
        (torch.rand(20, 1, 8, 8), {"latents": 0}, "latents of at least 1"),
    ],
)
def test_a_generator_refuses(images, options, words):
    with pytest.raises(BadInput, match=words):
        fit_generator(images, **options)


def case(model: str, *, batch: int = 1):
    setup = embedded(Case(model=model, batch_size=batch))
    encode = setup.victim.space.encode
    x, y = encode(setup.images[:batch]), setup.labels[:batch]
    own = Auxiliary(encode(setup.images[100:600]))
    return setup.victim, share(setup.victim, Gradient(), x, y, reveal=(Size(), own)), x, y


def test_it_finds_the_image_of_a_trained_vit_where_smoothness_does_not_suffice():
    victim, seen, x, y = case("vit")
    attack = generative_prior(steps=120, pixels=0, epochs=12)
    found = {
        "prior": attack(victim, seen, seed=0),
        "smooth": inverting_gradients(steps=120)(victim, seen, seed=0),
        "null": null_run(attack, victim, seen, seed=0),
    }
    alike = {name: score(one, x, y, space=victim.space).ssim[0] for name, one in found.items()}
    assert alike["prior"] > max(alike["smooth"], alike["null"]) + 0.2, alike
    assert found["prior"].notes[0].startswith("generator of 64 latents, from 500 images")
    assert "blind" in found["null"].notes[1]


def test_the_adversary_is_told_to_hold_images():
    _, seen, _, _ = case("cnn")
    assert any("500 auxiliary images" in known.what for known in seen.assumptions)


def test_a_model_in_half_precision_is_attacked_in_float32():
    victim, seen, x, y = case("cnn")
    half = Victim(victim.model.bfloat16(), victim.space)
    own = seen.auxiliary[:40].bfloat16()
    narrow = share(half, Gradient(), x.bfloat16(), y, reveal=(Size(), Auxiliary(own)))
    assert generative_prior(steps=5, pixels=0.4, epochs=1)(half, narrow).x.isfinite().all()


@pytest.mark.parametrize(
    "options", [{"latents": 0}, {"epochs": 1.5}, {"pixels": -0.1}, {"pixels": 1.0}, {"steps": 0}, {"lr": 0.0}]
)
def test_options_that_cannot_be_are_refused(options):
    with pytest.raises(BadInput):
        generative_prior(**options)


@pytest.mark.parametrize(
    ("steps", "share_of", "latent", "among_pixels"),
    [(400, 0.25, 300, 100), (3, 0.25, 2, 1), (1, 0.9, 1, 0), (50, 0, 50, 0)],
)
def test_the_last_share_of_the_steps_is_among_pixels(steps, share_of, latent, among_pixels):
    attack = generative_prior(steps=steps, pixels=share_of)
    assert attack.descent.steps == latent
    assert (attack.pixels.steps if attack.pixels else 0) == among_pixels
