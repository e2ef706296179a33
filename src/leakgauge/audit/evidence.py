"""What a run folder says about itself as evidence: which model, data and settings it measured, with which code, and what was edited since.

``evidence.jsonl`` only ever grows. Its first lines (``"kind": "inputs"``) hold hashes, taken when the run began; a run that is resumed
with another model or other data is refused. A line of ``"kind": "edit"`` withdraws a record after the fact and says who did it and why.
Records themselves are never changed.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leakgauge.audit.files import JsonLines
from leakgauge.audit.typed import Misfit, typed
from leakgauge.errors import BadInput

FILE = "evidence.jsonl"
FORMAT = 1
"""Of a line of this file."""


@dataclass(frozen=True)
class Inputs:
    """Hashes (SHA-256) of what a run measured: layers and weights of the ``model``, images and labels (``data``), and ``settings``.

    ``data`` is empty where the run does not hold it, as in a training that is watched from outside.
    """

    name: str
    model: str
    data: str
    settings: str
    commit: str
    at: str
    format: int = FORMAT
    kind: Literal["inputs"] = "inputs"


@dataclass(frozen=True)
class Edit:
    """The record ``key`` no longer counts, from ``at`` on: said by ``author``, for a ``reason``."""

    key: str
    author: str
    reason: str
    at: str
    format: int = FORMAT
    kind: Literal["edit"] = "edit"

    def __post_init__(self) -> None:
        moment(self.at)


def _decode(fields: Any) -> Inputs | Edit:
    known = typed(Mapping[str, Any], fields)
    if known.get("format") != FORMAT:
        raise Misfit(f"format {known.get('format')!r} is not known")
    return typed(Edit if known.get("kind") == "edit" else Inputs, known)


STORE: JsonLines[Inputs | Edit] = JsonLines(
    FILE,
    encode=asdict,
    decode=_decode,
    missing="{folder} has no {file}: it was written by version 0.1, which kept no hashes",
)


def inputs(folder: Path) -> tuple[Inputs, ...]:
    return tuple(line for line in STORE.read_if_there(folder) if isinstance(line, Inputs))


def edits(folder: Path) -> tuple[Edit, ...]:
    return tuple(line for line in STORE.read_if_there(folder) if isinstance(line, Edit))


def keep(folder: Path, name: str, model: nn.Module, data: Iterable[Tensor], settings: Mapping[str, Any]) -> None:
    """Adds the hashes of a run, or checks them where the folder has them: what is resumed must be what was begun."""
    data = tuple(data)
    made = Inputs(name, hash_model(model), hash_tensors(data) if data else "", hash_settings(settings), commit(), now())
    known = [one for one in inputs(folder) if one.name == name]
    if not known:
        STORE.append(folder, made)
        return
    changed = [what for what in ("model", "data") if getattr(known[-1], what) != getattr(made, what)]
    if changed:
        raise BadInput(
            f"the {' and the '.join(changed)} of {name} changed since {folder} was begun, so its records would not belong together; "
            "restore what it was, or start another run with --out"
        )


def withdraw(folder: Path, key: str, *, author: str, reason: str) -> Edit:
    """Appends that the record ``key`` no longer counts."""
    if not author.strip() or not reason.strip():
        raise BadInput("an edit needs an author and a reason; give --author NAME and --reason TEXT")
    edit = Edit(key, author.strip(), reason.strip(), now())
    STORE.append(folder, edit)
    return edit


def now() -> str:
    """Time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def moment(text: str) -> datetime:
    """The time that :func:`now` wrote."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise BadInput(f"{text!r} is not a time with its zone, such as 2025-01-31T12:00:00+00:00")
    return found


def hash_model(model: nn.Module) -> str:
    """Of the classes of all modules and of every parameter and buffer, by name. Values that a module keeps elsewhere are not in it."""
    classes = [(name, f"{type(m).__module__}.{type(m).__qualname__}") for name, m in model.named_modules()]
    seen = hashlib.sha256(json.dumps(classes).encode())
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        seen.update(name.encode())
        _add(seen, value)
    return seen.hexdigest()


def hash_tensors(tensors: Iterable[Tensor]) -> str:
    """Of their types, shapes and values."""
    seen = hashlib.sha256()
    for one in tensors:
        _add(seen, one)
    return seen.hexdigest()


def hash_settings(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


def _add(seen: Any, value: Tensor) -> None:
    seen.update(f"{value.dtype} {tuple(value.shape)}".encode())
    plain = value.detach().cpu().contiguous().reshape(-1)
    seen.update(plain.view(torch.uint8).numpy() if plain.numel() else b"")


@lru_cache(maxsize=1)
def commit() -> str:
    """The commit of the package that runs, "+changes" if files of it were edited; empty where that is not known, as in a plain wheel."""
    origin = json.loads(metadata.distribution("leakgauge").read_text("direct_url.json") or "{}") if _installed() else {}
    known = origin.get("vcs_info", {}).get("commit_id", "")
    return str(known)[:12] or _checked_out(Path(__file__).resolve().parents[1])


def _installed() -> bool:
    return any(metadata.distributions(name="leakgauge"))


def _checked_out(package: Path) -> str:
    """The commit of the working tree that holds ``package`` as a tracked folder."""

    def git(*words: str) -> str:
        try:
            ended = subprocess.run(
                ["git", "-C", str(package), *words], capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):  # no git on this machine
            return ""
        return ended.stdout.strip() if ended.returncode == 0 else ""

    if not git("ls-files", "__init__.py"):
        return ""
    return git("rev-parse", "--short=12", "HEAD") + ("+changes" if git("status", "--porcelain", "--", ".") else "")
