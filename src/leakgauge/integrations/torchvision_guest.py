"""Lets packages that import torchvision run beside a torch that torchvision was not built for.

The package index's torchvision is linked against CUDA. Beside a CPU build of torch its library does not load, and
``import torchvision`` dies because the operators it wants to describe were never declared; timm and the vision models
of transformers die with it. None of them needs those operators for a forward pass, so declaring the two names that
are looked up at import is enough. Calling ``torchvision.ops.nms`` still raises torchvision's own explanation.
"""

from __future__ import annotations

import functools
import importlib

import torch

_UNDECLARED = "operator torchvision::"


def invite_torchvision() -> None:
    """Makes ``import torchvision`` work if it is installed. Does nothing where it works already or is not installed.

    Declaring operators that a sound torchvision declares itself would break it, so its own import is tried first.
    """
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            raise
    except RuntimeError as error:
        if not needs_invitation(error):
            raise
        _declared_operators()
        importlib.import_module("torchvision")


def needs_invitation(error: BaseException) -> bool:
    """Whether an import failed, however wrapped, because torchvision's operators are not declared."""
    if isinstance(error, RuntimeError) and str(error).startswith(_UNDECLARED):
        return True
    cause = error.__cause__ or error.__context__
    return cause is not None and needs_invitation(cause)


@functools.cache
def _declared_operators() -> torch.library.Library:
    """Declares the operators once; the library object must stay alive, or torch forgets them."""
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library
