"""Reads images and labels from a NumPy ``.npz`` file without unpickling."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from leakgauge.core.spaces import refuse_range
from leakgauge.data.fit import Shape, fit
from leakgauge.data.levels import Window, window_of
from leakgauge.data.limits import check_archive
from leakgauge.errors import BadInput, one_line

PAIRS = (
    ("x", "y"), ("images", "labels"), ("x_test", "y_test"), ("x_train", "y_train"),
    ("test_images", "test_labels"), ("train_images", "train_labels"),
)  # fmt: skip
"""Names of the arrays for images and labels, tried in this order."""


TargetKind = Literal["classes", "cross_entropy", "own"]
"""What targets may be: class numbers (N,); for cross entropy also probabilities (N, classes) or classes of all pixels (N, H, W); for a loss
of the user's own anything, where floats (N,) are values and no class numbers."""


def read_npz(
    path: str | Path,
    *,
    shape: Shape | None = None,
    resize: bool = False,
    window: str = "",
    targets: TargetKind = "classes",
) -> tuple[Tensor, Tensor]:
    """Images (N, C, H, W) in [0, 1] and labels from the first pair of ``PAIRS`` in the file.

    Images may be (N, H, W), (N, H, W, C) or (N, C, H, W); integers range from 0 to 255, floats from 0 to 1, unless ``window``
    ("0:4095") names other values of black and white. ``shape`` and ``resize`` work as in :func:`leakgauge.data.folder.read_folder`.
    """
    path = Path(path)
    x, y = load_npz(path)
    return from_arrays(x, y, source=str(path), shape=shape, resize=resize, window=window, targets=targets)


def from_arrays(
    x: np.ndarray,
    y: np.ndarray,
    *,
    source: str,
    shape: Shape | None = None,
    resize: bool = False,
    window: str = "",
    targets: TargetKind = "classes",
) -> tuple[Tensor, Tensor]:
    """Images and labels from arrays, as :func:`read_npz` returns them; ``source`` is their name in error messages."""
    images = torch.from_numpy(_pixels(_layout(x, shape, source), source, window_of(window)))
    return fit(images, shape=shape, resize=resize, source=source), read_targets(y, len(x), source, targets=targets)


def read_series(x: np.ndarray, source: str, *, channels: int, length: int) -> Tensor:
    """Series (N, channels, length) in their own unit; the array may also be (N, length, channels) or, of one channel, (N, length)."""
    if x.dtype.kind not in "uif" or not np.isfinite(x).all():
        raise BadInput(
            f"{source} holds series of {x.dtype} or with values that are not finite; finite numbers are expected"
        )
    if x.ndim == 2 and channels == 1:
        x = x[:, None]
    if x.ndim != 3 or len(x) == 0 or x.shape[1:] not in ((channels, length), (length, channels)):
        raise BadInput(
            f"{source} holds series of shape {x.shape}; (count, {channels}, {length}) is expected, as Series says"
        )
    x = x if x.shape[1:] == (channels, length) else x.swapaxes(1, 2)
    return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))


def load_npz(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The first pair of arrays of ``PAIRS`` in the file."""
    if not path.is_file():
        raise BadInput(f"{path} does not exist or is not a file; give a .npz file with arrays x and y")
    try:
        with path.open("rb") as stream:  # np.load leaves a damaged file open
            if zipfile.is_zipfile(stream):
                check_archive(stream, path)
            stream.seek(0)
            archive = np.load(stream, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise BadInput(f"{path} holds a single array; save images and labels with np.savez(path, x=…, y=…)")
            with archive:
                for x, y in PAIRS:
                    if x in archive and y in archive:
                        return archive[x], archive[y]
                raise BadInput(
                    f"{path} holds the arrays {', '.join(archive.files) or '(none)'}; images and labels are expected as "
                    + " or ".join(f"{x} and {y}" for x, y in PAIRS)
                )
    except BadInput:
        raise
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        why = "it holds Python objects, or is no NumPy file" if "pickle" in str(error) else one_line(error)
        raise BadInput(f"{path} cannot be read as a plain .npz file ({why}); save it with np.savez") from error


def _layout(x: np.ndarray, shape: Shape | None, source: str) -> np.ndarray:
    """Converts any of the three layouts to (N, C, H, W). If it is ambiguous, ``shape`` decides, else channels come first."""
    if x.ndim not in (3, 4) or 0 in x.shape:
        raise BadInput(
            f"{source} holds images of shape {x.shape}; (count, height, width), (count, height, width, channels) "
            "or (count, channels, height, width) is expected"
        )
    if x.ndim == 3:
        return x[:, None]
    channels = (1, 3) if shape is None else (1, 3, shape[0])
    first, last = x.shape[1] in channels, x.shape[3] in channels
    if not first and not last:
        raise BadInput(
            f"{source} holds images of shape {x.shape}, in which no axis has 1 or 3 channels; check the axes"
        )
    if first and last and shape is not None:
        first = x.shape[1:] == tuple(shape) or x.shape[1:] != (*shape[1:], shape[0])
    return x if first else np.moveaxis(x, 3, 1)


def _pixels(x: np.ndarray, source: str, window: Window | None) -> np.ndarray:
    if x.dtype.kind not in "buif":
        raise BadInput(f"{source} holds {x.dtype} images; integers from 0 to 255 or floats from 0 to 1 are expected")
    top = 255 if x.dtype.kind in "ui" else 1
    if not np.isfinite(x).all():
        raise BadInput(f"{source} holds images with values that are not finite; remove NaN and infinity")
    if window is not None:
        low, high = window
        return np.ascontiguousarray(np.clip((x - low) / (high - low), 0, 1), dtype=np.float32)
    if top == 255 and x.max() > top:
        raise BadInput(
            f"{source} holds {x.dtype} images with values from {x.min():g} to {x.max():g}; integers range from 0 to 255 unless you name "
            "the values of black and white, such as window='0:4095' (--window 0:4095)"
        )
    refuse_range(x.min(), x.max(), kind=str(x.dtype), source=source, bounds=(0, top))
    if top == 255 and x.max() == 1:  # 1/255 looks black, and it would be hard to see why an attack finds nothing
        raise BadInput(
            f"{source} holds {x.dtype} images with values 0 and 1 only, but integers range from 0 to 255; "
            "save black and white images as bool or float"
        )
    return np.ascontiguousarray(x, dtype=np.float32) / top


def read_targets(y: np.ndarray, count: int, source: str, *, targets: TargetKind) -> Tensor:
    """Targets of the kind that is expected."""
    single = y.ndim == 1 or (y.ndim == 2 and y.shape[1] == 1)
    whole = y.dtype.kind in "bui"
    if targets == "classes" or (single and (targets == "cross_entropy" or (whole and y.ndim == 1))):
        return torch.from_numpy(_labels(y, count, source))
    if y.ndim < 1 or len(y) != count:
        raise BadInput(
            f"{source} holds {count} samples but targets of shape {y.shape}; one target per sample is expected"
        )
    if y.dtype.kind not in "buif" or not np.isfinite(y).all():
        raise BadInput(
            f"{source} holds targets of {y.dtype} or with values that are not finite; finite numbers are expected"
        )
    return torch.from_numpy(y.astype(np.float32 if y.dtype.kind == "f" else np.int64))


def _labels(y: np.ndarray, count: int, source: str) -> np.ndarray:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise BadInput(
            f"{source} holds labels of shape {y.shape}; one class number per image is expected. For other targets give the model's loss "
            "(Victim(model, space, loss=…))"
        )
    if len(y) != count:
        raise BadInput(f"{source} holds {count} images but {len(y)} labels; one label per image is expected")
    if y.dtype.kind not in "buif" or not np.isfinite(y).all() or (y < 0).any() or (y != np.floor(y)).any():
        raise BadInput(f"{source} holds labels that are not class numbers; integers from 0 are expected")
    return y.astype(np.int64)
