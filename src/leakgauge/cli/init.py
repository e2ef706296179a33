"""What ``leakgauge init`` does: it writes a plan file and says what to do next."""

from __future__ import annotations

import shlex
from pathlib import Path

from leakgauge.errors import BadInput
from leakgauge.integrations.plan_templates import MARK, TEMPLATES, plan_text

HIDING = ("leakgauge", "lightning", "timm", "torch", "transformers")
"""A file finds its neighbours first, so one of these names would be imported instead of the package."""


def write(kind: str, path: Path) -> str:
    """Writes the plan file of ``kind`` to ``path``, never over another file. Returns what to tell the user."""
    if kind not in TEMPLATES:
        raise BadInput(f"--for takes {', '.join(TEMPLATES)}, got {kind!r}")
    if path.suffix != ".py":
        raise BadInput(f"a plan file ends in .py, for it is Python; got {path}")
    if path.stem in HIDING:
        raise BadInput(f"{path.name} would hide the package {path.stem} from Python; choose another name with --out")
    if not path.parent.is_dir():
        raise BadInput(f"there is no folder {path.parent} to write {path.name} into; make it first")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(plan_text(kind, name=path.name))
    except FileExistsError as error:
        raise BadInput(f"{path} is there already and is kept; choose another name with --out") from error
    marked = [i for i, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if MARK in line]
    plan = shlex.quote(str(path))
    extra = TEMPLATES[kind].extra
    lines = [
        f"wrote {path}: it runs at once on a small stand-in; make it yours at the lines {', '.join(map(str, marked))}",
        *([f"  pip install 'leakgauge[{extra}]'   # if it is not there yet"] if extra else []),
        f"  leakgauge attack {plan} --option steps=50   # a try of seconds",
        f"  leakgauge audit {plan} --out runs/first     # the whole audit and its report",
        "  leakgauge compare runs/first runs/second   # later, after a change of the model",
    ]
    return "\n".join(lines)
