"""How much training does ``find_zone`` save, against decoders at every cut and against bisection by depth?

    python -m benchmarks.zone [--quick] [--table TABLE.jsonl] [--out benchmarks/results/zone_cpu.jsonl]

All use the same decoders on the same features (embedded VGG, all 23 cuts, or ``--model``; 800 auxiliary and 200 attacked images) and 100
epochs, as the split-inference paper trains. Decoders of every cut are really trained, which takes a quarter of an hour of one core; with
``--table`` each is kept as it ends, and a second call goes on from there. A decoder of the search stops once it has shown that its
cut leaks; one that never does is the very training that was done for the table, and counts with its seconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.json_lines import append_lines, kept_lines, write_lines
from leakgauge.attacks.decoder import DecoderInverter, fit_on
from leakgauge.audit.case import Case
from leakgauge.audit.questions.split import parted
from leakgauge.integrations.setups import Setup, find
from leakgauge.split import Attacker, cuts, scan
from leakgauge.split.attacker import MARGIN
from leakgauge.split.cache import cache_features
from leakgauge.split.zone import SCOUT, Attempt, Zone, bisect, exhaustive, find_zone


@dataclass(frozen=True)
class Trained:
    """One decoder, its CPU seconds, and its FVU on images of the adversary after every epoch."""

    cut: str
    epochs: int
    fvu: float
    cpu_seconds: float
    held: list[float]


@dataclass
class Decoders:
    """Decoders with their CPU seconds; each is trained once and remembered with what it took."""

    setup: Setup
    seed: int
    folder: Path
    table: Path | None = None
    whole: dict[tuple[str, int], Trained] = field(default_factory=dict)
    stopped: dict[tuple[str, int, float], tuple[float, float, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.auxiliary, self.test = parted(self.setup)
        for row in kept_lines(self.table):
            if "enough" in row:
                key = row["cut"], row["epochs"], row["enough"]
                self.stopped[key] = row["fvu"], row["cpu_seconds"], row["trained"]
            else:
                kept = Trained(*(row[name] for name in Trained.__dataclass_fields__))
                self.whole[kept.cut, kept.epochs] = kept

    def full(self, cut: str, epochs: int) -> Trained:
        if (cut, epochs) not in self.whole:
            known, sent = (
                cache_features(self.setup.victim, part.images, [cut], seed=seed)[cut]
                for part, seed in ((self.auxiliary, self.seed), (self.test, self.seed + 1))
            )
            began = time.process_time()
            fitted = fit_on(known, self.auxiliary.images, epochs=epochs, seed=self.seed)
            seconds = time.process_time() - began
            truth = self.test.images
            error = (fitted.decode(sent).clamp(0, 1) - truth).square().mean()
            fvu = float(error / (truth - self.auxiliary.images.mean(0)).square().mean())
            held = [value / fitted.history.mean_image for value in fitted.history.held_out]
            self.whole[cut, epochs] = made = Trained(cut, epochs, fvu, seconds, held)
            append_lines(self.table, asdict(made))
        return self.whole[cut, epochs]

    def stopping(self, cut: str, epochs: int, threshold: float) -> tuple[float, float, int]:
        """FVU, CPU seconds and epochs of a decoder that stops once it has shown that the cut leaks."""
        whole = self.whole.get((cut, epochs))
        if whole is not None and min(whole.held) >= (1 - MARGIN) * threshold:
            return whole.fvu, whole.cpu_seconds, epochs
        if (cut, epochs, threshold) not in self.stopped:
            attacker = Attacker(
                self.setup.victim, self.auxiliary, self.test, DecoderInverter(), folder=self.folder, seed=self.seed,
                enough=threshold,
            )  # fmt: skip
            began = time.process_time()
            found = attacker(cut, epochs)
            taken = found.fvu, time.process_time() - began, found.epochs
            self.stopped[cut, epochs, threshold] = taken
            row = {"cut": cut, "epochs": epochs, "enough": threshold}
            append_lines(self.table, {**row, **dict(zip(("fvu", "cpu_seconds", "trained"), taken, strict=True))})
        return self.stopped[cut, epochs, threshold]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="four cuts and 3 epochs, a check that it runs")
    parser.add_argument("--model", default="vgg", help="an embedded model; the search was tuned on vgg alone")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--threshold", type=float, nargs="+", default=[0.1, 0.15, 0.18, 0.2, 0.25, 0.4])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", type=Path, help="decoders of every cut, kept from call to call")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    epochs = 3 if options.quick else options.epochs
    setup = find(Case(model=options.model, seed=options.seed))
    with TemporaryDirectory() as folder:
        decoders = Decoders(setup, options.seed, Path(folder), options.table)
        names = [cut.name for cut in cuts(setup.victim)][:: 7 if options.quick else 1]
        began = time.process_time()
        curve = [
            row.fvu for row in scan(setup.victim, decoders.auxiliary, decoders.test, names, seed=options.seed).rows
        ]
        ridge = time.process_time() - began
        print(f"ridge at {len(names)} cuts: {ridge:.1f} CPU seconds")
        lines = [compared(names, curve, decoders, threshold, epochs, ridge) for threshold in options.threshold]
    rows = [
        {"cut": name, "ridge": cheap, "decoder": decoders.full(name, epochs).fvu,
         "cpu_seconds": decoders.full(name, epochs).cpu_seconds}
        for name, cheap in zip(names, curve, strict=True)
    ]  # fmt: skip
    about = {
        "model": options.model,
        "cuts": len(names), "epochs": epochs, "scout": max(1, round(SCOUT * epochs)), "ridge_cpu_seconds": ridge, "seed": options.seed,
        "auxiliary": len(decoders.auxiliary.images), "tested": len(decoders.test.images), "torch": torch.__version__,
        "threads": 1,
    }  # fmt: skip
    write_lines(options.out, [about, *rows, *lines])


@dataclass
class Counted:
    """Decoders as a search asks for them, with what each took; a cut's FVU is the better of ``floor`` (ridge) and decoder."""

    train: Callable[[str, int], tuple[float, float, int]]
    floor: dict[str, float] = field(default_factory=dict)
    rows: list[tuple[str, int, int, float, float]] = field(default_factory=list)

    def __call__(self, cut: str, epochs: int) -> Attempt:
        fvu, seconds, trained = self.train(cut, epochs)
        self.rows.append((cut, epochs, trained, round(fvu, 4), round(seconds, 2)))
        return Attempt(cut, trained, min(fvu, self.floor.get(cut, fvu)), stops=True)

    def told(self, zone: Zone, ridge: float) -> dict[str, Any]:
        seconds = ridge + sum(row[-1] for row in self.rows)
        return {"cut": zone.recommended, "epochs": zone.spent, "cpu_seconds": seconds, "decoders": self.rows}


def compared(
    names: list[str], curve: list[float], decoders: Decoders, threshold: float, epochs: int, ridge: float
) -> dict[str, Any]:
    """Every way at one threshold. The references know of ridge, as the search does; one of them does not."""
    floor = dict(zip(names, curve, strict=True))

    def full(cut: str, effort: int) -> tuple[float, float, int]:
        found = decoders.full(cut, effort)
        return found.fvu, found.cpu_seconds, effort

    def stopping(cut: str, effort: int) -> tuple[float, float, int]:
        return decoders.stopping(cut, effort, threshold)

    every, search, halving, alone = Counted(full, floor), Counted(stopping, floor), Counted(full, floor), Counted(full)
    ways = {
        "exhaustive": every.told(exhaustive(names, every, threshold=threshold, epochs=epochs), ridge),
        "find_zone": search.told(find_zone(names, curve, search, threshold=threshold, epochs=epochs), ridge),
        "bisection": halving.told(bisect(names, halving, threshold=threshold, epochs=epochs), ridge),
        "bisection, decoders alone": alone.told(bisect(names, alone, threshold=threshold, epochs=epochs), 0.0),
    }
    for name in ("exhaustive", "bisection", "bisection, decoders alone"):
        del ways[name]["decoders"]  # they are in the table of cuts
    line: dict[str, Any] = {"threshold": threshold, **ways}
    reference = line["exhaustive"]["cpu_seconds"]
    line["at_best"] = reference / least(names, floor, decoders, threshold, epochs, ridge, line["exhaustive"]["cut"])
    for name in list(ways)[1:]:
        line[name] |= {
            "ratio": reference / line[name]["cpu_seconds"],
            "same_cut": line[name]["cut"] == line["exhaustive"]["cut"],
        }
    print(
        f"threshold {threshold:g}: exhaustive {line['exhaustive']['cut']} {reference:.0f} s; "
        + "; ".join(
            f"{n} {line[n]['cut']} {line[n]['cpu_seconds']:.0f} s, {line[n]['ratio']:.1f}x" for n in list(ways)[1:]
        )
        + f"; at best {line['at_best']:.1f}x",
        flush=True,
    )
    return line


def least(
    names: list[str], floor: dict[str, float], decoders: Decoders, threshold: float, epochs: int, ridge: float,
    answer: str | None,
) -> float:  # fmt: skip
    """CPU seconds of who knows the answer and must show it: ridge, the cut that holds, and what breaks the cut before it."""
    at = len(names) if answer is None else names.index(answer)
    seconds = ridge + (0.0 if answer is None else decoders.full(answer, epochs).cpu_seconds)
    if at and floor[names[at - 1]] >= threshold:
        seconds += decoders.stopping(names[at - 1], epochs, threshold)[1]
    return seconds


if __name__ == "__main__":
    main()
