"""Parts that break one law each: the check must name that law, by an AssertionError, and leave the part as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from leakgauge.channels import Gradient
from leakgauge.testing import check_channel, check_defense, check_part, tiny_case


@dataclass(frozen=True)
class Broken:
    """A defense that breaks the law that ``how`` names."""

    how: str = ""

    def __call__(self, signal, *, rng):
        match self.how:
            case "moves the global generator":
                torch.rand(1)
            case "makes NaN":
                return {name: value * torch.nan for name, value in signal.items()}
            case "takes from its input":
                signal.pop(next(iter(signal)))
        return dict(signal)


@dataclass(frozen=True)
class BrokenChannel:
    how: str = ""

    def __call__(self, victim, x, y):
        signal = Gradient()(victim, x, y)
        match self.how:
            case "moves the global generator":
                torch.rand(1)
            case "makes NaN":
                return {name: value * torch.nan for name, value in signal.items()}
            case "sends nothing":
                return {}
            case "detaches":
                return {name: value.detach() for name, value in signal.items()}
            case "adds a buffer":
                victim.model.register_buffer("extra", torch.zeros(1))
            case "takes a weight away":
                victim.model.head.bias = None
        return signal


@dataclass(frozen=True)
class Holding:
    """A part that holds what a part should not."""

    what: object


@dataclass
class Changeable:
    number: float = 3.0


class NoDataclass:
    pass


@pytest.mark.parametrize(
    ("how", "complaint"),
    [
        ("moves the global generator", "global random generator was advanced"),
        ("makes NaN", "holds NaN or Inf after the defense"),
        ("takes from its input", "changed the names in its input"),
    ],
)
def test_a_defense_that_breaks_a_law(how, complaint):
    case = tiny_case("mlp", count=2)
    check_defense(Broken(), Broken(), *case)
    with pytest.raises(AssertionError, match=complaint):
        check_defense(Broken(how), Broken(), *case)


@pytest.mark.parametrize(
    ("how", "complaint"),
    [
        ("moves the global generator", "global random generator was advanced"),
        ("makes NaN", "holds NaN or Inf"),
        ("sends nothing", "sends nothing"),
        ("detaches", "cannot be differentiated by x"),
        ("adds a buffer", "the victim was changed: extra is new"),
        ("takes a weight away", "the victim was changed: head.bias is gone"),
    ],
)
def test_a_channel_that_breaks_a_law(how, complaint):
    check_channel(BrokenChannel(), *tiny_case("mlp", count=2))
    with pytest.raises(AssertionError, match=complaint):
        check_channel(BrokenChannel(how), *tiny_case("mlp", count=2))


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Holding(lambda: 0), "does not survive pickling .*use numbers"),
        (lambda: Holding(torch.ones(2)), "does not survive pickling .*use numbers"),
        (lambda: Holding(float("nan")), "does not survive pickling"),
        (NoDataclass, "must be a frozen dataclass"),
        (Changeable, "Changeable.number can be changed"),
    ],
)
def test_a_part_that_breaks_a_law(make: Callable[[], object], complaint):
    with pytest.raises(AssertionError, match=complaint):
        check_part(make())


def test_a_part_is_as_it_was_after_its_check():
    part = Changeable()
    with pytest.raises(AssertionError):
        check_part(part)
    assert part == Changeable(3.0)
