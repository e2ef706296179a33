"""Run an audit as tasks of a Ray cluster, with the same records as here.

    python examples/ray_run.py [--quick] [--out FOLDER]              needs: pip install 'leakgauge[ray]'

A case is plain data, so the place where it runs is one argument: ``run_all(cases, ..., map=OnRay())``. Without an address a local
cluster is started and stopped again; ``OnRay(address="auto", gpus=1)`` takes your own. Look at the two folders: their
records differ in seconds and memory alone. Full: six cases with 300 steps. Quick: two with 100. About 50 s, quick 12 s, on one core.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from leakgauge.audit import Case, embedded, records, run_all
from leakgauge.audit.records import Record
from leakgauge.errors import MissingExtra
from leakgauge.integrations.ray import OnRay
from leakgauge.report import html

MEASURED = ("seconds", "peak_bytes", "finished")
"""Fields of a record that no two runs have in common."""


def table(found: list[Record]) -> list[dict[str, Any]]:
    return [{name: value for name, value in asdict(record).items() if name not in MEASURED} for record in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two cases with few steps")
    parser.add_argument("--out", type=Path, default=Path("leakgauge-runs/example-ray_run"), help="run folder")
    options = parser.parse_args()
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}  # told to nobody; no warning

    plain = [
        Case(model="cnn", first=image, options={"steps": 100 if options.quick else 300, "tv": 0.01})
        for image in range(1 if options.quick else 3)
    ]
    cases = plain + [replace(case, name="", defenses=("gaussian_noise:relative=10",)) for case in plain]
    found: dict[str, list[Record]] = {}
    for place, elsewhere in (("here", {}), ("ray", {"map": OnRay()})):
        folder = options.out.resolve() / place  # all nodes must see the folder, for workers write the pictures
        folder.mkdir(parents=True, exist_ok=True)
        (folder / records.FILE).unlink(missing_ok=True)  # of an earlier try
        began = time.perf_counter()
        try:
            found[place] = run_all(cases, load=embedded, folder=folder, **elsewhere)
        except MissingExtra as missing:
            parser.exit(2, f"{missing}\n")
        print(f"{place}: {len(cases)} cases in {time.perf_counter() - began:.1f} s; report: {html.write(folder)}")
    for record in found["ray"]:
        print(f"image {record.case['first']}, {record.case['name']}: {record.metrics['psnr']['mean']:.1f} dB; {record.verdict}")

    same = table(found["here"]) == table(found["ray"])
    outcome = "the same records as here, to the last digit" if same else "OTHER records than here"
    print(f"Finding: {len(cases)} cases run as Ray tasks gave {outcome}.")


if __name__ == "__main__":
    main()
