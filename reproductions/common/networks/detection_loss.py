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
from reproductions.common.networks.yolo import BINS, STRIDES

TINY = 1e-7


@dataclass(frozen=True)
class DetectionLoss:
    """Loss of (B, 4 · BINS + classes, A) outputs of :class:`~reproductions.common.networks.yolo.YOLO` for images of ``side`` pixels,
    or of (height, width) where the two differ.

        L = box · Σ t̂ (1 − CIoU) / T  +  cls · Σ BCE(s, t̂) / T  +  dfl · Σ t̂ DFL / T,    T = max(Σ t̂, 1)

    Targets are a mapping: ``boxes`` (N, 4) as left, top, right, bottom in pixels, ``classes`` (N,), and ``image`` (N,), the
    image of the batch each belongs to. Each place is given to at most one box: among the places inside a box, the ``places``
    best by t = s^α · u^β, with s the predicted probability of its class and u the IoU of the predicted box; t̂ is t scaled so that
    a box's best equals its best u. The assignment, t̂ with it, is no part of any derivative, neither of the client's nor of an attack's.

    Ref: Feng et al. 2021, task alignment learning — task-aligned assignment
    """

    side: int | tuple[int, int]
    places: int = 10
    alpha: float = 0.5
    beta: float = 6.0
    box: float = 7.5
    cls: float = 0.5
    dfl: float = 1.5

    def __call__(self, output: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
        boxes, classes, image, real = listed(targets, output.device)
        points, strides = grid_points(self.side, output.device)
        if output.shape[2] != len(points):
            raise BadInput(
                f"{output.shape[2]} places do not belong to images of {self.side} pixels ({len(points)} places); give the loss the "
                "images' side, or (height, width)"
            )
        _refuse_classes(classes, output.shape[1] - 4 * BINS)
        distances = output[:, : 4 * BINS].transpose(1, 2).unflatten(2, (4, BINS))
        scores = output[:, 4 * BINS :].transpose(1, 2)
        found = boxes_from(distances, points, strides)
        with torch.no_grad():
            owner, share = self._assigned(
                found.detach(), scores.detach().sigmoid(), boxes, classes, image, real, points
            )
        total = share.sum().clamp_min(1.0)
        own = boxes[owner]  # (B, A, 4), of a place without a box any one, which then weighs nothing
        kinds = torch.arange(scores.shape[2], device=output.device)
        wanted = share[..., None] * (classes[owner][..., None] == kinds)
        by_class = F.binary_cross_entropy_with_logits(scores, wanted, reduction="none").sum()
        by_box = (share * (1 - complete_iou(found, own))).sum()
        edges = torch.cat([points - own[..., :2], own[..., 2:] - points], 2) / strides
        by_edge = (share * distribution_focal(distances, edges)).sum()
        return (self.box * by_box + self.cls * by_class + self.dfl * by_edge) / total

    def _assigned(
        self,
        found: Tensor,
        probabilities: Tensor,
        boxes: Tensor,
        classes: Tensor,
        image: Tensor,
        real: Tensor,
        points: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """For each place its box (B, A), a row of ``boxes``, and t̂ (B, A), zero where it has none.

        Boxes stay one list over all images: its length is known without asking the device, which a recorded step cannot.
        """
        overlap = complete_iou(boxes[:, None], found[image]).clamp_min(0)  # (N, A)
        of_class = probabilities[image].gather(2, classes[:, None, None].expand(-1, found.shape[1], 1))[..., 0]
        inside = torch.cat([points - boxes[:, None, :2], boxes[:, None, 2:] - points], 2).amin(2) > 0
        quality = of_class.pow(self.alpha) * overlap.pow(self.beta) * inside * real[:, None]
        best = quality.topk(min(self.places, quality.shape[1]), dim=1).indices
        chosen = torch.zeros_like(quality).scatter(1, best, 1.0) * inside * real[:, None]
        owner = _first_of_the_largest(chosen * (1 + overlap), image, len(found))
        number = torch.arange(len(boxes), device=boxes.device)
        chosen = chosen * (owner[image] == number[:, None])
        quality, overlap = quality * chosen, overlap * chosen
        scaled = quality * overlap.amax(1, keepdim=True) / quality.amax(1, keepdim=True).clamp_min(TINY)
        return owner, _largest(scaled, image, len(found))


def _refuse_classes(classes: Tensor, known: int) -> None:
    """Refuses classes that the output does not have; other devices than the CPU are not asked, for a step may be recorded."""
    if classes.device.type == "cpu" and not 0 <= int(classes.min()) <= int(classes.max()) < known:
        raise BadInput(f"classes of boxes must be in 0..{known - 1}, got {int(classes.min())}..{int(classes.max())}")


def _largest(values: Tensor, image: Tensor, batch: int) -> Tensor:
    """The largest of the values (N, A), none below zero, of each image and place, (B, A); zero where there is none."""
    rows = image[:, None].expand_as(values)
    return values.new_zeros(batch, values.shape[1]).scatter_reduce(0, rows, values, "amax")


def _first_of_the_largest(values: Tensor, image: Tensor, batch: int) -> Tensor:
    """Which row holds the largest value (N, A) of an image and place, (B, A): of equal ones the first, of none row 0.

    Of several boxes that want a place this is the one that the place overlaps most.
    """
    rows = image[:, None].expand_as(values)
    wins = (values == _largest(values, image, batch)[image]) & (values > 0)
    number = torch.arange(len(values), device=values.device)[:, None].expand_as(values)
    last = number.new_full((batch, values.shape[1]), len(values))
    first = last.scatter_reduce(0, rows, number.masked_fill(~wins, len(values)), "amin")
    return first.masked_fill(first == len(values), 0)


def listed(targets: Mapping[str, Tensor], device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Boxes (N, 4), their classes and images (N,), and whether they are real (N,): without any box there is one that is not."""
    if not isinstance(targets, Mapping):
        raise BadInput(f"detection targets are a mapping of boxes, classes and image, got {type(targets).__name__}")
    try:
        boxes, classes, image = (targets[name].to(device) for name in ("boxes", "classes", "image"))
    except KeyError as missing:
        raise BadInput(f"detection targets need boxes, classes and image; {missing.args[0]} is missing") from missing
    real = boxes.new_ones(len(image))
    if not len(image):
        boxes, classes, image, real = (t.new_zeros(1, *t.shape[1:]) for t in (boxes, classes, image, real))
    return boxes, classes.long(), image.long(), real


@lru_cache(maxsize=16)
def grid_points(side: int | tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Centres (A, 2) in pixels, x first, and strides (A, 1) of all places."""
    points, strides = [], []
    for stride in STRIDES:
        lengths = (side, side) if isinstance(side, int) else side
        at = [(torch.arange(length // stride, device=device) + 0.5) * stride for length in lengths]
        down, across = torch.meshgrid(*at, indexing="ij")
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
