"""What must hold before a number may enter a claim. A row that fails a gate is void."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reproductions.common.runner import Row

CONVERGED, CONTROL = "search converged", "positive control"
"""Gates on the search. All others are about data and network."""
LEAST_MATCH = 1e-4
"""1 − cos below which a search counts as converged whatever its value at the truth; float32 alone gives about 1e-7."""
STANDARD_CASE = 20.0
"""Mean PSNR in dB that the positive control has to reach."""


@dataclass(frozen=True)
class Gate:
    """``passed`` decides whether the row counts; ``why`` gives the number that decided."""

    name: str
    passed: bool
    why: str

    def row(self) -> Row:
        return {"gate": self.name, "passed": self.passed, "why": self.why}


def void(gates: Iterable[Gate | Row]) -> list[str]:
    """Why a row is void; nothing where it may be used."""
    rows = [gate.row() if isinstance(gate, Gate) else gate for gate in gates]
    return [f"{gate['gate']}: {gate['why']}" for gate in rows if not gate["passed"]]


def hold(rows: Iterable[Row]) -> bool:
    """Whether all gates on data and network passed that these rows bring along; searches are judged by the claim that rests on them."""
    found = (gate for row in rows for gate in row.get("gates", []) if gate["gate"] not in (CONVERGED, CONTROL))
    return not void(found)


def shuffled(labels: Tensor) -> Gate:
    """The order of the samples says nothing about their labels: as many changes of label as chance gives, but for 5 deviations.

    Of n labels in random order n(1 − Σ pₖ²) neighbours differ on average. Sorted labels change only K − 1 times.
    """
    n = len(labels)
    shares = torch.bincount(labels.cpu()).double() / n
    differ = float(1 - shares.square().sum())
    changes = int((labels[1:] != labels[:-1]).sum())
    least = n * differ - 5 * math.sqrt(n * differ * (1 - differ) + 1)
    return Gate(
        "shuffled", changes >= least, f"{changes} changes of label among {n} samples, {n * differ:.0f} expected"
    )


def all_classes(labels: Tensor, classes: int, *, of: str = "test set") -> Gate:
    """Every class is there, with at least a fifth of an equal share."""
    counts = torch.bincount(labels.cpu(), minlength=classes)
    least = len(labels) / classes / 5
    return Gate("all classes", bool((counts >= least).all()), f"{of}: {counts.tolist()} samples by class")


def balanced_accuracy(model: nn.Module, data: tuple[Tensor, Tensor], classes: int) -> tuple[float, float]:
    """Mean of the accuracies by class, and its standard error. A network that always says the same scores 1/K."""
    was, device = model.training, next(model.parameters()).device
    model.eval()
    with torch.no_grad():
        pieces = zip(data[0].split(500), data[1].split(500), strict=True)
        right = torch.cat([(model(x.to(device)).argmax(1).cpu() == y.cpu()).double() for x, y in pieces])
    model.train(was)
    of = [right[data[1].cpu() == k] for k in range(classes)]
    present = [one for one in of if len(one)]
    rates = [float(one.mean()) for one in present]
    error = math.sqrt(sum(r * (1 - r) / len(one) for r, one in zip(rates, present, strict=True))) / len(present)
    return sum(rates) / len(rates), error


def above_chance(balanced: float, error: float, classes: int) -> Gate:
    """The victim has learned: its balanced accuracy less two errors is above chance by a tenth of what is there to gain."""
    return _above(balanced, error, 1 / classes, "balanced accuracy")


def accurate(accuracy: float, images: int, *, chance: float = 0.1) -> Gate:
    """The same for rows that hold a plain accuracy on ``images``; ``chance`` is the share of the largest class among them."""
    return _above(accuracy, math.sqrt(accuracy * (1 - accuracy) / images), chance, "accuracy")


def _above(value: float, error: float, chance: float, what: str) -> Gate:
    needed = chance + 0.1 * (1 - chance)
    return Gate("above chance", value - 2 * error > needed, f"{what} {value:.3f} ± {error:.3f}, needed {needed:.3f}")


def squared_length(signal: Mapping[str, Tensor]) -> float:
    """‖g‖² over all tensors, each summed in float64."""
    return sum(float(t.double().square().sum()) for t in signal.values())


def gradients_alive(signal: Mapping[str, Tensor], *, least: float = 1e-6) -> Gate:
    """The gradient has a length and not only zeros in it."""
    total = math.sqrt(squared_length(signal))
    entries = sum(t.numel() for t in signal.values())
    zeros = sum(int((t == 0).sum()) for t in signal.values()) / entries
    alive = math.isfinite(total) and total > least and zeros < 0.999
    return Gate("gradients alive", alive, f"length {total:.3g}, {zeros:.1%} of the entries are 0")


def converged(found: float, at_truth: float, *, factor: float = 3.0, least: float = LEAST_MATCH) -> Gate:
    """The search ended where it should: its objective is within ``factor`` of that of the true image, or below ``least``."""
    limit = max(factor * at_truth, least)
    return Gate(CONVERGED, found <= limit, f"objective {found:.3g}, {at_truth:.3g} at the truth")


def control(psnr: Sequence[float], *, least: float = STANDARD_CASE) -> Gate:
    """The same search solves the standard case: one image, inference mode, residual network."""
    mean = sum(psnr) / len(psnr)
    return Gate(CONTROL, mean >= least, f"{mean:.1f} dB, mean of {len(psnr)} images; needed {least:g}")


def critic_open(low: float, high: float, *, known_leak: bool) -> Gate:
    """The estimate is one: its interval has a width, and where a leak is known to be there it does not end at or below zero."""
    collapsed = high - low < 1e-6
    blind = known_leak and high <= 0.01
    return Gate("critic not collapsed", not (collapsed or blind), f"interval [{low:.3f}, {high:.3f}]")
