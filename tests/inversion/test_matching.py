"""The one loop: what it keeps, what it chooses, what it refuses, and that a blind run sees nothing."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.channels import FedAvg, Gradient
from leakgauge.core import Blindable, Labels, Observation, Size, share
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion import (
    L2,
    LBFGS,
    Adam,
    AdamW,
    BatchNormStatistics,
    BiasCounts,
    Cosine,
    Descent,
    FirstThatApplies,
    Joint,
    Matching,
    MinimumEntry,
    Normal,
    Sign,
    SignRule,
    StepDecay,
    TotalVariation,
    watching,
)

SOLVERS = [
    Descent(Adam(0.1), 12, gradient=(Sign(),), schedule=StepDecay()),
    Descent(AdamW(0.05), 12, project=False),
    LBFGS(steps=3, iterations=4),
]
kind = lambda solver: type(getattr(solver, "optimizer", solver)).__name__  # noqa: E731


@pytest.mark.parametrize("solver", SOLVERS, ids=kind)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_kept_image_is_the_one_that_produced_the_loss(solver, mode, victim_of, batch_of, seen_by, values_at):
    victim, (x, y) = victim_of(mode=mode), batch_of(2)
    seen = seen_by(victim, Gradient(), x, y)
    objective = Cosine() + 0.05 * TotalVariation()
    result = Matching(objective, solver=solver, restarts=3)(victim, seen, seed=3)
    again = values_at(objective, victim, seen, result.candidates)
    torch.testing.assert_close(again, result.losses, atol=1e-6, rtol=1e-6)
    assert result.loss == pytest.approx(float(values_at(objective, victim, seen, result.x[None])), abs=1e-6)
    assert result.loss == float(result.losses.min())
    assert torch.equal(result.x, result.candidates[result.losses.argmin()])
    assert result.loss <= float(result.trace.losses.min())  # steps between the points of the trace count too
    torch.testing.assert_close(victim.space.project(result.x), result.x) if kind(solver) == "Adam" else None


@pytest.mark.parametrize("solver", SOLVERS, ids=kind)
@pytest.mark.parametrize("labels", [SignRule(), Joint()], ids=repr)
def test_restarts_are_independent(solver, labels, victim_of, batch_of, start_at):
    """Restart r of a run with three equals the run that starts there alone, label logits included."""
    victim, (x, y) = victim_of(), batch_of(1)
    seen = share(victim, Gradient(), x, y)
    starts = torch.randn(3, 1, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    together = Matching(L2(), labels=labels, start=start_at(starts), solver=solver, restarts=3)(victim, seen)
    for r in range(3):
        if isinstance(labels, Joint) and r:
            break  # the logits of later restarts are drawn after those of the first
        alone = Matching(L2(), labels=labels, start=start_at(starts[r : r + 1]), solver=solver)(victim, seen)
        torch.testing.assert_close(together.candidates[r], alone.x, atol=1e-4, rtol=1e-4)
        assert float(together.losses[r]) == pytest.approx(alone.loss, rel=1e-3, abs=1e-6)


def test_same_seed_same_result_and_another_seed_another(victim_of, batch_of):
    victim = victim_of(mode="train", dropout=0.3)
    seen = share(victim, Gradient(), *batch_of(1))
    attack = Matching(Cosine(), solver=Descent(steps=5))
    before = torch.get_rng_state()
    first, again, other = attack(victim, seen, seed=1), attack(victim, seen, seed=1), attack(victim, seen, seed=2)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first.x, again.x)
    assert first.loss == again.loss
    assert not torch.equal(first.x, other.x)


@pytest.mark.parametrize("channel", [Gradient(), FedAvg(steps=3, lr=0.2, minibatch=1)], ids=repr)
def test_finds_the_image_of_a_tiny_victim(channel, victim_of, batch_of, seen_by):
    victim, (x, y) = victim_of(norm=False), batch_of(2)
    seen = seen_by(victim, channel, x, y)
    result = Matching(Cosine(), solver=Descent(Adam(0.1), 400, schedule=StepDecay()), restarts=2)(victim, seen)
    assert result.loss < 1e-3
    assert float((result.x - x).square().mean()) < 1e-2


@pytest.mark.parametrize("channel", [Gradient(), FedAvg(steps=2, lr=0.1)], ids=repr)
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("solver", SOLVERS, ids=kind)
def test_every_channel_mode_and_solver_runs_several_restarts(channel, mode, solver, victim_of, batch_of, seen_by):
    """With a prior that looks into the model, and losses that fall below those of the starts."""
    victim = victim_of(mode=mode)
    seen = seen_by(victim, channel, *batch_of(2))
    result = Matching(Cosine() + 0.01 * BatchNormStatistics(), solver=solver, restarts=2)(victim, seen)
    assert (result.losses < result.trace.losses[0]).all()


def test_labels_are_reported(victim_of, batch_of, seen_by):
    victim, (x, y) = victim_of(), batch_of(2)
    attack = Matching(Cosine(), solver=Descent(steps=1))
    assert torch.equal(attack(victim, seen_by(victim, Gradient(), x, y)).y, y)  # revealed
    one = share(victim, Gradient(), x[:1], y[:1])
    assert attack(victim, one).y.tolist() == y[:1].tolist()  # inferred
    joint = Matching(L2(), labels=Joint(), start=Normal(), solver=Descent(steps=60, project=False))(victim, one)
    assert joint.y.tolist() == y[:1].tolist()  # optimised


# --- trace -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "points", "frames"), [(1, 2, 2), (4, 5, 5), (30, 31, 7), (450, 226, 7)])
def test_trace_and_snapshots(steps, points, frames, victim_of, batch_of):
    victim = victim_of(nn.Sequential(nn.Flatten(), nn.Linear(36, 4)))
    seen = share(victim, Gradient(), *batch_of(2))
    trace = Matching(L2(), labels=BiasCounts(strict=False), solver=Descent(steps=steps), restarts=2)(victim, seen).trace
    assert trace.steps[0] == 0
    assert trace.steps[-1] == steps
    assert list(trace.steps) == sorted(set(trace.steps))
    assert trace.losses.shape == (points, 2) == (len(trace.steps), 2)
    assert trace.snapshots.shape == (frames, 2, 1, 6, 6)
    assert len(trace.snapshot_steps) == frames
    assert trace.snapshot_steps[0] == 0
    assert trace.snapshot_steps[-1] == steps


def test_frames_are_those_of_a_shorter_run(victim_of, batch_of):
    victim = victim_of()
    seen = share(victim, Gradient(), *batch_of(1))
    whole = Matching(Cosine(), solver=Descent(steps=9), frames=(2, 5))(victim, seen)
    assert whole.trace.snapshot_steps == (2, 5, 9)
    earlier = Matching(Cosine(), solver=Descent(steps=4))(victim, seen)  # judges images 0 to 4, as frame 5 has
    torch.testing.assert_close(whole.trace.snapshots[1], earlier.x)


@pytest.mark.parametrize("frames", [(5, 2), (2, 2), (9,), (-1,)])
def test_frames_outside_the_run_are_refused(frames):
    with pytest.raises(BadInput, match="ascending order"):
        Matching(Cosine(), solver=Descent(steps=9), frames=frames)


def test_snapshots_are_of_the_chosen_restart(victim_of, batch_of, start_at):
    victim, (x, y) = victim_of(), batch_of(1)
    seen = share(victim, Gradient(), x, y)
    starts = torch.stack([torch.ones(1, 1, 6, 6), x])  # the second begins at the solution
    result = Matching(Cosine(), start=start_at(starts), solver=Descent(steps=2), restarts=2)(victim, seen)
    assert int(result.losses.argmin()) == 1
    torch.testing.assert_close(result.x, x)
    torch.testing.assert_close(result.trace.snapshots[0], x)


def test_a_watcher_hears_every_step(victim_of, batch_of):
    heard = []
    victim = victim_of()
    seen = share(victim, Gradient(), *batch_of(1))
    with watching(lambda done, total: heard.append((done, total))):
        Matching(Cosine(), solver=Descent(steps=3))(victim, seen)
    Matching(Cosine(), solver=Descent(steps=3))(victim, seen)
    assert heard == [(1, 3), (2, 3), (3, 3)]


# --- blind -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "attack",
    [
        Matching(Cosine() + 0.1 * TotalVariation(), solver=Descent(steps=8), restarts=2),
        Matching(L2() + 0.1 * BatchNormStatistics(), solver=Descent(steps=8)),
        Matching(L2(), solver=LBFGS(steps=2)),
        Matching(L2(), labels=FirstThatApplies((BiasCounts(), MinimumEntry(), Joint())), solver=Descent(steps=4)),
    ],
    ids=["variation", "statistics", "no prior", "rules that draw"],
)
def test_a_blind_run_ignores_the_signal(attack, victim_of, batch_of):
    """Two clients with different images and labels, one of whom withholds his head: the null run is the same."""
    victim = victim_of(activation=nn.ReLU)
    assert isinstance(attack, Blindable)
    first = share(victim, Gradient(), *batch_of(2))
    x, y = batch_of(2, seed=8)
    second = share(victim, Gradient(), 1 - x, (y + 1) % 4)
    third = replace(second, signal={"0.weight": second.signal["0.weight"]})
    results = [attack.blind()(victim, seen, seed=5) for seen in (first, second, third)]
    for result in results[1:]:
        assert torch.equal(result.x, results[0].x)
        assert torch.equal(result.y, results[0].y)
        assert result.loss == results[0].loss
    assert "blind" in results[0].made_by
    assert not torch.equal(attack(victim, first, seed=5).x, results[0].x)


def test_a_blind_run_begins_where_the_attack_begins(victim_of, batch_of):
    victim = victim_of(activation=nn.ReLU)
    seen = share(victim, Gradient(), *batch_of(2))
    for labels in (BiasCounts(strict=False), Joint(), FirstThatApplies((BiasCounts(), MinimumEntry(), Joint()))):
        attack = Matching(Cosine() + TotalVariation(), labels=labels, solver=Descent(steps=2))
        begins = [run(victim, seen, seed=2).trace.snapshots[0] for run in (attack, attack.blind())]
        assert torch.equal(*begins)


def test_a_blind_run_keeps_labels_that_were_given_away(victim_of, batch_of, seen_by):
    victim, (x, y) = victim_of(), batch_of(2)
    blind = Matching(Cosine(), solver=Descent(steps=1)).blind()
    assert torch.equal(blind(victim, seen_by(victim, Gradient(), x, y)).y, y)


# --- refusals ----------------------------------------------------------------------------------------------------------


class Never:
    """A solver that must not be asked to begin."""

    steps = 1
    together = True

    def begin(self, *_):
        raise AssertionError("the first step was taken")


@pytest.mark.parametrize("labels", [SignRule(), BiasCounts(), Joint()], ids=repr)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: {**s, "0.weight": s["0.weight"] * torch.nan}, r"0\.weight holds NaN or Inf"),
        (lambda s: {**s, "5.bias": s["5.bias"] + torch.inf}, r"5\.bias holds NaN or Inf"),
        (
            lambda s: dict.fromkeys(s, s["0.weight"] * torch.nan) | {n: t * torch.nan for n, t in s.items()},
            "NaN or Inf",
        ),
        (lambda s: {}, "signal is empty"),
        (lambda s: {**s, "fc.weight": s["5.weight"]}, "'fc.weight', which is not a trainable parameter"),
        (
            lambda s: {**s, "0.weight": s["0.weight"][:1]},
            r"0\.weight has shape \(1, 1, 3, 3\), but the model's has \(3, 1, 3, 3\)",
        ),
    ],
    ids=["nan", "inf", "all nan", "empty", "unknown name", "wrong shape"],
)
def test_a_bad_signal_is_refused_before_the_first_step(change, message, labels, victim_of, batch_of):
    victim = victim_of()
    seen = share(victim, Gradient(), *batch_of(1))
    bad = replace(seen, signal=change(dict(seen.signal)))
    with pytest.raises((BadInput, Inapplicable), match=message):
        Matching(Cosine(), labels=labels, solver=Never())(victim, bad)


def test_an_unknown_batch_size_is_refused(victim_of, batch_of):
    victim = victim_of()
    with pytest.raises(Inapplicable, match="not shared: batch size"):
        Matching(Cosine(), solver=Never())(victim, share(victim, Gradient(), *batch_of(1), reveal=()))


def of_mapping(output, targets):
    return F.cross_entropy(output, targets["labels"])


def test_structured_targets_that_were_revealed_are_taken_as_given(victim_of, batch_of):
    """A loss that wants its labels in a mapping is attacked as the plain one is; labels were given, so none are told."""
    victim, (x, y) = victim_of(), batch_of(2)
    plain = Matching(Cosine(), solver=Descent(steps=3))(
        victim, share(victim, Gradient(), x, y, reveal=[Size(), Labels()])
    )
    wrapped = replace(victim, loss=of_mapping)
    seen = share(wrapped, Gradient(), x, {"labels": y}, reveal=[Size(), Labels()])
    found = Matching(Cosine(), solver=Descent(steps=3))(wrapped, seen)
    assert found.y is None
    assert torch.allclose(found.x, plain.x, atol=1e-5)
    with pytest.raises(BadInput, match="one by one"):
        Matching(Cosine(), solver=Never()).many(wrapped, [seen, seen])


@pytest.mark.parametrize("restarts", [0, -1, 1.5])
def test_restarts_are_a_positive_number(restarts):
    with pytest.raises(BadInput, match="restarts of at least 1"):
        Matching(Cosine(), restarts=restarts)


class Poison(nn.Module):
    def forward(self, x):
        return x / (x - x)


def test_a_model_that_gives_nan_is_told_so(victim_of, batch_of, seen_by):
    victim = victim_of(nn.Sequential(nn.Flatten(), nn.Linear(36, 4)))
    seen = seen_by(victim, Gradient(), *batch_of(1))
    poisoned = victim_of(nn.Sequential(nn.Flatten(), nn.Linear(36, 4), Poison()))
    with pytest.raises(Inapplicable, match="never finite"):
        Matching(L2(), solver=Descent(steps=2))(poisoned, seen)


def test_an_attack_can_be_sent_and_printed():
    attack = Matching(Cosine() + 0.1 * TotalVariation(), solver=SOLVERS[0], restarts=2)
    twin = pickle.loads(pickle.dumps(attack))  # noqa: S301 - made a line above
    assert twin == attack
    for word in ("Cosine", "0.1 * TotalVariation()", "StepDecay", "steps=12", "restarts=2"):
        assert word in repr(attack)


def test_an_observation_of_nothing_but_the_size_is_not_enough(victim_of):
    with pytest.raises(Inapplicable, match="empty"):
        Matching(Cosine())(victim_of(), Observation(signal={}, channel=Gradient(), size=1))
