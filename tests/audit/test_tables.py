"""Scores and verdicts of tables."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from leakgauge import evaluate
from leakgauge.attacks import tableak
from leakgauge.audit import TableScores, evaluate_table, judge_table, score, score_table
from leakgauge.audit.wording import rule
from leakgauge.channels import Gradient
from leakgauge.core import Assumption, Category, Number, Reconstruction, Table, Victim
from leakgauge.defenses import GaussianNoise
from leakgauge.errors import BadInput
from leakgauge.testing import TINY_TABLE, tiny_case, tiny_rows

ROWS = tiny_rows(4)[0]


def found(rows, confidence=None):
    x = TINY_TABLE.encode(rows)
    result = Reconstruction.single(x, None, made_by="test", began=time.perf_counter())
    object.__setattr__(result, "confidence", confidence)
    return result


def test_a_shuffled_batch_is_perfect():
    scores = score_table(found(ROWS[[3, 1, 0, 2]]), TINY_TABLE.encode(ROWS), space=TINY_TABLE)
    assert scores.accuracy == scores.exact_rate == 1
    assert set(scores.columns.values()) == {1.0}
    assert scores.sure is None


def test_one_wrong_cell_costs_its_row_and_its_column():
    guess = ROWS.clone()
    guess[1, 3] = 1 - guess[1, 3]
    sure = torch.ones(4, 4)
    sure[1, 3] = 0.1
    scores = score_table(found(guess, sure), TINY_TABLE.encode(ROWS), space=TINY_TABLE)
    assert scores.cells == (1.0, 0.75, 1.0, 1.0)
    assert scores.exact == (1.0, 0.0, 1.0, 1.0)
    assert scores.columns == {"age": 1.0, "dose": 1.0, "ward": 1.0, "smoker": 0.75}
    assert scores.sure == 1  # the wrong cell is not among the surest quarter


def scores(*cells):
    return TableScores(cells=cells, exact=tuple(float(c == 1) for c in cells), columns={})


@pytest.mark.parametrize(
    ("own", "null", "outcome", "counts"),
    [
        (scores(1.0, 1.0, 0.2, 0.2), scores(0.5, 0.5, 0.5, 0.5), "feasible", (2, 2, 2)),
        (scores(1.0, 0.2, 0.2, 0.2), scores(0.5, 0.5, 0.5, 0.5), "partial", (1, 1, 1)),
        (scores(0.7, 0.5, 0.5, 0.5), scores(0.5, 0.5, 0.5, 0.5), "partial", (0, 0, 1)),
        (scores(1.0, 1.0, 1.0, 1.0), scores(0.9, 0.9, 0.9, 0.9), "inconclusive", (4, 0, 0)),
        (scores(0.6, 0.6, 0.6, 0.6), scores(0.5, 0.5, 0.5, 0.5), "inconclusive", (0, 0, 0)),
    ],
)
def test_a_verdict_needs_rows_that_nobody_would_guess(own, null, outcome, counts):
    verdict = judge_table(own, null)
    assert verdict.outcome.label == outcome
    assert (verdict.exact, verdict.reconstructed, verdict.read) == counts
    assert verdict.kind == "deployable"
    assert judge_table(own, null, [Assumption("labels", "diagnostic")]).kind == "diagnostic"


def test_from_the_private_rows_to_a_verdict():
    victim, x, y = tiny_case("table", count=2)
    public = tiny_rows(40)[0][2:]
    result = evaluate_table(victim, Gradient(), x, y, attack=tableak(steps=200, restarts=4), public=public)
    assert result.verdict.outcome.leaks
    own = {"means of the columns", "drawn by the columns"}
    assert set(result.guesses) == {*own, "typical row", "drawn rows", "null run"}
    assert result.nearest is not None
    assert result.nearest.accuracy >= result.guesses["drawn rows"].accuracy
    assert result.null.accuracy >= max(guess.accuracy for guess in result.guesses.values())
    noisy = evaluate_table(
        victim, Gradient(), x, y, attack=tableak(steps=60, restarts=2), defenses=(GaussianNoise(relative=30.0),), public=public
    )  # fmt: skip
    assert noisy.verdict.outcome.label == "inconclusive"


def test_what_is_no_table_is_refused():
    victim, x, y = tiny_case("table")
    images = tiny_case("mlp")
    with pytest.raises(BadInput, match="use evaluate for images"):
        evaluate_table(images[0], Gradient(), *images[1:])
    with pytest.raises(BadInput, match="evaluate_table"):
        evaluate(victim, Gradient(), x, y, attack=tableak(steps=1, restarts=1))
    with pytest.raises(BadInput, match="score_table"):
        score(found(ROWS), TINY_TABLE.encode(ROWS), None, space=TINY_TABLE)
    with pytest.raises(BadInput, match="at least as many public rows"):
        evaluate_table(victim, Gradient(), x, y, public=ROWS[:0])


@pytest.mark.parametrize(
    ("option", "value"), [("seed", "many"), ("defenses", GaussianNoise(relative=1.0)), ("reveal", 3)]
)
def test_options_that_are_handed_on_are_checked_at_the_door(option, value):
    victim, x, y = tiny_case("table")
    with pytest.raises(BadInput, match=f"^evaluate_table needs {option} as "):
        evaluate_table(victim, Gradient(), x, y, **{option: value})


def test_without_public_rows_the_means_of_the_columns_are_the_guess_to_beat():
    """A table of which most is in its means: a result that only shows those is no leak. The null drawn evenly alone called it one."""
    space = Table(
        (
            Number("age", 0, 100, mean=40, std=5),
            Category("sex", ("f", "m"), mean=(0.95, 0.05), std=(0.2, 0.2)),
            Category("ward", ("a", "b", "c"), mean=(0.02, 0.9, 0.08), std=(0.1, 0.3, 0.3)),
        )
    )
    assert space.typical().tolist() == [40, 0, 1]
    network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    rows = torch.tensor([[41.0, 0, 1], [39.0, 0, 1]], dtype=torch.float64)
    x = space.encode(rows).float()

    @dataclass(frozen=True)
    class Means:
        def __call__(self, victim, seen, /, *, seed=0):
            return Reconstruction.single(
                space.encode(space.typical().expand(2, -1)).float(), None, made_by="means", began=0.0
            )

    result = evaluate_table(Victim(network, space), Gradient(), x, torch.tensor([0, 1]), attack=Means())
    assert result.scores.accuracy == 1
    assert not result.verdict.outcome.leaks
    assert not result.verdict.plain().outcome.leaks


def test_a_plain_verdict_counts_rows():
    verdict = judge_table(scores(1.0, 0.7, 0.2, 0.2), scores(0.2, 0.2, 0.2, 0.2)).plain()
    assert (verdict.unit, verdict.images, verdict.reconstructed, sum(verdict.glimpsed.values())) == ("row", 4, 1, 1)
    assert rule(verdict).startswith("1 of 4 rows passes every check; another misses: 90 % of the cells right")


def test_rows_are_drawn_as_the_columns_say():
    """Frequencies and moments against those of the columns; bounds and whole numbers are kept."""
    space = Table(
        (
            Number("age", 0, 100, mean=40, std=10, whole=True),
            Number("odd", 5, 6, mean=0, std=1),  # a mean outside the bounds says nothing
            Category("sex", ("f", "m", "x"), mean=(0.7, 0.3, 0.0)),
        )
    )
    age, odd, sex = space.draw(4000, torch.Generator().manual_seed(0)).T
    assert float(age.mean()) == pytest.approx(40, abs=1)
    assert float(age.std()) == pytest.approx(10, abs=1)
    assert torch.equal(age, age.round())
    assert float(odd.min()) >= 5
    assert float(odd.max()) <= 6
    assert float(odd.mean()) == pytest.approx(5.5, abs=0.05)
    assert torch.bincount(sex.long(), minlength=3).tolist()[2] == 0
    assert float((sex == 0).double().mean()) == pytest.approx(0.7, abs=0.03)


def test_without_public_rows_what_the_columns_say_is_a_guess():
    victim, x, y = tiny_case("table")
    assert {"means of the columns", "drawn by the columns"} <= set(evaluate_table(victim, Gradient(), x, y).guesses)
