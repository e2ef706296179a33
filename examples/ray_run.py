"""Run an audit as tasks of a Ray cluster, with the same records as here.

    python examples/ray_run.py [--quick] [--out FOLDER]              needs: pip install 'leakgauge[ray]'

A case is plain data, so the place where it runs is one argument: ``run_all(cases, ..., map=OnRay())``. Without an address a local
cluster is started and stopped again; ``OnRay(address="auto", gpus=1)`` takes your own. Look at the two folders: their
records differ in seconds and memory alone. Full: four cases with 300 steps. Quick: two with 100. About 38 s, quick 10 to 23 s, on one core.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from leakgauge.audit import Case, embedded, records, run_all
from leakgauge.audit.records import Record
from leakgauge.audit.wording import result
from leakgauge.errors import MissingExtra
from leakgauge.integrations.ray import OnRay
from leakgauge.report import page

MEASURED = ("seconds", "peak_bytes", "finished")
"""Fields of a record that no two runs have in common."""


def table(found: list[Record]) -> list[dict[str, Any]]:
    return [{name: value for name, value in asdict(record).items() if name not in MEASURED} for record in found]


def fresh(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / records.FILE).unlink(missing_ok=True)  # of an earlier try
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two cases with few steps")
    parser.add_argument("--out", type=Path, default=Path("leakgauge-runs/example-ray_run"), help="run folder")
    options = parser.parse_args()
    if find_spec("ray") is None:
        parser.exit(2, f"{MissingExtra('ray', 'ray')}\n")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is told to anybody
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # keeps a warning of Ray's away

    plain = [
        Case(model="cnn", first=image, options={"steps": 100 if options.quick else 300})
        for image in range(1 if options.quick else 2)
    ]
    cases = plain + [replace(case, name="", defenses=("gaussian_noise:relative=10",)) for case in plain]
    began = time.perf_counter()
    here = run_all(cases, load=embedded, folder=fresh(options.out / "here"))
    between = time.perf_counter()
    shared = fresh(options.out.resolve() / "ray")  # all nodes must see it, for workers write the pictures
    there = run_all(cases, load=embedded, folder=shared, map=OnRay())
    print(
        f"{len(cases)} cases: {between - began:.1f} s here, {time.perf_counter() - between:.1f} s with Ray's start and end"
    )
    for record in there:
        psnr = record.scores.mean("psnr") if record.scores else float("nan")
        print(f"image {record.case.first}, {record.case.name}: {psnr:.1f} dB; {result(record)}")
    print(f"reports: {page.write(options.out / 'here')} and {page.write(options.out / 'ray')}")

    same = table(here) == table(there)
    outcome = "the same records as here, to the last digit" if same else "OTHER records than here"
    print(f"Finding: {len(cases)} cases run as Ray tasks gave {outcome}.")


if __name__ == "__main__":
    main()
