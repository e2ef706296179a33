"""What an adversary is taken to know: what it was told with the signal, and what the attack itself takes for granted."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from leakgauge.core import Assumption, Attack, Observation


@runtime_checkable
class Assuming(Protocol):
    """An attack whose settings hold knowledge about the client, such as the size of its noise."""

    def assumptions(self) -> tuple[Assumption, ...]: ...


def assumed(attack: Attack, seen: Observation) -> tuple[Assumption, ...]:
    """Everything that the result of ``attack`` on ``seen`` rests on."""
    own = attack.assumptions() if isinstance(attack, Assuming) else ()
    return (*seen.assumptions, *own)
