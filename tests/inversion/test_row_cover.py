"""Sums taken apart again: exact where they can be, and never called exact or unique where they are not."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.inversion import row_cover
from leakgauge.inversion.row_cover import NONE, cover

EPS = 1e-13


def system(parts: int, width: int, rows: int, seed: int, *, spare: int = 0):
    """Random parts of very different sizes, the last ``spare`` owned by no row, every row owning at least one."""
    rng = torch.Generator().manual_seed(seed)
    values = torch.randn(parts, width, generator=rng, dtype=torch.float64)
    values *= 10 ** (3 * torch.rand(parts, 1, generator=rng, dtype=torch.float64))
    owned = parts - spare
    owner = torch.cat([torch.arange(rows), torch.randint(rows, (owned - rows,), generator=rng)])
    owner = torch.cat([owner[torch.randperm(owned, generator=rng)], torch.full((spare,), NONE)])
    kept = owner != NONE
    sums = torch.zeros(rows, width, dtype=torch.float64).index_add(0, owner[kept], values[kept])
    return sums, values, owner


@settings(max_examples=30, deadline=None, derandomize=True)
@given(parts=st.integers(1, 20), extra=st.integers(0, 6), data=st.data(), seed=st.integers(0, 99))
def test_independent_parts_are_found_and_known_to_be_the_only_ones(parts, extra, data, seed):
    rows = data.draw(st.integers(1, parts))
    spare = data.draw(st.integers(0, parts - rows))
    sums, values, owner = system(parts, parts + extra, rows, seed, spare=spare)
    found = cover(sums, values, relative=EPS, loose=spare > 0)
    assert found.owner.tolist() == owner.tolist()
    assert found.exact
    assert found.unique
    assert found.residual < 1e-12


@settings(max_examples=15, deadline=None, derandomize=True)
@given(parts=st.integers(10, 24), width=st.integers(4, 8), seed=st.integers(0, 99), spare=st.integers(0, 3))
def test_more_parts_than_dimensions_are_found_in_whole_numbers(parts, width, seed, spare):
    sums, values, owner = system(parts, width, 4, seed, spare=spare)
    found = cover(sums, values, relative=EPS, loose=spare > 0)
    assert found.owner.tolist() == owner.tolist()
    assert found.exact


def solutions(sums, values) -> int:
    """Every ownership tried, one by one."""
    met = 0
    for owner in product(range(len(sums)), repeat=len(values)):
        total = torch.zeros_like(sums).index_add(0, torch.tensor(owner), values)
        met += bool((total - sums).norm() < 1e-9)
    return met


@pytest.mark.parametrize("seed", range(6))
def test_unique_means_that_trying_all_finds_no_other(seed):
    rng = torch.Generator().manual_seed(seed)
    values = torch.randint(-2, 3, (6, 2), generator=rng).double()  # small whole numbers have many equal sums
    owner = torch.tensor([0, 0, 1, 1, 1, 0])
    sums = torch.zeros(2, 2, dtype=torch.float64).index_add(0, owner, values)
    found = cover(sums, values, relative=EPS, absolute=1e-9)
    if found.unique:
        assert solutions(sums, values) == 1
    if found.exact:
        assert (torch.zeros_like(sums).index_add(0, found.owner, values) - sums).norm() < 1e-9


def test_a_system_with_two_solutions_is_met_but_not_called_unique():
    values = torch.tensor([[1.0], [1.0], [2.0], [2.0]], dtype=torch.float64)
    found = cover(torch.tensor([[3.0], [3.0]], dtype=torch.float64), values, relative=EPS)
    assert found.exact
    assert not found.unique


def test_equal_parts_are_not_matched_by_equality_alone():
    values = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 5.0]], dtype=torch.float64)
    found = cover(torch.tensor([[2.0, 0.0], [0.0, 5.0]], dtype=torch.float64), values, relative=EPS)
    assert found.owner.tolist() == [0, 0, 1]
    assert found.exact


def test_noise_gives_a_best_guess_that_is_not_called_exact():
    sums, values, owner = system(12, 30, 6, 0)
    rng = torch.Generator().manual_seed(1)
    noisy = sums + 0.05 * torch.randn(sums.shape, generator=rng, dtype=torch.float64)
    found = cover(noisy, values, relative=EPS)
    assert found.owner.tolist() == owner.tolist()
    assert not found.exact
    assert not found.unique
    assert 0 < found.residual < 0.1
    allowed = cover(noisy, values, relative=EPS, absolute=1.0)
    assert allowed.exact


def test_more_rows_than_parts_can_fill_are_never_met():
    sums, values, _ = system(5, 8, 5, 0)
    found = cover(torch.cat([sums, torch.ones(3, 8, dtype=torch.float64)]), values, relative=EPS)
    assert not found.exact


def test_a_system_too_large_for_the_search_is_still_answered(monkeypatch):
    monkeypatch.setattr(row_cover, "ENTRIES", 1)
    sums, values, owner = system(14, 4, 4, 3)
    found = cover(sums, values, relative=EPS)
    assert found.owner.shape == owner.shape
    assert not found.unique


def test_moving_parts_one_by_one_lowers_the_error(monkeypatch):
    monkeypatch.setattr(row_cover, "ENTRIES", 1)
    sums, values, _ = system(14, 12, 4, 3)
    assert cover(sums, values, relative=EPS).residual < 0.5
