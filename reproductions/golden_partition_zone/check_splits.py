"""Gates on the data: every part of every split has all classes, in an order that says nothing about them.

python -m reproductions.golden_partition_zone.check_splits --data FOLDER      (seconds on a CPU)
"""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.data import fashion, read
from reproductions.common import gates, runner
from reproductions.common.runner import Options, Part, Rows, run_part
from reproductions.common.sheets import sheets
from reproductions.golden_partition_zone import splits
from reproductions.golden_partition_zone.results_rows import RESULTS

SETS = {
    "cifar10": (splits.CIFAR, (4 / 6, 1 / 6, 1 / 6)),
    "kmnist": (("kmnist_test.npz",), (0.6, 0.2, 0.2)),
    "mnist": (("mnist.npz",), (0.1, 0.8, 0.1)),
    "faces": (("smile_faces64_4000.zip",), (0.6, 0.2, 0.2)),
}
"""Files in the order in which ``splits.load`` takes them, and the shares of the three parts."""


def labels_of(names: tuple[str, ...], options: Options) -> Tensor:
    if options.data is None:
        return fashion("train")[1]
    paths = [options.data / name for name in names]
    return torch.cat([(sheets(path) if path.suffix == ".zip" else read(path))[1] for path in paths])


def run(options: Options, results: Rows) -> None:
    for name, (files, shares) in SETS.items():
        if results.has(f"splits/{name}"):
            continue
        labels = labels_of(files, options)
        made = splits.split(name, splits.Part(labels, labels), shares=shares)  # images do not matter for the order
        parts = {"train": made.train, "auxiliary": made.auxiliary, "test": made.test}
        checks = [gates.shuffled(part.labels) for part in parts.values()]
        checks += [gates.all_classes(part.labels, made.classes, of=of) for of, part in parts.items()]
        largest = float(made.test.labels.bincount().max()) / len(made.test.labels)
        sizes = {of: len(part.labels) for of, part in parts.items()}
        results.add(
            f"splits/{name}", data=name, sizes=sizes, largest_class=largest, gates=[check.row() for check in checks]
        )


if __name__ == "__main__":
    given = runner.parser(__doc__, out=RESULTS.parent).parse_args()
    run_part(Part("splits", run), Options.of(given))
