"""Checks the built documentation site: nothing is loaded from elsewhere, and every link within it leads somewhere.

Read are all HTML and CSS files. What a page *loads* (scripts, styles, images, frames, url(…) in CSS) must lie in the site; what it
*links to* may lie elsewhere. Prints a line for each fault and exits with 1. Usage: check_site.py [FOLDER]   (default: site)
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
LOADS = {
    ("script", "src"), ("link", "href"), ("img", "src"), ("img", "srcset"), ("source", "src"), ("source", "srcset"), ("iframe", "src"),
    ("object", "data"), ("embed", "src"), ("video", "src"), ("audio", "src"), ("image", "href"), ("use", "href"), ("form", "action"),
}  # fmt: skip
"""Tags and attributes by which a browser fetches something without being asked."""

MERMAID = "mermaid"
"""A class for which the theme's script would fetch a library from another server."""

URL = re.compile(r"""url\(\s*['"]?([^'")]+)['"]?\s*\)|@import\s+['"]([^'"]+)""")


@dataclass
class Read(HTMLParser):
    """What a page loads, what it links to, and which anchors it has."""

    loads: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    classes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if (tag, name) in LOADS:
                self.loads.append(value)
            elif (tag, name) == ("a", "href"):
                self.links.append(value)
            elif name == "style":
                self.loads.extend(a or b for a, b in URL.findall(value))
            elif name == "class":
                self.classes.update(value.split())
            if name == "id" or (tag, name) == ("a", "name"):
                self.anchors.add(value)


def read(file: Path) -> Read:
    page = Read()
    text = file.read_text(encoding="utf-8")
    page.feed(text)
    for style in re.findall(r"<style[^>]*>(.*?)</style>", text, re.DOTALL):
        page.loads.extend(a or b for a, b in URL.findall(style))
    return page


def faults(site: Path) -> Iterator[str]:
    """One sentence for each thing that is loaded from elsewhere and each link that leads nowhere."""
    pages = {file.relative_to(site).as_posix(): read(file) for file in sorted(site.rglob("*.html"))}
    if not pages:
        yield f"{site} holds no page; build the site first: make site"
    for name, page in pages.items():
        if MERMAID in page.classes:
            yield f"{name}: holds a mermaid diagram, whose library would be fetched from elsewhere"
        for target in page.loads:
            yield from _load(name, target, site)
        for target in page.links:
            yield from _link(name, target, site, pages)
    for file in sorted(site.rglob("*.css")):
        for a, b in URL.findall(file.read_text(encoding="utf-8")):
            yield from _load(file.relative_to(site).as_posix(), a or b, site)


def _load(name: str, target: str, site: Path) -> Iterator[str]:
    parts = urlsplit(target)
    if parts.scheme == "data" or not (parts.path or parts.netloc):
        return
    if parts.scheme or parts.netloc:
        yield f"{name}: loads {target}"
    elif not (site / _inside(name, parts.path)).exists():
        yield f"{name}: loads {target}, which does not exist"


def _link(name: str, target: str, site: Path, pages: dict[str, Read]) -> Iterator[str]:
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return
    path = _inside(name, parts.path) if parts.path else name
    if (site / path).is_dir():
        path = posixpath.normpath(f"{path}/index.html")
    if not (site / path).is_file():
        yield f"{name}: links to {target}, which does not exist"
    elif parts.fragment and path in pages and unquote(parts.fragment) not in pages[path].anchors:
        yield f"{name}: links to {target}, but {path} has no such anchor"


def _inside(name: str, path: str) -> str:
    """The path within the site of what the page ``name`` calls ``path``."""
    base = "" if path.startswith("/") else posixpath.dirname(name)
    return posixpath.normpath(posixpath.join(base, unquote(path).lstrip("/")))


def main(arguments: list[str]) -> int:
    site = Path(arguments[0]) if arguments else ROOT / "site"
    found = list(faults(site))
    for fault in found:
        print(fault)
    pages = len(list(site.rglob("*.html")))
    print(
        f"site: {len(found)} faults"
        if found
        else f"site: {pages} pages, nothing loaded from elsewhere, every link leads somewhere"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
