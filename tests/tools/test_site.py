"""The tools behind the documentation site, on tiny repositories and sites; the real one is built by ``make site``."""

import ast
import doctest
import importlib
import re
from pathlib import Path

import pytest

from leakgauge.audit import verdict, wording

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.usefixtures("tools_can_be_imported")


def written(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def repository(tmp_path):
    return written(
        tmp_path,
        {
            "docs/guide.md": "# Guide",
            "docs/deep/page.md": "# Deep",
            "docs/adr/0001-first.md": "# 1. First of all\n",
            "docs/adr/0002-second.md": "# 2. Then\n",
            "CHANGELOG.md": "# Changelog",
            "reproductions/april/README.md": "# APRIL",
            "reproductions/april/results/noise.svg": "<svg/>",
            "src/leakgauge/core/errors.py": "",
        },
    )


@pytest.mark.parametrize(
    ("source", "text", "made"),
    [
        ("docs/guide.md", "[a](deep/page.md#b)", "[a](deep/page.md#b)"),
        ("docs/guide.md", "[a](../CHANGELOG.md)", "[a](changelog.md)"),
        ("docs/deep/page.md", "[a](../../CHANGELOG.md)", "[a](../changelog.md)"),
        ("docs/guide.md", "[a](../reproductions/april/README.md)", "[a](reproductions/april/index.md)"),
        ("docs/guide.md", "![a](../reproductions/april/results/noise.svg)", "![a](reproductions/april/results/noise.svg)"),
        ("reproductions/april/README.md", "![a](results/noise.svg)", "![a](results/noise.svg)"),
        ("reproductions/april/README.md", "[a](../../docs/guide.md#x)", "[a](../../guide.md#x)"),
        ("CHANGELOG.md", "[a](docs/adr)", "[a](adr/index.md)"),
        ("docs/guide.md", "[`c`](../src/leakgauge/core/errors.py)", '<span class="source" title="src/leakgauge/core/errors.py">`c`</span>'),
        ("docs/guide.md", "[a](https://example.org/x.md) [b](#c)", "[a](https://example.org/x.md) [b](#c)"),
        ("docs/guide.md", "```python\nx = f[a](../CHANGELOG.md)\n```", "```python\nx = f[a](../CHANGELOG.md)\n```"),
        ("docs/guide.md", "words:\n- one\n- two", "words:\n\n- one\n- two"),
        ("docs/guide.md", "- one\n  goes on\n- two", "- one\n  goes on\n- two"),
    ],
)  # fmt: skip
def test_links_for_the_repository_become_links_for_the_site(repository, source, text, made):
    hooks = importlib.import_module("site_hooks")
    assert hooks.for_site(text, source, hooks.pages(repository), repository) == (made + "\n", [])


def test_a_link_that_leads_nowhere_is_named(repository):
    hooks = importlib.import_module("site_hooks")
    _, broken = hooks.for_site("[a](gone.md) [b](../src/no.py)", "docs/guide.md", hooks.pages(repository), repository)
    assert broken == ["gone.md", "../src/no.py"]


def test_figures_that_a_reproduction_does_not_show_stand_at_its_end(repository):
    hooks = importlib.import_module("site_hooks")
    (repository / "reproductions/april/results/by_width.png").write_bytes(b"")
    found = hooks.pages(repository)
    text = "# APRIL\n\n![noise](results/noise.svg)\n"
    assert hooks.more_figures(text, "reproductions/april/README.md", found) == (
        "\n## More figures\n\n![by width](results/by_width.png)\n*by width*\n"
    )
    assert hooks.more_figures(text + "![w](results/by_width.png)", "reproductions/april/README.md", found) == ""
    assert hooks.more_figures("# Guide", "docs/guide.md", found) == ""


def test_the_reference_shows_what_its_text_does_not_name(repository):
    hooks = importlib.import_module("site_hooks")
    exports = "from leakgauge.attacks.dlg import dlg as dlg\nfrom leakgauge.attacks.new import new as new\nimport os\n"
    written(repository, {"src/leakgauge/attacks/__init__.py": exports + "from leakgauge.core import Attack\n"})
    page = "# Attacks\n\n::: leakgauge.attacks.dlg.dlg\n"
    assert hooks.more_names(page, "docs/api/attacks.md", repository) == "\n## More\n\n::: leakgauge.attacks.new.new\n"
    assert hooks.more_names(page + "::: leakgauge.attacks.new.new\n", "docs/api/attacks.md", repository) == ""
    assert hooks.more_names(page, "docs/attacks.md", repository) == ""
    assert hooks.more_names(page, "docs/api/index.md", repository) == ""


def test_decisions_are_listed_by_their_titles(repository):
    listed = importlib.import_module("site_hooks").decisions(repository)
    assert "- [1. First of all](0001-first.md)\n- [2. Then](0002-second.md)\n" in listed


def test_pages_that_the_navigation_does_not_name_are_found(repository):
    hooks = importlib.import_module("site_hooks")
    nav = [{"Start": [{"The guide": "guide.md"}]}, {"Understand": ["other.md"]}]
    assert hooks.unnamed(nav, repository) == ["changelog.md"]
    (repository / "docs/new.md").write_text("# New")
    assert hooks.unnamed([*nav, "changelog.md"], repository) == ["new.md"]


@pytest.mark.parametrize(
    ("docstring", "made"),
    [
        ("See :class:`~a.B` and ``c``.", "See `a.B` and ``c``."),
        ("Words.\n\n    x = argmin f\n    y = 2", "Words.\n\n```text\nx = argmin f\ny = 2\n```"),
        ("Words.\nRef: Wang 2004, Eq. (1) — x", "Words.\n\nRef: Wang 2004, Eq. (1) — x"),
        ("Words:\n>>> 1\n1\n\nMore.", "Words:\n\n```pycon\n>>> 1\n1\n```\n\nMore."),
    ],
)
def test_docstrings_become_markdown(docstring, made):
    assert importlib.import_module("site_docstrings").markdown(docstring) == made


PAGE = '<html><head><link rel="stylesheet" href="a.css"></head><body id="top">{}</body></html>'


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="https://example.org">x</a><a href="b.html#there">y</a><img src="data:image/png;base64,AA">', None),
        ('<script src="https://cdn.example.org/x.js"></script>', "loads https://cdn.example.org/x.js"),
        ('<script src="//cdn.example.org/x.js"></script>', "loads //cdn.example.org/x.js"),
        ('<img src="gone.png">', "loads gone.png, which does not exist"),
        ('<p style="background: url(http://x.org/a.png)">x</p>', "loads http://x.org/a.png"),
        ("<style>@import 'https://x.org/a.css'</style>", "loads https://x.org/a.css"),
        ('<a href="gone.html">x</a>', "links to gone.html, which does not exist"),
        ('<a href="b.html#nowhere">x</a>', "but b.html has no such anchor"),
        ('<pre class="mermaid">graph</pre>', "mermaid"),
    ],
)
def test_a_site_must_load_nothing_from_elsewhere(tmp_path, body, fault):
    files = {
        "index.html": PAGE.format(body),
        "b.html": PAGE.format('<h2 id="there"></h2>'),
        "a.css": "p { color: red }",
    }
    found = list(importlib.import_module("check_site").faults(written(tmp_path, files)))
    assert (found == []) if fault is None else (len(found) == 1 and fault in found[0]), found


def test_styles_are_read_too(tmp_path):
    files = {"index.html": PAGE.format(""), "a.css": "@font-face { src: url('https://fonts.example.org/a.woff2') }"}
    found = list(importlib.import_module("check_site").faults(written(tmp_path, files)))
    assert found == ["a.css: loads https://fonts.example.org/a.woff2"]


def test_an_unbuilt_site_does_not_pass(tmp_path):
    assert importlib.import_module("check_site").main([str(tmp_path)]) == 1


def exported(package):
    for node in ast.parse((ROOT / "src/leakgauge" / package / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    raise AssertionError(f"{package} has no __all__")


@pytest.mark.parametrize("package", ["", "monitor", "split", "audit", "inversion",
                                     "measures/mutual_information"])  # fmt: skip
def test_every_public_name_is_in_the_reference(package):
    page = ROOT / "docs/api" / f"{package.partition('/')[0] or 'index'}.md"
    text = page.read_text(encoding="utf-8")
    shown = {path.rpartition(".")[2] for path in re.findall(r"^::: (\S+)$", text, re.MULTILINE)}
    named = set(re.findall(r"`([A-Z_]+)`", text))  # registries are named in the introduction
    missing = set(exported(package)) - shown - named - {"__version__"}
    assert not missing, f"add a line `::: leakgauge.….NAME` to docs/api/{page.name} for each of {sorted(missing)}"


@pytest.mark.parametrize("tool", ["architecture_picture", "site_docstrings"])
def test_examples_in_the_tools_hold(tool):
    done = doctest.testmod(importlib.import_module(tool))
    assert done.attempted
    assert not done.failed


def test_the_checks_of_a_verdict_are_documented_as_they_are():
    page = " ".join((ROOT / "docs/concepts.md").read_text(encoding="utf-8").split())
    tables = (verdict.RECONSTRUCTED, verdict.REDUCED, verdict.GLIMPSED, verdict.OUTLINED, verdict.SCRAMBLED)
    missing = [one for one in (wording.check(check) for table in tables for check in table) if one not in page]
    assert not missing, "docs/concepts.md names other thresholds than audit/verdict.py"


def test_there_are_at_most_twenty_pages():
    assert len(list((ROOT / "docs").glob("*.md"))) <= 20, "merge a page, or move a log to a section What we measured"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900
