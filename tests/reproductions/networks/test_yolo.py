"""The detector and its loss: published size, shapes, formulas against plain references, learning, and double differentiation."""

import math

import pytest
import torch

from leakgauge.attacks import feasibility
from leakgauge.channels import Gradient
from leakgauge.core import Buffers, Labels, Pixels, Size, Victim, share
from leakgauge.errors import BadInput
from reproductions.common.networks.detection_loss import (
    DetectionLoss,
    boxes_from,
    complete_iou,
    distribution_focal,
    grid_points,
    listed,
)
from reproductions.common.networks.yolo import BINS, YOLO


def targets(image=(0, 0)) -> dict[str, torch.Tensor]:
    boxes = torch.tensor([[5.0, 5.0, 40.0, 50.0], [20.0, 10.0, 60.0, 30.0]])
    return {"boxes": boxes, "classes": torch.tensor([1, 2]), "image": torch.tensor(image)}


def images(count=1, side=64, seed=0) -> torch.Tensor:
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(seed))


def plain_ciou(a, b) -> float:
    """The formula of the paper on plain numbers."""
    wide = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    high = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    area = [(c[2] - c[0]) * (c[3] - c[1]) for c in (a, b)]
    iou = wide * high / (sum(area) - wide * high)
    centre = [((c[0] + c[2]) / 2, (c[1] + c[3]) / 2) for c in (a, b)]
    away = (centre[0][0] - centre[1][0]) ** 2 + (centre[0][1] - centre[1][1]) ** 2
    around = (max(a[2], b[2]) - min(a[0], b[0])) ** 2 + (max(a[3], b[3]) - min(a[1], b[1])) ** 2
    angle = [math.atan((c[2] - c[0]) / (c[3] - c[1])) for c in (a, b)]
    v = 4 / math.pi**2 * (angle[0] - angle[1]) ** 2
    return iou - away / around - (v * v / (1 - iou + v) if v else 0.0)


@pytest.mark.parametrize(
    ("a", "b"), [((0, 0, 4, 2), (1, 1, 3, 5)), ((0, 0, 2, 2), (5, 5, 6, 9)), ((1, 2, 4, 6), (1, 2, 4, 6))]
)
def test_complete_iou(a, b):
    found = complete_iou(torch.tensor(a).double(), torch.tensor(b).double())
    assert float(found) == pytest.approx(plain_ciou(a, b), abs=1e-5)


def test_a_certain_distribution_gives_its_box_and_no_loss():
    points, strides = grid_points(64, torch.device("cpu"))
    logits = torch.full((1, len(points), 4, BINS), -1e4)
    logits[..., 2] = 0.0  # every side two strides away
    found = boxes_from(logits, points, strides)
    assert torch.allclose(found[0, 0], torch.tensor([4.0 - 16, 4.0 - 16, 4.0 + 16, 4.0 + 16]))
    assert float(distribution_focal(logits, torch.full((1, len(points), 4), 2.0)).abs().max()) < 1e-4


def test_a_distance_between_bins_asks_both():
    logits = torch.zeros(1, 1, 4, BINS)
    logits[..., 3], logits[..., 4] = math.log(3.0), 0.0
    uneven = distribution_focal(logits, torch.full((1, 1, 4), 3.25))
    total = 3.0 + 1.0 + (BINS - 2)
    expected = -(0.75 * math.log(3.0 / total) + 0.25 * math.log(1.0 / total))
    assert float(uneven) == pytest.approx(expected, rel=1e-5)


def test_an_empty_image_leaves_the_classes_alone():
    nothing = {name: value[:0] for name, value in targets().items()}
    out = torch.zeros(1, 4 * BINS + 3, 84)
    assert float(DetectionLoss(64)(out, nothing)) == pytest.approx(0.5 * 84 * 3 * math.log(2), rel=1e-5)
    with pytest.raises(BadInput, match="do not belong"):
        DetectionLoss(96)(out, nothing)


def plainly_assigned(loss, found, probabilities, known, points):
    """The assignment place by place and box by box, from the words of the docstring."""
    batch, places = found.shape[:2]
    boxes, kinds, images = known["boxes"].tolist(), known["classes"].tolist(), known["image"].tolist()
    overlap = [
        [max(0.0, plain_ciou(boxes[n], found[images[n], a].tolist())) for a in range(places)] for n in range(len(boxes))
    ]
    quality, wanted = [], []
    for n, (left, top, right, bottom) in enumerate(boxes):
        inside = [left < x < right and top < y < bottom for x, y in points.tolist()]
        chance = probabilities[images[n], :, kinds[n]].tolist()
        t = [chance[a] ** loss.alpha * overlap[n][a] ** loss.beta if inside[a] else 0.0 for a in range(places)]
        best = sorted(range(places), key=lambda a: -t[a])[: loss.places]
        quality.append(t)
        wanted.append({a for a in best if inside[a] and t[a] > 0})
    share = torch.zeros(batch, places)
    owned = [set() for _ in boxes]
    for b in range(batch):
        for a in range(places):
            rivals = [n for n in range(len(boxes)) if images[n] == b and a in wanted[n]]
            if rivals:
                owned[max(rivals, key=lambda n: overlap[n][a])].add(a)
    for n, mine in enumerate(owned):
        for a in mine:
            largest = max(1e-7, *(quality[n][c] for c in mine))  # the smallest that is divided by
            share[images[n], a] = quality[n][a] * max(overlap[n][c] for c in mine) / largest
    return share


def test_places_are_given_as_the_docstring_says():
    """Three boxes over each other in one image, one in another, one image without any."""
    loss, rng = DetectionLoss(64, places=4), torch.Generator().manual_seed(0)
    corner = 30 * torch.rand(4, 2, generator=rng)
    known = {
        "boxes": torch.cat([corner, corner + 12 + 20 * torch.rand(4, 2, generator=rng)], 1),
        "classes": torch.tensor([0, 2, 1, 1]),
        "image": torch.tensor([1, 0, 1, 1]),
    }
    points, strides = grid_points(64, torch.device("cpu"))
    found = boxes_from(torch.randn(3, len(points), 4, BINS, generator=rng), points, strides)
    probabilities = torch.rand(3, len(points), 3, generator=rng)
    boxes, classes, image, real = listed(known, torch.device("cpu"))
    owner, share = loss._assigned(found, probabilities, boxes, classes, image, real, points)
    plain = plainly_assigned(loss, found, probabilities, known, points)
    assert int((plain > 0).sum()) > 4
    assert torch.allclose(share, plain, rtol=1e-3, atol=1e-6)
    taken = share > 0
    assert torch.equal(image[owner][taken], torch.arange(3)[:, None].expand_as(owner)[taken])


def test_second_derivatives_are_those_of_differences():
    """Of the loss on its own, in float64; the assignment stays what it is for such small steps."""
    loss = DetectionLoss(32)
    known = {
        "boxes": torch.tensor([[3.0, 4.0, 25.0, 29.0]]).double(),
        "classes": torch.tensor([1]),
        "image": torch.tensor([0]),
    }
    rng = torch.Generator().manual_seed(0)
    out = (0.5 * torch.randn(1, 4 * BINS + 2, 21, generator=rng)).double().requires_grad_()
    along = torch.randn(out.shape, generator=rng).double()

    def slope(at: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(loss(at, known), at, create_graph=True)[0]

    once = slope(out)
    twice = torch.autograd.grad((once * along).sum(), out)[0]
    step = 1e-5
    differences = (slope(out + step * along) - slope(out - step * along)).detach() / (2 * step)
    # α of the complete IoU is held fixed in the first derivative, so the second is that of the same surrogate
    assert torch.nn.functional.cosine_similarity(twice.flatten(), differences.flatten(), dim=0) > 0.999


@pytest.mark.parametrize(("variant", "mode"), [("canonical", "train"), ("basic_block", "eval")])
def test_an_attack_gets_boxes_and_lowers_its_objective(variant, mode):
    victim = Victim(YOLO(classes=3, width=4, variant=variant), Pixels((3, 64, 64)), loss=DetectionLoss(64), mode=mode)
    reveal = [Size(), Labels(), Buffers()] if mode == "train" else [Size(), Labels()]
    seen = share(victim, Gradient(), images(2), targets((0, 1)), reveal=reveal)
    found = feasibility(steps=6, restarts=2, statistics=0.001)(victim, seen)
    assert found.y is None  # boxes were given, not found
    assert any("replay: layer rules" in note for note in found.notes)
    assert found.losses.min() < found.trace.losses[0].min()
