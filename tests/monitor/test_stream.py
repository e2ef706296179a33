"""The alarm's guarantee and the controls, on streams whose truth is known."""

import math
from itertools import pairwise

import pytest
import torch
from scipy.stats import binom

from leakgauge.errors import BadInput
from leakgauge.monitor.alarm import Alarm
from leakgauge.monitor.monitor import _hit_rate
from leakgauge.monitor.stream import BLOCKS, TEMPERATURES, Stream, is_sampled

CPU = torch.device("cpu")
ALPHA = 0.05
WIDTH, FEATURES = 8, 4
STEPS = sum(BLOCKS[:5])
NULL_STEPS = sum(BLOCKS[:4])


def through(sketches, features, *, sizes=None, alpha=ALPHA, choices=8, seed=0):
    """Sends (steps, layers, width) and (steps, f) through a stream and its alarm."""
    layers = sketches.shape[1]
    stream = Stream(layers, sketches.shape[2], features.shape[1], choices=choices, seed=seed, device=CPU)
    alarm, found = Alarm(alpha, layers, len(TEMPERATURES)), []
    for step in range(len(sketches)):
        size = 20 if sizes is None else sizes[step]
        if stream.add(step + 1, sketches[step], features[step], size):
            scored = stream.score()
            if scored is not None:
                alarm.bet(scored.evalues, scored.steps)
                found.append(scored)
    return stream, alarm, found


def leaking(steps, *, noise=0.3, seed=0, layers=1):
    rng = torch.Generator().manual_seed(seed)
    features = torch.randn(steps, FEATURES, generator=rng)
    mix = torch.randn(FEATURES, layers * WIDTH, generator=rng)
    sketches = features @ mix + noise * torch.randn(steps, layers * WIDTH, generator=rng)
    return sketches.view(steps, layers, WIDTH), features


def null_noise(rng):
    return torch.randn(NULL_STEPS, 1, WIDTH, generator=rng), torch.randn(NULL_STEPS, FEATURES, generator=rng)


def null_of_the_past(rng):
    """What is released depends on all earlier batches through the weights, strongly, but not on the step's own."""
    features = torch.randn(NULL_STEPS, FEATURES, generator=rng)
    mix = torch.randn(FEATURES, WIDTH, generator=rng)
    weights = torch.cat([torch.zeros(1, FEATURES), features[:-1].cumsum(0)])
    last = torch.cat([torch.zeros(1, FEATURES), features[:-1]])
    return ((weights + 3 * last) @ mix)[:, None], features


def null_of_an_epoch(rng):
    """Batches drawn without replacement from a small set, as in one epoch; the past is released."""
    features = torch.randn(NULL_STEPS, FEATURES, generator=rng).sign()
    features[: NULL_STEPS // 2] = -features[
        NULL_STEPS // 2 :
    ]  # the sum over the epoch is zero: the past tells about the rest
    features = features[torch.randperm(NULL_STEPS, generator=rng)]
    weights = torch.cat([torch.zeros(1, FEATURES), features[:-1].cumsum(0)])
    return (weights @ torch.randn(FEATURES, WIDTH, generator=rng))[:, None], features


@pytest.mark.parametrize("null", [null_noise, null_of_the_past, null_of_an_epoch], ids=lambda f: f.__name__)
def test_false_alarms_keep_to_alpha_over_300_null_streams(null):
    rng = torch.Generator().manual_seed(7)
    alarms = [through(*null(rng), seed=i)[1] for i in range(300)]
    assert sum(a.fired_at is not None for a in alarms) <= binom.ppf(0.99, 300, ALPHA)
    assert any(a.log_wealth != 0 for a in alarms)  # bets were made


def constant(rng):
    """The gradient never changes, so a critic scores all batches alike."""
    return torch.ones(STEPS, 1, WIDTH), torch.randn(STEPS, FEATURES, generator=rng)


@pytest.mark.parametrize("null", [null_noise, null_of_the_past, constant], ids=lambda f: f.__name__)
def test_the_true_batch_ranks_first_by_chance_in_null_streams(null):
    rng = torch.Generator().manual_seed(3)
    hits = [torch.cat([b.hits for b in through(*null(rng), choices=4, seed=i)[2]]) for i in range(60)]
    together = torch.cat(hits)
    assert float(together.mean()) == pytest.approx(1 / 4, abs=3 * (0.25 * 0.75 / len(together)) ** 0.5 + 1e-9)


def test_a_constant_critic_reads_nothing():
    """Ties share the first place, no bet wins or loses, and the interval holds chance."""
    _, alarm, found = through(*constant(torch.Generator().manual_seed(0)), choices=8)
    assert alarm.log_wealth == pytest.approx(0, abs=1e-4)
    assert all(torch.allclose(b.hits, torch.full_like(b.hits, 1 / 8)) for b in found)
    assert all(float(b.nats.abs().max()) < 1e-6 for b in found if len(b.hits))
    rate = _hit_rate(torch.cat([b.hits for b in found]))
    assert rate.low < 1 / 8 < rate.high
    assert rate.value == pytest.approx(1 / 8)


def test_a_leak_sets_it_off_early_and_is_measured():
    _, alarm, found = through(*leaking(STEPS))
    assert alarm.fired_at is not None
    assert alarm.fired_at <= 60
    last = found[-1]
    assert last.nats[0].mean() > 1.0
    assert last.nats.max() <= math.log(8)
    assert last.hits.double().mean() > 0.5


def test_controls_read_nothing_while_the_leak_is_read():
    _, _, found = through(*leaking(sum(BLOCKS[:6])))
    last = found[-1]
    assert abs(float(last.null.mean())) < 0.15
    assert float(last.decoy.mean()) < 0.05
    plain, little, much = float(last.nats[0].mean()), *last.noise.mean(1).tolist()
    assert plain > little > much


def test_the_leaking_layer_is_named():
    sketches, features = leaking(STEPS, layers=3)
    sketches[:, [0, 2]] = torch.randn(STEPS, 2, WIDTH, generator=torch.Generator().manual_seed(5))
    _, _, found = through(sketches, features)
    nats = found[-1].nats.mean(1)[1:]
    assert int(nats.argmax()) == 1
    assert nats[1] > 0.5
    assert nats[[0, 2]].max() < 0.1


def test_information_is_not_overstated():
    """A Gaussian pair of known information, 4 · ½ ln(1 + 1/noise²) nats: the bound stays below, and finds a good part."""
    rng = torch.Generator().manual_seed(0)
    features = torch.randn(600, 4, generator=rng)
    sketches = (features + 1.5 * torch.randn(600, 4, generator=rng))[:, None]
    _, _, found = through(sketches, features, choices=16)
    truth = 4 * 0.5 * math.log(1 + 1 / 1.5**2)
    value = float(torch.cat([scored.nats[0] for scored in found[4:]]).mean())
    assert 0.3 * truth < value < truth


def test_the_scale_of_the_gradient_does_not_matter():
    sketches, features = leaking(STEPS)
    wealth = [through(s, features)[1].log_wealth for s in (sketches, 1e-6 * sketches)]
    assert wealth[0] == pytest.approx(wealth[1], rel=1e-3)


def test_steps_that_are_not_finite_are_left_out():
    sketches, features = leaking(STEPS)
    sketches[::7] = math.nan
    stream, alarm, _ = through(sketches, features)
    assert stream.not_finite == len(sketches[::7])
    assert alarm.fired_at is not None
    assert (alarm.fired_at - 1) % 7 != 0


def test_the_odd_batch_is_left_out_and_chance_sizes_stay():
    sketches, features = leaking(STEPS)
    _, _, found = through(sketches, features, sizes=[7 if i % 8 == 7 else 20 for i in range(STEPS)])
    assert all(step % 8 != 0 for scored in found for step in scored.steps)
    _, _, found = through(sketches, features, sizes=[10 + i % 9 for i in range(STEPS)])
    assert sum(len(scored.steps) for scored in found) == STEPS - BLOCKS[0]


def test_a_fixed_order_is_noticed():
    sketches, features = leaking(STEPS)
    assert through(sketches, features)[0].shuffled
    again = features[torch.arange(STEPS) % 20]
    assert not through(sketches, again)[0].shuffled


def test_sketches_of_zero_and_constant_inputs_do_no_harm():
    _, alarm, found = through(torch.zeros(STEPS, 2, WIDTH), torch.ones(STEPS, FEATURES))
    assert alarm.log_wealth == pytest.approx(0.0, abs=1e-4)
    assert all(bool(scored.evalues.isfinite().all()) for scored in found)


def test_sampling_is_dense_first_and_sparse_later():
    chosen = [step for step in range(1, 2001) if is_sampled(step)]
    assert chosen[:128] == list(range(1, 129))
    assert {b - a for a, b in pairwise(chosen)} == {1, 2, 4}


def test_an_alarm_is_saved_and_refuses_another_models_state():
    alarm = Alarm(0.05, 2, 4)
    alarm.bet(torch.full((3, 5, 4), 1.0), [1, 2, 3, 4, 5])
    other = Alarm(0.05, 2, 4)
    other.load_state_dict(alarm.state_dict())
    assert other.log_wealth == pytest.approx(5.0)
    assert other.fired_at == alarm.fired_at == 3  # ln 20 = 2.996
    with pytest.raises(BadInput, match="same model"):
        Alarm(0.05, 3, 4).load_state_dict(alarm.state_dict())
