"""fit_decoder: learned inverters that behave like every other attack."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from leakgauge.attacks.decoder import (
    DecoderInverter,
    Deconvolution,
    FittedDecoder,
    History,
    OneCycle,
    Weights,
    fit_decoder,
    fit_on,
    public_features,
    train_decoder,
)
from leakgauge.attacks.decoder.fitting import only_tensor
from leakgauge.core import Attack, Pixels, Victim, share
from leakgauge.defenses import GaussianNoise
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion.progress import watching
from leakgauge.models.seeded import seeded
from leakgauge.priors.decoders import training
from leakgauge.testing import check_attack, check_part, tiny_images, untouched
from reproductions.common.decoders import Enhanced, Learned, Normalise

SIDE = 12


@dataclass(frozen=True)
class FirstLayer:
    """A channel that sends the output of the model's first two layers under one name."""

    name: str = "early"

    def __call__(self, victim: Victim, x: Tensor, y: Tensor, /) -> dict[str, Tensor]:
        return {self.name: victim.model[:2](x)}


@dataclass(frozen=True)
class Twice:
    def __call__(self, victim: Victim, x: Tensor, y: Tensor, /) -> dict[str, Tensor]:
        return {"a": x, "b": x}


@pytest.fixture(scope="module")
def victim():
    with seeded(0):
        model = nn.Sequential(nn.Conv2d(1, 6, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(216, 4))
    return Victim(model, Pixels((1, SIDE, SIDE), mean=(0.4,), std=(0.3,)))


def pictures(count, *, seed=0):
    """Smooth random blobs in [0, 1], all different."""
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 1, 3, 3, generator=rng)
    return nn.functional.interpolate(coarse, size=(SIDE, SIDE), mode="bicubic").clamp(0, 1)


@pytest.fixture(scope="module")
def fitted(victim):
    return fit_decoder(victim, FirstLayer(), pictures(256), decoder=Deconvolution("prelu"), epochs=8, lr=0.01, batch=32)


def test_it_is_an_attack_that_reads_the_feature(victim, fitted):
    attack: Attack = fitted
    images = pictures(20, seed=9)
    seen = share(victim, FirstLayer(), victim.space.encode(images), torch.zeros(20, dtype=torch.long))
    found = attack(victim, seen)
    error = (victim.space.decode(found.x) - images).square().mean()
    baseline = (pictures(256).mean(0) - images).square().mean()
    assert error < 0.3 * baseline
    assert found.y is None
    assert found.loss == fitted.history.held_out_mse
    assert "FittedDecoder" in found.made_by
    assert any("adversary owns 256 images" in note for note in found.notes)
    assert any("only 256 public images" in note for note in found.notes)


def test_laws_of_an_attack(victim, fitted):
    images, labels = tiny_images(3)
    check_attack(fitted, victim, victim.space.encode(images), labels, channel=FirstLayer(), better_by=3.0)


def test_same_seed_same_decoder_and_the_global_generator_is_left_alone(victim):
    state = torch.get_rng_state()
    options = {"decoder": Enhanced(Deconvolution(), (Normalise(), Learned())), "epochs": 2}
    with untouched(victim):
        first, same, other = (fit_decoder(victim, FirstLayer(), pictures(40), seed=s, **options) for s in (1, 1, 2))
    assert torch.equal(state, torch.get_rng_state())
    assert first == same
    assert first.weights != other.weights
    assert repr(first) == repr(same)


def test_fit_on_cached_features_is_the_same(victim):
    images = pictures(40)
    features, name = public_features(victim, FirstLayer("there"), images)
    assert name == "there"
    one = fit_on(features, images, decoder=Deconvolution(), epochs=2)
    two = fit_decoder(victim, FirstLayer("there"), images, decoder=Deconvolution(), epochs=2)
    assert one.weights == two.weights
    assert (one.cut, two.cut) == (None, "there")


def test_half_precision_features_and_bytes_are_welcome(victim):
    images = (pictures(64) * 255).to(torch.uint8)
    features, _ = public_features(victim, FirstLayer(), images)
    fine = fit_on(features, images, decoder=Deconvolution(), epochs=3)
    coarse = fit_on(features.bfloat16(), images, decoder=Deconvolution(), epochs=3)
    assert coarse.history.held_out_mse == pytest.approx(fine.history.held_out_mse, rel=0.05)


def test_history_is_measured_where_nothing_was_trained():
    images = pictures(64)
    features = images.clone()
    with seeded(0):
        network = Deconvolution()((1, SIDE, SIDE), (1, SIDE, SIDE))
    weights, history = train_decoder(network, features, images, recipe=OneCycle(epochs=3), held_out=0.25, seed=4)
    assert (history.trained_on, history.held_out_on) == (48, 16)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(4))
    aside = order[:16]
    network.load_state_dict(weights)
    again = (network.eval()(features[aside]) - images[aside]).square().mean().item()
    assert again == pytest.approx(history.held_out_mse, rel=1e-5)
    mean = images[order[16:]].mean(0)
    assert history.mean_image == pytest.approx((images[aside] - mean).square().mean().item(), rel=1e-5)
    assert history.held_out_fvu == pytest.approx(history.held_out_mse / history.mean_image)


def test_half_precision_follows_the_weights(monkeypatch):
    """Autocast keeps converted weights until its block ends; around the whole training it would never see an update."""
    images = pictures(64)
    fine = fit_on(images, images, decoder=Deconvolution(), epochs=6, batch=8, lr=0.01)
    monkeypatch.setattr(training, "_precision", lambda device: torch.autocast("cpu", torch.bfloat16))
    coarse = fit_on(images, images, decoder=Deconvolution(), epochs=6, batch=8, lr=0.01)
    assert coarse.history.held_out[-1] < 0.5 * coarse.history.held_out[0]
    assert coarse.history.held_out_mse == pytest.approx(fine.history.held_out_mse, rel=0.2)


def test_training_stops_when_enough_is_shown():
    images = pictures(64)
    whole = fit_on(images, images, decoder=Deconvolution(), epochs=8, batch=8, lr=0.01)
    shares = [value / whole.history.mean_image for value in whole.history.held_out]
    stopped = fit_on(images, images, decoder=Deconvolution(), epochs=8, batch=8, lr=0.01, enough=shares[3])
    first = next(i for i, value in enumerate(shares) if value < shares[3])
    assert stopped.history.held_out == whole.history.held_out[: first + 1]
    assert len(stopped.history.held_out) < 8


def test_the_best_epoch_is_kept():
    history = History(10, 2, (3.0, 2.0, 1.0), (0.5, 0.2, 0.4), 1.0)
    assert history.best_epoch == 2
    assert history.held_out_mse == history.held_out_fvu == 0.2
    assert math.isnan(replace(history, mean_image=0.0).held_out_fvu)


def test_the_first_best_of_two_equal_epochs_is_named():
    assert History(10, 2, (1.0, 1.0), (0.5, 0.5), 1.0).best_epoch == 1


class Flat(nn.Module):
    """Always grey; its one parameter only shrinks by weight decay, so it tells the epoch whose weights it has."""

    def __init__(self):
        super().__init__()
        self.age = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return torch.full_like(x, 0.5) + 0 * self.age


def test_of_equally_good_epochs_the_first_is_kept():
    network = Flat()
    weights, history = train_decoder(network, pictures(32), pictures(32), recipe=OneCycle(epochs=4, lr=0.1))
    assert len(set(history.held_out)) == 1
    assert history.best_epoch == 1
    assert weights["age"] > network.age


def test_fitting_works_where_a_caller_has_switched_gradients_off():
    with torch.no_grad():
        assert fit_on(pictures(20), pictures(20), decoder=Deconvolution(), epochs=1).history.training


def test_patience_ends_a_training_that_gets_no_better():
    """Noise in place of features: the held-out loss soon rises, long before 60 epochs."""
    rng = torch.Generator().manual_seed(0)
    noise = torch.randn(64, 8, 6, 6, generator=rng)
    fitted = fit_on(noise, pictures(64), decoder=Deconvolution("prelu"), epochs=60, lr=0.01, patience=3)
    assert len(fitted.history.held_out) < 60
    assert len(fitted.history.held_out) == fitted.history.best_epoch + 3


def test_progress_is_told():
    told = []
    with watching(lambda done, total: told.append((done, total))):
        fit_on(pictures(20), pictures(20), decoder=Deconvolution(), epochs=3)
    assert told == [(1, 3), (2, 3), (3, 3)]


class Exploding(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x * self.factor / 0.0


@dataclass(frozen=True)
class Diverging:
    def __call__(self, feature, image, /):
        return Exploding()


def test_divergence_is_a_refusal_with_a_reason():
    with pytest.raises(Inapplicable, match=r"diverged in epoch 1 of 5 .* lower rate than 0\.5"):
        fit_on(pictures(20), pictures(20), decoder=Diverging(), epochs=5, lr=0.5)


def test_defenses_known_to_the_adversary_are_trained_through(victim):
    images = pictures(200)
    options = {"decoder": Deconvolution("prelu"), "epochs": 20, "lr": 0.01, "batch": 32}
    clean = fit_decoder(victim, FirstLayer(), images, **options)
    noisy = fit_decoder(victim, FirstLayer(), images, defenses=[GaussianNoise(relative=3.0)], **options)
    assert noisy.history.held_out_mse > 2 * clean.history.held_out_mse


def test_the_adversarys_own_noise_is_not_the_clients(victim):
    """Both from one seed: a decoder that trained under the client's very noise would know too much."""
    x, loud = pictures(8), [GaussianNoise(std=1.0)]
    y = torch.zeros(8, dtype=torch.long)
    clean, _ = public_features(victim, FirstLayer(), x)
    own = public_features(victim, FirstLayer(), x, defenses=loud, seed=3)[0] - clean
    seen = share(victim, FirstLayer(), victim.space.encode(x), y, defenses=loud, seed=3)
    sent = next(iter(seen.signal.values())) - clean
    assert float(sent.std()) == pytest.approx(1.0, rel=0.1)
    assert abs(float(torch.corrcoef(torch.stack([own.flatten(), sent.flatten()]))[0, 1])) < 5 / own.numel() ** 0.5


def test_classes_without_a_public_image_are_named(victim):
    labels = torch.tensor([0, 2]).repeat(16)
    fitted = fit_decoder(victim, FirstLayer(), (pictures(32), labels), decoder=Deconvolution(), epochs=1)
    assert "2 of 4 classes have no public image: 1, 3" in fitted.notes
    all_there = fit_decoder(
        victim, FirstLayer(), (pictures(32), torch.arange(32) % 4), decoder=Deconvolution(), epochs=1
    )
    assert not any("no public image" in note for note in all_there.notes)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pictures(15), "at least 16 public images, got 15"),
        (pictures(20) * 2, r"be in \[0, 1\]"),
        (torch.rand(20, 1, 6, 6), "resize them first"),
        ((pictures(20), torch.zeros(19, dtype=torch.long)), "20 images and 19 labels"),
    ],
    ids=["few", "range", "shape", "labels"],
)
def test_bad_public_data(victim, data, message):
    with pytest.raises(BadInput, match=message):
        fit_decoder(victim, FirstLayer(), data, epochs=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"epochs": 0}, "at least 1 epoch"), ({"lr": 0.0}, "positive rate"), ({"held_out": 1.0}, "between 0 and 1"),
     ({"held_out": 0.97}, "too few to learn from"), ({"batch": 1}, "at least 2")],
    ids=str,
)  # fmt: skip
def test_bad_options(options, message):
    with pytest.raises(BadInput, match=message):
        fit_on(pictures(20), pictures(20), **{"epochs": 1, **options})


def test_bad_features():
    with pytest.raises(BadInput, match="20 features and 19 images"):
        fit_on(pictures(20), pictures(19))
    with pytest.raises(BadInput, match=r"\(N, C, H, W\)"):
        fit_on(pictures(20), torch.rand(20, 5))
    broken = pictures(20)
    broken[3] = math.nan
    with pytest.raises(Inapplicable, match="NaN"):
        fit_on(broken, pictures(20))


@pytest.mark.parametrize("images", [torch.rand(20, 1, 4, 4) * 255, torch.full((20, 1, 4, 4), torch.nan)])
def test_images_that_are_none_are_refused(images):
    with pytest.raises(BadInput, match=r"finite and in \[0, 1\], or bytes, got values from"):
        fit_on(torch.randn(20, 3), images, epochs=1)


def test_refusals_of_the_attack(victim, fitted):
    x = victim.space.encode(pictures(2))
    y = torch.zeros(2, dtype=torch.long)
    seen = share(victim, FirstLayer(), x, y)
    with pytest.raises(Inapplicable, match="not shared: early"):
        fitted(victim, share(victim, FirstLayer("late"), x, y))
    with pytest.raises(Inapplicable, match="a decoder reads one tensor, this cut sends 2: a, b"):
        fit_decoder(victim, Twice(), pictures(20))
    with pytest.raises(Inapplicable, match="sends 0: nothing"):
        only_tensor({})
    with pytest.raises(Inapplicable, match="shape"):
        fitted(victim, replace(seen, signal={"early": torch.zeros(2, 3, 4, 4)}))
    with pytest.raises(Inapplicable, match="3 samples"):
        fitted(victim, replace(seen, signal={"early": torch.zeros(3, 6, 6, 6)}))
    with pytest.raises(Inapplicable, match="NaN"):
        fitted(victim, replace(seen, signal={"early": torch.full((2, 6, 6, 6), math.nan)}))


@dataclass(frozen=True)
class Waves:
    """A space that is not one of images."""

    shape: tuple[int, ...] = (1, SIDE, SIDE)

    def start(self, n, rng):
        return torch.randn(n, *self.shape, generator=rng)

    def project(self, x):
        return x

    encode = decode = project


def test_a_space_without_images_is_refused(victim):
    with pytest.raises(Inapplicable, match="a decoder makes images"):
        fit_decoder(Victim(victim.model, Waves()), FirstLayer(), pictures(20))


def test_a_network_without_classes_misses_none(victim):
    model = nn.Sequential(*victim.model[:2])
    fitted = fit_decoder(
        Victim(model, victim.space), FirstLayer(), (pictures(20), torch.zeros(20, dtype=torch.long)), epochs=1
    )
    assert not any("no public image" in note for note in fitted.notes)


def test_weights_are_compared_by_value():
    state = {"a": torch.ones(3), "b": torch.tensor(1)}
    assert Weights(state) == Weights({name: value.clone() for name, value in state.items()})
    assert hash(Weights(state)) == hash(Weights(dict(state)))
    assert Weights(state) != Weights({**state, "a": torch.tensor([1.0, 1.0, 2.0])})
    assert Weights(state) != Weights({**state, "a": torch.ones(3, 1)})
    assert "4 values" in repr(Weights(state))


def test_the_network_is_the_one_that_was_trained(fitted):
    network = fitted.network()
    assert isinstance(fitted, FittedDecoder)
    assert not network.training
    features = torch.rand(300, 6, 6, 6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(network(features), fitted.decode(features), atol=1e-6, rtol=1e-5)


def test_an_inverter_for_scans_is_fit_on_in_short():
    images = pictures(32)
    inverter = DecoderInverter(Deconvolution(), lr=0.01, batch=16)
    decode = inverter(images, images, epochs=2, seed=3)
    same = fit_on(images, images, decoder=Deconvolution(), lr=0.01, batch=16, epochs=2, seed=3)
    assert torch.equal(decode(images), same.decode(images))
    check_part(inverter)
