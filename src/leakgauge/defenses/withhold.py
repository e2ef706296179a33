"""Does not send some parameters at all."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from leakgauge.core import Defense, Signal, Victim
from leakgauge.core.examples import example
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.families import find_roles


@dataclass(frozen=True)
class WithholdNames:
    """Keeps the named tensors on the device."""

    names: tuple[str, ...]

    def __call__(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        return {name: t for name, t in signal.items() if name not in self.names}

    def replayed(self, plain: Signal, /) -> Signal:
        """``plain`` without the named tensors."""
        return {name: t for name, t in plain.items() if name not in self.names}

    def nearest(self, plain: Signal, sent: Signal, /) -> Signal:
        """What was sent; nothing is known of the rest, and nothing is compared with it."""
        return sent

    def by_row(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        """Refuses: features contain no parameters to withhold."""
        raise BadInput("Withhold keeps parameters on the device, but features have none; mask channels instead")


@example(roles=("head",))
@example("lenet", roles=("first_layer",))
@checked
@dataclass(frozen=True)
class Withhold:
    """Keeps every parameter of the given roles (``head``, ``position_embedding``, …) on the device.

    Ref: APRIL (Lu et al. 2022), section 4.2 — withholding the position embedding's gradient
    """

    roles: tuple[str, ...] | str = ()

    def __post_init__(self) -> None:
        if isinstance(self.roles, str):  # ``withhold:head`` on the command line
            object.__setattr__(self, "roles", (self.roles,))

    def for_victim(self, victim: Victim, /) -> Defense:
        """The names to withhold. A role without trained parameters is refused, because withholding it would change nothing."""
        roles, sent = find_roles(victim.model), victim.parameters()
        kept: list[str] = []
        for role in self.roles:
            trained = [name for name in roles.parameters(role, victim.model) if name in sent]
            if not trained:
                raise Inapplicable(f"the {role} of this model is frozen, so none of it is sent anyway")
            kept += trained
        return WithholdNames(tuple(kept))

    def __call__(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        if self.roles:
            raise BadInput(
                "Withhold needs the model to look up its roles; use it through share() or call for_victim(victim) first"
            )
        return dict(signal)
