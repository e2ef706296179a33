"""What an adversary can know of the client's statistics: exactly, by proxy, naively; and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from leakgauge.audit import Case, embedded
from leakgauge.channels import Aggregate, FedAvg, Gradient
from leakgauge.core import Auxiliary, Buffers, Labels, Size, share
from leakgauge.engine.reference import capturing
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion import (
    ExactStatistics,
    Moments,
    NormStatistics,
    ProxyStatistics,
    RunningStatistics,
    Strongest,
)
from leakgauge.inversion.knowledge import gradient_alignment


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def deep(momentum: float | None = 0.1) -> nn.Module:
    """Two norms behind convolutions of different stride, so that n differs between them."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3, momentum=momentum), nn.ReLU(),
        nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4, momentum=momentum), nn.ReLU(), nn.Flatten(), nn.Linear(16, 4),
    )  # fmt: skip


def entering(victim, x, name) -> torch.Tensor:
    with torch.no_grad(), capturing(victim.model, (name,)) as inputs:
        victim(x)
    return inputs[name].transpose(0, 1).flatten(1)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("momentum", [0.1, 0.37, 1.0, None], ids=str)
def test_exact_statistics_of_every_layer(momentum, size, victim_of, batch_of):
    victim, (x, y) = victim_of(deep(momentum), mode="train"), batch_of(size)
    seen = share(victim, Gradient(), x, y, reveal=(Size(), Buffers()))
    known = ExactStatistics()(victim, seen, None, rng=rng())
    assert list(known.moments) == ["1", "4"]
    for name, found in known.moments.items():
        values = entering(victim, x, name)
        torch.testing.assert_close(found.mean.float(), values.mean(1), atol=1e-5, rtol=0)
        torch.testing.assert_close(found.var.float(), values.var(1, unbiased=False), atol=1e-5, rtol=0)
    assert known.note == "statistics: exact, of 2 layers"


def test_statistics_of_few_bits_are_not_called_exact(victim_of, batch_of):
    victim, (x, y) = victim_of(deep().bfloat16(), mode="train"), batch_of(4)
    seen = share(victim, Gradient(), victim.to_input(x), y, reveal=(Size(), Buffers()))
    known = ExactStatistics()(victim, seen, None, rng=rng())
    assert known.note == "statistics: exact up to rounding to bfloat16, of 2 layers"


def test_the_prior_vanishes_at_the_truth_and_only_there(victim_of, batch_of, values_at):
    victim, (x, y) = victim_of(deep(), mode="train"), batch_of(3)
    seen = share(victim, Gradient(), x, y, reveal=(Size(), Labels(), Buffers()))
    prior = NormStatistics(ExactStatistics()(victim, seen, None, rng=rng()).moments)
    there, elsewhere = values_at(prior, victim, seen, torch.stack([x, x.flip(0) * 0.5]))
    assert float(there) < 1e-4
    assert float(elsewhere) > 0.1


class PartlyFrozen(nn.Sequential):
    """Fine-tuning keeps some normalisation layers in eval mode, whatever the mode of the model."""

    frozen: tuple[int, ...] = (1,)

    def train(self, mode: bool = True):
        super().train(mode)
        for i in self.frozen:
            self[i].eval()
        return self


def test_layers_held_in_eval_mode_are_left_out(victim_of, batch_of):
    x, y = batch_of(3)
    victim = victim_of(PartlyFrozen(*deep()), mode="train")
    known = ExactStatistics()(victim, share(victim, Gradient(), x, y, reveal=(Size(), Buffers())), None, rng=rng())
    assert list(known.moments) == ["4"]
    torch.testing.assert_close(known.moments["4"].mean.float(), entering(victim, x, "4").mean(1), atol=1e-5, rtol=0)
    model = PartlyFrozen(*deep())
    model.frozen = (1, 4)
    victim = victim_of(model, mode="train")
    with pytest.raises(Inapplicable, match="keeps its batch normalisation in eval mode"):
        ExactStatistics()(victim, share(victim, Gradient(), x, y, reveal=(Size(), Buffers())), None, rng=rng())


def test_running_statistics_that_no_batch_can_have_made_are_refused(victim_of, batch_of):
    """Noise on the buffers, or a momentum that is not the client's, would pass for exact statistics."""
    victim, (x, y) = victim_of(deep(), mode="train"), batch_of(3)
    seen = share(victim, Gradient(), x, y, reveal=(Size(), Buffers()))
    noisy = {**seen.buffers, "4.running_var": seen.buffers["4.running_var"] - 0.3}
    with pytest.raises(Inapplicable, match="running variances of 4 belong to no batch"):
        ExactStatistics()(victim, replace(seen, buffers=noisy), None, rng=rng())
    rounded = {n: v.half().to(v) if v.is_floating_point() else v for n, v in seen.buffers.items()}
    assert ExactStatistics()(victim, replace(seen, buffers=rounded), None, rng=rng()).moments


def test_several_steps_on_one_batch_are_an_approximation_and_said_so(victim_of, batch_of):
    victim, (x, y) = victim_of(deep(), mode="train"), batch_of(3)
    seen = share(victim, FedAvg(steps=3, lr=1e-4), x, y, reveal=(Size(), Buffers()))
    known = ExactStatistics()(victim, seen, None, rng=rng())
    assert known.note == "statistics: averaged over 3 local steps, of 2 layers (an approximation)"
    values = entering(victim, x, "4")  # with tiny steps the average is close to the first step's
    torch.testing.assert_close(known.moments["4"].mean.float(), values.mean(1), atol=1e-3, rtol=1e-2)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm2d(1), nn.Linear(36, 4)

    def forward(self, x):
        return self.head(self.norm(self.norm(x)).flatten(1))


@pytest.mark.parametrize(
    ("model", "channel", "mode", "reveal", "reason"),
    [
        (deep, Gradient(), "train", (Size(),), "not shared: running statistics"),
        (deep, Gradient(), "eval", (Size(), Buffers()), "eval mode"),
        (deep, FedAvg(steps=2, minibatch=2), "train", (Size(), Buffers()), "different minibatches"),
        (Twice, Gradient(), "train", (Size(), Buffers()), "norm is not used exactly once"),
        (lambda: deep(0.0), Gradient(), "train", (Size(), Buffers()), "momentum 0"),
    ],
    ids=["not shared", "eval mode", "minibatches", "used twice", "momentum 0"],
)
def test_what_exact_statistics_refuse(model, channel, mode, reveal, reason, victim_of, batch_of):
    victim, (x, y) = victim_of(model(), mode=mode), batch_of(4)
    seen = share(victim, channel, x, y, reveal=reveal)
    with pytest.raises(Inapplicable, match=reason):
        ExactStatistics()(victim, seen, None, rng=rng())


def test_a_model_without_batch_norm_has_no_exact_or_running_statistics(tiny, victim_of, batch_of):
    victim, (x, y) = victim_of(tiny(norm=False), mode="train"), batch_of(2)
    seen = share(victim, Gradient(), x, y, reveal=(Size(), Buffers()))
    for source in (ExactStatistics(), RunningStatistics()):
        with pytest.raises(Inapplicable, match="no batch normalisation"):
            source(victim, seen, None, rng=rng())
    assert Strongest()(victim, seen, None, rng=rng()).moments == {}


def test_running_statistics_are_the_shared_ones_else_the_public_ones(victim_of, batch_of):
    victim, (x, y) = victim_of(deep(), mode="train"), batch_of(4)
    shared = share(victim, Gradient(), x, y, reveal=(Size(), Buffers()))
    known = RunningStatistics()(victim, shared, None, rng=rng())
    assert torch.equal(known.moments["1"].mean, shared.buffers["1.running_mean"])
    public = RunningStatistics()(victim, share(victim, Gradient(), x, y), None, rng=rng())
    assert torch.equal(public.moments["4"].var, victim.buffers()["4.running_var"])


def test_the_strongest_source_that_applies(victim_of, batch_of):
    victim, (x, y) = victim_of(deep(), mode="train"), batch_of(2)
    others = Auxiliary(batch_of(9, seed=5)[0])
    for reveal, expected in [
        ((Size(), Buffers(), others), "exact"),
        ((Size(), others), "proxy"),
        ((Size(),), "none"),
    ]:
        seen = share(victim, Gradient(), x, y, reveal=reveal)
        assert Strongest()(victim, seen, y, rng=rng()).note.startswith(f"statistics: {expected}")
    seen = share(victim, Aggregate(), x, y, reveal=(Size(), Buffers(), others))  # shared, and still of no use
    assert "median" in (note := Strongest()(victim, seen, y, rng=rng()).note)
    assert note.endswith(
        ", not exact: the running statistics of several clients were averaged, so their batches cannot be separated"
    )


# --- proxies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["cnn", "vit"])
@pytest.mark.parametrize("size", [1, 4])
def test_the_ranking_prefers_the_true_distribution(model, size):
    """A trained victim: the best aligned batch is of the client's kind, not a negative, noise or its scrambled pixels."""
    case = Case(model=model, mode="train", batch_size=size)
    setup = embedded(case)
    victim, (x, y) = setup.victim, setup.private(case)
    seen = share(victim, Gradient(), x, y, reveal=(Size(), Labels()))
    alike = setup.images[20:84]
    scrambled = alike.flatten(1)[:, torch.randperm(784, generator=rng(1))].view_as(alike)
    kinds = {
        "alike": alike,
        "negative": 1 - alike,
        "noise": torch.rand(alike.shape, generator=rng()),
        "scrambled": scrambled,
    }

    def best(images):
        encoded = victim.space.encode(images)
        return max(float(gradient_alignment(victim, seen, batch, y)) for batch in encoded.split(size)[:8])

    ranked = {name: best(images) for name, images in kinds.items()}
    assert max(ranked, key=ranked.__getitem__) == "alike", ranked


def test_the_truth_among_the_candidates_is_chosen(victim_of, batch_of):
    """Alignment is 1 for the client's own batch, whatever else is there; its statistics are then the exact ones."""
    victim, (x, y) = victim_of(deep(), mode="train"), batch_of(1)
    others = torch.cat([batch_of(7, seed=3)[0], x])
    seen = replace(share(victim, Gradient(), x, y), auxiliary=others)  # share refuses the truth among them
    known = ProxyStatistics(candidates=64)(victim, seen, y, rng=rng())
    assert "cosine 1.000" in known.note
    torch.testing.assert_close(known.moments["1"].mean, entering(victim, x, "1").mean(1), atol=1e-6, rtol=0)


def test_several_proxies_are_averaged(victim_of, batch_of):
    victim, (x, y) = victim_of(deep(), mode="train"), batch_of(2)
    others = batch_of(2, seed=3)[0]  # any batch of two is the same two, so every candidate has the same statistics
    seen = share(victim, Gradient(), x, y, reveal=(Size(), Auxiliary(others)))
    known = ProxyStatistics(candidates=4, keep=3)(victim, seen, y, rng=rng())
    torch.testing.assert_close(known.moments["4"].var, entering(victim, others, "4").var(1, unbiased=False))


def test_what_proxies_refuse(tiny, victim_of, batch_of):
    victim, (x, y) = victim_of(deep(), mode="train"), batch_of(3)
    few = share(victim, Gradient(), x, y, reveal=(Size(), Auxiliary(batch_of(2, seed=3)[0])))
    for seen, labels, reason in [
        (share(victim, Gradient(), x, y), y, "need auxiliary images"),
        (few, y, "needs 3 auxiliary images, but there are 2"),
        (few, None, "need labels"),
    ]:
        with pytest.raises(Inapplicable, match=reason):
            ProxyStatistics()(victim, seen, labels, rng=rng())
    plain = victim_of(nn.Sequential(nn.Flatten(), nn.Linear(36, 4)))
    with pytest.raises(Inapplicable, match="no batch, layer or group normalisation"):
        ProxyStatistics()(plain, few, y, rng=rng())
    with pytest.raises(BadInput, match="keep between 1 and all 4"):
        ProxyStatistics(candidates=4, keep=5)


def test_auxiliary_images_are_an_assumption(victim_of, batch_of):
    victim, (x, y) = victim_of(), batch_of(1)
    seen = share(victim, Gradient(), x, y, reveal=(Size(), Auxiliary(batch_of(6, seed=3)[0])))
    assert seen.assumptions[-1].what == "server holds 6 auxiliary images of the same kind"
    with pytest.raises(BadInput, match="Auxiliary needs images of shape"):
        share(victim, Gradient(), x, y, reveal=(Auxiliary(torch.zeros(3, 1, 2, 2)),))


def test_targets_of_a_layer_are_reached_by_name(victim_of, batch_of, values_at, seen_by):
    victim, (x, y) = victim_of(deep(), mode="train"), batch_of(2)
    zero = NormStatistics({"1": Moments(torch.zeros(3), torch.zeros(3))})
    values = entering(victim, x, "1")
    expected = values.mean(1).norm() + values.var(1, unbiased=False).norm()
    found = values_at(zero, victim, seen_by(victim, Gradient(), x, y), x[None])
    assert float(found) == pytest.approx(float(expected), rel=1e-5)
