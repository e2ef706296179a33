"""Builds the wheel and checks what a user would get from it. Exits with 1 and one line for each thing that is wrong.

    check_wheel.py              build it; size, contents, metadata
    check_wheel.py --install    also install it into an empty environment and use the commands there
    check_wheel.py --extra all  also install each extra (or those named) beside the core, and use what it is for

The environments are thrown away; pip's own cache makes a second time faster. Pins come from constraints.txt.
"""

from __future__ import annotations

import argparse
import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

ROOT = Path(__file__).parents[1]
LARGEST = 8_000_000
NEEDED_TO_BUILD = ("pyproject.toml", "README.md", "LICENSE", "NOTICE.md", "src")
NOT_OURS = ("__pycache__", "*.pyc", "*.egg-info")
KINDS = {".py", ".typed", ".j2", ".css", ".js", ".png", ".webp", ".txt", ".md", ".safetensors"}
MUST_HAVE = (
    "py.typed", "__main__.py", "report/templates/report.html.j2", "data/embedded/LICENSES.md", "data/embedded/fashion-test.png",
    "models/weights/README.md", "models/weights/cnn.safetensors", "priors/weights/fashion.safetensors",
)  # fmt: skip
FOR_DEVELOPERS = {"dev", "bench", "docs"}
"""Extras of this repository, not of a user: they need not work from a wheel."""

USES = {
    "timm": "from leakgauge.integrations import timm; timm.load('resnet18', classes=3)",
    "huggingface": "from leakgauge.integrations import huggingface; huggingface.load('resnet', classes=3)",
    "trainer": "from leakgauge.integrations.huggingface_trainer import trainer_monitor; trainer_monitor(); import accelerate",
    "split": "import leakgauge.split.export as e, torch, pathlib; from leakgauge import Pixels, Victim; from torch import nn; "
    "m = nn.Sequential(nn.Flatten(), nn.Linear(48, 5), nn.ReLU(), nn.Linear(5, 2)); "
    "print(e.export_halves(Victim(m, Pixels((3, 4, 4))), '2', pathlib.Path('halves')).errors)",
    "gguf": "import gguf, leakgauge.integrations.language",
    "peft": "import peft, leakgauge.integrations.language",
    "dicom": "import leakgauge.data.dicom as d; d._pydicom()",
    "tune": "import leakgauge.audit.tune as t; t._optuna()",
    "ray": "import leakgauge.integrations.ray as r; r._ray()",
    "lpips": "from leakgauge.measures.lpips import load_lpips; assert load_lpips() is not None",
    "lightning": "from leakgauge.integrations.lightning import lightning_monitor; lightning_monitor()",
    "opacus": "import opacus, leakgauge.integrations.opacus",
    "flower": "import flwr.client.mod, leakgauge.integrations.flower",
    "pandas": "import pandas; from leakgauge import Run; Run.frame",
    "loggers": "from leakgauge.integrations.loggers import *; import mlflow, wandb; tensorboard_log('t')({'privacy/x': 1.0}, 1)",
}
"""What each extra is for, in one line that fails without it."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="use the wheel in an empty environment")
    parser.add_argument("--extra", action="append", default=[], metavar="NAME", help="an extra to install, or all")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="put the wheel there")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="leakgauge-wheel-") as scratch:
        wheel = build(Path(scratch))
        wrong = [*wrong_contents(wheel, ROOT / "src"), *wrong_metadata(wheel, ROOT)]
        if asked.keep is not None:
            asked.keep.mkdir(parents=True, exist_ok=True)
            shutil.copy(wheel, asked.keep)
        if not wrong and (asked.install or asked.extra):
            wrong += used(wheel, Path(scratch), list(USES) if asked.extra == ["all"] else asked.extra)
        for line in wrong:
            print(f"wheel: {line}")
        if not wrong:
            print(f"wheel: {wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB, as it should be")
    return 1 if wrong else 0


def build(scratch: Path) -> Path:
    """The wheel, built from a copy: an old ``build`` folder would add files that were deleted long ago."""
    copy = scratch / "source"
    copy.mkdir()
    for name in NEEDED_TO_BUILD:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns(*NOT_OURS))
        elif (ROOT / name).is_file():
            shutil.copy(ROOT / name, copy / name)
    have = int(importlib.metadata.version("setuptools").partition(".")[0])
    as_it_is = ["--no-build-isolation"] if have >= 77 else []  # pyproject.toml asks for 77
    _run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *as_it_is, "-w", scratch / "dist", copy])
    (wheel,) = (scratch / "dist").glob("*.whl")
    return wheel


def wrong_contents(wheel: Path, source: Path) -> list[str]:
    """Files that lack or should not be there: the wheel holds ``source/leakgauge``, all of it and nothing else."""
    wrong = []
    if wheel.stat().st_size > LARGEST:
        wrong.append(f"{wheel.stat().st_size / 1e6:.1f} MB, at most {LARGEST / 1e6:.0f} are allowed")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if not re.match(r"leakgauge-[^/]*\.dist-info/", name)}
    there = (p for p in (source / "leakgauge").rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    ours = {p.relative_to(source).as_posix() for p in there}
    wrong += [f"{name} is missing; name it in package-data" for name in sorted(ours - held)]
    wrong += [f"{name} does not belong there" for name in sorted(held - ours)]
    wrong += [f"{name} is missing" for name in MUST_HAVE if f"leakgauge/{name}" not in held]
    strange = (n for n in held & ours if Path(n).suffix not in KINDS or Path(n).name.startswith(("test_", "conftest")))
    return wrong + [f"{name} is of a kind that does not travel" for name in sorted(strange)]


def wrong_metadata(wheel: Path, root: Path) -> list[str]:
    """What the metadata says against pyproject.toml, the package's own version and the table of uses above."""
    with zipfile.ZipFile(wheel) as archive:
        held = archive.namelist()
        (name,) = (n for n in held if n.endswith(".dist-info/METADATA"))
        said: Message = HeaderParser().parsestr(archive.read(name).decode())
        scripts = archive.read(name.replace("METADATA", "entry_points.txt")).decode()
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    version = version_of(root / "src/leakgauge/__init__.py")
    wrong = [
        f"{field} is {said[field]!r}, not {expected!r}"
        for field, expected in (
            ("Name", "leakgauge"),
            ("Version", version),
            ("Summary", project["description"]),
            ("License-Expression", project["license"]),
            ("Requires-Python", project["requires-python"]),
            ("Description-Content-Type", "text/markdown"),
        )
        if said[field] != expected
    ]
    folder = name.removesuffix("METADATA") + "licenses/"
    wrong += [f"the licence file {n} is missing" for n in ("LICENSE", "NOTICE.md") if folder + n not in held]
    if "leakgauge = leakgauge.cli:program" not in scripts:
        wrong.append("the command leakgauge is missing")
    extras = set(said.get_all("Provides-Extra", []))
    wrong += [f"extra {n} has no line in USES" for n in sorted(extras - set(USES) - FOR_DEVELOPERS)]
    return wrong + [f"USES names {n}, which is no extra" for n in sorted(set(USES) - extras)]


def version_of(module: Path) -> str:
    """``__version__`` as written in a module, which is not imported."""
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__version__":
            return str(ast.literal_eval(node.value))
    raise SystemExit(f"{module} has no __version__")


def used(wheel: Path, scratch: Path, extras: Sequence[str]) -> list[str]:
    """Installs the wheel as a user would, in environments of its own, and does what a user would do first."""
    core = Environment(scratch / "core")
    wrong = core.tries("installing the core", "-m", "pip", "install", "-q", *core.pins, _torch_pin())
    wrong = wrong or core.tries("installing the core", "-m", "pip", "install", "-q", *core.pins, wheel)
    if wrong:
        return wrong
    program = core.folder / "bin" / "leakgauge"
    wrong += core.tries("requirements", "-m", "pip", "check")
    for words in (["--version"], ["--help"], ["list"], ["attack", "cnn", "--option", "steps=5", "--out", "run", "-q"]):
        wrong += core.tries(" ".join(["leakgauge", *words]), *words, program=program)
    wrong += core.tries("the report", "-m", "leakgauge", "report", "run")
    if not (core.folder / "run/report.html").is_file():
        wrong.append("leakgauge attack wrote no report")
    for extra in extras:
        if extra not in USES:
            wrong.append(f"there is no extra {extra!r}; there are {', '.join(USES)}")
            continue
        beside = core.twin(scratch / extra)
        failed = beside.tries(f"[{extra}]", "-m", "pip", "install", "-q", *core.pins, f"{wheel}[{extra}]")
        failed = failed or beside.tries(f"[{extra}] requirements", "-m", "pip", "check")
        wrong += failed or beside.tries(f"[{extra}] in use", "-c", USES[extra])
        shutil.rmtree(beside.folder)
    return wrong


class Environment:
    """An empty virtual environment; commands run inside its folder, with nothing of this repository in reach."""

    pins = ("-c", str(ROOT / "constraints.txt"))

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder, with_pip=True, symlinks=True)

    @property
    def packages(self) -> Path:
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def twin(self, folder: Path) -> Environment:
        """A second environment with the same packages, as links: torch need not be unpacked again for every extra."""
        other = Environment(folder)
        shutil.rmtree(other.packages)
        shutil.copytree(self.packages, folder / self.packages.relative_to(self.folder), copy_function=os.link)
        return other

    def tries(self, what: str, *words: str | Path, program: Path | None = None) -> list[str]:
        """Runs the environment's Python, or a program of its; nothing if that went well, else what it said last."""
        environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        began = time.perf_counter()
        done = subprocess.run(
            [program or self.folder / "bin" / "python", *words],
            cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        last = " ".join(done.stdout.strip().splitlines()[-3:])
        print(
            f"  {what}: {'ok' if done.returncode == 0 else 'failed'} in {time.perf_counter() - began:.0f} s", flush=True
        )
        return [] if done.returncode == 0 else [f"{what} failed: {last}"]


def _torch_pin() -> str:
    """torch goes first and alone, so that the CPU build is kept where there is one."""
    return next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))


def _run(command: Sequence[str | Path]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"wheel: the build failed: {done.stdout.strip()[-2000:]}")


if __name__ == "__main__":
    sys.exit(main())
