"""Runs what the documentation shows, so that a reader never meets a command that fails.

Every fenced ``console``, ``bash`` and ``python`` block of README.md, CONTRIBUTING.md and docs/*.md is run, in order and
in one temporary folder per page:

- ``console``: the lines after ``$ ``; what they are said to print is not compared;
- ``bash``: the whole block, stopped at the first failure;
- ``python``: the whole block; blocks of one page share their names; with ``>>>`` also what is printed must agree.

A comment in the line before a block changes that:

- ``<!-- not run: REASON -->``: the block is skipped;
- ``<!-- file: NAME -->``: the block is written to that file instead, for the blocks after it.

Usage: run_documented_commands.py [--jobs N] [PAGE.md …]   (pages run side by side in N processes)
"""

from __future__ import annotations

import argparse
import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LANGUAGES = ("console", "bash", "python")
COMMENT = re.compile(r"<!--\s*(not run|file):\s*(.+?)\s*-->")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the number of its first line and the order that stood above it."""

    language: str
    text: str
    line: int
    order: str = ""
    argument: str = ""


def blocks(markdown: str) -> Iterator[Block]:
    """All fenced blocks of a page, in order."""
    lines = iter(enumerate(markdown.splitlines(), start=1))
    order, argument = "", ""
    for _, text in lines:
        comment = COMMENT.fullmatch(text.strip())
        if comment:
            order, argument = comment.groups()
            continue
        fence = re.match(r"(\s*)(```+)(\w*)", text)
        if fence is None:
            if text.strip():
                order, argument = "", ""
            continue
        indent, marks, language = fence.groups()
        body: list[str] = []
        start = 0
        for number, inner in lines:
            start = start or number
            if inner.strip() == marks:
                break
            body.append(inner.removeprefix(indent))
        yield Block(language, "\n".join(body) + "\n", start, order, argument)
        order, argument = "", ""


def commands(text: str) -> str:
    """The commands of a console block as a script: what follows ``$ ``, with lines continued by a backslash."""
    script: list[str] = []
    going_on = False
    for line in text.splitlines():
        if going_on or line.startswith("$ "):
            command = line if going_on else line.removeprefix("$ ")
            script.append(command)
            going_on = command.endswith("\\")
    return "\n".join(script) + "\n"


class Failed(Exception):
    """A block did not do what the page says."""


class Page:
    """One page, run in a folder of its own; its Python blocks share their names."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path, self.folder = path, folder
        self.names: dict[str, Any] = {"__name__": "__main__"}

    def run(self, block: Block) -> str:
        """Runs a block and says what was done with it: ``run``, ``written`` or ``not run``."""
        if block.order == "not run":
            return "not run"
        if block.order == "file":
            target = self.folder / block.argument
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, encoding="utf-8")
            return "written"
        if block.language == "python":
            self._python(block)
        else:
            self._shell(commands(block.text) if block.language == "console" else block.text)
        return "run"

    def _python(self, block: Block) -> None:
        printed = io.StringIO()
        path = list(sys.path)
        sys.path.insert(0, str(self.folder))
        try:
            with contextlib.chdir(self.folder), contextlib.redirect_stdout(printed):
                if block.text.lstrip().startswith(">>>"):
                    self._doctest(block, printed)
                else:
                    exec(compile(block.text, f"{self.path.name}:{block.line}", "exec"), self.names)
        except Failed:
            raise
        except BaseException as error:
            raise Failed(printed.getvalue() + traceback.format_exc()) from error
        finally:
            sys.path[:] = path

    def _doctest(self, block: Block, printed: io.StringIO) -> None:
        test = doctest.DocTestParser().get_doctest(block.text, self.names, self.path.name, str(self.path), block.line)
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        if runner.run(test, out=printed.write, clear_globs=False).failed:
            raise Failed(printed.getvalue())
        self.names.update(test.globs)

    def _shell(self, script: str) -> None:
        own = Path(sys.executable).parent  # of the virtual environment, where `leakgauge` lies
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env={**os.environ, "PATH": f"{own}{os.pathsep}{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Failed(f"{script}exit code {done.returncode}\n{done.stdout}")


def run_page(path: Path) -> list[str]:
    """Runs all blocks of a page, printing a line for each; what is returned names those that failed."""
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        page = Page(path, Path(folder))
        for block in blocks(path.read_text(encoding="utf-8")):
            if block.language not in LANGUAGES and block.order != "file":
                continue
            began = time.perf_counter()
            place = f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{block.line}"
            try:
                done = page.run(block)
            except Failed as failure:
                done = "FAILED"
                failures.append(f"{place} ({block.language})\n{failure}")
            reason = f" ({block.argument})" if block.argument else ""
            line = f"{place:<28} {block.language:<8} {done}{reason}  {time.perf_counter() - began:.1f} s\n"
            print(line, end="", flush=True)  # in one piece, since other processes print too
    return failures


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Runs what the documentation shows.")
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--jobs", type=int, default=1, help="processes that run pages side by side")
    given = parser.parse_args(arguments)
    pages = [page.resolve() for page in given.pages]
    pages = pages or [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    began = time.perf_counter()
    with ProcessPoolExecutor(given.jobs) as pool:
        failures = [failure for found in pool.map(run_page, pages) for failure in found]
    for failure in failures:
        print(f"\n{failure}")
    print(f"documented commands: {len(failures)} failed, {time.perf_counter() - began:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
