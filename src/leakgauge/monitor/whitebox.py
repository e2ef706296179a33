"""The white-box probe: an attacker with the weights and a list of candidates reads from the gradient which of them were in the batch.

Nothing is trained. The released gradient is regressed on the candidates' own gradients at the same weights; the coefficient of a
candidate is its score. Without noise this is linear algebra, and exact as long as there are fewer candidates than parameters.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from leakgauge.channels.gradient import for_each_sample, gradient_at
from leakgauge.channels.rows import as_rows
from leakgauge.core import Loss, Targets
from leakgauge.core.running import output_at
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.measures.membership import Rate, auc, auc_interval, decode, membership_information, true_positive_rate
from leakgauge.monitor.head import Products, head_products, linear_owner

FLOATS = 1 << 24
"""How many numbers the candidates' gradients may use temporarily (64 MiB); for larger models only some layers are read."""
ENOUGH = 2048
"""Entries of the gradient, from the output backwards, that the probe reads if there is no known noise."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class WhiteBox:
    """What the probe found at ``step``: AUC and TPR at 1 % FPR over ``members`` and ``others``, each with an interval.

    ``upper_nats`` is an upper bound on what the gradient reveals about membership, if it has noise of known size.
    """

    step: int
    auc: Rate
    tpr: Rate
    members: int
    others: int
    layers: int
    upper_nats: float | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Pooled:
    """The AUC over several probes, each weighted by its pairs: steady where a single one rests on few samples.

    The interval is :func:`auc_interval` of all disjoint pairs together, which needs no equal leak at every step. Samples that return in
    another epoch are counted as new ones, so after many epochs it is somewhat too short.
    """

    pairs: int = 0
    weighted: float = 0.0
    probes: int = 0

    def add(self, found: WhiteBox) -> Pooled:
        pairs = min(found.members, found.others)
        return Pooled(self.pairs + pairs, self.weighted + pairs * found.auc.value, self.probes + 1)

    @property
    def auc(self) -> Rate | None:
        if not self.probes:
            return None
        value = min(max(self.weighted / self.pairs, 0.0), 1.0)
        return Rate(value, *auc_interval(value, self.pairs, self.pairs))


@checked
@dataclass(frozen=True, kw_only=True)
class Protection:
    """Differential privacy in the gradient: ``clip`` per sample, ``noise`` (standard deviation) per entry of the released gradient.

    ``over`` is the divisor of the summed sample gradients; None for the number of samples. Under Poisson sampling it is the expected
    number, not the number drawn, and 1 if the sum itself is released.
    """

    clip: float | None = None
    noise: float | None = None
    over: float | None = None

    def __post_init__(self) -> None:
        if (self.clip is not None and self.clip <= 0) or (self.noise is not None and self.noise < 0):
            raise BadInput(f"clip must be positive and noise at least 0, got clip={self.clip} and noise={self.noise}")


def probe(
    model: nn.Module,
    loss: Loss,
    signal: Mapping[str, Tensor],
    members: tuple[Tensor, Tensor],
    others: tuple[Tensor, Tensor],
    *,
    protection: Protection,
    step: int,
    seed: int,
    whole: bool = False,
    floats: int | None = None,
) -> WhiteBox:
    """Scores ``members`` (x, y) against ``others`` (x, y) by their share in ``signal``, the released mean gradient.

    Reads all layers if ``whole``, or if the gradient has known noise; otherwise the last ones. The candidates' gradients may use
    ``floats`` numbers, by default ``FLOATS``.
    """
    x, y = (torch.cat([a, b.to(a)]) for a, b in zip(members, others, strict=True))
    count = len(members[0])
    sizes = {name: t.numel() for name, t in signal.items()}
    names = whole_gradient(sizes, len(x), floats) if whole or protection.noise else last_layers(sizes, len(x))
    found = None
    if protection.clip is None and (layer := linear_owner(model, names)) is not None:
        with without_hooks(model), preserve_randomness(seed, x.device):
            found = head_products(model, layer, loss, names, signal, x, y)
    if found is None:
        found = products(per_sample_gradients(model, loss, names, x, y, seed=seed), signal)
    gram, cross = found.gram, found.cross
    if not bool(gram.isfinite().all() and cross.isfinite().all()):
        raise Inapplicable("the candidates' gradients, or the released gradient, are not finite")
    if protection.clip is not None:
        scale = (protection.clip / gram.diagonal().sqrt().clamp_min(1e-30)).clamp_max(1.0)
        gram, cross = gram * scale[:, None] * scale, cross * scale
    energy = float(torch.stack([signal[n].detach().double().square().sum() for n in names]).sum())
    weights = decode(gram, cross, energy, sum(sizes[n] for n in names))
    if not bool(weights.isfinite().all()):
        raise Inapplicable("the candidates' gradients are not finite")
    complete = len(names) == len(signal)
    notes = (
        []
        if complete
        else [f"probe reads {len(names)} of {len(signal)} parameter tensors, which is exact without noise"]
    )
    if (whole or protection.noise) and not complete:
        notes = [
            f"probe reads {len(names)} of {len(signal)} parameter tensors for lack of memory; all of them would reveal more"
        ]
    if any(m.training and isinstance(m, COUPLED) for m in model.modules()):
        notes.append(
            "probe runs batch statistics and dropout in eval mode; an attacker who knows the client's would read more"
        )
    upper = None
    if protection.noise and complete:
        upper = membership_information(
            gram / (protection.over or count) ** 2, rate=count / len(x), noise=protection.noise
        )
    return WhiteBox(
        step=step,
        auc=auc(weights[:count], weights[count:]),
        tpr=true_positive_rate(weights[:count], weights[count:]),
        members=count,
        others=len(x) - count,
        layers=len(names),
        upper_nats=upper,
        notes=tuple(notes),
    )


def products(samples: Mapping[str, Tensor], signal: Mapping[str, Tensor]) -> Products:
    """Inner products of per-sample gradients (n, *shape) with each other and with the ``signal``, over all named tensors.

    In double precision: nearly dependent gradients are separated by small eigenvalues of the Gram matrix. Single precision loses those
    below 1e-7 of the largest, far above the smallest ridge of ``decode``.
    """
    grams, crosses = [], []
    for name, gradients in samples.items():  # layer by layer: doubles of all layers at once would be large
        rows = as_rows(gradients).double()
        grams.append(rows @ rows.T)
        crosses.append(rows @ signal[name].detach().double().reshape(-1))
    return Products(torch.stack(grams).sum(0), torch.stack(crosses).sum(0))


COUPLED = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
"""Layers with a training-mode output that mixes samples."""


def per_sample_gradients(
    model: nn.Module, loss: Loss, names: tuple[str, ...], x: Tensor, y: Tensor, *, seed: int
) -> dict[str, Tensor]:
    """∂ loss(model(xᵢ), yᵢ)/∂θ for every sample and the named parameters, shape (n, *shape), in eval mode.

    Uses vmap if the model allows it, otherwise (recurrent layers) takes one sample after another. Leaves the model unchanged, fires none
    of its hooks and leaves the generators of torch, numpy and Python unchanged.
    """
    fixed = {n: t.detach() for n, t in [*model.named_parameters(), *model.named_buffers()] if n not in names}
    free = {n: p.detach() for n, p in model.named_parameters() if n in names}

    def gradient_of(x: Tensor, y: Targets) -> dict[str, Tensor]:
        return gradient_at(free, lambda at: loss(output_at(model, {**fixed, **at}, x), y).float())

    with without_hooks(model), preserve_randomness(seed, x.device):
        return for_each_sample(gradient_of, x.detach(), y.detach())


def last_layers(sizes: Mapping[str, int], candidates: int) -> tuple[str, ...]:
    """Tensors from the output backwards with at least ``ENOUGH`` entries and eight per candidate.

    Without noise a few layers are as good as all: the regression is exact once the candidates' rows are independent. The
    backward pass can then stop early, which makes the probe cheap.
    """
    chosen: list[str] = []
    entries = 0
    for name in reversed(list(sizes)):
        if entries >= max(ENOUGH, 8 * candidates):
            break
        if (entries + sizes[name]) * candidates <= FLOATS:
            chosen.append(name)
            entries += sizes[name]
    return tuple(name for name in sizes if name in set(chosen or [min(sizes, key=sizes.__getitem__)]))


def whole_gradient(sizes: Mapping[str, int], candidates: int, floats: int | None = None) -> tuple[str, ...]:
    """All tensors, or as many of the smallest as fit into ``floats`` with gradients for all candidates; at least one."""
    left = (floats or FLOATS) // max(candidates, 1)
    chosen: list[str] = []
    for name in sorted(sizes, key=sizes.__getitem__):
        if chosen and sizes[name] > left:
            break
        chosen.append(name)
        left -= sizes[name]
    return tuple(name for name in sizes if name in set(chosen))


@contextmanager
def without_hooks(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in eval mode and has no hooks; afterwards everything is restored, module by module."""
    modules = list(model.modules())
    before = [(m.training, {name: getattr(m, name) for name in HOOKS}) for m in modules]
    try:
        for module in modules:
            module.training = False
            for name in HOOKS:
                setattr(module, name, type(getattr(module, name))())
        yield
    finally:
        for module, (training, hooks) in zip(modules, before, strict=True):
            module.training = training
            for name, value in hooks.items():
                setattr(module, name, value)


@contextmanager
def preserve_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Inside, all global generators may be used; afterwards their state is restored.

    Avoids ``torch.manual_seed``: before CUDA is initialised it queues a call with a formatted stack trace every time.
    """
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - the global one is what must not move
    cpu, cuda = torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        torch.default_generator.manual_seed(seed)
        yield
    finally:
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, device)
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
