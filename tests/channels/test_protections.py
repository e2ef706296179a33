"""Channels that protect as long as nobody knows how: what they send, and what an adversary who knows them replays."""

from dataclasses import replace

import pytest
import torch

from leakgauge import testing
from leakgauge.attacks import inverting_gradients
from leakgauge.audit.cause import Cause, Client, Knowledge, explain
from leakgauge.channels import Gradient, InstaHide, MixUp, Precode, Soteria, Transformed
from leakgauge.channels.soteria import HiddenColumns, input_of
from leakgauge.core import Defended, Labels, Pixels, Reconstruction, Size, share
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion.encoded import guess_signs, through_encodings
from leakgauge.inversion.mismatch import layer_mismatch

KNOWN = (Size(), Defended())
CHANNELS = [Soteria(0.8), Precode(8, seed=3), Transformed(rotate=30), MixUp(0.7)]


def case(channel, name="cnn"):
    victim, x, y = testing.tiny_case(name, count=2 if isinstance(channel, MixUp) else 1)
    return (channel.changed(victim) if isinstance(channel, Precode) else victim), x, y


@pytest.mark.parametrize("channel", CHANNELS, ids=repr)
def test_the_truth_explains_the_update_only_to_an_adversary_who_knows_the_defense(channel):
    victim, x, y = case(channel)
    unaware, aware = (share(victim, channel, x, y, reveal=known) for known in ((Size(),), KNOWN))
    assert unaware.channel == Gradient()
    assert unaware.defenses is None
    assert "defense known" in aware.assumptions[-1].what
    assert layer_mismatch(victim, unaware, x, y) > 0.01
    assert layer_mismatch(victim, aware, x, y) < 1e-6
    blank = Reconstruction.single(torch.zeros_like(x), y, made_by="", began=0.0)
    fits = Reconstruction.single(x, y, made_by="", began=0.0)
    test = explain(Gradient, victim, unaware, fits, x, Client(y, channel, None), thorough=False)  # pyright: ignore[reportArgumentType]
    assert (test.cause, test.lacks) == (Cause.KNOWLEDGE, (Knowledge.DEFENSE,))
    test = explain(Gradient, victim, aware, blank, x, Client(y, channel, None), thorough=False)  # pyright: ignore[reportArgumentType]
    assert test.cause is Cause.SEARCH


def test_soteria_drops_the_features_with_the_flattest_slopes():
    victim, x, y = testing.tiny_case("mlp", count=2)
    sent, plain = Soteria(0.5)(victim, x, y), Gradient()(victim, x, y)
    given = input_of(
        victim,
        "head" if "head.weight" in sent else next(n for n in sent if "weight" in n and sent[n].shape[0] == 4)[:-7],
        x,
    )
    name = next(n for n in sent if not torch.equal(sent[n], plain[n]))
    slopes = torch.autograd.functional.jacobian(
        lambda x: input_of(victim, name[:-7], x), x
    )  # (2, features, 2, 1, 12, 12)
    steep = torch.stack([slopes[i, :, i].flatten(1).norm(dim=1) / (given[i].abs() + 0.1) for i in range(2)]).sum(0)
    dropped = steep.argsort()[: round(0.5 * len(steep))]
    assert not sent[name][:, dropped].any()
    kept = [i for i in range(len(steep)) if i not in set(dropped.tolist())]
    torch.testing.assert_close(sent[name][:, kept], plain[name][:, kept])


def test_zeros_in_soterias_layer_say_nothing():
    plain = {"w": torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])}
    sent = {"w": torch.tensor([[[0.0, 5.0], [0.0, 0.0]]])}
    assert HiddenColumns("w", 0.5).nearest(plain, sent)["w"].tolist() == [[[1.0, 5.0], [3.0, 0.0]]]


def test_what_precode_draws_can_be_read_from_one_sample():
    channel = Precode(8, seed=11)
    victim, x, y = case(channel)
    seen = share(victim, channel, x, y, reveal=KNOWN)
    drawn = torch.randn(1, 8, generator=torch.Generator().manual_seed(11))
    assert isinstance(seen.channel, Precode)
    assert seen.channel.seed is None
    torch.testing.assert_close(torch.tensor(seen.channel.noise), drawn[0], atol=1e-3, rtol=1e-3)


def test_what_precode_draws_for_a_batch_is_searched_with_it():
    channel = Precode(8, seed=11)
    victim, x, y = testing.tiny_case("cnn", count=2)
    victim = channel.changed(victim)
    seen = share(victim, channel, x, y, reveal=KNOWN)
    assert seen.channel == Precode(8, seed=None)
    assert seen.channel.unknowns == 8
    drawn = torch.randn(2, 8, generator=torch.Generator().manual_seed(11))
    soft = torch.cat([torch.eye(4)[y], drawn], -1)
    for name, g in seen.channel(victim, x, soft).items():  # with the client's draws it is the client's channel
        torch.testing.assert_close(g, seen.signal[name], atol=1e-6, rtol=1e-4)
    attack = inverting_gradients(steps=200, tv=0.01)
    aware = attack(victim, seen)
    unaware = attack(victim, share(victim, channel, x, y, reveal=(Size(),)))
    assert sorted(aware.y.tolist()) == sorted(y.tolist())  # pyright: ignore[reportOptionalMemberAccess]
    assert aware.loss < 0.1 * unaware.loss


def test_soft_labels_that_are_known_are_kept_beside_the_draws():
    channel = Precode(8, seed=11)
    victim, x, y = testing.tiny_case("cnn", count=2)
    victim, hard, soft = channel.changed(victim), y, torch.eye(4)[y]
    found = {
        kind: inverting_gradients(steps=5)(victim, share(victim, channel, x, labels, reveal=(*KNOWN, Labels())))
        for kind, labels in (("hard", hard), ("soft", soft))
    }
    torch.testing.assert_close(found["soft"].x, found["hard"].x)
    assert torch.equal(found["soft"].y, soft)  # pyright: ignore[reportArgumentType]
    known, _ = channel.known(victim, {})
    for name, g in known(victim, x, soft).items():  # without draws they are 0
        torch.testing.assert_close(g, known(victim, x, hard)[name])


def test_the_width_that_is_searched_is_that_of_the_models_bottleneck():
    victim, x, y = testing.tiny_case("cnn", count=2)
    victim = Precode(8).changed(victim)
    seen = share(victim, Precode(seed=3), x, y, reveal=KNOWN)
    assert seen.channel == Precode(8, seed=None)
    assert inverting_gradients(steps=2)(victim, seen).x.shape == x.shape


def test_precode_changes_the_model_once_and_says_where_it_lacks_its_layer():
    victim, x, y = testing.tiny_case("cnn")
    changed = Precode(8).changed(victim)
    assert Precode(8).changed(changed) is changed
    assert set(victim.parameters()) != set(changed.parameters())
    with pytest.raises(BadInput, match="changed"):
        Precode(8)(victim, x, y)


def test_mixup_is_the_gradient_of_the_mixtures():
    victim, x, y = testing.tiny_case("mlp", count=2)
    sent = MixUp(0.7)(victim, x, y)
    mixed = torch.stack([0.7 * x[0] + 0.3 * x[1], 0.7 * x[1] + 0.3 * x[0]])
    soft = 0.7 * torch.eye(4)[y] + 0.3 * torch.eye(4)[y.flip(0)]
    for name, g in Gradient()(victim, mixed, soft).items():
        torch.testing.assert_close(sent[name], g, atol=1e-6, rtol=1e-4)
    with pytest.raises(BadInput, match="at least 2"):
        MixUp()(victim, x[:1], y[:1])


def test_instahide_is_mixup_with_signs():
    victim, x, y = testing.tiny_case("mlp", count=3)
    channel = InstaHide(0.6, seed=5)
    mixed = channel.mixed(x)
    torch.testing.assert_close(mixed.abs(), MixUp(0.6).mixed(x).abs())
    assert 0.4 < float((mixed == MixUp(0.6).mixed(x)).double().mean()) < 0.6
    torch.testing.assert_close(mixed.abs(), (channel.weights(3).float() @ x.flatten(1)).abs().view_as(x))
    for name, g in channel(victim, x, y).items():
        torch.testing.assert_close(channel.encodings()(victim, mixed, y)[name], g)
    assert not torch.equal(channel.reseed(1).mixed(x), mixed)
    known, through = channel.known(victim, {})
    assert (known, through) == (InstaHide(0.6, seed=None), ())


def test_signs_follow_from_the_range_and_from_public_images():
    mixing = InstaHide(0.65).weights(2)
    low, high = torch.full((1, 4), -1.0).double(), torch.full((1, 4), 2.0).double()
    truth = torch.tensor([[-0.9, 1.9, -0.5, 0.4], [-0.8, 1.8, -0.6, 0.5]]).double()
    size = (mixing @ truth).abs()
    plain = guess_signs(size, mixing, low, high, None)
    assert bool((plain == 1).all())
    rng = torch.Generator().manual_seed(0)
    public = torch.tensor([-0.85, 1.0, -0.55, 0.45]).double() + 0.1 * torch.randn(50, 4, generator=rng).double()
    assert torch.equal(guess_signs(size, mixing, low, high, public), (mixing @ truth).sign())
    wrong = -public  # the range decides the second value, whatever public images say
    assert bool((guess_signs(size, mixing, low, high, wrong)[:, 1] == 1).all())


def decoded(x, auxiliary, monkeypatch):
    """What is made of encodings ``x``, and the public images that signs were guessed by."""
    victim, _, y = testing.tiny_case("mlp", count=2)
    seen = replace(share(victim, InstaHide(), torch.zeros(2, 1, 12, 12), y, reveal=KNOWN), auxiliary=auxiliary)
    used = []

    def guess(size, mixing, low, high, public):
        used.append(public)
        return torch.ones_like(size)

    monkeypatch.setattr("leakgauge.inversion.encoded.guess_signs", guess)
    found = Reconstruction.single(x, y, made_by="", began=0.0)
    return through_encodings(lambda victim, seen, *, seed: found, victim, seen, seed=0), used[0]


@pytest.mark.parametrize("count", [1, 3])
def test_public_images_that_are_all_the_same_decide_no_sign(count, monkeypatch):
    alike = torch.rand(1, 1, 12, 12, generator=torch.Generator().manual_seed(0)).expand(count, -1, -1, -1)
    found, public = decoded(torch.rand(2, 1, 12, 12), alike, monkeypatch)
    assert public is None
    assert found.notes[-1].endswith("by their range")


def test_public_images_are_moved_to_where_the_search_ran(monkeypatch):
    found, public = decoded(torch.rand(2, 1, 12, 12, device="meta"), torch.rand(3, 1, 12, 12), monkeypatch)
    assert public.device == found.x.device == torch.device("meta")


def test_where_images_cannot_be_negative_instahide_hides_nothing():
    victim, x, y = testing.tiny_case("cnn", count=2)
    victim = replace(victim, space=Pixels(tuple(x.shape[1:])))
    x = torch.rand(x.shape, generator=torch.Generator().manual_seed(3))
    far = {}
    for name, known in {"unaware": (), "aware": (Defended(),)}.items():
        found = inverting_gradients(steps=800)(victim, share(victim, InstaHide(0.9), x, y, reveal=(Size(), *known))).x
        far[name] = min(float((one - x).norm() / x.norm()) for one in (found, found.flip(0)))
    assert far["aware"] < 0.3 < 0.5 < far["unaware"]


@pytest.mark.parametrize("channel", [InstaHide(), Precode(8, seed=3)], ids=repr)
def test_draws_that_are_searched_are_no_lacking_knowledge(channel):
    victim, x, y = testing.tiny_case("cnn", count=2)
    victim = channel.changed(victim) if isinstance(channel, Precode) else victim
    unaware, aware = (share(victim, channel, x, y, reveal=known) for known in ((Size(),), KNOWN))
    other = Reconstruction.single(x.flip(-1), y, made_by="", began=0.0)
    test = explain(Gradient, victim, aware, other, x, Client(y, channel, None), thorough=False)  # pyright: ignore[reportArgumentType]
    assert test.cause is Cause.SEARCH
    assert test.mismatch.truth < 1e-6
    attack = inverting_gradients(steps=2)
    known, blind = (
        explain(attack, victim, seen, other, x, Client(y, channel, None), thorough=False) for seen in (aware, unaware)
    )
    assert known.objective is None  # its value at the truth depends on the client's draws, which are searched
    assert blind.objective is not None
    assert layer_mismatch(victim, unaware, x, y) > 0.01


def test_transformations_by_hand():
    victim, x, _ = testing.tiny_case("cnn")
    same = Transformed(rotate=0, shear=0, shift=0)
    torch.testing.assert_close(same.images(victim, x), x, atol=1e-5, rtol=1e-5)
    half = Transformed(rotate=180, shear=0, shift=0).images(victim, x)
    torch.testing.assert_close(half, x.flip(-1, -2), atol=1e-4, rtol=1e-4)
    moved = Transformed(rotate=0, shear=0, shift=1 / 12).images(victim, x)
    torch.testing.assert_close(moved[..., 1:, 1:], x[..., :-1, :-1], atol=1e-4, rtol=1e-4)
    negative = Transformed(rotate=0, shear=0, shift=0, invert=True).images(victim, x)
    torch.testing.assert_close(victim.space.decode(negative), 1 - victim.space.decode(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("channel", [Transformed(), Soteria(), MixUp(), InstaHide()], ids=repr)
def test_text_is_refused(channel):
    with pytest.raises(Inapplicable):
        channel(*testing.tiny_case("text", count=2))
