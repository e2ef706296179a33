"""Short, seeded, linear summaries of a gradient, one row per layer. They preserve inner products and use fixed memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

SMALL = 1 << 15
"""Smaller tensors are summed by one scatter; larger ones by one matrix product each."""
SMALL_TOTAL = 1 << 17
TILE = 4096


class SketchPlan(Protocol):
    """A sketch for fixed shapes: call it with the tensors (None counts as zero) to get (layers, width) numbers."""

    layers: tuple[str, ...]
    width: int

    def __call__(self, tensors: Mapping[str, Tensor | None], /) -> Tensor: ...
    def nbytes(self) -> int: ...


class Sketch(Protocol):
    """What :class:`leakgauge.monitor.Monitor` takes: makes a plan for given shapes."""

    def plan(self, shapes: Mapping[str, tuple[int, ...]], /, *, device: torch.device, seed: int) -> SketchPlan: ...


@dataclass(frozen=True, kw_only=True)
class SignBucket:
    """Every entry goes to one of the layer's buckets with a random sign: S(g)_b = Σ_{i: b(i)=b} s(i)·g_i.

    E⟨S(g), S(h)⟩ = ⟨g, h⟩ over the signs. Small tensors have their own random buckets. A large tensor is treated as rows of
    ``TILE`` entries with sign s(i) = r(row)·c(column) and bucket column mod width; that needs one pass over memory and no index
    per entry. ``total`` numbers are divided among at most ``layers`` layers.

    Ref: Charikar et al. 2002, section 3 — count sketch
    """

    total: int = 1024
    layers: int = 48

    def plan(self, shapes: Mapping[str, tuple[int, ...]], /, *, device: torch.device, seed: int) -> SketchPlan:
        return _SignBucketPlan(shapes, group(tuple(shapes), self.layers), self.total, device, seed)


def group(names: Sequence[str], most: int) -> dict[str, str]:
    """Layer of every parameter: itself, its module, or a run of neighbouring modules, whichever first gives at most ``most``.

    >>> group(["a.weight", "a.bias", "b.weight"], 2)
    {'a.weight': 'a', 'a.bias': 'a', 'b.weight': 'b'}
    """
    if len(names) <= most:
        return {name: name for name in names}
    modules = list(dict.fromkeys(_module(name) for name in names))
    per = math.ceil(len(modules) / most)
    runs = [modules[i : i + per] for i in range(0, len(modules), per)]
    label = {m: run[0] if len(run) == 1 else f"{run[0]}…{run[-1]}" for run in runs for m in run}
    return {name: label[_module(name)] for name in names}


def _module(name: str) -> str:
    return name.rpartition(".")[0] or name


def _signs(shape: tuple[int, ...], rng: torch.Generator, device: torch.device) -> Tensor:
    return (torch.randint(2, shape, generator=rng) * 2 - 1).float().to(device)


class _SignBucketPlan:
    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        layer_of: Mapping[str, str],
        total: int,
        device: torch.device,
        seed: int,
    ) -> None:
        self.layers = tuple(dict.fromkeys(layer_of.values()))
        self.width = max(4, total // len(self.layers))
        rng = torch.Generator().manual_seed(seed)
        sizes = {name: math.prod(shape) for name, shape in shapes.items()}
        row = {name: self.layers.index(layer_of[name]) for name in shapes}
        self._small: list[str] = []
        room = SMALL_TOTAL
        for name in sorted(sizes, key=sizes.__getitem__):
            if sizes[name] < SMALL and sizes[name] <= room:
                self._small.append(name)
                room -= sizes[name]
        self._large = [name for name in shapes if name not in set(self._small)]
        self._sizes, self._device = sizes, device
        count = sum(sizes[name] for name in self._small)
        offsets = torch.cat([torch.full((sizes[n],), row[n] * self.width) for n in self._small] or [torch.zeros(0)])
        buckets = torch.randint(self.width, (count,), generator=rng)
        self._bucket = (offsets.long() + buckets).int().to(device)
        self._sign = _signs((count,), rng, device)
        self._tile = self.width * math.ceil(TILE / self.width)
        rows = 1 + max((sizes[n] // self._tile for n in self._large), default=0)
        self._row_sign = _signs((rows,), rng, device)
        self._column_sign = _signs((self._tile,), rng, device)
        self._large_rows = torch.tensor([row[n] for n in self._large], dtype=torch.long, device=device)

    def __call__(self, tensors: Mapping[str, Tensor | None], /) -> Tensor:
        out = torch.zeros(len(self.layers) * self.width, device=self._device)
        if self._small:
            flat = torch.cat([self._flat(name, tensors) for name in self._small])
            out.index_add_(0, self._bucket, flat.mul_(self._sign))
        out = out.view(len(self.layers), self.width)
        if self._large:
            columns = torch.stack([self._columns(tensors.get(name)) for name in self._large]) * self._column_sign
            out.index_add_(0, self._large_rows, columns.view(len(self._large), -1, self.width).sum(1))
        return out

    def _flat(self, name: str, tensors: Mapping[str, Tensor | None]) -> Tensor:
        tensor = tensors.get(name)
        if tensor is None:
            return torch.zeros(self._sizes[name], device=self._device)
        return tensor.detach().reshape(-1).float()

    def _columns(self, tensor: Tensor | None) -> Tensor:
        """Σ over rows of r(row)·g, per column of the tile; the incomplete last row is added separately."""
        if tensor is None:
            return torch.zeros(self._tile, device=self._device)
        flat = tensor.detach().reshape(-1).float()
        rows, rest = divmod(len(flat), self._tile)
        if rows:
            columns = self._row_sign[:rows] @ flat[: rows * self._tile].view(rows, self._tile)
        else:
            columns = torch.zeros(self._tile, device=self._device)
        if rest:
            columns[:rest] += self._row_sign[rows] * flat[rows * self._tile :]
        return columns

    def nbytes(self) -> int:
        return sum(t.nbytes for t in (self._bucket, self._sign, self._row_sign, self._column_sign, self._large_rows))
