"""A set-up that runs in milliseconds: the tiny model on random images, found for every case."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from leakgauge.audit.case import Case
from leakgauge.audit.session import Setup

QUICK = Case(attack="inverting_gradients", model="tiny", data="random", options={"steps": 3})


@pytest.fixture
def quick():
    """Makes a case with changes to the quickest one; its name is made anew."""

    def make(**changes):
        return replace(QUICK, **{"name": "", **changes})

    return make


@pytest.fixture
def load(victim_of, batch_of):
    images, _ = batch_of(20)
    labels = torch.arange(20) % 4

    def find(case: Case) -> Setup:
        return Setup(victim_of(mode=case.mode, norm=False), images, labels)

    return find
