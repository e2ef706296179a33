"""The loss of the detector: task-aligned assignment, complete IoU, distribution focal loss. Differentiable twice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.errors import BadInput
from leakgauge.models.yolo import BINS, STRIDES

TINY = 1e-7


@dataclass(frozen=True)
class DetectionLoss:
    """Loss of (B, 4 · BINS + classes, A) outputs of :class:`~leakgauge.models.yolo.YOLO` for images of ``side`` pixels.

        L = box · Σ t̂ (1 − CIoU) / T  +  cls · Σ BCE(s, t̂) / T  +  dfl · Σ t̂ DFL / T,    T = max(Σ t̂, 1)

    Targets are a mapping: ``boxes`` (N, 4) as left, top, right, bottom in pixels, ``classes`` (N,), and ``image`` (N,), the
    image of the batch each belongs to. Each place is given to at most one box: among the places inside a box, the ``places``
    best by t = s^α · u^β, with s the predicted probability of its class and u the IoU of the predicted box; t̂ is t scaled so that
    a box's best equals its best u. The assignment, t̂ with it, is no part of any derivative, neither of the client's nor of an attack's.

    Ref: Feng et al. 2021, task alignment learning — task-aligned assignment
    """

    side: int
    places: int = 10
    alpha: float = 0.5
    beta: float = 6.0
    box: float = 7.5
    cls: float = 0.5
    dfl: float = 1.5

    def __call__(self, output: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
        boxes, classes, real = padded(targets, len(output), output.device)
        points, strides = grid_points(self.side, output.device)
        if output.shape[2] != len(points):
            raise BadInput(
                f"{output.shape[2]} places do not belong to images of {self.side} pixels ({len(points)} places)"
            )
        distances = output[:, : 4 * BINS].transpose(1, 2).unflatten(2, (4, BINS))
        scores = output[:, 4 * BINS :].transpose(1, 2)
        found = boxes_from(distances, points, strides)
        with torch.no_grad():
            owner, share = self._assigned(found.detach(), scores.detach().sigmoid(), boxes, classes, real, points)
        total = share.sum().clamp_min(1.0)
        rows = owner[..., None].expand(-1, -1, 4)
        own = boxes.gather(1, rows)  # (B, A, 4), of a place without a box any one, which then weighs nothing
        wanted = share[..., None] * F.one_hot(classes.gather(1, owner), scores.shape[2])
        by_class = F.binary_cross_entropy_with_logits(scores, wanted, reduction="none").sum()
        by_box = (share * (1 - complete_iou(found, own))).sum()
        edges = torch.cat([points - own[..., :2], own[..., 2:] - points], 2) / strides
        by_edge = (share * distribution_focal(distances, edges)).sum()
        return (self.box * by_box + self.cls * by_class + self.dfl * by_edge) / total

    def _assigned(
        self, found: Tensor, probabilities: Tensor, boxes: Tensor, classes: Tensor, real: Tensor, points: Tensor
    ) -> tuple[Tensor, Tensor]:
        """For each place its box (B, A) and t̂ (B, A), zero where it has none."""
        overlap = complete_iou(boxes[:, :, None], found[:, None]).clamp_min(0)  # (B, M, A)
        index = classes[:, :, None].expand(-1, -1, found.shape[1])
        quality = probabilities.transpose(1, 2).gather(1, index).pow(self.alpha) * overlap.pow(self.beta)
        inside = torch.cat([points - boxes[:, :, None, :2], boxes[:, :, None, 2:] - points], 3).amin(3) > 0
        quality = quality * inside * real[:, :, None]
        best = quality.topk(min(self.places, quality.shape[2]), dim=2).indices
        chosen = torch.zeros_like(quality).scatter(2, best, 1.0) * inside * real[:, :, None]
        owner = (chosen * (1 + overlap)).argmax(1)  # of several boxes that want a place the one it overlaps most
        chosen = chosen * F.one_hot(owner, boxes.shape[1]).transpose(1, 2)
        quality, overlap = quality * chosen, overlap * chosen
        scaled = quality * overlap.amax(2, keepdim=True) / quality.amax(2, keepdim=True).clamp_min(TINY)
        return owner, scaled.amax(1)


def padded(targets: Mapping[str, Tensor], batch: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes (B, M, 4), classes (B, M) and which of them are real (B, M); M is the most in any image, at least 1."""
    try:
        boxes, classes, image = (targets[name].to(device) for name in ("boxes", "classes", "image"))
    except KeyError as missing:
        raise BadInput(f"detection targets need boxes, classes and image; {missing.args[0]} is missing") from missing
    member = F.one_hot(image.long(), batch)
    rank = (member.cumsum(0) * member).sum(1) - 1
    most = max(1, int(member.sum(0).max())) if len(image) else 1
    at = (image.long(), rank)
    real = torch.zeros(batch, most, device=device).index_put(at, torch.ones(len(image), device=device))
    kinds = torch.zeros(batch, most, dtype=torch.long, device=device).index_put(at, classes.long())
    places = torch.zeros(batch, most, 4, device=device, dtype=boxes.dtype).index_put(at, boxes)
    return places, kinds, real


@lru_cache(maxsize=16)
def grid_points(side: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Centres (A, 2) in pixels, x first, and strides (A, 1) of all places."""
    points, strides = [], []
    for stride in STRIDES:
        at = (torch.arange(side // stride, device=device) + 0.5) * stride
        down, across = torch.meshgrid(at, at, indexing="ij")
        points.append(torch.stack([across, down], 2).flatten(0, 1))
        strides.append(torch.full((len(points[-1]), 1), float(stride), device=device))
    return torch.cat(points), torch.cat(strides)


def boxes_from(distances: Tensor, points: Tensor, strides: Tensor) -> Tensor:
    """Boxes (B, A, 4) from logits of the four distances (B, A, 4, BINS): each distance is its expectation, in strides.

    Ref: Li et al. 2020, distribution focal loss — expectation of a general distribution over box sides
    """
    expected = distances.softmax(3) @ torch.arange(BINS, device=distances.device, dtype=distances.dtype)
    away = expected * strides
    return torch.cat([points - away[..., :2], points + away[..., 2:]], 2)


def distribution_focal(distances: Tensor, edges: Tensor) -> Tensor:
    """Cross entropy of each side's distribution at the two bins around the wanted distance, mean of the sides, (B, A).

    DFL(y) = −(i + 1 − y) log p_i − (y − i) log p_{i+1} for i ≤ y < i + 1; y is an entry of ``edges`` (B, A, 4), kept below BINS − 1.

    Ref: Li et al. 2020, distribution focal loss — cross entropy at the two nearest bins
    """
    y = edges.clamp(0, BINS - 1.01)
    low = y.floor()
    logs = distances.log_softmax(3)
    left = logs.gather(3, low.long()[..., None])[..., 0]
    right = logs.gather(3, low.long()[..., None] + 1)[..., 0]
    return -((low + 1 - y) * left + (y - low) * right).mean(2)


def complete_iou(a: Tensor, b: Tensor) -> Tensor:
    """IoU − ρ²/c² − α·v of boxes (…, 4): overlap, distance of the centres over the diagonal around both, and shape.

    v = 4/π² (atan w/h − atan w'/h')², α = v / (1 − IoU + v), which is no part of the derivative.

    Ref: Zheng et al. 2020, complete IoU loss — overlap, distance and shape
    """
    (al, at, ar, ab), (bl, bt, br, bb) = a.unbind(-1), b.unbind(-1)
    width = (torch.minimum(ar, br) - torch.maximum(al, bl)).clamp_min(0)
    height = (torch.minimum(ab, bb) - torch.maximum(at, bt)).clamp_min(0)
    common = width * height
    aw, ah, bw, bh = ar - al, ab - at + TINY, br - bl, bb - bt + TINY
    iou = common / (aw * ah + bw * bh - common + TINY)
    across, down = torch.maximum(ar, br) - torch.minimum(al, bl), torch.maximum(ab, bb) - torch.minimum(at, bt)
    away = ((al + ar - bl - br).square() + (at + ab - bt - bb).square()) / 4
    shape = (4 / math.pi**2) * (torch.atan(aw / ah) - torch.atan(bw / bh)).square()
    weight = (shape / (1 - iou + shape + TINY)).detach()
    return iou - away / (across.square() + down.square() + TINY) - weight * shape
