"""Tensors as NumPy arrays, in which the platforms' filters are written."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def as_array(tensor: Tensor) -> np.ndarray:
    """The same numbers; NumPy has no bfloat16, so these become float32."""
    own = tensor.detach().cpu()
    return (own.float() if own.dtype == torch.bfloat16 else own).numpy()
