"""Attacks with a diffusion prior: where it comes from, what is assumed, and what a null run and a denoised result are."""

import pytest
import torch
from PIL import Image

from leakgauge.attacks import denoised, diffusion, diffusion_guided, generative_prior, inverting_gradients, linear
from leakgauge.attacks.denoised import noise_deviation
from leakgauge.audit import Case, embedded, score
from leakgauge.audit.evaluate import assumed
from leakgauge.audit.null import null_run
from leakgauge.audit.records import append, read
from leakgauge.audit.run import run_case
from leakgauge.channels import Gradient
from leakgauge.core import Auxiliary, Observation, Pixels, Reconstruction, Size, Victim, share, uses
from leakgauge.data.embedded import fashion
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.models import CNN, MLP
from leakgauge.priors.cache import cache_folder
from leakgauge.report.page import render
from leakgauge.testing import check_part, tiny_case, tiny_images

SHORT = {"width": 8, "training": 2}


def case(model: str = "vit", first: int = 0, **options):
    setup = embedded(Case(model=model, batch_size=1))
    x, y = setup.victim.space.encode(setup.images[first : first + 1]), setup.labels[first : first + 1]
    return setup.victim, share(setup.victim, Gradient(), x, y, **options), x, y


def test_with_the_embedded_prior_it_finds_the_image_of_a_trained_vit():
    victim, seen, x, y = case(first=30)
    attack = diffusion(prior="fashion", steps=60, moves=6, restarts=1)
    alike = {
        name: score(one, x, y, space=victim.space).ssim[0]
        for name, one in {
            "ours": attack(victim, seen, seed=0),
            "smooth": inverting_gradients(steps=60)(victim, seen, seed=0),
            "null": null_run(attack, victim, seen, seed=0),
        }.items()
    }
    assert alike["ours"] > max(alike["smooth"], alike["null"]) + 0.2, alike


def test_a_prior_that_others_trained_is_an_assumption():
    _, seen, _, _ = case()
    attack = diffusion(prior="fashion")
    assert any("diffusion prior trained on" in known.what for known in assumed(attack, seen))
    assert not uses(attack)  # it needs no auxiliary images
    assert uses(diffusion()) == {"learned_prior"}
    assert not diffusion().assumptions()


@pytest.mark.parametrize("make", [diffusion, diffusion_guided, generative_prior])
@pytest.mark.parametrize("count", [0, 10])
def test_without_images_of_its_own_it_does_not_apply(make, count):
    victim = Victim(CNN(), Pixels((1, 28, 28)))
    x, y = torch.rand(1, 1, 28, 28), torch.tensor([3])
    told = (Size(), Auxiliary(torch.rand(count, 1, 28, 28))) if count else (Size(),)
    with pytest.raises(Inapplicable, match=f"at least 16 of the adversary's own images, but it has {count}; reveal"):
        make()(victim, share(victim, Gradient(), x, y, reveal=told))


def test_a_prior_for_another_shape_does_not_apply():
    victim, x, y = tiny_case("cnn")
    with pytest.raises(Inapplicable, match="for images of 1×28×28, but the victim takes 1×12×12"):
        diffusion(prior="fashion")(victim, share(victim, Gradient(), x, y))


def test_an_auxiliary_image_that_is_private_is_refused():
    victim, x, y = tiny_case("cnn", count=2)
    own = victim.space.encode(tiny_images(20)[0])
    with pytest.raises(BadInput, match="auxiliary image 0 equals private image 1"):
        share(victim, Gradient(), x, y, reveal=(Size(), Auxiliary(own[1:])))
    assert share(victim, Gradient(), x, y, reveal=(Size(), Auxiliary(own[2:]))).auxiliary is not None


def test_public_images_come_from_a_folder(tmp_path):
    images = fashion("train")[0][:20]
    for i, image in enumerate(images):
        Image.fromarray((image[0] * 255).byte().numpy()).save(tmp_path / f"{i:02}.png")
    setup = embedded(Case(model="cnn"))
    seen = setup.observation(Case(model="cnn", reveal=("size", f"public:{tmp_path}")))
    assert torch.allclose(setup.victim.space.decode(seen.auxiliary), images, atol=0.01)
    assert any("20 auxiliary images" in known.what for known in seen.assumptions)
    private = setup.images[:1]
    Image.fromarray((private[0, 0] * 255).round().byte().numpy()).save(tmp_path / "private.png")
    with pytest.raises(BadInput, match="auxiliary image 20 equals private image 0"):
        setup.observation(Case(model="cnn", reveal=("size", f"public:{tmp_path}")))
    with pytest.raises(BadInput, match="no public images at"):
        Case(model="cnn", reveal=("size", "public:nowhere")).build_reveal()


def test_the_classes_of_public_images_are_those_that_the_victim_gives_them(monkeypatch, tmp_path):
    victim, x, y = tiny_case("cnn")
    own = victim.space.encode(tiny_images(40)[0][10:])
    seen = share(victim, Gradient(), x, y, reveal=(Size(), Auxiliary(own)))
    prior = diffusion(**SHORT).learning(victim, seen)
    assert prior.classes == 4
    assert list(cache_folder().iterdir())  # kept for the next run


@pytest.mark.parametrize(
    "options", [{"prior": "nowhere"}, {"width": 0}, {"training": 1.5}, {"steps": 0}, {"reach": -1.0}]
)
def test_options_that_cannot_be_are_refused(options):
    with pytest.raises(BadInput):
        diffusion(**options)


@pytest.mark.parametrize("deviation", [0.1, 0.3, 0.6])
def test_the_noise_of_an_image_is_measured(deviation):
    images = fashion("test")[0][:16] * 2 - 1
    noise = deviation * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    assert noise_deviation(images + noise).mean() == pytest.approx(deviation, rel=0.2)  # texture counts as noise
    assert noise_deviation(images).mean() < 0.05


class Noisy:
    """Finds the truth with noise in it."""

    def __init__(self, x, deviation):
        self.x, self.deviation = x, deviation

    def __call__(self, victim, seen, /, *, seed=0):
        noise = self.deviation * torch.randn(self.x.shape, generator=torch.Generator().manual_seed(seed))
        found = victim.space.encode(victim.space.decode(self.x) + noise)
        return Reconstruction.single(found, torch.tensor([0]), made_by="noisy", began=0.0)


def test_a_noisy_result_is_cleaned_and_a_clean_one_kept():
    victim, seen, x, y = case("cnn", first=40)
    for deviation in (0.2, 0.0):
        plain = Noisy(x, deviation)
        before = score(plain(victim, seen), x, y, space=victim.space).psnr[0]
        after = score(denoised(plain, prior="fashion")(victim, seen), x, y, space=victim.space).psnr[0]
        assert after > before + 4 if deviation else after > 30


def test_a_denoised_attack_is_a_part_like_any_other():
    attack = denoised(linear(), prior="fashion")
    check_part(attack)
    victim = Victim(MLP(), Pixels((1, 28, 28)))
    x, y = fashion("test")[0][:1], torch.tensor([0])
    found = attack(victim, share(victim, Gradient(), x, y))
    assert found.x.shape == x.shape
    assert found.loss == float(found.losses.min())
    assert isinstance(attack.blind(), type(linear())) or not isinstance(attack.blind(), type(attack))
    with pytest.raises(BadInput, match="must not be negative"):
        denoised(linear(), deviation=-1.0)


def test_observation_without_size_is_refused():
    victim, seen, _, _ = case()
    with pytest.raises(Inapplicable):
        diffusion(prior="fashion")(victim, Observation(seen.signal, seen.channel))


def test_a_share_of_the_steps_refines_pixels():
    solver = diffusion(prior="fashion", steps=60, moves=10, refine=0.5).matching.solver
    assert (solver.rounds, solver.moves, solver.refine, solver.steps) == (3, 10, 30, 60)
    with pytest.raises(BadInput, match="below 1"):
        diffusion(prior="fashion", refine=1.0)


def test_refining_fits_better_than_not():
    victim, seen, _, _ = case(first=30)
    plain = diffusion(prior="fashion", steps=40, moves=10, restarts=1)(victim, seen, seed=0)
    refined = diffusion(prior="fashion", steps=80, moves=10, refine=0.5, restarts=1)(victim, seen, seed=0)
    assert refined.loss < 0.7 * plain.loss, (refined.loss, plain.loss)


def test_the_report_shows_what_the_prior_makes(tmp_path):
    case = Case(model="vit", attack="diffusion", options={"prior": "fashion", "steps": 2, "restarts": 1})
    record = run_case(case, load=embedded, folder=tmp_path)
    append(tmp_path, record)
    assert record.learned is not None
    assert record.learned.images == 56_000
    assert (tmp_path / record.pictures["prior"]).is_file()
    assert read(tmp_path)[0].learned == record.learned
    page = render(tmp_path)
    assert "What the prior makes by itself" in page
    assert "they are not copies" in page
    assert 'class="over-steps sampled"' in page
