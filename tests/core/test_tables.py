"""Rows of a table: what the model sees, and the way back."""

from __future__ import annotations

import pytest
import torch

from leakgauge.core import Category, Number, Table
from leakgauge.errors import BadInput

SPACE = Table(
    (
        Number("age", 10, 90, mean=40, std=20, whole=True),
        Category("ward", ("a", "b", "c"), mean=(0.2, 0.3, 0.5), std=(0.4, 0.5, 0.6)),
        Number("dose", 0, 2, tolerance=0.25),
    )
)
ROWS = torch.tensor([[30.0, 2.0, 0.5], [90.0, 0.0, 2.0]], dtype=torch.float64)


def test_the_model_sees_scaled_numbers_and_one_entry_per_value():
    wanted = torch.tensor(
        [[-0.5, -0.2 / 0.4, -0.3 / 0.5, 0.5 / 0.6, 0.5], [2.5, 0.8 / 0.4, -0.3 / 0.5, -0.5 / 0.6, 2.0]]
    )
    torch.testing.assert_close(SPACE.encode(ROWS), wanted.double(), atol=1e-6, rtol=0)
    assert SPACE.shape == (5,)
    assert SPACE.slack.tolist() == pytest.approx([0.319 * 20, 0, 0.25])


def test_rows_come_back():
    torch.testing.assert_close(SPACE.decode(SPACE.encode(ROWS)), ROWS)
    assert SPACE.words(ROWS)[1] == {"age": 90.0, "ward": "a", "dose": 2.0}


def test_values_outside_are_moved_to_the_bounds_and_whole_numbers_are_rounded():
    x = SPACE.encode(ROWS)
    x[0, 0], x[0, 4] = 100, -7
    assert SPACE.decode(x)[0].tolist() == [90, 2, 0]
    inside = SPACE.project(x)
    assert inside[0, 0] == pytest.approx(2.5)
    assert inside[0, 4] == 0
    torch.testing.assert_close(inside[1], x[1])
    x[1, 0] = (33.4 - 40) / 20
    assert SPACE.decode(x)[1, 0] == 33


def test_relaxed_rows_are_valid_and_free_is_the_way_back():
    free = torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = SPACE.relax(free)
    torch.testing.assert_close(SPACE.project(x), x)
    torch.testing.assert_close(SPACE.relax(SPACE.free(x)), x)
    shares = SPACE.likely(x)[:, 1:4]
    torch.testing.assert_close(shares, free[:, 1:4].softmax(1))
    torch.testing.assert_close(SPACE.likely(x)[:, 0], 10 + 80 * free[:, 0].sigmoid())
    torch.testing.assert_close(SPACE.from_likely(SPACE.likely(x)), x)


def test_starts_differ_with_the_seed_alone():
    first, again, other = (SPACE.start(4, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.testing.assert_close(SPACE.project(first), first)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Number("a", 1, 1), "low < high"),
        (lambda: Number("a", 0, float("inf")), "finite bounds"),
        (lambda: Number("a", 0, 1, std=0), "positive std"),
        (lambda: Number("a", 0, 1, tolerance=-1), "at least 0"),
        (lambda: Category("a", ("x",)), "2 different values"),
        (lambda: Category("a", ("x", "x")), "2 different values"),
        (lambda: Category("a", ("x", "y"), mean=(0.5,)), "2 values of mean"),
        (lambda: Category("a", ("x", "y"), std=(0.5, 0.0)), "positive std"),
        (lambda: Table(()), "at least one column"),
        (lambda: Table((Number("a", 0, 1), Number("a", 0, 1))), "different names"),
        (lambda: SPACE.encode(torch.zeros(2, 2)), "rows of 3"),
        (lambda: SPACE.encode(torch.zeros(2, 3, dtype=torch.long)), "floating-point"),
        (lambda: SPACE.encode(torch.tensor([[20.0, 3.0, 0.0]])), "places 0 to 2"),
        (lambda: SPACE.encode(torch.tensor([[20.0, float("nan"), 0.0]])), "missing values"),
    ],
)
def test_what_makes_no_table_is_refused(make, said):
    with pytest.raises(BadInput, match=said):
        make()
