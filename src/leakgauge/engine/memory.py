"""How many rows of candidates fit into memory at once."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from leakgauge.channels.gradient import without_torch_func

HEADROOM = 0.6
"""Share of the free memory for the graph of one step; the rest is for temporary buffers."""


def saved_bytes(evaluate: Callable[[], object], *, besides: Iterable[Tensor] = ()) -> int:
    """Bytes that autograd keeps while ``evaluate`` runs, each storage once; the storages of ``besides`` do not count.

    A saved view counts its whole storage, so a view of one row would count all rows.
    """
    storages: dict[int, int] = {}
    elsewhere = {tensor.untyped_storage().data_ptr() for tensor in besides}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in elsewhere:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # a result held by its own graph would live until garbage collection

    with without_torch_func(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = evaluate()  # kept until counting is done, so no storage is freed and counted twice
    total = sum(storages.values())
    del result
    return total


def free_bytes(device: torch.device) -> int:
    """Free memory now, on the GPU or in the machine; a very large number if the system does not say.

    First releases what earlier searches left: recordings that reference each other, and PyTorch's cached blocks.
    """
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    if "SC_AVPHYS_PAGES" not in os.sysconf_names:
        return 2**62
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def rows_that_fit(rows: int, bytes_per_row: int, device: torch.device) -> int:
    """At most ``rows``, at least one."""
    return max(1, min(rows, int(HEADROOM * free_bytes(device) / max(1, bytes_per_row))))
