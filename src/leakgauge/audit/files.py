"""How a run folder is written. A killed process or a full disk never leaves half of anything that counts.

A file is written whole or not at all. In a file of JSON lines (:class:`JsonLines`) a line counts once its newline is there. JSON cannot
hold infinity or NaN: records store infinity as the text "inf"; other files store null. Pictures are strips: a batch side by side, one
pixel apart, at native resolution.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import secrets
import shlex
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from PIL import Image
from torch import Tensor

from leakgauge.audit.typed import LARGEST, Misfit, parsed
from leakgauge.errors import BadInput, CannotWrite

T = TypeVar("T")

LOCK = ".writer"
"""File of a run folder that the process which writes it holds locked."""
OURS = 0o600
"""Permissions of the files of a run, which hold private images."""
NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
MOST_BYTES = 2**30
"""Of a file that is read whole; what a run writes is a thousandth of that."""
DRAFTS = ".*.part"
"""Pattern of the names under which files are written before they are renamed; a killed process may leave one behind."""


def write_whole(path: Path, content: bytes, *, private: bool = True) -> None:
    """Writes under a temporary name, then renames: a reader never sees half a file. What is ``private`` its owner alone can read.

    A device or a pipe is written into, as a shell would do it; a link is refused, because what it points to is not ours to replace.
    """
    if is_stream(path):
        with _reported(path), path.open("wb") as stream:
            stream.write(content)
        return
    refuse_link(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    mode = OURS if private else 0o666
    with _reported(path):
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINKS, mode), "wb") as draft:
                draft.write(content)
            temporary.replace(path)
        except BaseException:  # also Ctrl-C
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Errors of writing name the file that was to be written."""
    try:
        yield
    except OSError as trouble:
        raise CannotWrite(trouble.errno, trouble.strerror or str(trouble), str(path)) from trouble


def make_private(folder: Path) -> None:
    """Makes the folder, for its owner alone: it will hold private images. One that is there keeps its permissions."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def is_stream(path: Path) -> bool:
    """Whether there is something at ``path`` that is written into and not replaced: a device, a pipe, a socket."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def refuse_link(path: Path) -> None:
    """Refuses a link: writing through it would change a file that nobody named."""
    if path.is_symlink():
        raise BadInput(f"{path} is a link; name the file itself, or remove the link")


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Inside, nobody else writes into the run folder. A process that was killed holds nothing."""
    make_private(folder)
    path = folder / LOCK
    refuse_link(path)
    descriptor = _locked(path)
    while descriptor is None:  # its owner removed it just then
        descriptor = _locked(path)
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} since {datetime.now(UTC):%d %B %Y, %H:%M} UTC\n".encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(path: Path) -> int | None:
    """The lock file, opened and locked. None if it was removed in between: then somebody else may have locked a new one."""
    with _reported(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | NO_LINKS, OURS)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:
            return descriptor
    except BlockingIOError as held:
        owner = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
        os.close(descriptor)
        raise BadInput(
            f"{path.parent} is being written by {owner}; wait until it ends, or choose another --out"
        ) from held
    os.close(descriptor)
    return None


def line_of(content: Mapping[str, Any]) -> str:
    """One line of JSON; NaN and infinity, which it cannot say, are refused."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n"


def safe_command(text: str) -> str:
    """A command of ours from a file, for people to copy; empty where a shell would do anything else with it.

    >>> safe_command("leakgauge scan 'my model.py:make'")
    "leakgauge scan 'my model.py:make'"
    >>> safe_command("leakgauge scan; rm -rf ~"), safe_command("curl x | sh")
    ('', '')
    """
    try:
        words = shlex.split(text)
    except ValueError:  # a quotation without an end
        return ""
    return text if words[:1] == ["leakgauge"] and shlex.join(words) == text else ""


def json_text(content: Mapping[str, Any]) -> bytes:
    """A whole file of JSON, for people to read too; NaN and infinity are refused."""
    return _encoded(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _encoded(text: str) -> bytes:
    """JSON in UTF-8. Bytes of a file name that are no text become escapes, which JSON has for them, and come back as they were."""
    return text.encode(errors="backslashreplace")


def append_line(path: Path, text: str) -> None:
    """Adds a line and brings it to the disk, whole or not at all: if the disk is full the file is cut back to what it was."""
    line = _encoded(text)
    refuse_link(path)
    with _reported(path):
        _append(path, line)


def _append(path: Path, line: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | NO_LINKS, OURS)
    try:
        _drop_half_line(path, descriptor)
        before = os.lseek(descriptor, 0, os.SEEK_END)
        try:
            written = 0
            while written < len(line):
                written += os.write(descriptor, line[written:])
            os.fsync(descriptor)
        except BaseException:  # also Ctrl-C
            os.ftruncate(descriptor, before)
            raise
    finally:
        os.close(descriptor)


def _drop_half_line(path: Path, descriptor: int) -> None:
    """A killed process may have left a last line without its newline; it never counted."""
    with path.open("rb") as file:  # the last byte alone is read: a long run appends often
        if file.seek(0, os.SEEK_END) == 0:
            return
        file.seek(-1, os.SEEK_END)
        if file.read(1) == b"\n":
            return
    os.ftruncate(descriptor, path.read_bytes().rfind(b"\n") + 1)


def whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that count, with their numbers from 1 on; what follows the last newline is half a line."""
    return enumerate(_content(path).split(b"\n")[:-1], start=1)


def _content(path: Path) -> bytes:
    if path.stat().st_size > MOST_BYTES:
        raise BadInput(f"{path} is larger than {MOST_BYTES >> 20} MiB, so it is not what a run writes; move it away")
    return path.read_bytes()


def read_json(path: Path, decode: Callable[[Any], T], *, remedy: str) -> T:
    """What a file of one JSON value holds. ``decode`` is as in :class:`JsonLines`; ``remedy`` says what to do if it cannot be read."""
    return _decoded(_content(path), decode, place=str(path), remedy=remedy)


def _decoded(text: bytes, decode: Callable[[Any], T], *, place: str, remedy: str) -> T:
    try:
        return decode(parsed(text))
    except (Misfit, BadInput) as error:
        raise BadInput(f"{place} cannot be read: {error}; {remedy}") from error
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise BadInput(f"{place} cannot be read: it is not what this version writes; {remedy}") from error


def finite(value: Any) -> Any:
    """Ready for JSON: a number that is not finite, or beyond all use, becomes None, for it was not measured.

    >>> finite({"nats": float("nan"), "pair": (1, float("inf"))})
    {'nats': None, 'pair': [1, None]}
    """
    return _each(value, lambda v: None if isinstance(v, float) and not abs(v) <= LARGEST else v)


def infinity_as_text(value: Any) -> Any:
    """Ready for JSON: infinity, which a perfect PSNR is, becomes text, as does what is too large to be read again; NaN is left, to be
    refused.

    >>> infinity_as_text({"psnr": float("inf"), "each": (1.0, float("-inf"))})
    {'psnr': 'inf', 'each': [1.0, '-inf']}
    """

    def written(v: Any) -> Any:
        return ("inf" if v > 0 else "-inf") if isinstance(v, float) and abs(v) > LARGEST else v

    return _each(value, written)


def infinity_from_text(value: Any) -> Any:
    """What :func:`infinity_as_text` was given.

    >>> infinity_from_text({"psnr": "inf", "each": [1.0, "-inf"]})
    {'psnr': inf, 'each': [1.0, -inf]}
    """
    return _each(value, lambda v: float(v) if v in ("inf", "-inf") else v)


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _each(v, change) for k, v in value.items()}
    return [_each(v, change) for v in value] if isinstance(value, list | tuple) else change(value)


@dataclass(frozen=True)
class JsonLines(Generic[T]):
    """A file of a run folder with one JSON line per item.

    ``encode`` turns an item into what JSON can hold, ``decode`` does the reverse and raises ``Misfit`` (:mod:`leakgauge.audit.typed`)
    for a line that is none of ours. ``missing`` says what a folder without the file is not, and what to do about it.
    """

    name: str
    encode: Callable[[T], Mapping[str, Any]]
    decode: Callable[[dict[str, Any]], T]
    missing: str

    def exists(self, folder: Path) -> bool:
        return (folder / self.name).is_file()

    def append(self, folder: Path, item: T) -> None:
        """Adds one line and brings it to the disk, whole or not at all."""
        append_line(folder / self.name, line_of(self.encode(item)))

    def read(self, folder: Path) -> list[T]:
        """Every whole line, in order."""
        path = folder / self.name
        if not path.is_file():
            raise BadInput(self.missing.format(folder=folder, file=self.name))
        remedy = "move the file away or delete that line"
        return [
            _decoded(line, self.decode, place=f"line {number} of {path}", remedy=remedy)
            for number, line in whole_lines(path)
        ]

    def read_if_there(self, folder: Path) -> list[T]:
        return self.read(folder) if self.exists(folder) else []

    def drop(self, folder: Path, key: str) -> None:
        """Removes the lines of this key; whole or not at all."""
        path = folder / self.name
        kept = [line for _, line in whole_lines(path) if json.loads(line).get("key") != key]
        write_whole(path, b"".join(line + b"\n" for line in kept))

    def sort(self, folder: Path, keys: Sequence[str]) -> None:
        """Puts the lines into the order of ``keys``, those of other keys last; whole or not at all."""
        if not self.exists(folder):
            return
        path, place = folder / self.name, {key: i for i, key in enumerate(keys)}
        lines = [line for _, line in whole_lines(path)]
        ordered = sorted(lines, key=lambda line: place.get(json.loads(line).get("key"), len(place)))
        if ordered != lines:
            write_whole(path, b"".join(line + b"\n" for line in ordered))


PICTURES = "pictures"


def save_strip(folder: Path, name: str, images: Tensor) -> str:
    """Writes images (N, C, H, W) in [0, 1] as one PNG, whole or not at all; returns its path relative to ``folder``."""
    with _reported(folder / PICTURES):
        make_private(folder / PICTURES)
    write_whole(folder / PICTURES / f"{name}.png", strip(images))
    return f"{PICTURES}/{name}.png"


def picture_in(folder: Path, name: str) -> Path | None:
    """The picture of the run; None where it has none of that name. One outside the folder is refused: it is not the run's to show."""
    try:
        path = (folder / name).resolve()
        there = path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return None
    if not path.is_relative_to(folder.resolve()):
        raise BadInput(f"the picture {name!r} is outside the run folder {folder}; only pictures of the run are shown")
    return path if there else None


def strip(images: Tensor) -> bytes:
    """Images (N, C, H, W) in [0, 1] as one PNG."""
    pixels = (images.detach().cpu().clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).numpy()
    count, height, width, channels = pixels.shape
    sheet = np.full((height, count * (width + 1) - 1, channels), 255, dtype=np.uint8)
    for i, picture in enumerate(pixels):
        sheet[:, i * (width + 1) : i * (width + 1) + width] = picture
    buffer = io.BytesIO()
    Image.fromarray(sheet[..., 0] if channels == 1 else sheet[..., :3]).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
