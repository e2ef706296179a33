"""NVFlare: a filter of its own as a defense to be measured, and the gate as a filter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leakgauge.core import Signal
from leakgauge.errors import BadInput
from leakgauge.integrations.gate import Gate, Guarded, Refused


@dataclass(frozen=True, eq=False)
class FilteredByNVFlare:
    """A real filter object of NVFlare (a ``DXOFilter``) as a defense: what it leaves of an update is what is sent.

        evaluate(victim, FedAvg(…), x, y, defenses=(FilteredByNVFlare(PercentilePrivacy()),))

    A filter that returns nothing leaves the update as it is, as in NVFlare; :meth:`doubts` says so. Filters draw from NumPy's global
    random numbers, which are seeded from ``rng`` and put back afterwards.
    """

    filter: Any

    def __post_init__(self) -> None:
        if not callable(getattr(self.filter, "process_dxo", None)):
            raise BadInput(f"FilteredByNVFlare needs a DXOFilter, got {type(self.filter).__name__}")

    def __call__(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        found = self._filtered(signal, int(torch.randint(2**31, (), generator=rng)))
        return dict(signal) if found is None else found

    def doubts(self, signal: Signal, /) -> tuple[str, ...]:
        """Whether the filter did nothing."""
        name = type(self.filter).__name__
        found = self._filtered(signal, 0)
        if found is None:
            return (f"{name} returned nothing, so NVFlare sends the plain update",)
        same = set(found) == set(signal) and all(torch.equal(found[n], t) for n, t in signal.items())
        return (f"{name} changed nothing of this update",) if same else ()

    def _filtered(self, signal: Signal, seed: int) -> dict[str, Tensor] | None:
        import numpy as np
        from nvflare.apis.dxo import DXO, DataKind
        from nvflare.apis.fl_context import FLContext
        from nvflare.apis.shareable import Shareable

        state = np.random.get_state()  # noqa: NPY002 - filters draw from the global stream
        np.random.seed(seed)  # noqa: NPY002
        try:
            data = {name: t.detach().cpu().numpy().copy() for name, t in signal.items()}
            made = self.filter.process_dxo(DXO(DataKind.WEIGHT_DIFF, data=data), Shareable(), FLContext())
        finally:
            np.random.set_state(state)  # noqa: NPY002
        if made is None:
            return None
        return {name: torch.as_tensor(value).to(signal[name]) for name, value in made.data.items()}


def gate_filter(guarded: Guarded, keeper: Gate) -> Any:
    """The gate as a filter of task results: as :func:`leakgauge.integrations.flower.gate`, for differences of weights.

    The guarded model must hold the weights that the server sent. A refused update raises ``Refused``, which NVFlare reports to the
    server as a failed filter, in place of the update.
    """
    from nvflare.apis.dxo import DataKind
    from nvflare.apis.dxo_filter import DXOFilter

    class GateFilter(DXOFilter):
        def __init__(self) -> None:
            super().__init__(supported_data_kinds=None, data_kinds_to_filter=None)  # every kind, so none passes unseen

        def process_dxo(self, dxo: Any, shareable: Any, fl_ctx: Any) -> Any:
            if dxo.data_kind == DataKind.METRICS:
                return None
            if dxo.data_kind != DataKind.WEIGHT_DIFF:
                raise Refused(
                    f"the gate reads differences of weights, but this result is {dxo.data_kind}; send WEIGHT_DIFF"
                )
            victim = guarded.victim()
            update = {n: torch.as_tensor(dxo.data[n]) for n in victim.parameters() if n in dxo.data}
            allowed = keeper(victim, update, *guarded.trained_on(fl_ctx), channel=guarded.channel)
            if keeper.budget is None:
                return None  # as it is
            dxo.data = {name: allowed[name].numpy() for name in update}  # what is no parameter has no noise, and stays
            return dxo

    return GateFilter()
