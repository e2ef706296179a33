"""Replaying a gradient means differentiating it again; not every kernel and layer allows that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from leakgauge.errors import Inapplicable

ONCE_ONLY = {
    "Hardsigmoid": "write it as relu6(x + 3) / 6",
    "HardSigmoid": "write it as relu6(x + 3) / 6",
    "CTCLoss": "its backward pass has no derivative in PyTorch",
}
"""Layer classes (by class name, so that libraries' own copies count) whose backward pass has no derivative."""

_UNDEFINED = re.compile(r"derivative for (\S+) is not implemented|(\S+) is not differentiable twice")


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Inside, scaled_dot_product_attention uses its mathematical form, whose backward pass can be differentiated.

    The fused kernels, the CPU's default among them, cannot. Enter it around the forward pass.
    """
    with sdpa_kernel(SDPBackend.MATH):
        yield


def refuse_once_only(model: nn.Module) -> None:
    """Raises ``Inapplicable`` that names every layer known not to be differentiable twice."""
    found = [(name, type(m).__name__) for name, m in model.named_modules() if type(m).__name__ in ONCE_ONLY]
    if found:
        named = ", ".join(f"{name} ({kind}: {ONCE_ONLY[kind]})" for name, kind in found[:5])
        raise Inapplicable(f"layers that cannot be differentiated twice: {named}")


@contextmanager
def explaining_once_only() -> Iterator[None]:
    """Turns PyTorch's complaint about a missing second derivative into ``Inapplicable`` with the operator's name."""
    try:
        yield
    except RuntimeError as error:
        if "use_reentrant=True" in str(error):
            raise Inapplicable(
                "the model checkpoints activations in a way that cannot be differentiated twice; switch checkpointing off, "
                "or set use_reentrant=False"
            ) from error
        found = _UNDEFINED.search(str(error))
        if found is None:
            raise
        operator = found.group(1) or found.group(2)
        raise Inapplicable(f"the model uses {operator}, whose backward pass cannot be differentiated again") from error
