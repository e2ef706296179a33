"""Secure aggregation: the weighted mean of what the clients send, and nothing of a single one."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.attacks import april_closed_form, inverting_gradients, linear
from leakgauge.channels import (
    DPSGD,
    Aggregate,
    Features,
    FedAvg,
    Gradient,
    InstaHide,
    Precode,
    ShuffledFedAvg,
    Soteria,
)
from leakgauge.channels.facts import clients, is_weight_update, local_steps
from leakgauge.core import Buffers, Observation, Pixels, Size, Victim, share
from leakgauge.engine import Observed
from leakgauge.engine.choose import choose
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion.knowledge import ExactStatistics
from leakgauge.inversion.labels import head_gradient, read_labels
from leakgauge.measures.participation import unmix
from leakgauge.testing import tiny_case


@pytest.mark.parametrize(("samples", "count"), [(4, 2), (5, 2), (7, 3), (3, 3), (3, 1)])
def test_in_eval_mode_it_is_the_gradient_of_one_large_batch(victim_of, batch_of, same, samples, count):
    victim, (x, y) = victim_of(), batch_of(samples)
    same(Aggregate(clients=count)(victim, x, y), Gradient()(victim, x, y), tolerance=1e-5)


def test_in_train_mode_every_client_has_its_own_statistics(victim_of, batch_of, same):
    victim, (x, y) = victim_of(mode="train"), batch_of(5)
    first, second = Gradient()(victim, x[0::2], y[0::2]), Gradient()(victim, x[1::2], y[1::2])
    expected = {name: 0.6 * first[name] + 0.4 * second[name] for name in first}
    found = Aggregate()(victim, x, y)
    same(found, expected, tolerance=1e-6)
    whole = Gradient()(victim, x, y)
    assert not torch.allclose(found["0.weight"], whole["0.weight"], rtol=1e-3)


def test_a_late_client_is_the_difference_of_two_sums():
    victim, x, y = tiny_case("mlp", count=3)
    sets = {(): (0, 1, 2), (2,): (0, 1)}
    means = [Aggregate(clients=3, dropped=dropped)(victim, x, y) for dropped in sets]
    sums = [{n: len(who) * t for n, t in one.items()} for one, who in zip(means, sets.values(), strict=True)]
    found = unmix(list(sets.values()), sums)
    assert found.hidden == (0, 1)
    alone = Gradient()(victim, x[2:], y[2:])
    for name, g in alone.items():
        torch.testing.assert_close(found.updates[2][name], g, atol=1e-6, rtol=1e-4)
    seen = Observation(signal=found.updates[2], channel=Gradient(), size=1)
    assert float((linear()(victim, seen).x - x[2:]).abs().max()) < 1e-3
    assert not Aggregate(clients=3, dropped=(2,)).is_gradient("eval")


def test_labels_of_clients_that_dropped_out_are_not_read():
    victim, x, _ = tiny_case("mlp", count=9)
    y = torch.tensor([0, 1, 2] * 3)
    for channel in (Aggregate(3, dropped=(0,)), Aggregate(1, of=Aggregate(3, dropped=(0,)))):
        seen = share(victim, channel, x, y)
        with pytest.raises(Inapplicable, match="dropped out"):
            read_labels()(victim, seen, rng=torch.Generator())
        found = inverting_gradients(steps=2)(victim, seen)
        assert found.label_accuracy is None
        assert any("dropped out were not sent" in note for note in found.notes)


@pytest.mark.parametrize("dropped", [(0, 1), (2,), (-1,)])
def test_not_every_client_can_drop_out(dropped):
    with pytest.raises(BadInput, match="can lose"):
        Aggregate(clients=2, dropped=dropped)


@pytest.mark.parametrize(
    ("mode", "loss", "note"),
    [
        ("eval", F.cross_entropy, "replay: layer rules"),
        ("train", F.cross_entropy, "replay: vmap"),
        ("eval", lambda out, y: 0.5 * F.cross_entropy(out, y, reduction="sum"), "replay: vmap; layer rules: "),
    ],
)
def test_the_engine_takes_it_for_one_large_batch_only_where_it_is(victim_of, batch_of, mode, loss, note):
    victim, (x, y) = victim_of(mode=mode, loss=loss), batch_of(5)
    seen = share(victim, Aggregate(), x, y)
    rows, labels = torch.stack([x, 1 - x]), torch.stack([y, y])
    chosen = choose(victim, seen.channel, Observed.check(seen.signal, victim), rows, labels)
    assert chosen.note.startswith(note)
    distance = chosen.replay(rows, labels).l2(dict.fromkeys(seen.signal, 1.0)).detach()
    assert float(distance[0]) < 1e-9
    assert float(distance[1]) > 1e-5


def test_weight_updates_count_by_samples(victim_of, batch_of, same):
    victim, (x, y) = victim_of(), batch_of(3)
    update = FedAvg(steps=2, lr=0.3)
    first, second = update(victim, x[[0, 2]], y[[0, 2]]), update(victim, x[[1]], y[[1]])
    expected = {name: 2 / 3 * first[name] + 1 / 3 * second[name] for name in first}
    same(Aggregate(of=update)(victim, x, y), expected, tolerance=1e-6)


def test_running_statistics_are_averaged_and_not_inverted(victim_of, batch_of):
    victim, (x, y) = victim_of(mode="train"), batch_of(4)
    seen = share(victim, Aggregate(), x, y, reveal=(Size(), Buffers()))
    both = [Gradient().buffers(victim, x[k::2], y[k::2])["1.running_mean"] for k in range(2)]
    assert seen.buffers is not None
    torch.testing.assert_close(seen.buffers["1.running_mean"], (both[0] + both[1]) / 2)
    assert int(seen.buffers["1.num_batches_tracked"]) == 1
    with pytest.raises(Inapplicable, match="several clients"):
        ExactStatistics()(victim, seen, y, rng=torch.Generator())


def test_clients_draw_noise_of_their_own():
    victim = Victim(nn.Sequential(nn.Flatten(), nn.Linear(144, 200)), Pixels((1, 12, 12)))
    x, y = torch.rand(6, 1, 12, 12, generator=torch.Generator().manual_seed(1)), torch.arange(6)
    seen = share(victim, Aggregate(clients=3, of=DPSGD(clip=0.5, noise=2.0, seed=5)), x, y)
    assert seen.channel == Aggregate(clients=3, of=DPSGD(clip=0.5, noise=2.0, seed=None))
    clean = seen.channel(victim, x, y)
    noise = torch.cat([(seen.signal[name] - clean[name]).flatten() for name in clean])
    # independent draws add up as √3; one and the same draw would add up as 3
    assert float(noise.std()) == pytest.approx(math.sqrt(3) * 2.0 * 0.5 / 6, rel=0.02)


def test_label_rules_see_the_gradients_own_direction():
    victim, x, y = tiny_case("mlp", count=4)
    plain = head_gradient(victim, share(victim, Gradient(), x, y), "bias")
    for update in (FedAvg(steps=1, lr=0.1), ShuffledFedAvg(lr=0.1, seed=1)):
        found = head_gradient(victim, share(victim, Aggregate(of=update), x, y), "bias")
        torch.testing.assert_close(found, 0.1 * plain, rtol=1e-4, atol=1e-7)


def test_facts():
    nested = Aggregate(clients=2, of=Aggregate(clients=3, of=ShuffledFedAvg(epochs=2, minibatch=2)))
    assert clients(nested) == 6
    assert is_weight_update(nested)
    assert local_steps(nested, 24) == 4  # four samples each, in two minibatches, twice
    assert not is_weight_update(Aggregate())
    assert local_steps(Aggregate(), 4) == 1


@pytest.mark.parametrize("channel", [ShuffledFedAvg(epochs=2, lr=0.1), Aggregate(1, FedAvg(steps=2, lr=0.1))], ids=repr)
def test_closed_forms_refuse_several_steps_however_they_are_written(channel):
    victim, x, y = tiny_case("vit_a")
    with pytest.raises(Inapplicable, match="several local steps"):
        april_closed_form()(victim, share(victim, channel, x, y))


def test_a_closed_form_for_one_sample_refuses_the_sum_of_two_clients():
    victim, x, y = tiny_case("mlp", count=2)
    with pytest.raises(Inapplicable, match="mix 2"):
        linear()(victim, share(victim, Aggregate(), x, y))


def test_bad_options(victim_of, batch_of):
    with pytest.raises(BadInput, match="at least 1 client"):
        Aggregate(clients=0)
    with pytest.raises(BadInput, match="one message per sample"):
        Aggregate(of=Features("0"))
    with pytest.raises(BadInput, match="a sample for each of its 3 clients, got 2"):
        Aggregate(clients=3)(victim_of(), *batch_of(2))
    with pytest.raises(BadInput, match="no buffers"):
        share(victim_of(), Aggregate(of=DPSGD()), *batch_of(2), reveal=(Buffers(),))


@pytest.mark.parametrize("of", [InstaHide(seed=7), Precode(8, seed=7), Soteria()], ids=repr)
def test_channels_that_the_adversary_may_not_know_are_refused(of):
    """Inside an aggregate, share would hand their seed to the adversary, and Defended() would not be recorded."""
    with pytest.raises(BadInput, match="protects by what it does not know"):
        Aggregate(of=of)


def test_clients_of_clients_draw_noise_of_their_own(victim_of, batch_of):
    victim, (x, y) = victim_of(), batch_of(4)

    def added(channel, plain):
        noisy, clean = channel(victim, x, y), plain(victim, x, y)
        return torch.cat([(noisy[name] - clean[name]).flatten() for name in noisy])

    twice = added(Aggregate(2, Aggregate(2, DPSGD(1.0, 1.0))), Aggregate(2, Aggregate(2, DPSGD(1.0, 0.0))))
    once = added(Aggregate(4, DPSGD(1.0, 1.0)), Aggregate(4, DPSGD(1.0, 0.0)))
    torch.testing.assert_close(twice, once, atol=1e-5, rtol=1e-5)  # the same four draws, in the same weights
