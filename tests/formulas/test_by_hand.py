"""Formulas against numbers worked out by hand or in plain numpy, each small enough to be checked on paper.

``tools/mutation_check.py`` breaks these formulas one by one and expects a test of this file to fail.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from leakgauge.attacks.linear import input_of_linear
from leakgauge.attacks.patch_positions import patches_from_positions
from leakgauge.attacks.r_gap.chain import Layer
from leakgauge.attacks.r_gap.system import Judgement, RankAnalysis, system_of_convolution
from leakgauge.audit.scoring import Scores
from leakgauge.audit.verdict import judge
from leakgauge.channels import DPSGD, SGD, Aggregate, FedAvg, Gradient, InstaHide, MixUp
from leakgauge.core import Observation, Pixels, Victim, share
from leakgauge.defenses import Clip, GaussianNoise, LaplacianNoise, Prune, Quantize
from leakgauge.inversion import (
    L2,
    BatchNormStatistics,
    BiasCounts,
    Cosine,
    Descent,
    Matching,
    SignRule,
    StepDecay,
    TotalVariation,
)
from leakgauge.inversion.beneath_head import LIKELY, walk_down
from leakgauge.inversion.encoded import guess_signs
from leakgauge.inversion.output_gradient import read_targets
from leakgauge.inversion.terms import Candidate, PerRestart
from leakgauge.measures.image import mse, psnr, ssim_index
from leakgauge.measures.mutual_information.cca import gaussian_information
from leakgauge.measures.mutual_information.critic import Scores as CriticScores
from leakgauge.measures.mutual_information.dv import dv_bound
from leakgauge.measures.mutual_information.infonce import infonce_bound
from leakgauge.measures.mutual_information.ksg import ksg_terms
from leakgauge.measures.mutual_information.nwj import nwj_bound
from leakgauge.models.seeded import seeded


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class TestSpace:
    def test_encode_and_decode(self):
        space = Pixels((1, 1, 2), mean=(0.5,), std=(0.25,))
        image = torch.tensor([[[[0.0, 1.0]]]])
        assert space.encode(image).flatten().tolist() == [-2.0, 2.0]
        assert torch.equal(space.decode(space.encode(image)), image)


class TestMeasures:
    def test_mse_is_the_mean_of_squares(self):
        a, b = torch.tensor([[[[0.0, 1.0]]]]), torch.tensor([[[[0.5, 1.0]]]])
        assert mse(a, b).item() == pytest.approx(0.125)  # (0.25 + 0) / 2

    def test_psnr_of_a_tenth_is_20_dB(self):
        a = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
        assert psnr(a, a + 0.1).item() == pytest.approx(20.0)  # mse 0.01

    def test_ssim_of_two_flat_pictures(self):
        # no variance: (2·0.2·0.4 + 0.0001) / (0.04 + 0.16 + 0.0001)
        zero = torch.tensor(0.0, dtype=torch.float64)
        index = ssim_index(zero + 0.2, zero + 0.4, zero, zero, zero)
        assert index.item() == pytest.approx(0.1601 / 0.2001)

    def test_ssim_of_opposite_patterns(self):
        # equal means 0.5, variances 0.01, covariance -0.01: (-0.02 + 0.0009) / (0.02 + 0.0009)
        half, var = torch.tensor(0.5, dtype=torch.float64), torch.tensor(0.01, dtype=torch.float64)
        assert ssim_index(half, half, var, var, -var).item() == pytest.approx(-0.0191 / 0.0209)


def replay_of(signals: list[dict[str, list[float]]], observed: dict[str, list[float]]) -> SimpleNamespace:
    """A replay in plain numpy, so that distances are checked without the engine."""

    def summed(of):
        def total(weights):
            rows = [sum(w * of(np.array(g[n]), np.array(observed[n])) for n, w in weights.items()) for g in signals]
            return torch.tensor(rows, dtype=torch.float64)

        return total

    return SimpleNamespace(
        names=tuple(observed),
        dot=summed(lambda g, o: g @ o),
        square=summed(lambda g, o: g @ g),
        l2=summed(lambda g, o: ((g - o) ** 2).sum()),
        l1=summed(lambda g, o: abs(g - o).sum()),
        observed_square=summed(lambda g, o: o @ o),
    )


class TestInformation:
    scores = CriticScores(torch.tensor([2.0, 4.0]), torch.tensor([[0.0], [math.log(3)]]), torch.tensor([1]))

    def test_dv(self):
        assert dv_bound(self.scores).item() == pytest.approx(3 - math.log(2))  # mean of 1 and 3 is 2

    def test_nwj(self):
        assert nwj_bound(self.scores).item() == pytest.approx(1 + 3 - 2)

    def test_infonce_counts_the_true_partner(self):
        first = math.log(2 * math.exp(2) / (math.exp(2) + 1))
        second = math.log(2 * math.exp(4) / (math.exp(4) + 3))
        assert infonce_bound(self.scores).item() == pytest.approx((first + second) / 2)

    def test_gaussian(self):
        found = gaussian_information(torch.tensor([0.6], dtype=torch.float64))
        assert found.item() == pytest.approx(-0.5 * math.log(0.64))

    def test_neighbours_of_equally_spaced_points(self):
        # k = 1 on a line with a = b: radius 1, nobody strictly nearer, so ψ(1) + ψ(4) − 2ψ(1) = 1 + 1/2 + 1/3
        line = np.arange(4.0)[:, None]
        assert ksg_terms(line, line, k=1) == pytest.approx(np.full(4, 1 + 1 / 2 + 1 / 3))


class TestObjective:
    def test_cosine_of_equal_orthogonal_and_opposite_signals(self):
        observed = {"a": [3.0], "b": [4.0]}
        signals = [{"a": [6.0], "b": [8.0]}, {"a": [-4.0], "b": [3.0]}, {"a": [-3.0], "b": [-4.0]}]
        at = Candidate(torch.zeros(3, 1, dtype=torch.float64), None, replay_of(signals, observed))  # pyright: ignore
        assert Cosine()(at).tolist() == pytest.approx([0.0, 1.0, 2.0])

    def test_total_variation_counts_both_directions(self):
        x = torch.tensor([[0.0, 1.0], [3.0, 3.0]]).view(1, 1, 1, 2, 2)
        at = Candidate(x, None, None)  # pyright: ignore
        # across: |1-0|, |3-3|, mean 0.5; down: |3-0|, |3-1|, mean 2.5
        assert TotalVariation()(at).item() == pytest.approx(3.0)

    def test_each_restart_has_a_weight_of_its_own(self):
        x = (
            torch.tensor([[0.0, 1.0], [3.0, 3.0]]).view(1, 1, 1, 2, 2).repeat(4, 1, 1, 1, 1)
        )  # two observations, two restarts
        at = Candidate(x, None, None, 2)  # pyright: ignore
        assert PerRestart((2.0, 0.5), TotalVariation())(at).tolist() == pytest.approx([6.0, 1.5, 6.0, 1.5])

    def test_batch_norm_prior_compares_means_and_variances(self):
        model = nn.Sequential(nn.BatchNorm2d(1))  # running mean 0, running variance 1
        victim = Victim(model, Pixels((1, 1, 2)))
        inputs = torch.tensor([3.0, 7.0]).view(1, 1, 1, 1, 2)  # mean 5, biased variance 4
        at = Candidate(inputs, victim, SimpleNamespace(inputs=lambda name: inputs))  # pyright: ignore
        assert BatchNormStatistics()(at).item() == pytest.approx(5 + 3)

    def test_step_decay(self):
        assert [StepDecay()(p) for p in (0.0, 0.37, 0.38, 0.62, 0.63, 0.88)] == pytest.approx(
            [1, 1, 0.1, 0.1, 0.01, 1e-3]
        )


def head_only() -> Victim:
    """z = W h + b on two inputs and three classes."""
    head = nn.Linear(2, 3)
    return Victim(nn.Sequential(nn.Flatten(), head), Pixels((1, 1, 2)))


def observation(weight: list[list[float]], bias: list[float], size: int) -> Observation:
    return Observation({"1.weight": torch.tensor(weight), "1.bias": torch.tensor(bias)}, Gradient(), size=size)


class TestLabels:
    def test_sign_rule_finds_the_row_that_opposes_the_others(self):
        # rows (p_i - y_i)·h with h = (1, -2), p = (0.2, 0.5, 0.3), label 1
        seen = observation([[0.2, -0.4], [-0.5, 1.0], [0.3, -0.6]], [0.2, -0.5, 0.3], size=1)
        assert SignRule()(head_only(), seen, rng=rng()).tolist() == [1]

    def test_bias_counts(self):
        p = 1 / 3  # of each class for all four samples, whose labels are 0, 0, 1, 1: ∂b = p - n / 4
        seen = observation([[0.0, 0.0]] * 3, [p - 0.5, p - 0.5, p], size=4)
        assert BiasCounts()(head_only(), seen, rng=rng()).tolist() == [0, 0, 1, 1]

    def test_targets_from_the_gradient_at_the_output(self):
        # W = ((1, 0), (0, 2)), b = 0, x = (3, 1): z = (3, 2). With y = (1, 5) the mean squared error has ∂b = 2/2 · (z − y) = (2, −3)
        model = nn.Linear(2, 2)
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
            model.bias.zero_()
        victim = Victim(
            nn.Sequential(nn.Flatten(), model), Pixels((1, 1, 2), bounds=(0, 9)), loss=nn.functional.mse_loss
        )
        seen = Observation(signal={"1.bias": torch.tensor([2.0, -3.0])}, channel=Gradient(), size=1)
        found = read_targets(victim, seen, torch.tensor([[[[3.0, 1.0]]]]))
        assert found is not None
        assert found[0].tolist() == pytest.approx([1.0, 5.0])


class TestClosedForm:
    def test_patches_from_the_gradient_of_their_positions(self):
        # Δ = ((1, 0), (1, 2)) and p = (3, 5): Δᵀp = (1·3 + 1·5, 2·5) = (8, 10)
        rows, weight = torch.tensor([[1.0, 0.0], [1.0, 2.0]]), torch.tensor([[8.0], [10.0]])
        assert patches_from_positions(rows, weight, span=9)[0].flatten().tolist() == pytest.approx([3.0, 5.0])

    def test_input_of_a_linear_layer(self):
        x, delta = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([2.0, -1.0])
        assert torch.allclose(input_of_linear(torch.outer(delta, x), delta), x)

    def test_input_of_a_convolution(self):
        # kernel (2, −1) on x = (1, 2, 5): z = (2·1 − 2, 2·2 − 5) = (0, −1). With δ = (1, 3) the gradient of the kernel is
        # (1·1 + 3·2, 1·2 + 3·5) = (7, 17). z alone leaves one direction open; both together give x
        layer = Layer("", "w", None, enters=(1, 3), leaves=(1, 2), convolves=True)
        weight, z = torch.tensor([[[2.0, -1.0]]]).double(), torch.tensor([[0.0, -1.0]]).double()
        delta, gradient = torch.tensor([[1.0, 3.0]]).double(), torch.tensor([[[7.0, 17.0]]]).double()
        known = torch.ones(1, 2, dtype=torch.bool)
        found = system_of_convolution(layer, weight, delta, gradient, z, known).solve("", rounding=1e-16)
        assert found.x.tolist() == pytest.approx([1.0, 2.0, 5.0])
        assert (found.judged.rank, found.judged.equations) == (3, 4)

    def test_inputs_beneath_known_gradients(self):
        # δ = ((1, 0, 1), (0, 1, 1)), a = (3, 5): Σ δ aᵀ = (3, 5, 8) and Σ δ = (1, 1, 2), of which a mean over the batch is half.
        # δ known 1 % too short makes (a, 1) 1 % too long
        delta, sums = (
            torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]),
            torch.tensor([[3.0, 1.0], [5.0, 1.0], [8.0, 2.0]]),
        )
        found = self.at_head(delta / 1.01, sums / 2)
        assert found.values.flatten().tolist() == pytest.approx([3.0, 5.0])
        assert found.error.tolist() == pytest.approx([0.01, 0.01])

    def test_noise_beneath_known_gradients(self):
        # what no δ explains has length √2 · 1e-4 in 3 · 2 − 2 · 2 equations: 1e-4 each. The squares of the rows of (δᵀ)⁺ sum to 2/3
        delta, sums = (
            torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]),
            torch.tensor([[3.0, 1.0], [5.0, 1.0], [8.0, 2.0]]),
        )
        spare = 1e-4 * torch.tensor([[1.0], [1.0], [-1.0]]) / math.sqrt(3)
        expected = [LIKELY * math.sqrt(2 / 3) * 1e-4 / a for a in (3, 5)]
        assert self.at_head(delta, (sums + spare) / 2).error.tolist() == pytest.approx(expected, rel=0.01)

    def at_head(self, delta, mean):
        head = nn.Linear(1, 3)
        shared = {"0.weight": mean[:, :1].double(), "0.bias": mean[:, 1].double()}
        victim, guess = Victim(nn.Sequential(head), Pixels((1, 1, 1))), torch.tensor([[3.1], [5.1]])
        return walk_down(victim, "0", [], shared, delta.double(), guess.double(), scale=2)

    def test_rank_analysis_index(self):
        # three layers, 10 of 12, 5 of 6 and 4 of 4 unknowns: 3/3 · (−2) + 2/3 · (−1) + 1/3 · 0
        layers = tuple(Judgement("", n, 20, rank, 1.0, 0.0, 0.0) for rank, n in ((10, 12), (5, 6), (4, 4)))
        assert RankAnalysis(layers, span=1.0, rounding=1e-7).index == pytest.approx(-8 / 3)


class Scale(nn.Module):
    """One weight w and the output w·x, so that steps can be done by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x.flatten(1)


class TestFedAvg:
    def test_momentum_over_three_steps(self):
        # loss w²/2: gradient w. lr 0.1, momentum 0.5, w0 = 1
        # v1 = 1, w1 = 0.9; v2 = 0.5 + 0.9 = 1.4, w2 = 0.76; v3 = 0.7 + 0.76 = 1.46, w3 = 0.614
        victim = Victim(Scale(), Pixels((1, 1, 1)), loss=lambda out, y: out.square().mean() / 2)
        x = torch.ones(1, 1, 1, 1, dtype=torch.float64)
        delta = FedAvg(steps=3, lr=0.1, optimizer=SGD(momentum=0.5))(victim, x, torch.zeros(1))
        assert delta["w"].item() == pytest.approx(0.614 - 1)


class TestChannels:
    def test_each_sample_is_clipped_before_the_mean(self):
        # loss wx: gradients 1, 0.25 and 3; clipped at 0.5: 0.5, 0.25 and 0.5
        victim = Victim(Scale(), Pixels((1, 1, 1)), loss=lambda out, y: out.mean())
        x = torch.tensor([1.0, 0.25, 3.0], dtype=torch.float64).view(3, 1, 1, 1)
        sent = DPSGD(clip=0.5, noise=0.0)(victim, x, torch.zeros(3))
        assert sent["w"].item() == pytest.approx(1.25 / 3)

    def test_noise_is_measured_in_clips_and_divided_by_the_batch(self):
        victim = Victim(Scale(), Pixels((1, 1, 1)), loss=lambda out, y: out.mean())
        x, y = torch.ones(2, 1, 1, 1, dtype=torch.float64), torch.zeros(2)
        noisy = [DPSGD(clip=0.1, noise=3.0, seed=seed)(victim, x, y)["w"].item() - 0.1 for seed in range(2000)]
        assert np.std(noisy) == pytest.approx(3.0 * 0.1 / 2, rel=0.08)  # five deviations of its estimate

    def test_clients_count_by_their_samples(self):
        # one step on the mean of wx moves w by -lr·mean(x): the clients hold (1, 9) and (4)
        victim = Victim(Scale(), Pixels((1, 1, 1)), loss=lambda out, y: out.mean())
        x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64).view(3, 1, 1, 1)
        sent = Aggregate(clients=2, of=FedAvg(lr=0.1, steps=1))(victim, x.square(), torch.zeros(3))
        assert sent["w"].item() == pytest.approx(-0.1 * (2 / 3 * 5 + 1 / 3 * 4))

    def test_who_drops_out_does_not_count(self):
        # the clients hold (1, 4), (2) and (3); without the second the mean is over 1, 4 and 3
        victim = Victim(Scale(), Pixels((1, 1, 1)), loss=lambda out, y: out.mean())
        x = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64).view(4, 1, 1, 1)
        sent = Aggregate(clients=3, dropped=(1,))(victim, x, torch.zeros(4))
        assert sent["w"].item() == pytest.approx(8 / 3)

    def test_mixtures_and_their_signs(self):
        # each with the next one, the last with the first
        x = torch.tensor([1.0, 2.0, 4.0]).view(3, 1, 1, 1)
        assert MixUp(0.75).mixed(x).flatten().tolist() == [1.25, 2.5, 3.25]
        signed = torch.cat([InstaHide(0.75, seed=seed).mixed(x).flatten() for seed in range(9)])
        assert sorted(set(signed.tolist())) == [-3.25, -2.5, -1.25, 1.25, 2.5, 3.25]

    def test_which_mixtures_were_negative(self):
        # images between -1 and 3: a value of 2 cannot be -2; one of 0.5 may be either, and public images say which
        one = torch.ones(1, 1, dtype=torch.float64)
        size, low, high = torch.tensor([[2.0, 0.5]]).double(), -one.expand(1, 2), 3 * one.expand(1, 2)
        public = torch.tensor([[-0.4, -0.6], [-0.6, -0.4]]).double()
        assert guess_signs(size, one, low, high, None).tolist() == [[1.0, 1.0]]
        assert guess_signs(size, one, low, high, public).tolist() == [[1.0, -1.0]]


class TestDefenses:
    signal = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([-4.0])}  # noqa: RUF012 - length 5

    def test_clip_shortens_and_never_lengthens(self):
        assert Clip(1.0)(self.signal, rng=rng())["b"].item() == pytest.approx(-0.8)
        assert Clip(10.0)(self.signal, rng=rng())["b"].item() == pytest.approx(-4.0)

    def test_prune_drops_the_smallest(self):
        pruned = Prune(0.5)({"a": torch.tensor([0.1, -5.0, 2.0, 0.0])}, rng=rng())
        assert pruned["a"].tolist() == [0.0, -5.0, 2.0, 0.0]

    def test_quantize_to_three_bits(self):
        # step 3 / (2² - 1) = 1
        rounded = Quantize(3)({"a": torch.tensor([3.0, 1.4, -0.6, 0.2])}, rng=rng())
        assert rounded["a"].tolist() == [3.0, 1.0, -1.0, 0.0]

    @pytest.mark.parametrize("noise", [GaussianNoise, LaplacianNoise])
    def test_relative_noise_is_that_many_times_as_long(self, noise):
        signal = {"a": torch.full((100_000,), 0.01), "b": torch.full((100_000,), -0.03)}
        sent = noise(relative=2.0)(signal, rng=rng())
        added = math.sqrt(sum(float((sent[n] - signal[n]).square().sum()) for n in signal))
        length = math.sqrt(sum(float(t.square().sum()) for t in signal.values()))
        assert added / length == pytest.approx(2.0, rel=0.02)

    def test_variance_to_norm(self):
        assert GaussianNoise(variance_to_norm=0.2).deviation(self.signal) == pytest.approx(1.0)  # sqrt(0.2 · 5)


class TestVerdict:
    def verdict(self, ssim, psnr, null=(0.1, 8.0), baseline=(0.3, 12.0)):
        scores, null, baseline = (Scores(mse=(0.0,), psnr=(p,), ssim=(s,)) for s, p in ((ssim, psnr), null, baseline))
        return judge(scores, null, baseline).outcome

    def test_each_side_of_the_bar(self):
        assert self.verdict(0.51, 15.0) == "feasible"
        assert self.verdict(0.39, 15.0, null=(0.02, 8.0)) == "feasible"
        assert self.verdict(0.37, 15.0, null=(0.0, 8.0)) == "partial"  # SSIM below 0.38
        assert self.verdict(0.45, 15.0, null=(0.1, 8.0)) == "partial"  # less than 0.36 above the null run
        assert self.verdict(0.51, 12.4) == "partial"  # less than 0.5 dB above the baseline
        assert self.verdict(0.35, 8.9) == "inconclusive"  # less than 1 dB above the null run
        assert self.verdict(0.9, 8.9) == "partial"  # by SSIM alone
        assert self.verdict(0.51, 15.0, baseline=(0.5, 12.0)) == "partial"


class TestMatching:
    def test_keeps_the_image_that_gave_the_lowest_loss(self):
        """The kept loss is the lowest of the whole curve, and it is the loss of the kept image."""
        with seeded(0):
            victim = Victim(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), Pixels((1, 2, 2)))
        x, y = torch.rand(1, 1, 2, 2, generator=rng(1)), torch.tensor([2])
        seen = share(victim, Gradient(), x, y)
        found = Matching(L2(), solver=Descent(steps=100), restarts=2)(victim, seen, seed=0)
        assert found.loss <= float(found.trace.losses.min())
        assert found.loss == pytest.approx(float(found.losses.min()))
        replayed = Gradient()(victim, found.x, found.y)
        again = sum(float((replayed[n] - seen.signal[n]).square().sum()) for n in replayed)
        assert again == pytest.approx(found.loss, rel=1e-3, abs=1e-9)


class TestStatistics:
    """A batch of the values 1 and 3: mean 2, variance 1, unbiased variance 2. Momentum 1/2 from mean 0 and variance 1."""

    def test_batch_from_running_statistics(self):
        from leakgauge.inversion.statistics import Moments, batch_moments, retained_weight

        before = Moments(torch.tensor([0.0]), torch.tensor([1.0]))
        after = Moments(torch.tensor([1.0]), torch.tensor([1.5]))
        found = batch_moments(before, after, retained=0.5, n=2)
        assert (found.mean.tolist(), found.var.tolist()) == ([2.0], [1.0])
        assert retained_weight(0.25, updates=2, tracked=9) == 0.75**2
        assert retained_weight(None, updates=1, tracked=4) == 0.8


class TestBounds:
    """Φ(0 + 1/1) at even odds and σ = 1; noise of 0.1 without clipping is 20 dB; σ = 3 against s = 1 and τ = 1/2 leaves 1/(9 + 4)."""

    def test_bound_law_and_limit(self):
        from leakgauge.measures.first_layer import from_scratch_psnr
        from leakgauge.measures.rero import GaussianSteps, reconstruction_bound
        from leakgauge.measures.spectrum import spectrum

        assert reconstruction_bound(GaussianSteps(2.0, steps=4), 0.5) == pytest.approx(0.8413447, abs=1e-6)
        grey = torch.full((1, 1, 2, 2), 0.5)
        assert float(from_scratch_psnr(grey, torch.tensor([[0.1]]), clipped=False)) == pytest.approx(20.0)
        assert float(from_scratch_psnr(grey, torch.tensor([[1e4]]))) == pytest.approx(-10 * math.log10(0.25), abs=1e-3)
        assert spectrum(lambda x: 3 * x, torch.zeros(1)).variances(1.0, spread=0.5).item() == pytest.approx(1 / 13)


class TestText:
    def test_rouge(self):
        from leakgauge.measures.text import rouge_l, rouge_n

        guess, truth = torch.tensor([[1, 2, 9, 9]]), torch.tensor([[1, 2, 3, 4]])
        assert rouge_n(guess, truth, 1).item() == 0.5  # 2 · 2 / (4 + 4)
        assert rouge_l(guess, truth).item() == 0.5

    def test_how_far_outside_a_span(self):
        """Singular values 10 and 5 and one free direction: (1, 1, 1/2) is expected outside by 1/100 + 1/25, times 4²."""
        from leakgauge.inversion.row_spans import RowSpan

        values = torch.tensor([10.0, 5.0, 0.0]).double()
        span = RowSpan(torch.eye(3).double(), values, torch.ones(3).double(), 2, 2, 2, 0.0, False)
        found = span.outside(torch.tensor([[1.0, 1.0, 0.5]]).double())
        assert found.item() == pytest.approx(0.25 / (16 * (1 / 100 + 1 / 25)))

    def test_columns_are_made_equally_long(self):
        """Rows (3, 4) and (30, 40) become (0.6, 0.8) twice, so the columns have the lengths 0.6 √2 and 0.8 √2."""
        from leakgauge.inversion.row_spans import row_span

        span = row_span([torch.tensor([[3.0, 4.0], [30.0, 40.0]])], inputs=2)
        assert span is not None
        torch.testing.assert_close(span.scale, (1 / (torch.tensor([0.6, 0.8]) * 2**0.5)).double())

    def test_the_nearest_point_of_a_line(self):
        """From (5, 3) to (23/3, −1) the second entry, outside the span, is zero after 3/4 of the way: at (7, 0)."""
        from leakgauge.inversion.row_spans import RowSpan

        values = torch.tensor([10.0, 0.0]).double()
        span = RowSpan(torch.eye(2).double(), values, torch.ones(2).double(), 1, 1, 1, 0.0, False)
        found = span.nearest(torch.tensor([[5.0, 3.0]]).double(), torch.tensor([[5.0 + 8 / 3, -1.0]]).double())
        torch.testing.assert_close(found, torch.tensor([[7.0, 0.0]]).double())

    def test_the_factor_of_a_part(self):
        """Twice the part of two inputs, and another input: half of each of its two values is an eigenvalue."""
        from leakgauge.inversion.peeling import factor_in

        unit, values = torch.eye(3).double(), torch.tensor([4.0, 6.0, 7.0]).double()
        found = factor_in((unit, values, unit), torch.diag(torch.tensor([2.0, 3.0, 0.0])).double())
        assert found == (pytest.approx(2.0), 2)

    def test_each_token_is_predicted_from_the_place_before(self):
        from leakgauge.models import NextToken

        scores = torch.tensor([[[0.0, 2.0], [5.0, 0.0], [7.0, 1.0]]])
        expected = -(torch.tensor([0.0, 2.0]).log_softmax(0)[1] + torch.tensor([5.0, 0.0]).log_softmax(0)[0]) / 2
        torch.testing.assert_close(NextToken()(scores, torch.tensor([[0, 1, 0]])), expected)

    def test_noise_is_relative_to_the_size_of_an_entry(self):
        from leakgauge.split.prompts import Protection

        assert Protection("noise", 2.0).scale(torch.tensor([[3.0, 4.0]])) == pytest.approx(2 * 5 / 2**0.5)
