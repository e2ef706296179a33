"""Features of many images at many cuts, computed once and kept: in memory, or on disk if there are too many."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leakgauge.channels import Features
from leakgauge.core import Defense, Victim, apply_defenses
from leakgauge.errors import BadInput, CannotWrite
from leakgauge.graphs import find_point, trace_of
from leakgauge.graphs.traced_graph import TracedGraph

IN_MEMORY = 1 << 31
"""Bytes of memory allowed for features."""

AT_ONCE = 1 << 22
"""How many numbers of the largest feature map are in memory at once; memory of more is mapped and cleared again each time."""

STORED: dict[torch.dtype, Any] = {torch.bfloat16: np.uint16, torch.float16: np.float16, torch.float32: np.float32}
"""NumPy has no bfloat16; its bits are stored as integers."""


def cache_features(
    victim: Victim,
    images: Tensor,
    cuts: Sequence[str],
    *,
    defenses: Sequence[Defense] = (),
    folder: Path | None = None,
    dtype: torch.dtype = torch.bfloat16,
    batch: int | None = None,
    seed: int = 0,
    in_memory: int = IN_MEMORY,
) -> dict[str, Tensor]:
    """What is sent for ``images`` (N, C, H, W) in [0, 1] at each cut after ``defenses``, by the given names, as ``dtype``.

    Images run in batches (``batch``; by default at most 256, fewer of large maps). All cuts share one forward pass, which stops at the
    deepest. A cut of several tensors gives one matrix with the tensors side by side. With a ``folder`` each cut is one file, named
    after the cut, the weights, the images and the settings: a second call with the same inputs opens it (memory-mapped) without
    running the model. A file gets its name only once it is complete. Without a folder, features of more than ``in_memory`` bytes are
    refused.
    """
    if dtype not in STORED:
        raise BadInput(f"features must be kept as bfloat16, float16 or float32, got {dtype}")
    if len(images) == 0 or tuple(images.shape[1:]) != tuple(victim.space.shape):
        raise BadInput(f"features need images of shape {victim.space.shape}, got {tuple(images.shape)}")
    shapes = {name: sent_shape(victim, name) for name in dict.fromkeys(cuts)}
    batch = _batch(victim) if batch is None else batch
    if folder is None:
        needed = feature_bytes(victim, list(shapes), len(images), dtype=dtype)
        if needed > in_memory:
            raise BadInput(
                f"features of {len(shapes)} cuts and {len(images)} images take {needed / 2**30:.1f} GiB; give a folder "
                "to keep them on disk, fewer cuts or fewer images"
            )
        kept = {name: torch.empty(len(images), *shape, dtype=dtype) for name, shape in shapes.items()}
        _fill(victim, images, kept, defenses, batch, seed)
        return kept
    folder.mkdir(parents=True, exist_ok=True)
    mark = _fingerprint(victim, images, defenses, dtype, batch, seed)
    files = {name: folder / f"{_slug(name)}-{mark}.npy" for name in shapes}
    missing = {name: file for name, file in files.items() if not file.is_file()}
    if missing:
        _write(victim, images, {n: shapes[n] for n in missing}, missing, defenses, dtype, batch, seed)
    return {name: _open(file, dtype) for name, file in files.items()}


def _batch(victim: Victim) -> int:
    """Images that run at once, so the largest feature map stays small."""
    largest = max(spec.elements for point in trace_of(victim).points.values() for spec in point.tensors)
    return min(256, max(1, AT_ONCE // largest))


def sent_shape(victim: Victim, cut: str) -> tuple[int, ...]:
    """Shape of what one sample sends: that of the tensor, or one long vector if there are several."""
    point = find_point(trace_of(victim), cut)
    if len(point.tensors) == 1:
        return point.tensors[0].shape
    return (sum(spec.elements for spec in point.tensors),)


def feature_bytes(victim: Victim, cuts: Sequence[str], count: int, *, dtype: torch.dtype = torch.bfloat16) -> int:
    """Bytes for the features of ``count`` images at the cuts."""
    return sum(torch.Size(sent_shape(victim, name)).numel() for name in cuts) * count * dtype.itemsize


def _write(
    victim: Victim,
    images: Tensor,
    shapes: dict[str, tuple[int, ...]],
    files: dict[str, Path],
    defenses: Sequence[Defense],
    dtype: torch.dtype,
    batch: int,
    seed: int,
) -> None:
    partial = {name: file.with_name(f".{file.name}.{os.getpid()}.partial") for name, file in files.items()}
    try:
        kept = {
            name: torch.from_numpy(
                np.lib.format.open_memmap(partial[name], mode="w+", dtype=STORED[dtype], shape=(len(images), *shape))
            ).view(dtype)
            for name, shape in shapes.items()
        }
        for file in partial.values():
            _allocate(file)
        _fill(victim, images, kept, defenses, batch, seed)
        del kept  # flushes the mapped file
        for name, file in files.items():
            partial[name].replace(file)
    finally:
        for file in partial.values():
            file.unlink(missing_ok=True)


def _allocate(file: Path) -> None:
    """Takes the room for a mapped file now: writing into a mapping for which the disk has none kills the process."""
    if not hasattr(os, "posix_fallocate"):
        return
    with file.open("r+b") as opened:
        try:
            os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)
        except OSError as trouble:
            raise CannotWrite(trouble.errno, trouble.strerror, str(file.parent)) from trouble


def _open(file: Path, dtype: torch.dtype) -> Tensor:
    try:
        mapped = np.load(file, mmap_mode="c")  # changes would stay in memory
    except (ValueError, EOFError) as error:
        raise BadInput(f"{file} is damaged; delete it and run again") from error
    return torch.from_numpy(mapped).view(dtype)


@torch.no_grad()
def _fill(
    victim: Victim, images: Tensor, kept: dict[str, Tensor], defenses: Sequence[Defense], batch: int, seed: int
) -> None:
    traced = trace_of(victim)
    points = {name: find_point(traced, name) for name in kept}
    for start in range(0, len(images), batch):
        x = victim.space.encode(images[start : start + batch].to(victim.device, victim.dtype))
        values = traced.values(x, list(dict.fromkeys(point.name for point in points.values())))
        for name, point in points.items():
            signal = dict(zip((spec.name for spec in point.tensors), values[point.name], strict=True))
            rng = torch.Generator().manual_seed(seed + start)  # one per batch, independent of the other cuts
            sent = list(apply_defenses(victim, Features(point.name), signal, defenses, rng=rng).values())
            one = sent[0] if len(sent) == 1 else torch.cat([value.flatten(1) for value in sent], 1)
            kept[name][start : start + batch] = one.to(kept[name].dtype)


def _fingerprint(
    victim: Victim, images: Tensor, defenses: Sequence[Defense], dtype: torch.dtype, batch: int, seed: int
) -> str:
    """A hash of everything that the features depend on, including the model's computation as far as it could be traced."""
    digest = hashlib.sha256(f"{victim.space!r} {tuple(defenses)!r} {dtype} {seed} {batch if defenses else ''}".encode())
    traced = trace_of(victim)
    digest.update(f"{victim.model!r} {traced.module.code if isinstance(traced, TracedGraph) else traced.how}".encode())
    for name, value in (*victim.model.named_parameters(), *victim.model.named_buffers()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    digest.update(f"{tuple(images.shape)} {images.dtype}".encode())
    for part in images.split(1024):
        digest.update(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)
