"""What an adversary who knows the defense compares with, against brute force and on a search."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from leakgauge.attacks import inverting_gradients
from leakgauge.audit.scoring import pair_images
from leakgauge.channels import FedAvg, Gradient
from leakgauge.core import Assumption, Defended, Defense, Explains, Signal, Size, share
from leakgauge.defenses import (
    Clip,
    GaussianNoise,
    GradientDropout,
    LayerNoise,
    MaskChannels,
    Prune,
    Quantize,
    Signs,
    Withhold,
)
from leakgauge.engine import Observed
from leakgauge.inversion.defended import DefendedReplay, explained, precision, trust, useful
from leakgauge.inversion.mismatch import layer_mismatch
from leakgauge.testing import tiny_case

RNG = torch.Generator()


def signal(seed: int) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return {"a": torch.randn(6, 5, generator=rng, dtype=torch.float64), "b": torch.randn(4, generator=rng).double()}


def rows(one: Signal) -> dict[str, torch.Tensor]:
    return {name: t[None] for name, t in one.items()}


@pytest.mark.parametrize("defense", [Prune(0.5), Prune(0.9), Quantize(3), Quantize(2), Signs()], ids=repr)
def test_no_signal_that_is_sent_alike_is_nearer_than_the_nearest(defense: Explains):
    """Brute force: many signals are drawn, and those kept that the defense sends as the same message."""
    true = signal(0)
    sent = defense.replayed(rows(true))
    rng = torch.Generator().manual_seed(1)
    alike = 0
    for seed in range(20):
        other = rows(signal(seed + 10))
        near = defense.nearest(other, sent)
        length = sum(float((near[n] - other[n]).square().sum()) for n in near)
        for _ in range(50):
            tried = {n: near[n] + 0.05 * torch.randn(t.shape, generator=rng, dtype=t.dtype) for n, t in near.items()}
            for n, t in sent.items():  # what is sent exactly must stay
                if isinstance(defense, Prune):
                    tried[n] = torch.where(t != 0, t, tried[n])
                if isinstance(defense, Quantize):
                    tried[n] = torch.where(t.abs() == t.abs().max(), t, tried[n])
            if all(torch.allclose(t, sent[n]) for n, t in defense.replayed(tried).items()):
                alike += 1
                assert sum(float((tried[n] - other[n]).square().sum()) for n in near) >= length - 1e-9
    assert alike > 0 or isinstance(defense, Signs | Quantize)


def test_bounds_of_each_defense_by_hand():
    plain = {"w": torch.tensor([[5.0, 0.3, -0.9, 0.1]])}
    pruned = {"w": torch.tensor([[2.0, -0.5, 0.0, 0.0]])}
    assert Prune(0.5).nearest(plain, pruned)["w"].tolist() == [[2.0, -0.5, -0.5, pytest.approx(0.1)]]
    assert Prune(0.25).nearest(plain, pruned)["w"].tolist() == [[2.0, -0.5, 0.0, 0.0]]  # a kept entry is 0 as well
    rounded = {"w": torch.tensor([[3.0, 0.0, -1.0, 0.0]])}  # three levels on each side, one apart
    assert Quantize(3).nearest(plain, rounded)["w"].tolist() == [
        [3.0, pytest.approx(0.3), pytest.approx(-0.9), pytest.approx(0.1)]
    ]
    signs = {"w": torch.tensor([[1.0, -1.0, -1.0, 0.0]])}
    assert Signs().nearest(plain, signs)["w"].tolist() == [[5.0, 0.0, pytest.approx(-0.9), 0.0]]
    clipped = {"w": torch.tensor([[1.0, 0.0, 0.0, 0.0]])}
    assert Clip(1.0).nearest(plain, clipped)["w"].tolist() == [[5.0, 0.0, 0.0, 0.0]]
    assert Clip(2.0).nearest(plain, clipped)["w"].tolist() == clipped["w"].tolist()  # it was not clipped


def test_several_defenses_are_undone_from_the_last_to_the_first():
    true = rows(signal(3))
    chain = (Clip(1.0), Prune(0.5), Quantize(6))
    sent: Signal = true
    for one in chain:
        sent = one.replayed(sent)
    near = explained(chain, true, sent)
    for name, value in near.items():
        torch.testing.assert_close(value, true[name], atol=0.05, rtol=0.05)
    far = explained(chain, rows(signal(4)), sent)
    plain = torch.cat([t.flatten() for t in true.values()])
    start = torch.cat([t.flatten() for t in rows(signal(4)).values()])
    cosines = [
        torch.cosine_similarity(v, plain, dim=0) for v in (torch.cat([t.flatten() for t in far.values()]), start)
    ]
    assert cosines[0] > 0.5 > cosines[1]


def test_noise_alone_and_unknown_defenses_change_nothing():
    class Unknown:
        def __call__(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
            return signal

    assert useful(None) == useful((GaussianNoise(std=1.0),)) == useful((Prune(0.5), Unknown())) == ()
    assert useful((Unknown(), Prune(0.5), GaussianNoise(std=1.0))) == (Prune(0.5), GaussianNoise(std=1.0))


def test_trust_grows_with_what_is_lost():
    plain = signal(0)
    values = [trust((Prune(fraction),), plain) for fraction in (0.0, 0.7, 0.97)]
    assert values[0] == 0 < values[1] < values[2] == pytest.approx(0.95)


def test_the_defense_is_known_only_if_revealed():
    victim, x, y = tiny_case("cnn")
    for defenses in [(Prune(0.9),), (Withhold(("head",)),)]:
        hidden = share(victim, Gradient(), x, y, defenses=defenses)
        known = share(victim, Gradient(), x, y, defenses=defenses, reveal=(Size(), Defended()))
        assert hidden.defenses is None
        assert known.defenses is not None
        assert len(known.assumptions) == len(hidden.assumptions) + 1
    assert known.assumptions[-1] == Assumption("defense known to the adversary (WithholdNames)", "deployable")
    plain = share(victim, Gradient(), x, y, reveal=(Size(), Defended()))
    assert plain.defenses == ()
    assert plain.assumptions == share(victim, Gradient(), x, y).assumptions


def test_a_replay_is_compared_with_the_mixture():
    class Given:
        names = ("w",)
        value = torch.tensor([[4.0, 1.0], [1.0, 3.0]])

        def gradient(self, name: str) -> torch.Tensor:
            return self.value

    sent = torch.tensor([1.0, -1.0])
    replay = DefendedReplay(Given(), Observed({"w": sent}), (Signs(),), torch.tensor(0.5))  # pyright: ignore[reportArgumentType]
    target = torch.tensor([[2.5, -0.5], [1.0, -0.5]])  # half of (4, 0) and of (1, 0), and half of what was sent
    torch.testing.assert_close(replay.l2({"w": 2.0}), 2 * (Given.value - target).square().sum(1))
    torch.testing.assert_close(replay.l1({"w": 1.0}), (Given.value - target).abs().sum(1))
    own = Given.value.norm(dim=1, keepdim=True)
    length = (
        2**0.5 / own * (Given.value[:, :1] / own).square()
    )  # given that of what was sent, then twice what is left of it
    scaled = torch.stack([(Given.value * length)[:, 0], torch.zeros(2)], 1) / 2 + sent / 2
    torch.testing.assert_close(replay.dot({"w": 1.0}), (Given.value * scaled).sum(1))
    torch.testing.assert_close(replay.observed_square({"w": 1.0}), scaled.square().sum(1))
    torch.testing.assert_close(replay.square({"w": 1.0}), Given.value.square().sum(1))


@pytest.mark.parametrize("defense", [Prune(0.99), Signs()], ids=repr)
def test_who_knows_the_defense_sees_more(defense: Defense):
    victim, x, y = tiny_case("cnn")
    attack = inverting_gradients(steps=150, tv=0.001)
    found = {}
    for knows in (False, True):
        reveal = (Size(), *((Defended(),) if knows else ()))
        seen = share(victim, Gradient(), x, y, defenses=(defense,), reveal=reveal)
        made = attack(victim, seen)
        assert any("through the defense" in note for note in made.notes) == knows
        found[knows] = pair_images(victim.space.decode(made.x), victim.space.decode(x)).scores.mean("psnr")
        if knows:
            assert layer_mismatch(victim, seen, x, y) < layer_mismatch(victim, replace(seen, defenses=None), x, y)
    assert found[True] > found[False] + 0.3


def test_features_and_weight_updates_are_compared_through_the_defense_too():
    from leakgauge.attacks import feature_matching
    from leakgauge.channels import Features

    victim, x, y = tiny_case("cnn")
    for channel, attack, defense in [
        (FedAvg(steps=2), inverting_gradients(steps=8), Prune(0.9)),
        (Features("features.2"), feature_matching(steps=8), MaskChannels(0.5)),
    ]:
        seen = share(victim, channel, x, y, defenses=(defense,), reveal=(Size(), Defended()))
        assert any("through the defense" in note for note in attack(victim, seen).notes)


def test_dropped_entries_say_nothing_and_the_others_lose_their_scaling():
    plain = signal(1)
    sent = GradientDropout(0.5)(plain, rng=torch.Generator().manual_seed(0))
    near = GradientDropout(0.5).nearest(rows(signal(2)), rows(sent))
    for name, t in sent.items():
        torch.testing.assert_close(near[name][0], torch.where(t != 0, plain[name], signal(2)[name]))
    kept = torch.cat([t.flatten() for t in GradientDropout(0.9)({"w": torch.ones(100, 100)}, rng=RNG).values()])
    assert float(kept.mean()) == pytest.approx(1.0, abs=0.1)  # the mean stays


def test_noise_by_layer_has_the_size_that_it_says_and_is_weighed_by_it():
    noise, plain = LayerNoise(3.0, decay=0.5), {"a": torch.full((200, 200), 2.0), "b": torch.full((300, 100), 0.1)}
    sent = noise(plain, rng=torch.Generator().manual_seed(0))
    spread = {name: float((sent[name] - t).std()) for name, t in plain.items()}
    assert spread == {"a": pytest.approx(6.0, rel=0.02), "b": pytest.approx(0.15, rel=0.02)}
    assert noise.precision(sent) == {name: pytest.approx(1 / s**2, rel=0.1) for name, s in spread.items()}
    assert useful((noise,)) == (noise,)
    weights = precision((noise,), Observed(sent))
    assert weights["b"] == 1.0
    assert weights["a"] == pytest.approx((spread["b"] / spread["a"]) ** 0.5, rel=0.05)
    assert precision((GaussianNoise(relative=1.0),), Observed(sent)) == {}


def test_a_search_weighs_noise_by_layer():
    victim, x, y = tiny_case("cnn")
    defense = LayerNoise(5.0, decay=0.5)
    attack, scores = inverting_gradients(tv=0.01, steps=150), {}
    for name, known in (("static", ()), ("adaptive", (Defended(),))):
        seen = [share(victim, Gradient(), x, y, defenses=(defense,), reveal=(Size(), *known), seed=s) for s in range(4)]
        found = attack.many(victim, seen, seed=0)
        images = [pair_images(victim.space.decode(one.x), victim.space.decode(x)).scores.mean("psnr") for one in found]
        scores[name] = sum(images) / len(images)
    assert "weighed by how noisy" in found[0].notes[1]
    assert scores["adaptive"] > scores["static"]
