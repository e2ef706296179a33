"""The alarm: wealth from betting on the true batch, which does not grow on average if nothing leaks."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from leakgauge.errors import BadInput
from leakgauge.measures.betting import mix


class Alarm:
    """Wealth of a mixture of bets: half on the joint critic, half spread over the layers, each over all temperatures.

    Under the null the wealth is a nonnegative martingale starting at 1, so it ever reaches 1/``alpha`` with probability at most
    ``alpha``, for any length of watching and any time of looking. Once fired, an alarm stays on.

    Ref: Ville 1939, chapter V — a nonnegative martingale from 1 ever reaches 1/α with probability at most α
    """

    def __init__(self, alpha: float, layers: int, temperatures: int) -> None:
        if not 0 < alpha < 1:
            raise BadInput(f"the alarm needs a false-alarm rate alpha between 0 and 1, got {alpha}")
        self.alpha = alpha
        joint = torch.tensor([0.5, *[0.5 / layers] * layers], dtype=torch.float64)
        self._log_weights = (joint[:, None] / temperatures).expand(-1, temperatures).reshape(-1).log()
        self._log_fortunes = torch.zeros_like(self._log_weights)
        self.fired_at: int | None = None
        self.peak = 0.0

    @property
    def log_wealth(self) -> float:
        return float(mix(self._log_fortunes, self._log_weights))

    def bet(self, log_evalues: Tensor, steps: list[int]) -> None:
        """Adds the results (1 + layers, n, temperatures) of the scored ``steps``, in order."""
        gains = log_evalues.transpose(0, 1).flatten(1).double()  # (n, bets)
        path = self._log_fortunes + gains.cumsum(0)
        wealth = mix(path, self._log_weights)
        self._log_fortunes = path[-1]
        self.peak = max(self.peak, float(wealth.max()))
        over = (wealth >= -math.log(self.alpha)).nonzero()
        if self.fired_at is None and len(over):
            self.fired_at = steps[int(over[0])]

    def state_dict(self) -> dict[str, Any]:
        return {"fortunes": self._log_fortunes.tolist(), "fired_at": self.fired_at, "peak": self.peak}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        fortunes = torch.tensor(state["fortunes"], dtype=torch.float64)
        if fortunes.shape != self._log_fortunes.shape:
            raise BadInput(
                f"the saved alarm has {len(fortunes)} bets, but this model needs {len(self._log_fortunes)}; "
                "load it into a monitor of the same model and settings"
            )
        self._log_fortunes, self.fired_at, self.peak = fortunes, state["fired_at"], state["peak"]

    def nbytes(self) -> int:
        return self._log_weights.nbytes + self._log_fortunes.nbytes
