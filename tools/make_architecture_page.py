"""Makes docs/architecture.md and its picture: which packages there are, what each is for, and who imports whom.

The source is the code: docstrings, sizes and real imports, and the order of levels in check_imports.py.
Usage: make_architecture_page.py [--check]   (with --check nothing is written; exit code 1 if page or picture is not up to date)
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import check_imports
from architecture_picture import picture, without_detours

ROOT = Path(__file__).parents[1]
PAGE, PICTURE = Path("docs/architecture.md"), Path("docs/images/architecture.svg")
COMMAND_LINE = "cli"
"""Stands for all modules of the first level, which are one program."""

SIZE = re.compile(r"\| (\d+) \| ([\d,]+) \|")
TOLERANCE = 0.2
"""By how much sizes may differ before the page is called old: otherwise every change of a line would make it so."""

TEXT = """# Architecture

Made by `make pages` from the code; do not edit by hand. `make check` fails when it is out of date (sizes may drift by a fifth).

## Who imports whom

![Packages from top to bottom by level; lines lead from a package to those it imports](images/architecture.svg)

Drawn from the real imports. A line is left out where a longer way leads to the same package: who imports `audit` has everything below
it as well. The table names every import. The order is checked in continuous integration (`tools/check_imports.py`):

{order}

Left may import right, never back; names joined by `|` do not import each other. Besides:

{rules}

So a part can be understood, tested and replaced with nothing above it in mind: measures are mathematics on tensors, attacks know
no audit, and the report cannot reach the truth, because it reads records only.

## Packages

| package | what it is for | files | lines | imports |
|---|---|---|---|---|
{rows}

## Where to begin

Read `core/__init__.py`, the whole vocabulary in one file; then one recipe, `attacks/inverting_gradients.py`; then one law,
`check_attack` in `testing.py`. The [concepts](concepts.md) say the same in words, [the decisions](adr) say why, and
[Contributing](../CONTRIBUTING.md) shows how to add an attack, a defense, a channel or a family of models: one file, one line in a
registry, and the laws are met or broken at once.
"""


@dataclass(frozen=True)
class Part:
    """A package, or a module beside the packages: what its docstring says, and how large it is."""

    name: str
    purpose: str
    files: int
    lines: int


def parts(package: Path) -> list[Part]:
    """All parts of the package, those of higher levels first."""
    command_line = check_imports.LEVELS[0]
    found = [_part(COMMAND_LINE, [p for name in sorted(command_line) if (p := _place(package, name))])]
    below = [name for level in check_imports.LEVELS[1:] for name in sorted(level)]
    for name in [*below, *sorted(check_imports.SIDE), "testing"]:
        place = _place(package, name)
        if place is not None:
            found.append(_part(name, [place]))
    return found


def _place(package: Path, name: str) -> Path | None:
    """Where a top-level name lies: a folder or a file; None where the package has none of that name."""
    places = [package / name, package / f"{name}.py"]
    return next((place for place in places if place.exists()), None)


def _part(name: str, places: list[Path]) -> Part:
    files = [file for place in places for file in ([place] if place.is_file() else sorted(place.rglob("*.py")))]
    first = next(place for place in places if place.stem == name)
    own = first if first.is_file() else first / "__init__.py"
    docstring = ast.get_docstring(ast.parse(own.read_text(encoding="utf-8")))
    if not docstring:
        raise SystemExit(f"{own} has no docstring; its first line says here what {name} is for")
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    return Part(name, docstring.splitlines()[0].replace("``", "`"), len(files), lines)


def imports(package: Path) -> set[tuple[str, str]]:
    """Who imports whom, with the modules of the command line as one."""
    joined = dict.fromkeys(check_imports.LEVELS[0], COMMAND_LINE)
    pairs = {(joined.get(a, a), joined.get(b, b)) for a, b in check_imports.who_imports_whom(package)}
    return {(a, b) for a, b in pairs if a != b}


def page(package: Path) -> str:
    """The text of the page for the package in the folder ``package``."""
    pairs = imports(package)
    rows = []
    for part in parts(package):
        below = ", ".join(f"`{b}`" for a, b in sorted(pairs) if a == part.name) or "nothing of ours"
        rows.append(f"| `{part.name}` | {part.purpose} | {part.files} | {part.lines:,} | {below} |")
    return TEXT.format(order=_order(), rules="\n".join(_rules()), rows="\n".join(rows))


def _order() -> str:
    levels = [" | ".join(sorted(level)) for level in check_imports.LEVELS[1:]]
    first, second = [COMMAND_LINE, *levels[:5]], levels[5:]
    return f"    {' → '.join(first)}\n        → {' → '.join(second)}"


def _rules() -> Iterator[str]:
    others = ", ".join(f"`{name}`" for name in sorted(check_imports.LEVELS[0] - {COMMAND_LINE}))
    yield f"- `cli` stands for the whole command line: with {others}."
    side = " and ".join(f"`{name}`" for name in sorted(check_imports.SIDE))
    users = sorted(check_imports.MAY_USE_SIDE - (check_imports.LEVELS[0] - {COMMAND_LINE}))
    yield f"- {side} stand beside the levels; {', '.join(f'`{name}`' for name in users)} may use them."
    for name, allowed in sorted(check_imports.NARROW.items()):
        yield f"- `{name}` may import {', '.join(f'`{other}`' for other in sorted(allowed))} and nothing else of ours."
    yield "- `testing` is for tests and may import everything but the command line."
    yield "- An optional package is imported in exactly one module, inside the function that needs it."


def drawing(package: Path) -> str:
    """The picture for the package in the folder ``package``."""
    rows = [[COMMAND_LINE], *(sorted(level) for level in check_imports.LEVELS[1:])]
    present = {part.name for part in parts(package)}
    return picture(
        [[name for name in row if name in present] for row in rows], without_detours(imports(package)), present
    )


def stale(old: str, new: str) -> bool:
    """Whether ``old`` says something else than ``new``, or sizes that are off by more than the tolerance."""
    if SIZE.sub("| |", old) != SIZE.sub("| |", new):
        return True
    pairs = zip(SIZE.findall(old), SIZE.findall(new), strict=True)
    numbers = (
        (float(a.replace(",", "")), float(b.replace(",", ""))) for p, q in pairs for a, b in zip(p, q, strict=True)
    )
    return any(abs(a - b) > max(1.0, TOLERANCE * b) for a, b in numbers)


def main(arguments: list[str]) -> int:
    package = ROOT / "src" / check_imports.PACKAGE
    text, drawn = page(package), drawing(package)
    if "--check" not in arguments:
        (ROOT / PAGE).write_text(text, encoding="utf-8")
        (ROOT / PICTURE).write_text(drawn, encoding="utf-8")
        print(f"written: {PAGE}, {PICTURE}")
        return 0
    old = {
        path: (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).is_file() else "" for path in (PAGE, PICTURE)
    }
    if stale(old[PAGE], text) or old[PICTURE] != drawn:
        print(f"{PAGE} is not up to date; run: make pages")
        return 1
    print(f"{PAGE}: up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
