"""The linear probe against an independent solution, and what it makes of nothing."""

from __future__ import annotations

import pytest
import torch

from leakgauge.errors import BadInput
from leakgauge.measures.membership import auc
from leakgauge.measures.probe import attribute_auc, fit_probes


def drawn(n, d, *, gap, seed):
    rng = torch.Generator().manual_seed(seed)
    kind = torch.arange(n) % 2
    features = torch.randn(n, d, generator=rng, dtype=torch.float64)
    features[:, 0] += gap * kind
    return features, kind


def test_weights_are_those_of_plain_ridge_regression_and_evidence_that_of_held_vectors():
    features, kind = drawn(36, 5, gap=1.5, seed=0)
    probes = fit_probes(features, kind[None], held=12, penalties=(0.3,))
    own = features[:24]
    z, target = (features - own.mean(0)) / own.std(0), 2 * kind[:24].double() - 1
    penalty = 0.3 * float(torch.linalg.eigvalsh(z[:24] @ z[:24].T).clamp_min(0).mean())
    weights = torch.linalg.solve(z[:24].T @ z[:24] + penalty * torch.eye(5, dtype=torch.float64), z[:24].T @ target)
    torch.testing.assert_close(probes.weights[0], weights)
    scores, truth = z[24:] @ weights, kind[24:]
    one, other = scores[truth == 1].mean(), scores[truth == 0].mean()
    spread = torch.cat([scores[truth == 1] - one, scores[truth == 0] - other]).square().mean()
    assert float(probes.slope) == pytest.approx(float((one - other) / spread))
    assert float(probes.middle) == pytest.approx(float((one + other) / 2))
    assert float(probes.apart) == pytest.approx(float((one - other) / spread.sqrt()))
    torch.testing.assert_close(probes(features[24:])[0], (one - other) / spread * (scores - (one + other) / 2))


def test_the_penalty_that_separates_held_vectors_best_is_taken():
    features, kind = drawn(90, 60, gap=3.0, seed=6)
    every = [float(fit_probes(features, kind[None], held=30, penalties=(p,)).apart) for p in (1e-3, 1.0, 100.0)]
    assert float(fit_probes(features, kind[None], held=30, penalties=(1e-3, 1.0, 100.0)).apart) == pytest.approx(
        max(every)
    )


def test_more_directions_than_vectors_still_separate_and_permuted_labels_do_not():
    features, kind = drawn(120, 400, gap=6.0, seed=1)
    tests, truth = drawn(200, 400, gap=6.0, seed=2)
    rng = torch.Generator().manual_seed(3)
    permuted = torch.stack([kind, *(kind[torch.randperm(120, generator=rng)] for _ in range(60))])
    scores = fit_probes(features, permuted, held=40)(tests)
    areas = [auc(one[truth == 1], one[truth == 0]).value for one in scores]
    assert areas[0] > 0.68
    assert areas[0] > max(areas[1:])
    assert abs(sum(areas[1:]) / 60 - 0.5) < 0.1


def test_evidence_of_nothing_weighs_little_beside_evidence_of_something():
    strong, kind = drawn(200, 10, gap=3.0, seed=4)
    weak, _ = drawn(200, 10, gap=0.0, seed=5)
    spreads = [float(fit_probes(one, kind[None], held=60)(one)[0].std()) for one in (strong, weak)]
    assert spreads[1] < 0.1 * spreads[0]


@pytest.mark.parametrize(
    ("features", "labels", "said"),
    [
        (torch.zeros(20, 3), torch.zeros(1, 19), "labels"),
        (torch.zeros(20, 3), torch.full((1, 20), 2.0), "of 0 and 1"),
        (torch.zeros(20, 3), torch.ones(1, 20), "both kinds"),
        (torch.zeros(6, 3), (torch.arange(6) % 2)[None], "at least 10"),
    ],
)
def test_what_is_no_training_data_is_refused(features, labels, said):
    with pytest.raises(BadInput, match=said):
        fit_probes(features, labels, held=len(features) // 2)


def test_an_attribute_of_single_vectors_is_told_where_it_is_there():
    rng = torch.Generator().manual_seed(0)
    has = torch.rand(400, generator=rng) < 0.5
    features = torch.randn(400, 3, 60, 60, generator=rng)  # longer than a sketch
    features[has, 0, :20] += 0.5
    found = attribute_auc(features[:250], has[:250], features[250:], has[250:], seed=0)
    assert found is not None
    assert found.value > 0.9
    shuffled = has[torch.randperm(400, generator=rng)]
    nothing = attribute_auc(features[:250], shuffled[:250], features[250:], shuffled[250:], seed=0)
    assert nothing is not None
    assert nothing.low < 0.5 < nothing.high
    assert attribute_auc(features[:250], torch.zeros(250), features[250:], has[250:], seed=0) is None
