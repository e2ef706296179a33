"""Channels that protect as long as nobody knows how: what they send, and what an adversary who knows them replays."""

import pytest
import torch

from leakgauge import testing
from leakgauge.audit.cause import Cause, Client, Knowledge, explain
from leakgauge.channels import Gradient, MixUp, Precode, Soteria, Transformed
from leakgauge.channels.soteria import HiddenColumns, input_of
from leakgauge.core import Defended, Reconstruction, Size, share
from leakgauge.errors import BadInput, Inapplicable
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
    two, x, y = testing.tiny_case("cnn", count=2)
    assert share(channel.changed(two), channel, x, y, reveal=KNOWN).channel == Precode(8, seed=None)


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


@pytest.mark.parametrize("channel", [Transformed(), Soteria(), MixUp()], ids=repr)
def test_text_is_refused(channel):
    with pytest.raises(Inapplicable):
        channel(*testing.tiny_case("text", count=2))
