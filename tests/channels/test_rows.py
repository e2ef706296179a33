"""Rows of a signal as messages of their own: lengths over all tensors, and clipping by hand."""

from __future__ import annotations

import math

import pytest
import torch

from leakgauge.channels.rows import clipped_rows, row_norms

SIGNAL = {"a": torch.tensor([[3.0], [0.3], [0.0]]), "b": torch.tensor([[[0.0, 4.0]], [[0.0, 0.4]], [[0.0, 0.0]]])}


def test_lengths_go_over_all_tensors():
    torch.testing.assert_close(row_norms(SIGNAL), torch.tensor([5.0, 0.5, 0.0], dtype=torch.float64), atol=1e-7, rtol=0)


def test_a_parameter_may_be_a_single_number():
    single = {"scale": torch.tensor([3.0, 4.0]), "b": torch.tensor([[4.0], [3.0]])}
    assert row_norms(single).tolist() == [5.0, 5.0]
    assert clipped_rows(single, 1.0)["scale"].tolist() == pytest.approx([0.6, 0.8])


def test_only_long_rows_are_shortened():
    found = clipped_rows(SIGNAL, 1.0)
    torch.testing.assert_close(found["a"], torch.tensor([[0.6], [0.3], [0.0]]))
    torch.testing.assert_close(found["b"], torch.tensor([[[0.0, 0.8]], [[0.0, 0.4]], [[0.0, 0.0]]]))
    assert all(torch.equal(value, SIGNAL[name]) for name, value in clipped_rows(SIGNAL, math.inf).items())
