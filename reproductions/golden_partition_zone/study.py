"""What every part of the study needs: data, trained targets, results, time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from leakgauge.attacks.decoder import Decoder, Deconvolution
from leakgauge.errors import Inapplicable
from leakgauge.inversion.progress import watching
from reproductions.common import gates
from reproductions.common.decoders import Residual
from reproductions.common.runner import NoTimeLeft, Row, Rows, digest
from reproductions.golden_partition_zone.leaks import Attempt, Leak, attacked
from reproductions.golden_partition_zone.splits import Part, Splits, apart, embedded, load, split
from reproductions.golden_partition_zone.targets import LABELS, Shelf, Target, Watch

CIFAR_AUXILIARY = 10_000
"""Images of CIFAR-10 that the adversary owns."""
GRACE = 20.0
"""Seconds after the deadline in which a decoder may still end."""
FIRST_EPOCHS = 5
"""Epochs of a decoder after which its end is foreseen."""


@dataclass(frozen=True)
class Files:
    """Where the data lie; what is not given is not run."""

    cifar: Path | None = None
    kmnist: Path | None = None
    mnist: Path | None = None
    faces: Path | None = None

    @classmethod
    def of(cls, data: Path | None) -> Files:
        """The files of a folder by their names; a path to anything else is CIFAR-10 itself."""
        if data is None or not data.is_dir():
            return cls(data)
        named = [data / name for name in ("kmnist_test.npz", "mnist.npz", "smile_faces64_4000.zip")]
        return cls(data, *(file if file.is_file() else None for file in named))


@dataclass
class Study:
    """Data, trained networks, results and settings; other ``labels`` are left out, and other ``blocks`` where any are named."""

    files: Files
    shelf: Shelf
    rows: Rows
    device: torch.device
    seeds: int = 3
    decoder_epochs: int = 30
    quick: bool = False
    labels: tuple[str, ...] = tuple(LABELS)
    blocks: tuple[int, ...] = ()
    deadline: float = float("inf")
    coloured: Splits | None = None

    def go_on(self) -> None:
        if time.time() > self.deadline:
            raise NoTimeLeft("the budget is spent")

    def stop_late(self) -> Callable[[int, int], None]:
        """Asked after every epoch of a decoder, which is given up as soon as it cannot end within the grace: others need the GPU."""
        began = 0.0

        def after(done: int, total: int) -> None:
            nonlocal began
            now = time.time()
            began = began or now  # the first epoch has the start in it
            left = (now - began) / (done - 1) * (total - done) if done > FIRST_EPOCHS else 0.0
            if now + left > self.deadline + GRACE:
                raise NoTimeLeft("the budget is spent")

        return after

    def cifar(self) -> Splits:
        if self.coloured is None and self.quick:
            self.coloured = split("quick", embedded(48, self.device), shares=(0.34, 0.4, 0.26))
        elif self.coloured is None and self.files.cifar is not None:
            self.coloured = split("cifar10", load(self.files.cifar, self.device), shares=(4 / 6, 1 / 6, 1 / 6))
        if self.coloured is None:
            raise SystemExit("this part needs CIFAR-10; give it with --data")
        return self.coloured

    def grey(self, file: Path | None, name: str, shares: tuple[float, float, float]) -> Splits | None:
        if self.quick:
            return split(f"quick-{name}", embedded(80, self.device, grey=True), shares=shares)
        return None if file is None else split(name, load(file, self.device), shares=shares)

    def at(self, block: int) -> bool:
        return not self.blocks or block in self.blocks

    def open_ones(self, work: Iterable[tuple[str, Attempt]]) -> bool:
        """Whether one of these decoders is still to be measured; if none is, nobody needs the network either."""
        return any(f"{key}/{attempt.name}" not in self.rows.done for key, attempt in work)

    def target(self, network: str, splits: Splits, labels: str, seed: int, *, watch: Watch | None = None) -> Target:
        """The trained network; its accuracy is a result of its own."""
        self.go_on()
        target = self.shelf.get(network, splits, labels, seed, watch=watch, go_on=self.go_on)
        key = f"target/{network}/{splits.name}/{labels}/{seed}"
        if key not in self.rows.done:
            about = {"network": network, "data": splits.name, "labels": labels, "seed": seed, "epochs": target.epochs}
            about |= {"accuracy": target.accuracy, "weights_sha256": digest(target.model)}
            truth = splits.test.labels
            largest = float(truth.bincount().max()) / len(truth)
            checks = [
                gates.all_classes(truth, splits.classes),
                gates.accurate(target.accuracy, len(truth), chance=largest),
                apart(splits),
            ]
            about |= {"gates": [check.row() for check in checks]}
            self.rows.add(key, {**about, "seconds": round(target.seconds, 1)})
            print(f"{key}: {target.accuracy:.2%} in {target.seconds:.0f} s", flush=True)
        return target

    def measure(
        self, key: str, about: Row, attempt: Attempt, leak: Leak, splits: Splits, *, owned: Part | None = None
    ) -> None:
        """One decoder at one cut, unless it was measured before; ``owned`` takes the place of the auxiliary part."""
        key = f"{key}/{attempt.name}"
        if key in self.rows.done:
            return
        self.go_on()
        shown = None
        try:
            with watching(self.stop_late()):
                row, shown = attacked(attempt, leak, splits, seed=about["seed"], auxiliary=owned)
        except Inapplicable as refusal:  # a diverging decoder is a result; the others still run
            row = {"decoder": attempt.name, "refused": str(refusal)}
        self.rows.add(key, {**about, **row})
        if shown is not None and about["seed"] == 0:
            self.rows.keep_bytes(key, shown.numpy())
            self.rows.keep_bytes(f"truth/{splits.name}", splits.test.images[: len(shown)].cpu().numpy())
        print(f"{key}: FVU {row.get('fvu', float('nan')):.3f}, {row.get('seconds', 0)} s", flush=True)

    @property
    def short(self) -> int:
        """Epochs of a one-cycle training, which needs few."""
        return min(12, self.decoder_epochs)

    @property
    def strong(self) -> Residual:
        return Residual(width=8 if self.quick else 64)

    @property
    def paper(self) -> Attempt:
        return Attempt("deconvolution, paper", Deconvolution(), self.decoder_epochs)

    def paper_on_few(self, owned: int) -> Attempt:
        """The same for grey images, with about as many steps as on CIFAR-10: with few images an epoch is short, and 30 are too few.

        From torch's start some pixels of a grey image stay white for good, so the last layer starts calm.
        """
        times = 1 if self.quick else max(1, round(CIFAR_AUXILIARY / owned))
        return Attempt("deconvolution, paper", Deconvolution(start="calm"), times * self.decoder_epochs)

    @property
    def stronger(self) -> Attempt:
        return Attempt("residual, one-cycle", self.strong, self.short, paper=False)

    def papers(self, name: str, decoder: Decoder) -> Attempt:
        return Attempt(name, decoder, self.decoder_epochs)
