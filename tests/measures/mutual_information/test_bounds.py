"""The formulas of the bounds, against numbers worked out by hand, numpy and the closed forms of Gaussians."""

import math

import numpy as np
import pytest
import torch

from leakgauge.errors import BadInput
from leakgauge.measures.mutual_information.cca import (
    canonical,
    gaussian_information,
    gaussian_log_ratio,
    shrunk_covariance,
)
from leakgauge.measures.mutual_information.club import club_value
from leakgauge.measures.mutual_information.critic import CriticFit, Scores, scores
from leakgauge.measures.mutual_information.dv import dv_bound, dv_reading
from leakgauge.measures.mutual_information.estimate import Pairs, check_pairs, normal_interval, split_pairs
from leakgauge.measures.mutual_information.infonce import infonce_bound, infonce_reading
from leakgauge.measures.mutual_information.ksg import ksg_terms
from leakgauge.measures.mutual_information.mine import MovingAverageGain
from leakgauge.measures.mutual_information.nwj import nwj_bound, nwj_reading
from leakgauge.measures.mutual_information.scale import standardise, tame_tails
from leakgauge.measures.mutual_information.smile import jensen_shannon_bound, smile_reading, smile_value
from leakgauge.testing import gaussian_pairs

RHO = 0.75
MI = -0.5 * math.log(1 - RHO**2)
JEFFREYS = RHO**2 / (1 - RHO**2)
"""KL(P‖Q) + KL(Q‖P) of a Gaussian pair P of correlation ρ and its product Q."""


def by_hand():
    joint = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    product = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    return Scores(joint, product, torch.tensor([1, 2]))


class LogRatio(torch.nn.Module):
    """The best critic there is for a Gaussian pair of correlation ρ: log dP/dQ."""

    def forward(self, a, b):
        return MI - (RHO**2 * (a**2 + b**2) - 2 * RHO * a * b) / (2 * (1 - RHO**2))


def best(n=4000, seed=0):
    return scores(LogRatio(), Pairs(*gaussian_pairs(n, correlation=RHO, seed=seed)), shifts=63)


class TestByHand:
    e = math.e

    def test_dv(self):
        assert float(dv_bound(by_hand())) == pytest.approx(2 - math.log((4 + 2 * self.e) / 6))

    def test_nwj(self):
        assert float(nwj_bound(by_hand())) == pytest.approx(1 + 2 - (4 + 2 * self.e) / 6)

    def test_infonce(self):
        first = math.log(3 * self.e / (self.e + 1 + self.e))
        second = math.log(3 * self.e**2 / (self.e**2 + self.e + 1))
        third = math.log(3 * self.e**3 / (self.e**3 + 2))
        assert float(infonce_bound(by_hand())) == pytest.approx((first + second + third) / 3)

    def test_smile_clips_the_mismatched_pairs_only(self):
        half = math.exp(0.5)
        assert float(smile_value(by_hand(), clip=0.5)) == pytest.approx(2 - math.log((4 + 2 * half) / 6))
        assert float(smile_value(by_hand(), clip=9.0)) == pytest.approx(float(dv_bound(by_hand())))

    def test_jensen_shannon(self):
        def log_sigmoid(t):
            return -math.log(1 + math.exp(-t))

        expected = sum(map(log_sigmoid, (1, 2, 3))) / 3 + (2 * log_sigmoid(-1) + 4 * log_sigmoid(0)) / 6
        assert float(jensen_shannon_bound(by_hand())) == pytest.approx(expected)

    def test_club(self):
        assert float(club_value(by_hand())) == pytest.approx(2 - 2 / 6)

    def test_mine_divides_by_the_moving_average(self):
        gain = MovingAverageGain(0.9)
        now = (4 + 2 * self.e) / 6
        assert float(gain(by_hand())) == pytest.approx(2 - 1)  # the first average is the batch's own
        louder = Scores(by_hand().joint, by_hand().product + 1, by_hand().shifts)
        average = 0.9 * now + 0.1 * now * self.e
        assert float(gain(louder)) == pytest.approx(2 - now * self.e / average)

    def test_the_first_gradient_of_mine_is_that_of_dv(self):
        slopes = []
        for gain in (MovingAverageGain(0.99), dv_bound):
            product = by_hand().product.requires_grad_()
            gain(Scores(by_hand().joint, product, by_hand().shifts)).backward()
            slopes.append(product.grad)
        torch.testing.assert_close(*slopes)


class TestGaussian:
    """With the best critic every bound must meet its own closed form."""

    @pytest.mark.parametrize("bound", [dv_bound, nwj_bound], ids=lambda f: f.__name__)
    def test_lower_bounds_reach_the_information(self, bound):
        assert float(bound(best())) == pytest.approx(MI, abs=0.05)

    def test_infonce_stays_below(self):
        assert MI - 0.1 < float(infonce_bound(best())) < MI + 0.03

    def test_gap_of_the_best_critic_is_the_jeffreys_divergence(self):
        """What is left when the 'information' of mismatched pairs is taken off: E_P[T] − E_Q[T], more than twice too much."""
        found = best()
        gap = float(found.joint.mean() - found.product.mean())
        assert gap == pytest.approx(JEFFREYS, rel=0.05)
        assert gap > 2 * MI

    def test_mismatched_information_is_never_positive(self):
        found = best()
        mismatched = Scores(found.product.flatten(), found.product, found.shifts)
        assert float(dv_bound(mismatched)) < 0
        random = torch.randn(50, 7, generator=torch.Generator().manual_seed(0))
        assert float(dv_bound(Scores(random.flatten(), random, torch.arange(1, 8)))) < 0  # Jensen, for any critic

    def test_club_with_the_exact_conditional_is_the_jeffreys_divergence(self):
        class Exact(torch.nn.Module):
            def forward(self, a, b):
                return -((b - RHO * a) ** 2) / (2 * (1 - RHO**2))

        pairs = Pairs(*gaussian_pairs(4000, correlation=RHO))
        assert float(club_value(scores(Exact(), pairs, shifts=63))) == pytest.approx(JEFFREYS, rel=0.05)

    def test_gaussian_information(self):
        several = torch.tensor([0.5, 0.8], dtype=torch.float64)
        assert float(gaussian_information(several)) == pytest.approx(-0.5 * math.log(0.75 * 0.36))

    def test_gaussian_log_ratio_is_the_ratio_of_densities(self):
        from scipy.stats import multivariate_normal, norm

        a, b = (torch.tensor([[x]], dtype=torch.float64) for x in (0.3, -1.2))
        one = torch.ones(1, 1, dtype=torch.float64)
        found = gaussian_log_ratio(Pairs(a, b), torch.tensor([RHO], dtype=torch.float64), one, one)
        joint = multivariate_normal(cov=[[1, RHO], [RHO, 1]]).logpdf([0.3, -1.2])
        assert float(found) == pytest.approx(joint - norm.logpdf(0.3) - norm.logpdf(-1.2))


READINGS = {
    "dv": (dv_reading, MI),
    "nwj": (nwj_reading, MI),
    "infonce": (infonce_reading, None),
    "smile": (lambda s: smile_reading(s, clip=5.0), MI),
}


class TestIntervals:
    """95 % intervals of a fixed critic, over fresh samples, cover the value on endless data about as often as they say."""

    @pytest.mark.parametrize("name", READINGS)
    def test_coverage(self, name):
        read, truth = READINGS[name]
        if truth is None:  # InfoNCE with a fixed critic lies a little below: its own value on many pairs
            truth = float(infonce_bound(best(n=100_000, seed=99)))
        hits = 0
        for seed in range(200):
            found = read(best(n=400, seed=seed))
            low, high = normal_interval(float(found.value), found.influences)
            hits += low <= truth <= high
        assert 180 <= hits <= 199  # 190 expected; 180 is 3 standard deviations off

    def test_influences_have_the_spread_of_the_value(self):
        values = torch.stack([dv_reading(best(n=400, seed=s)).value for s in range(200)])
        claimed = torch.stack([dv_reading(best(n=400, seed=s)).influences.std() / 20 for s in range(50)]).mean()
        assert float(claimed) == pytest.approx(float(values.std()), rel=0.2)


class TestNeighbours:
    def test_against_a_plain_loop(self):
        from scipy.special import digamma

        rng = np.random.default_rng(0)
        a, b, k, n = rng.normal(size=(60, 2)), rng.normal(size=(60, 1)), 3, 60
        b += a[:, :1]
        terms = []
        for i in range(n):
            da, db = np.abs(a - a[i]).max(1), np.abs(b - b[i]).max(1)
            others = np.arange(n) != i
            radius = np.sort(np.maximum(da, db)[others])[k - 1]
            near_a, near_b = (d[others] < radius for d in (da, db))
            terms.append(digamma(k) + digamma(n) - digamma(near_a.sum() + 1) - digamma(near_b.sum() + 1))
        assert ksg_terms(a, b, k=k) == pytest.approx(np.array(terms))


class TestCanonical:
    def test_correlations_and_directions(self):
        rng = np.random.default_rng(1)
        a = rng.normal(size=(500, 3))
        b = np.concatenate([a[:, :1] + rng.normal(size=(500, 1)), rng.normal(size=(500, 1))], 1) @ rng.normal(
            size=(2, 2)
        )
        pairs = Pairs(torch.from_numpy(a), torch.from_numpy(b))
        rho, left, right = canonical(pairs, shrink=False)
        u, v = (side - side.mean(0) for side in (pairs.a @ left.T, pairs.b @ right.T))
        found = (u.T @ v / 500).numpy()
        assert found == pytest.approx(np.diag(rho.numpy()), abs=1e-9)
        assert (u.T @ u / 500).numpy() == pytest.approx(np.eye(2), abs=1e-9)

    def test_shrinkage_against_its_definition(self):
        x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        x[:, 1] += x[:, 0]
        x = x - x.mean(0)
        sample = x.T @ x / 30
        target = sample.trace() / 4 * torch.eye(4)
        away = float(((sample - target) ** 2).sum() / 4)
        spread = sum(float(((torch.outer(r, r) - sample) ** 2).sum() / 4) for r in x) / 30**2
        weight = min(spread, away) / away
        assert 0 < weight < 1
        torch.testing.assert_close(shrunk_covariance(x), (1 - weight) * sample + weight * target)

    def test_a_constant_coordinate_is_left_out(self):
        a, b = gaussian_pairs(200, correlation=0.9)
        rho = canonical(Pairs(torch.cat([a, torch.ones_like(a)], 1), b), shrink=False)[0]
        assert rho.tolist() == pytest.approx([0.9], abs=0.05)


class TestPlumbing:
    def test_split_is_a_partition(self):
        a = torch.arange(103.0)
        parts = split_pairs(check_pairs(a, a), seed=4)
        assert [len(part) for part in parts] == [51, 10, 42]
        assert torch.cat([part.a for part in parts]).flatten().sort().values.tolist() == a.tolist()
        assert all(torch.equal(part.a, part.b) for part in parts)

    def test_shifted_partners_are_never_true_ones(self):
        pairs = Pairs(torch.arange(7.0)[:, None], torch.arange(7.0)[:, None])
        equal = scores(lambda a, b: (a == b).double(), pairs, shifts=99)
        assert equal.joint.tolist() == [1.0] * 7
        assert equal.product.shape == (7, 6)
        assert equal.product.sum() == 0

    def test_columns_are_gathered_by_the_second_side(self):
        pairs = Pairs(torch.arange(7.0)[:, None], torch.arange(7.0)[:, None])
        found = scores(lambda a, b: b.expand_as(a + b), pairs, shifts=3)
        assert found.by_column(found.product).tolist() == list(range(7))

    def test_scaling_is_learned_on_the_training_pairs(self):
        train, other = (
            Pairs(torch.tensor([[0.0], [2.0]]), torch.ones(2, 1)),
            Pairs(torch.tensor([[5.0]]), torch.ones(1, 1)),
        )
        out = standardise(train, other)[1]
        assert out.a.item() == pytest.approx(4 / math.sqrt(2))
        assert out.b.item() == 0.0
        far = tame_tails(Pairs(torch.tensor([[-1.0], [0.0], [1.0]]), torch.ones(3, 1)), other)[1]
        assert far.a.item() == pytest.approx(math.asinh(5 / 1.4826))

    @pytest.mark.parametrize(
        ("a", "b", "says"),
        [
            (torch.zeros(50, 1), torch.zeros(49, 1), "same number of rows"),
            (torch.zeros(10, 1), torch.zeros(10, 1), "at least 40 pairs"),
            (torch.zeros(50, 0), torch.zeros(50, 1), "first side has empty rows"),
            (torch.zeros(50, 1), torch.full((50, 1), torch.inf), "second side holds NaN"),
            (torch.tensor(1.0), torch.zeros(50), "same number of rows"),
        ],
    )
    def test_refusals(self, a, b, says):
        with pytest.raises(BadInput, match=says):
            check_pairs(a, b)

    def test_training_refuses_nonsense(self):
        with pytest.raises(BadInput, match="positive"):
            CriticFit(steps=0)
