"""Which losses are cross entropy, for rules that hold only under it."""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from torch import nn

from leakgauge.errors import Inapplicable


def is_cross_entropy(loss: object) -> bool:
    """Whether the loss is plain cross entropy: label smoothing changes the signs of the gradient."""
    return _smoothing(loss) == 0


def label_smoothing(loss: object) -> float:
    """The label smoothing of cross entropy; refuses any other loss, and class weights."""
    found = _smoothing(loss)
    if found is None:
        raise Inapplicable("the label rules only hold for cross entropy without class weights")
    return found


def _smoothing(loss: object) -> float | None:
    if isinstance(loss, nn.CrossEntropyLoss):
        return None if loss.weight is not None else loss.label_smoothing
    if isinstance(loss, partial) and loss.func is F.cross_entropy and not loss.args:
        return float(loss.keywords["label_smoothing"]) if set(loss.keywords) == {"label_smoothing"} else None
    return 0.0 if loss is F.cross_entropy else None
