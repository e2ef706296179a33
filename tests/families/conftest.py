"""Every small model of the zoo, built once."""

from __future__ import annotations

import pytest

from tests.zoo import FAMILIES


@pytest.fixture(scope="session")
def models():
    """By name; tests only read them."""
    return {name: build() for name, build in FAMILIES.items()}


@pytest.fixture(params=FAMILIES)
def model(request, models):
    return models[request.param]
