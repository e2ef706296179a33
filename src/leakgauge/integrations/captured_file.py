"""A captured update as files: what a client sent, the weights it was sent before, and what is known of its training.

What is known is text in the header of the ``.safetensors`` file, by the name of the option of ``leakgauge attack`` that says the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from leakgauge.errors import BadInput

UPDATE, WEIGHTS = "update.safetensors", "weights.safetensors"


@dataclass(frozen=True, kw_only=True)
class About:
    """What a file says of the client that sent it; None where it says nothing. ``weights`` is the file of the weights before."""

    update_holds: str | None = None
    weights: Path | None = None
    mode: str | None = None
    batch_size: int | None = None
    local_steps: int | None = None
    local_lr: float | None = None

    def known(self) -> dict[str, Any]:
        """What is said, by name."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) is not None}


def save_captured(folder: Path, update: Mapping[str, Tensor], weights: Mapping[str, Tensor], about: About) -> Path:
    """Writes update and weights into ``folder``, with what is known in the header of the update. Returns the file of the update."""
    folder.mkdir(parents=True, exist_ok=True)
    said = {name: str(value) for name, value in about.known().items()} | {"weights": WEIGHTS}
    save_file({name: value.contiguous() for name, value in weights.items()}, folder / WEIGHTS)
    save_file({name: value.contiguous() for name, value in update.items()}, folder / UPDATE, metadata=said)
    return folder / UPDATE


def read_about(update: Path) -> About:
    """What the header of the file says; nothing for a file of another type. Its weights are looked for beside it."""
    if update.suffix.lower() != ".safetensors" or not update.is_file():
        return About()
    try:
        with safe_open(update, framework="pt") as opened:
            said = dict(opened.metadata() or {})
    except (SafetensorError, OSError):  # reading the tensors says what is wrong with the file
        return About()
    numbers = {"batch_size": int, "local_steps": int, "local_lr": float}
    known: dict[str, Any] = {name: said[name] for name in ("update_holds", "mode") if name in said}
    for name, kind in numbers.items():
        if name in said:
            try:
                known[name] = kind(said[name])
            except ValueError as error:
                option = f"--{name.replace('_', '-')}"
                raise BadInput(
                    f"the header of {update} says {name} = {said[name]!r}, which is no number; give {option}"
                ) from error
    if "weights" in said:
        known["weights"] = update.parent / Path(said["weights"]).name  # never a file elsewhere
    return About(**known)
