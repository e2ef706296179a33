"""Recognises an update that Adam made, from the sizes of its entries."""

from __future__ import annotations

from leakgauge.audit.case import Case
from leakgauge.channels import SGD
from leakgauge.channels.facts import local_steps
from leakgauge.core import Signal
from leakgauge.errors import BadInput

LARGEST = 3.2
"""Largest entry of Adam's update over the root mean square. On three networks, both modes, Adam and AdamW have 1.0 after one step
and at most 2.6 after five; SGD has 11 or more. Gaussian noise of a thousand entries or more has about 3.3 or more."""
ALIKE = 4.0
"""Largest root mean square of a tensor over the smallest. Adam has at most 2.7 after five steps there, SGD 4 to 43."""
FEWEST = 1000
"""Entries that must have moved, of two tensors or more: the largest of a few says nothing."""


def adam_rate(delta: Signal, steps: int) -> float | None:
    """The learning rate if a change of weights after ``steps`` steps is Adam's; None if it is not, or if nobody can tell.

    Adam moves every entry by at most about η per step, whatever the size of its gradient, and by η as long as that keeps its sign.
    So the largest entry is about K·η after K steps, the others are not much smaller, and tensors do not differ. SGD's entries differ
    as gradients do.
    Entries that did not move, of dead units and unused rows, do not count. After about ten steps Adam's entries spread too far.
    """
    moved = [value[value != 0].double() for value in delta.values() if bool(value.any())]
    count = sum(value.numel() for value in moved)
    if count < FEWEST or len(moved) < 2:
        return None
    largest = max(float(value.abs().max()) for value in moved)
    sizes = [float(value.square().mean()) ** 0.5 for value in moved]
    whole = (sum(float(value.square().sum()) for value in moved) / count) ** 0.5
    return largest / steps if largest <= LARGEST * whole and max(sizes) <= ALIKE * min(sizes) else None


def refuse_adam_as_sgd(delta: Signal, case: Case, *, source: str) -> None:
    """Refuses an update that looks like Adam's where the case says SGD: replayed as SGD it would be attacked far below its worth."""
    if not isinstance(case.build_optimizer(), SGD):
        return
    rate = adam_rate(delta, local_steps(case.build_channel(), case.images))
    if rate is not None:
        raise BadInput(
            f"{source} looks like an update of Adam: its entries are nearly all of one size, about {rate:.1g} per step; "
            f"add --optimizer adam (or adamw) --local-lr {rate:.1g}"
        )
