"""Checks who imports whom inside the package. Prints ``file:line`` for each breach and exits with 1.

    cli → integrations → report → audit → split | monitor → attacks → priors → inversion | defenses | servers
        → engine → channels | measures → graphs → families → core → errors

Left may import right, never back; names joined by ``|`` do not import each other. Usage: check_imports.py [PACKAGE_FOLDER]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "leakgauge"

LEVELS: tuple[frozenset[str], ...] = (
    frozenset({"__main__", "cli"}),
    frozenset({"integrations"}),
    frozenset({"report"}),
    frozenset({"audit"}),
    frozenset({"split", "monitor"}),
    frozenset({"attacks"}),
    frozenset({"priors"}),
    frozenset({"inversion", "defenses", "servers"}),
    frozenset({"engine"}),
    frozenset({"channels", "measures"}),
    frozenset({"graphs"}),
    frozenset({"families"}),
    frozenset({"core"}),
    frozenset({"errors"}),
)
TOGETHER = {LEVELS[0]}
"""Names of one level that may import each other."""

ROOT = {"core", "errors", "audit", "integrations"}
"""What the package itself names; it imports a name when that is asked for, so ``import leakgauge`` stays light."""

SIDE = {"models", "data"}
MAY_USE_SIDE = {"audit", "split", "integrations", "cli", "testing"}
"""``integrations`` is among them because it turns a case's names into a model and its data."""

NARROW: dict[str, set[str]] = {
    "models": {"core", "errors"},
    "data": {"core", "errors"},
    "report": {
        "audit.evidence",
        "audit.files",
        "audit.phrasing",
        "audit.records",
        "audit.questions",
        "audit.findings",
        "audit.advice",
        "audit.compare",
        "audit.scoring",
        "audit.text_record",
        "audit.prompt_record",
        "audit.verdict",
        "audit.wording",
        "errors",
    },
    "measures": {"errors"},
}
"""These may import nothing of the package but what is listed (and their own modules)."""

NARROW_OUTSIDE: dict[str, set[str]] = {"measures": {"torch", "numpy", "scipy", "safetensors"}}
"""Packages from outside the standard library that a narrow part may use."""

CORE = {"torch", "numpy", "scipy", "PIL", "safetensors", "rich", "typer", "jinja2", "markupsafe"}
"""What every installation has: the requirements, and markupsafe (of jinja2)."""


@dataclass(frozen=True)
class Import:
    """One imported module: by which file, in which line, and whether only when a function runs."""

    file: Path
    line: int
    module: str
    lazy: bool


@dataclass(frozen=True)
class Breach:
    file: Path
    line: int
    why: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.why}"


def breaches(package: Path) -> list[Breach]:
    """Every forbidden import of the package that lies in the folder ``package``."""
    found: list[Breach] = []
    optional: dict[str, list[Import]] = {}
    for file in sorted(package.rglob("*.py")):
        own = _own_name(file, package)
        for imported in _imports(file, own):
            top = imported.module.partition(".")[0]
            why = None
            if top == PACKAGE:
                why = _forbidden(own, imported.module)
            elif top not in sys.stdlib_module_names:
                why = _foreign(own, top)
                if top not in CORE:
                    optional.setdefault(top, []).append(imported)
            if why:
                found.append(Breach(file, imported.line, why))
    return found + list(_optional_breaches(optional))


def who_imports_whom(package: Path) -> set[tuple[str, str]]:
    """All pairs (importer, imported) of the package's top-level names, such as ``("attacks", "core")``."""
    pairs: set[tuple[str, str]] = set()
    for file in package.rglob("*.py"):
        own = _own_name(file, package)
        for imported in _imports(file, own):
            name, _, rest = imported.module.partition(".")
            pair = (own.partition(".")[0], rest.partition(".")[0])
            if name == PACKAGE and all(pair) and pair[0] != pair[1] and not pair[1].startswith("__"):
                pairs.add(pair)
    return pairs


def _own_name(file: Path, package: Path) -> str:
    """``attacks/dlg.py`` is ``attacks.dlg``; the package's own ``__init__.py`` is the empty name."""
    parts = list(file.relative_to(package).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(file: Path, own: str) -> Iterator[Import]:
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    lazy = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for inner in ast.walk(node)}  # fmt: skip
    for node in ast.walk(tree):
        for module in _modules(node, own, is_package=file.name == "__init__.py"):
            yield Import(file, getattr(node, "lineno", 0), module, id(node) in lazy)


def _modules(node: ast.AST, own: str, *, is_package: bool) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            base = module or ""
            if level:
                here = [PACKAGE, *filter(None, own.split("."))]
                base = ".".join([*here[: len(here) - level + is_package], *filter(None, [module])])
            # `from leakgauge.audit import records` imports audit.records: each name may be a module
            yield from (f"{base}.{alias.name}" for alias in names)
        case ast.Call(func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"), args=[first, *_]):
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


def _forbidden(own: str, module: str) -> str | None:
    """Why ``own`` (a module of ours) must not import ``module`` (another one of ours), or None."""
    target = module.removeprefix(PACKAGE).removeprefix(".")
    mine, theirs = own.partition(".")[0], target.partition(".")[0]
    if theirs in ("", "__version__") or mine == theirs:
        return None
    if mine == "":
        return None if theirs in ROOT else f"the package itself imports {theirs}; it may name {', '.join(sorted(ROOT))}"
    if mine in NARROW:
        allowed = any(target == name or target.startswith(name + ".") for name in NARROW[mine])
        # `from leakgauge.audit import records` arrives as audit.records; `from leakgauge.audit.records import FILE` too
        return None if allowed else f"{mine} imports {target}; it may import {', '.join(sorted(NARROW[mine]))} alone"
    if theirs in SIDE:
        return None if mine in MAY_USE_SIDE else f"{mine} imports {theirs}, which {', '.join(sorted(MAY_USE_SIDE))} may"
    if mine == "testing":
        return f"testing imports {theirs}" if theirs in LEVELS[0] else None
    if theirs == "testing":
        return f"{mine} imports testing, which is for tests"
    return _backwards(mine, theirs)


def _backwards(mine: str, theirs: str) -> str | None:
    here, there = _level(mine), _level(theirs)
    if here is None or there is None:
        unknown = mine if here is None else theirs
        return f"{unknown} has no place in the order of imports; give it one in {Path(__file__).name}"
    if here < there or (here == there and LEVELS[here] in TOGETHER):
        return None
    return f"{mine} imports {theirs}, " + ("its neighbour" if here == there else "which stands above it")


def _level(name: str) -> int | None:
    return next((i for i, level in enumerate(LEVELS) if name in level), None)


def _foreign(own: str, top: str) -> str | None:
    mine = own.partition(".")[0]
    if mine in NARROW_OUTSIDE and top not in NARROW_OUTSIDE[mine]:
        return f"{mine} imports {top}; it may use {', '.join(sorted(NARROW_OUTSIDE[mine]))} alone"
    return None


def _optional_breaches(optional: dict[str, list[Import]]) -> Iterator[Breach]:
    for name, places in sorted(optional.items()):
        home = places[0].file
        for place in places:
            if not place.lazy:
                yield Breach(place.file, place.line, f"{name} is optional: import it inside the function that needs it")
            if place.file != home:
                yield Breach(place.file, place.line, f"{name} is optional and belongs to {home.name} alone")


def main(arguments: list[str]) -> int:
    package = Path(arguments[0]) if arguments else Path(__file__).parents[1] / "src" / PACKAGE
    if not package.is_dir():
        print(f"{package} is not a folder")
        return 2
    found = breaches(package)
    for breach in found:
        print(breach)
    print(f"imports: {len(found)} breaches" if found else "imports: in order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
