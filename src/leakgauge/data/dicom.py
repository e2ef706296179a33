"""Reads DICOM files: one picture each, in the unit that the file's rescale gives, at its own window. Needs pydicom."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from PIL import Image

from leakgauge.data.levels import Stored, Window, depth_of, stored_values
from leakgauge.errors import BadInput, MissingExtra, first_line

DICOM = (".dcm", ".dicom")
GREY = ("MONOCHROME1", "MONOCHROME2")
COLOUR = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_RCT", "YBR_ICT")
"""Kinds of pictures that are read; palettes are not."""


def is_dicom(file: Path) -> bool:
    """By the name; of a file without an ending, as scanners write them, by its first bytes."""
    suffix = file.suffix.lower()
    if suffix in DICOM or suffix or not file.is_file():
        return suffix in DICOM
    with file.open("rb") as opened:
        return opened.read(132)[128:] == b"DICM"


def read_dicom(file: Path, window: Window | None) -> Stored:
    """The picture in the unit after rescale slope and intercept, such as Hounsfield units. MONOCHROME1 is inverted in the end."""
    pydicom = _pydicom()
    try:
        data = pydicom.dcmread(file)
    except (pydicom.errors.InvalidDicomError, OSError, ValueError, EOFError, AttributeError) as error:
        raise BadInput(f"{file} cannot be read as DICOM ({first_line(error)}); replace or remove it") from error
    kind = str(data.get("PhotometricInterpretation", ""))
    frames = int(data.get("NumberOfFrames") or 1)
    if not any(name in data for name in ("PixelData", "FloatPixelData", "DoubleFloatPixelData")):
        raise BadInput(f"{file} holds no picture; remove it")
    if kind not in (*GREY, *COLOUR):
        raise BadInput(
            f"{file} is a picture of kind {kind or '(not named)'}; {', '.join((*GREY, *COLOUR))} are read, so convert or remove it"
        )
    if frames > 1:
        raise BadInput(f"{file} holds {frames} frames; save each frame as a file of its own")
    size = int(data.get("Rows") or 0) * int(data.get("Columns") or 0)
    if (
        Image.MAX_IMAGE_PIXELS is not None and size > 2 * Image.MAX_IMAGE_PIXELS
    ):  # Pillow's own limit for all other files
        raise BadInput(f"{file} says it has {size} pixels, more than any picture that is read; replace or remove it")
    values = _values(data, file)
    if kind in COLOUR:
        top = 2 ** int(data.get("BitsStored") or 8) - 1
        return stored_values(np.moveaxis(values, 2, 0), window, source=str(file), span=(0, 255 if top < 256 else 65535))
    return _grey(data, values, window, source=str(file), inverted=kind == "MONOCHROME1")


def _grey(data: Any, values: np.ndarray, window: Window | None, *, source: str, inverted: bool) -> Stored:
    slope, shift = float(data.get("RescaleSlope", 1) or 1), float(data.get("RescaleIntercept", 0) or 0)
    bits, signed = int(data.get("BitsStored") or 16), bool(data.get("PixelRepresentation"))
    counts = (slope, shift) == (1, 0) and not signed
    said = _window(data)
    if counts and said is None and bits <= 8:
        return stored_values(values[None], window, source=source, span=(0, 255), inverted=inverted)
    if counts and said is None:
        says = (0.0, float(depth_of(2**bits - 1))) if bits < 16 else None
        return stored_values(values[None], window, source=source, span=(0, 65535), says=says, inverted=inverted)
    values = values * slope + shift
    span = float(values.min()), max(float(values.max()), float(values.min()) + 1)
    return stored_values(values[None], window, source=source, span=span, says=said, counts=False, inverted=inverted)


def _window(data: Any) -> Window | None:
    """The file's first window, by DICOM PS3.3, C.11.2.1.2: the value of black and that of white."""
    function = str(data.get("VOILUTFunction") or "LINEAR")
    centre, width = (_first(data.get(name)) for name in ("WindowCenter", "WindowWidth"))
    if centre is None or width is None or function not in ("LINEAR", "LINEAR_EXACT"):
        return None
    if function == "LINEAR":
        centre, width = centre - 0.5, width - 1
    return (centre - width / 2, centre + width / 2) if width > 0 else None


def _first(value: Any) -> float | None:
    if value is None or value == "":
        return None
    return float(value if isinstance(value, int | float | str) else value[0])


def _values(data: Any, file: Path) -> np.ndarray:
    from pydicom.pixels.utils import pixel_array

    try:
        values = pixel_array(data)  # colours as RGB
    except (RuntimeError, NotImplementedError, ValueError, AttributeError, KeyError, TypeError) as error:
        syntax = getattr(getattr(data, "file_meta", None), "TransferSyntaxUID", None)
        how = "transfer syntax not named" if syntax is None else f"transfer syntax {syntax.name}"
        raise BadInput(
            f"{file} cannot be decoded ({how}); install a decoder for it, such as pylibjpeg with its plug-ins, or save it uncompressed"
        ) from error
    return np.asarray(values, dtype=np.float32)


def _pydicom() -> ModuleType:
    try:
        import pydicom
        import pydicom.errors
    except ModuleNotFoundError as error:
        raise MissingExtra("pydicom", "dicom") from error
    return pydicom
