"""How much of an image must be given before the gradient finds the rest, for two embedded models.

python examples/controlled_start.py [--quick]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from leakgauge.audit import Case, embedded, run_all
from leakgauge.audit.controlled import as_markdown, controlled_cases, controlled_table


def main() -> None:
    """Prints the SSIM of start, null run (smoothing alone) and attack over the share of noise in the start."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps, to see that it runs")
    steps = 5 if parser.parse_args().quick else 200
    base = Case(attack="feasibility", options={"steps": steps, "statistics": 0.0})
    cases = controlled_cases(["cnn", "vit"], probabilities=(0.0, 0.5, 1.0), base=base)
    with tempfile.TemporaryDirectory() as folder:
        found = run_all(cases, load=embedded, folder=Path(folder))
    print(as_markdown(controlled_table(found)))


if __name__ == "__main__":
    main()
