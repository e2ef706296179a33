"""Hooks of the documentation site (mkdocs.yml): pages that live elsewhere in the repository, and links that hold in both places.

- The pages of ``reproductions/`` with their figures, ``CONTRIBUTING.md``, ``CHANGELOG.md`` and ``examples/README.md`` become pages. Their
  text exists once; nothing is copied into ``docs/``.
- Links are written for the repository (``../src/leakgauge/core/spaces.py``). On the site a link to another page leads there, a link to a
  file that is no page becomes its name with the path as a tooltip, and a link that leads nowhere fails the strict build.
- A page of the reference shows also what its package exports and its text does not name.
- A page that mkdocs.yml does not name stands at the end of the section ``MORE``, so that a new page needs no other file.
"""

from __future__ import annotations

import ast
import html
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
ALONE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "examples/README.md": "examples.md"}
"""Pages outside docs/, by their path in the repository, with the path that they have on the site."""

MORE = "Understand"

LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"\s*(```+|~~~+)")
ITEM = re.compile(r"([-*+]|\d+\.) ")

log = logging.getLogger("mkdocs.site_hooks")  # under mkdocs, so that --strict counts the warnings


def pages(root: Path = ROOT) -> dict[str, str]:
    """What becomes part of the site: paths in the repository with their paths on the site, pages and figures."""
    found = {path: path.removeprefix("docs/") for path in _below(root / "docs", root, "*.md", "*.svg", "*.png")}
    found |= {path: name for path, name in ALONE.items() if (root / path).is_file()}
    for path in _below(root / "reproductions", root, "*.md", "*.svg", "*.png"):
        found[path] = path.replace("README.md", "index.md")
    if (root / "docs/adr").is_dir():
        found["docs/adr"] = "adr/index.md"
    if "reproductions/README.md" in found:
        found["reproductions"] = "reproductions/index.md"
    return found


def _below(folder: Path, root: Path, *patterns: str) -> Iterator[str]:
    for pattern in patterns:
        yield from (path.relative_to(root).as_posix() for path in sorted(folder.rglob(pattern)))


def for_site(markdown: str, source: str, where: dict[str, str], root: Path = ROOT) -> tuple[str, list[str]]:
    """The text of the page ``source`` (a path in the repository) as the site needs it, and links that lead nowhere."""
    broken: list[str] = []

    def link(found: re.Match[str]) -> str:
        path, mark, anchor = found["target"].partition("#")
        if not path or re.match(r"[a-z]+:|/", path):
            return found[0]
        target = os.path.normpath(Path(source).parent / path)
        if target in where:
            here = Path(where[source]).parent
            return f"{found['image']}[{found['text']}]({os.path.relpath(where[target], here)}{mark}{anchor})"
        if not (root / target).exists():
            broken.append(found["target"])
            return found[0]
        return f'<span class="source" title="{html.escape(target)}">{found["text"]}</span>'

    lines: list[str] = []
    fence = ""
    for line in markdown.splitlines():
        opened = FENCE.match(line)
        if opened and (not fence or line.strip() == fence):
            fence = "" if fence else opened[1]
        elif not fence and not line.startswith("    "):
            if ITEM.match(line) and lines and lines[-1].strip() and not re.match(r"\s|([-*+]|\d+\.) ", lines[-1]):
                lines.append("")  # on the site a list needs an empty line before it, in the repository it does not
            line = LINK.sub(link, line)
        lines.append(line)
    return "\n".join(lines) + "\n", broken


def more_figures(markdown: str, source: str, where: dict[str, str]) -> str:
    """A section with the figures beside the reproduction ``source`` that its text does not show; empty where there are none."""
    folder = Path(source).parent.as_posix()
    if Path(source).name != "README.md" or not folder.startswith("reproductions/"):
        return ""
    beside = [
        path.removeprefix(f"{folder}/") for path in where if path.startswith(f"{folder}/") and not path.endswith(".md")
    ]
    left = sorted(path for path in beside if f"]({path})" not in markdown)
    shown = [f"![{name}]({path})\n*{name}*" for path in left for name in [Path(path).stem.replace("_", " ")]]
    return "\n## More figures\n\n" + "\n\n".join(shown) + "\n" if shown else ""


def more_names(markdown: str, source: str, root: Path = ROOT) -> str:
    """A section with what the package of the reference page ``source`` exports and its text does not show; empty where it shows all.

    So a new attack, defense or channel is in the reference without a line there. Exported is what is written ``import name as name``.
    """
    package = root / "src/leakgauge" / Path(source).stem / "__init__.py"
    if not source.startswith("docs/api/") or not package.is_file():
        return ""
    imports = [node for node in ast.parse(package.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)]
    names = [f"{node.module}.{alias.name}" for node in imports for alias in node.names if alias.asname == alias.name]
    shown = set(re.findall(r"^::: (\S+)$", markdown, re.MULTILINE))
    missing = [f"::: {name}\n" for name in names if name not in shown]
    return "\n## More\n\n" + "\n".join(missing) if missing else ""


def decisions(root: Path = ROOT) -> str:
    """The page that lists the decisions, from their titles."""
    rows = []
    for path in sorted((root / "docs/adr").glob("0*.md")):
        title = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        rows.append(f"- [{title}]({path.name})")
    return "# Decisions\n\nWhy things are as they are: context, decision, consequences.\n\n" + "\n".join(rows) + "\n"


def unnamed(nav: list[Any], root: Path = ROOT) -> list[str]:
    """Pages directly in docs/, and those of ``ALONE``, that ``nav`` (as in mkdocs.yml) does not name."""
    named: set[str] = set()
    left: list[Any] = list(nav)
    while left:
        item = left.pop()
        if isinstance(item, str):
            named.add(item)
        else:
            left.extend(item.values() if isinstance(item, dict) else item)
    top = [name for name in pages(root).values() if "/" not in name and name.endswith(".md")]
    return sorted(set(top) - named)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts pages that the navigation does not name at the end of the section ``MORE``."""
    nav = config.nav or []
    next(section for section in nav if MORE in section)[MORE].extend(unnamed(nav))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages and figures that do not lie in docs/."""
    from mkdocs.structure.files import File

    for source, name in pages().items():
        if not source.startswith("docs/") and (ROOT / source).is_file():
            files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    files.append(File.generated(config, "adr/index.md", content=decisions()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links for the repository into links for the site."""
    where = pages()
    source = next(path for path, name in where.items() if name == page.file.src_uri)
    if (ROOT / source).is_dir():
        return markdown  # made here, for the site
    text, broken = for_site(
        markdown + more_figures(markdown, source, where) + more_names(markdown, source), source, where
    )
    for target in broken:
        log.warning("%s links to %s, which does not exist", source, target)
    return text
