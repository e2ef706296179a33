"""Makes docs/advice.md: every rule of "What to do", with its condition in words, its thresholds and what it excludes.

The source is ``RULES``, ``EXCLUSIVE`` and the named numbers of ``leakgauge.audit``, so page and program agree.
Usage: make_advice_page.py [--check]   (with --check nothing is written; exit code 1 if the page is not up to date)
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from leakgauge.audit import findings
from leakgauge.audit.advice import EXCLUSIVE, RULES, SHOWN, conditions
from leakgauge.audit.wording import LIMITS
from leakgauge.monitor import leakage

ROOT = Path(__file__).parents[1]
PAGE = Path("docs/advice.md")
SEVERITIES = {"act": "change something", "check": "look again before you decide", "know": "keep in mind"}

INTRODUCTION = f"""\
# What to do: the rules for advice

*Reference, made by `make pages` from the code.* The first page of a report gives the verdict on each question and then a list of what to
do. Each line of that list follows from the records of the run by one of the rules below, so the same measurements always give the same
advice. The report shows the first {SHOWN}, most important first, and folds the others away.

```console
$ leakgauge attack cnn --option steps=3 --out runs/mine
```

```python
from pathlib import Path
from leakgauge.audit.advice import advise, as_text
from leakgauge.audit.findings import read_findings

found = read_findings(Path("runs/mine"))  # from the record files alone
print(as_text(found))  # the first page of the report as plain text
print([one.rule for one in advise(found)])
```

A *diagnostic* assumption is one that no ordinary server satisfies. The single changes that an audit tries around a set-up are read as
warnings about that change, not as set-ups of yours.
"""


def page() -> str:
    """The whole page."""
    parts = [
        INTRODUCTION,
        "## The rules",
        _rules(),
        "## The thresholds",
        _thresholds(),
        "## What never applies together",
    ]
    parts += ["These would contradict each other; the tests check that they never apply at once.", _exclusive()]
    parts += ["## What the page does not say", "\n".join(f"- {limit}" for limit in LIMITS)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _rules() -> str:
    lines = []
    for severity, meaning in SEVERITIES.items():
        lines += [f"### {severity.capitalize()}: {meaning}", "", "| rule | applies when | says |", "|---|---|---|"]
        for rule in RULES:
            if rule.severity == severity:
                lines.append(f"| `{rule.name}` | {rule.condition} | **{_plain(rule.title)}** {_plain(rule.why)} |")
        lines.append("")
    return "\n".join(lines)


def _plain(template: str) -> str:
    """A template with its blanks shown as an ellipsis."""
    for name in _blanks(template):
        template = template.replace("{" + name + "}", "…")
    return template.replace("|", "\\|")


def _blanks(template: str) -> Iterator[str]:
    rest = template
    while "{" in rest:
        name, _, rest = rest.partition("{")[2].partition("}")
        yield name


def _thresholds() -> str:
    lines = ["| number | value | why |", "|---|---|---|"]
    for file in (
        *sorted(Path(findings.__file__).parent.glob("*.py")),
        Path(leakage.__file__),
        Path(conditions.__file__),
    ):
        body = ast.parse(file.read_text(encoding="utf-8")).body
        for node, after in pairwise(body):
            match node, after:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)),
                    ast.Expr(value=ast.Constant(value=str(reason))),
                ):
                    lines.append(f"| `{name}` ({_place(file)}) | {value:g} | {reason} |")
    return "\n".join(lines)


def _place(file: Path) -> str:
    return "findings" if file.parent.name == "findings" else file.stem


def _exclusive() -> str:
    lines = ["| rule | and | why not both |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| `{one}` | `{other}` | {why} |" for one, other, why in EXCLUSIVE)])


def main(arguments: list[str]) -> int:
    made, path = page(), ROOT / PAGE
    if "--check" not in arguments:
        path.write_text(made, encoding="utf-8")
        return 0
    if path.is_file() and path.read_text(encoding="utf-8") == made:
        print(f"{PAGE}: up to date, {len(RULES)} rules")
        return 0
    print(f"{PAGE} is not what the rules say; write it again with: python tools/make_advice_page.py")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
