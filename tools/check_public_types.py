"""Checks that every public name of the package has a type that pyright knows, seen from outside as a user sees it.

A type that pyright infers without doubt, such as that of a layer made in a network's ``__init__``, counts as known.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[1]
INFERRED = "Type is missing type annotation and could be inferred differently"


def main() -> int:
    pyright = Path(sys.executable).with_name("pyright")
    places = (str(ROOT / "src"), sysconfig.get_path("purelib"))
    done = subprocess.run(
        [pyright, "--outputjson", "--verifytypes", "leakgauge", "--ignoreexternal"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)["typeCompleteness"]
    symbols = [symbol for symbol in found["symbols"] if symbol["isExported"]]
    if len(symbols) < 100:
        print(f"public types: pyright saw only {len(symbols)} names; is the package complete?")
        return 1
    every = [(symbol["name"], diagnostic) for symbol in symbols for diagnostic in symbol["diagnostics"]]
    wrong = [(name, d) for name, d in every if d["severity"] == "error" and not d["message"].startswith(INFERRED)]
    for name, d in wrong:
        print(f"{d['file']}:{d['range']['start']['line'] + 1}: {name}: {d['message']}")
    print(f"public types: {len(symbols)} names, {len(wrong)} without a clear type")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
