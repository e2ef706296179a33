"""NVFlare's filter that leaves out tensors by their names."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from leakgauge.core import Signal
from leakgauge.core.examples import example
from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked


@example(exclude_vars="bias", neutral={"exclude_vars": ""})
@checked
@dataclass(frozen=True)
class ExcludeVars:
    """Does not send the tensors in whose name the regular expression ``exclude_vars`` is found: ``ExcludeVars`` of NVFlare with a text.

    An empty one leaves out nothing, as there.
    """

    exclude_vars: str = ""

    def __post_init__(self) -> None:
        try:
            re.compile(self.exclude_vars)
        except re.error as error:
            raise BadInput(f"ExcludeVars needs a regular expression, got {self.exclude_vars!r}: {error}") from error

    def _sent(self, name: str) -> bool:
        return not self.exclude_vars or re.search(self.exclude_vars, name) is None

    def __call__(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        return self.replayed(signal)

    def doubts(self, signal: Signal, /) -> tuple[str, ...]:
        """Why the filter does less than its options say."""
        if any(not self._sent(name) for name in signal):
            return ()
        return (f"ExcludeVars leaves out nothing: no tensor has {self.exclude_vars!r} in its name",)

    def replayed(self, plain: Signal, /) -> Signal:
        """``plain`` without these tensors."""
        return {name: t for name, t in plain.items() if self._sent(name)}

    def nearest(self, plain: Signal, sent: Signal, /) -> Signal:
        """What was sent; nothing is known of the rest."""
        return sent
