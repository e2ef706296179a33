"""Reproduces the experiments of "Golden Partition Zone" on one GPU, part by part; a stopped part resumes.

    python -m reproductions.golden_partition_zone.run vgg19-curve --data FOLDER --within 900
    python -m reproductions.golden_partition_zone.run vgg19-curve --quick --out FOLDER      # a minute on a CPU, means nothing
    python -m reproductions.golden_partition_zone.run --list

``--data`` is a folder with ``cifar10_test.zip``, ``cifar10_train_a.zip`` and ``cifar10_train_b.zip`` (sheets of 10 × 10 pictures and
``labels.npy``), ``kmnist_test.npz``, ``mnist.npz`` and ``smile_faces64_4000.zip``, or all 60,000 images of CIFAR-10 as one npz (bytes
``x``, labels ``y``). CIFAR-10 is split 40k / 10k / 10k into what the victim trains on, what the adversary owns, and what is attacked.
Every result is one JSON line, written when it is there; lines that are there are not measured again. Several calls may run side by side
with the same results and weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from reproductions.common import runner
from reproductions.common.runner import NoTimeLeft, Part, Rows, run_part
from reproductions.common.scripts import print_parts
from reproductions.golden_partition_zone import decoder_tables, parts, zone_part
from reproductions.golden_partition_zone.study import Files, Study
from reproductions.golden_partition_zone.targets import BATCH, LABELS, Shelf

RESULTS = Path(__file__).parent / "results"

PARTS: dict[str, Callable[[Study], None]] = {
    "vgg19-curve": parts.vgg19_curve,
    "ir152-curve": parts.ir152_curve,
    "vit-curve": parts.vit_curve,
    "predictions": decoder_tables.predictions,
    "enhancements": decoder_tables.enhancements,
    "attention": decoder_tables.attention,
    "zone": zone_part.zone,
    "classes": parts.classes,
    "auxiliary": parts.auxiliary,
    "sample-size": parts.sample_size,
    "faces": parts.faces,
    "vgg19-smoothing": parts.vgg19_smoothing,
    "ir152-smoothing": parts.ir152_smoothing,
    "clusters": parts.clusters,
}


@dataclass(frozen=True, kw_only=True)
class Options(runner.Options):
    parts: tuple[str, ...] = tuple(PARTS)
    seeds: int = 3
    target_epochs: int | None = None
    decoder_epochs: int = 30
    batch: int = BATCH
    plateau: bool = False
    labels: tuple[str, ...] = tuple(LABELS)
    blocks: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Of the results: other epochs and another recipe are other results."""
        epochs = "" if self.decoder_epochs == 30 else f"_{self.decoder_epochs}_epochs"
        return f"run{epochs}{self.recipe}"

    @property
    def recipe(self) -> str:
        """What sets its networks apart, in the names of files."""
        return "_plateau" * self.plateau + f"_{self.target_epochs}_target" * (self.target_epochs is not None)


def options_of(arguments: list[str] | None) -> Options:
    parser = runner.parser(__doc__, out=RESULTS)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all if none is given")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of VGG19 that differ in their seed alone")
    parser.add_argument("--target-epochs", type=int, help="epochs of every target, in place of those of its recipe")
    parser.add_argument("--decoder-epochs", type=int, default=30, help="the paper trains 100")
    parser.add_argument("--batch", type=int, default=BATCH, help="batch of the target's training")
    parser.add_argument(
        "--plateau", action="store_true", help="targets by the paper's recipe: Adam 3e-4, less at a plateau"
    )
    parser.add_argument(
        "--labels", nargs="+", choices=list(LABELS), default=list(LABELS), help="networks with these alone"
    )
    parser.add_argument("--blocks", nargs="+", type=int, default=[], help="decoders at these blocks alone")
    parser.add_argument("--list", action="store_true", help="say what there is to run, in its order")
    given = parser.parse_args(arguments)
    if given.list:
        print_parts({name: part.__doc__ for name, part in PARTS.items()})
        raise SystemExit
    if unknown := [part for part in given.parts if part not in PARTS]:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    return Options.of(
        given,
        parts=tuple(given.parts) or tuple(PARTS),
        seeds=given.seeds,
        target_epochs=given.target_epochs,
        decoder_epochs=given.decoder_epochs,
        batch=given.batch,
        plateau=given.plateau,
        labels=tuple(given.labels),
        blocks=tuple(given.blocks),
    )


def study_of(options: Options, rows: Rows) -> Study:
    torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = True, 4  # trying all took 20 s a decoder
    quick, device = options.quick, options.device
    batch, epochs = (8, 1) if quick else (options.batch, options.target_epochs)
    return Study(
        files=Files() if quick else Files.of(options.data),
        shelf=Shelf(options.out / "weights" / _networks(options), device, batch, epochs, options.plateau),
        rows=rows,
        device=device,
        seeds=1 if quick else options.seeds,
        decoder_epochs=1 if quick else options.decoder_epochs,
        quick=quick,
        labels=options.labels,
        blocks=options.blocks,
        deadline=options.until,
    )


def _networks(options: Options) -> str:
    """Folder of the trained networks, which do not depend on the decoders."""
    return "quick" if options.quick else options.recipe.removeprefix("_") or "run"


def run(options: Options, rows: Rows) -> None:
    """One part after another; the next begins even where one failed or had no time."""
    study = study_of(options, rows)
    for name in options.parts:
        began = time.monotonic()
        try:
            with rows.attempt(name):
                PARTS[name](study)
                print(f"== {name}: complete after {time.monotonic() - began:.0f} s", flush=True)
        except NoTimeLeft:
            rows.wait(name)
    if set(options.parts) != set(PARTS) or set(options.labels) != set(LABELS) or options.blocks:
        rows.wait("the other parts")


if __name__ == "__main__":
    asked = options_of(None)
    run_part(Part(asked.name, run), asked)
