"""Small examples that a part declares beside its own code; the laws of :mod:`leakgauge.testing` run on them.

@example("lenet", steps=20, restarts=2)
def dlg(*, steps: int = 300, restarts: int = 1) -> Matching: ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from leakgauge.core import Channel, Victim

Part = TypeVar("Part", bound=Callable[..., object])
"""What makes an attack, a defense or a channel from its options."""


@dataclass(frozen=True)
class Example:
    """Options of a part, and the small case on which its laws run.

    ``victim`` names a tiny victim of :mod:`leakgauge.testing`; empty means each of them in turn, for a defense or a channel. An attack may
    need another ``channel`` than the gradient, the model that a malicious ``server`` sends, or ``auxiliary`` images. ``neutral`` are
    the options with which a defense changes nothing.
    """

    options: Mapping[str, Any]
    victim: str = ""
    channel: Channel | None = None
    server: Callable[[Victim], Victim] | None = None
    auxiliary: bool = False
    neutral: Mapping[str, Any] = field(default_factory=dict)


def example(
    victim: str = "",
    /,
    *,
    channel: Channel | None = None,
    server: Callable[[Victim], Victim] | None = None,
    auxiliary: bool = False,
    neutral: Mapping[str, Any] | None = None,
    **options: Any,
) -> Callable[[Part], Part]:
    """Declares an example of the decorated attack, defense or channel; several are tried one by one. The fields are those of
    :class:`Example`.
    """
    made = Example(options, victim, channel, server, auxiliary, neutral or {})

    def declare(part: Part) -> Part:
        setattr(part, _NAME, (made, *examples_of(part)))
        return part

    return declare


def examples_of(part: Callable[..., object]) -> tuple[Example, ...]:
    """The examples that a part declares, from top to bottom."""
    return vars(part).get(_NAME, ())


_NAME = "__examples__"
