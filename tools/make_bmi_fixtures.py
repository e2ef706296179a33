"""Makes the committed samples of the bmi benchmark, on which the estimators of mutual information are tested.

The benchmark runs on JAX, which stays out of this project's environment. Make one beside it, with Python 3.11 or 3.12:

    python -m venv bmi-env
    bmi-env/bin/pip install benchmark-mi==0.1.3 "jax<0.4.24" "jaxlib<0.4.24" "scipy<1.13" "jaxtyping<0.2.29" "numpy<2"
    bmi-env/bin/python tools/make_bmi_fixtures.py

Samples are stored in half precision: its ten bits are finer than anything an estimator sees at this number of samples.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

TARGET = Path(__file__).parents[1] / "tests" / "measures" / "mutual_information" / "fixtures" / "bmi.npz"
SEED = 20
LARGEST = 200_000

TASKS: dict[str, int] = {
    "1v1-normal-0.75": 1500,
    "1v1-additive-0.1": 1500,
    "swissroll_x-normal_cdf-1v1-normal-0.75": 1500,
    "multinormal-sparse-5-5-2-2.0": 1000,
    "multinormal-dense-25-25-0.5": 800,
    "spiral-multinormal-sparse-3-3-2-2.0": 1000,
    "student-identity-5-5-2": 1000,
    "asinh-student-identity-5-5-2": 1000,
}
"""Names in the benchmark, with the number of samples that are kept."""


def main() -> int:
    import bmi  # pyright: ignore[reportMissingImports]

    stored: dict[str, np.ndarray] = {}
    for name, count in TASKS.items():
        task = bmi.benchmark.BENCHMARK_TASKS[name]
        x, y = task.sample(count, SEED)
        stored[f"{name}.x"], stored[f"{name}.y"] = (np.asarray(values, dtype=np.float16) for values in (x, y))
        stored[f"{name}.nats"] = np.array(float(task.mutual_information))
        if not all(np.isfinite(stored[f"{name}.{side}"]).all() for side in "xy"):
            print(f"{name} does not fit into half precision")
            return 1
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(TARGET, **stored)  # pyright: ignore[reportArgumentType]
    size = TARGET.stat().st_size
    print(f"{TARGET.name}: {len(TASKS)} tasks, {size} bytes")
    return 0 if size <= LARGEST else 1


if __name__ == "__main__":
    sys.exit(main())
