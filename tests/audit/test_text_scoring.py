"""Scores of text are in the order of the truth, whatever order the attack found."""

from __future__ import annotations

import math

import pytest
import torch

from leakgauge.audit import score, score_text
from leakgauge.core import Tokens
from leakgauge.errors import BadInput
from tests.made import reconstruction

TRUTH = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8], [9, 9, 9, 9]])


def test_a_perfect_shuffled_batch():
    order, y = [2, 0, 1], torch.tensor([0, 1, 2])
    scores = score_text(reconstruction(TRUTH[order], y[order]), TRUTH, y)
    assert scores.tokens == scores.order == scores.labels == (1.0, 1.0, 1.0)
    assert scores.tau[:2] == (1.0, 1.0)
    assert math.isnan(scores.tau[2])
    assert (scores.precision, scores.recall) == (1.0, 1.0)


def test_values_follow_the_truth():
    wrong = torch.tensor([[5, 6, 0, 0], [9, 9, 9, 9], [4, 3, 2, 1]])
    scores = score_text(reconstruction(wrong, torch.tensor([7, 7, 7])), TRUTH, torch.tensor([7, 0, 7]))
    assert scores.tokens == (0.0, 0.5, 1.0)
    assert scores.order == (0.0, pytest.approx(1 / 3), 1.0)
    assert scores.tau[0] == -1.0
    assert scores.labels == (1.0, 0.0, 1.0)
    assert (scores.precision, scores.recall) == (7 / 8, 7 / 9)


def test_labels_that_were_not_read_are_not_scored():
    assert score_text(reconstruction(TRUTH), TRUTH, torch.tensor([0, 1, 2])).labels is None


def test_ids_are_no_image():
    with pytest.raises(BadInput, match="score_text"):
        score(reconstruction(TRUTH), TRUTH, None, space=Tokens(4, 10))
