"""The zone of VGG19 by three ways in one run: a decoder of the paper's 100 epochs at every cut, ``find_zone``, and bisection by depth.

Cuts are all 21 activations and pools. Every decoder is a line of the results, with the FVU on images of the adversary and the
seconds after each of its epochs. A decoder of the search that never stops early is the very training that was done for the exhaustive
way and counts with its seconds; one that stops is really trained again until it stops.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from leakgauge.attacks import fit_on
from leakgauge.attacks.decoder import Deconvolution
from leakgauge.inversion.progress import watching
from leakgauge.split import RidgeInverter
from leakgauge.split.attacker import MARGIN
from leakgauge.split.zone import Attempt, Zone, bisect, exhaustive, find_zone
from reproductions.common.networks import VGG19
from reproductions.common.runner import Row
from reproductions.golden_partition_zone.leaks import Leak, features_at, mean_image_error, measured
from reproductions.golden_partition_zone.splits import Splits
from reproductions.golden_partition_zone.study import Study

THRESHOLDS = (0.11, 0.25, 0.5)
"""0.11 is the paper's "MSE above 0.02"."""
EPOCHS, SCOUT = 100, 10


@dataclass
class Attacks:
    """Decoders at the cuts of one network, each trained once and kept as a line of the results."""

    study: Study
    model: nn.Module
    splits: Splits
    epochs: int

    def __post_init__(self) -> None:
        self.baseline = mean_image_error(self.splits.auxiliary.images, self.splits.test.images)
        self.features: tuple[str, Leak] | None = None

    def leak(self, cut: str) -> Leak:
        """Features of the cut that was asked for last; all cuts together would fill the memory."""
        if self.features is None or self.features[0] != cut:
            self.features = None
            known, sent = (
                features_at(self.model, [cut], part.images)[cut] for part in (self.splits.auxiliary, self.splits.test)
            )
            self.features = cut, Leak(known, sent)
        return self.features[1]

    def ridge(self, cut: str) -> Row:
        def fit() -> Row:
            leak = self.leak(cut)
            synchronize(self.study.device)
            began = time.perf_counter()
            decode = RidgeInverter()(leak.known, self.splits.auxiliary.images.float() / 255)
            pieces = zip(leak.sent.split(2048), self.splits.test.images.split(2048), strict=True)
            errors = [(decode(z) - x.float() / 255).square().flatten(1).mean(1) for z, x in pieces]
            mse = float(torch.cat(errors).mean())
            return {"fvu": mse / self.baseline, "seconds": time.perf_counter() - began}

        return self._line(f"zone/ridge/{cut}", {"cut": cut, "attack": "ridge"}, fit)

    def decoder(self, cut: str, epochs: int, enough: float | None = None) -> Row:
        """FVU and seconds of the paper's decoder; with ``enough`` it stops once it is below, ``MARGIN`` included."""
        below = None if enough is None else (1 - MARGIN) * enough
        whole = self.study.rows.done.get(f"zone/decoder/{cut}/{epochs}/None")
        if whole is not None and below is not None and min(whole["held_out_fvu"]) >= below:
            return whole

        def fit() -> Row:
            row = self._fitted(cut, epochs, below)
            if enough is not None and row["trained_epochs"] < epochs and row["fvu"] >= enough:
                again = self._fitted(cut, epochs, None)
                row = {**again, "seconds": row["seconds"] + again["seconds"]}
            return row

        about = {"cut": cut, "attack": "decoder", "epochs": epochs, "enough": enough}
        return self._line(f"zone/decoder/{cut}/{epochs}/{enough}", about, fit)

    def _fitted(self, cut: str, epochs: int, enough: float | None) -> Row:
        leak, passed, stop = self.leak(cut), list[float](), self.study.stop_late()
        synchronize(self.study.device)
        began = time.perf_counter()

        def epoch_done(done: int, total: int) -> None:
            passed.append(round(time.perf_counter() - began, 3))
            stop(done, total)

        with watching(epoch_done):
            fitted = fit_on(
                leak.known,
                self.splits.auxiliary.images,
                decoder=Deconvolution(),
                epochs=epochs,
                paper=True,
                enough=enough,
            )
        seconds = time.perf_counter() - began
        mse = measured(fitted, leak.sent, self.splits.test.images)["mse"]
        return {
            "fvu": mse / self.baseline, "test_mse_paper": 3 * mse, "seconds": seconds, "trained_epochs": len(passed),
            "held_out_fvu": [round(v / fitted.history.mean_image, 5) for v in fitted.history.held_out],
            "seconds_after_epochs": passed,
        }  # fmt: skip

    def _line(self, key: str, about: Row, fit: Any) -> Row:
        if key not in self.study.rows.done:
            self.study.go_on()
            row = fit()
            self.study.rows.add(key, {"part": "zone", **about, **row})
            print(f"{key}: FVU {row['fvu']:.3f}, {row['seconds']:.1f} s", flush=True)
        return self.study.rows.done[key]


def synchronize(device: torch.device) -> None:
    """Before a clock is read: what was launched earlier is not part of what is timed."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def zone(study: Study) -> None:
    """Point by point: ridge at all cuts, the search and bisection at every threshold, then every cut, then the comparison."""
    if all(f"zone/compared/{threshold}" in study.rows.done for threshold in THRESHOLDS):
        return
    splits = study.cifar()
    target = study.target("vgg19", splits, "one-hot", 0)
    assert isinstance(target.model, VGG19)
    names = [
        f"features.{i}" for i, layer in enumerate(target.model.features) if isinstance(layer, nn.ReLU | nn.MaxPool2d)
    ]
    epochs, scout = (3, 1) if study.quick else (EPOCHS, SCOUT)
    names = names[::7] if study.quick else names
    attacks = Attacks(study, target.model, splits, epochs)
    curve = [attacks.ridge(name)["fvu"] for name in names]
    for name in names:
        attacks.decoder(name, epochs)
    for threshold in THRESHOLDS:
        study.go_on()
        row = compared(names, curve, attacks, threshold, epochs, scout)
        study.rows.add(f"zone/compared/{threshold}", {"part": "zone", "threshold": threshold, **row})


@dataclass
class Counted:
    """Decoders as a search asks for them, with the seconds of each; a cut's FVU is the better of ridge and decoder."""

    attacks: Attacks
    ridge: dict[str, float]
    enough: float | None = None
    seconds: float = 0.0

    def __call__(self, cut: str, epochs: int) -> Attempt:
        row = self.attacks.decoder(cut, epochs, self.enough)
        self.seconds += row["seconds"]
        return Attempt(cut, row["trained_epochs"], min(row["fvu"], self.ridge[cut]), stops=True)

    def told(self, found: Zone, ridge_seconds: float) -> dict[str, Any]:
        spent = {"epochs": found.spent, "seconds": ridge_seconds + self.seconds}
        return {"cut": found.recommended, "decoders": len(found.attempts), **spent}


def compared(
    names: list[str], curve: list[float], attacks: Attacks, threshold: float, epochs: int, scout: int
) -> dict[str, Any]:
    """Cut, epochs and seconds of every way, ridge included."""
    ridge, took = dict(zip(names, curve, strict=True)), sum(attacks.ridge(name)["seconds"] for name in names)
    every, search, halving = (Counted(attacks, ridge, enough) for enough in (None, threshold, None))
    ways = {
        "exhaustive": every.told(exhaustive(names, every, threshold=threshold, epochs=epochs), took),
        "find_zone": search.told(
            find_zone(names, curve, search, threshold=threshold, epochs=epochs, scout=scout), took
        ),
        "bisection": halving.told(bisect(names, halving, threshold=threshold, epochs=epochs), took),
    }
    for name in ("find_zone", "bisection"):
        ways[name]["ratio"] = ways["exhaustive"]["seconds"] / ways[name]["seconds"]
        ways[name]["same_cut"] = ways[name]["cut"] == ways["exhaustive"]["cut"]
    said = "; ".join(f"{name} {way['cut']} {way['seconds']:.0f} s" for name, way in ways.items())
    print(f"threshold {threshold:g}: {said}", flush=True)
    epochs_at_best, seconds = least(names, ridge, attacks, threshold, epochs, ways["exhaustive"]["cut"])
    ways["at_best"] = {"epochs": epochs_at_best, "seconds": took + seconds}
    ways["at_best"]["ratio"] = ways["exhaustive"]["seconds"] / ways["at_best"]["seconds"]
    return ways


def least(
    names: list[str], ridge: dict[str, float], attacks: Attacks, threshold: float, epochs: int, answer: str | None
) -> tuple[int, float]:
    """Epochs and seconds of who knows the answer and must show it: the cut that holds, and what breaks the cut before it."""
    at = len(names) if answer is None else names.index(answer)
    rows = [] if answer is None else [attacks.decoder(answer, epochs)]
    if at and ridge[names[at - 1]] >= threshold:
        rows.append(attacks.decoder(names[at - 1], epochs, threshold))
    return sum(row["trained_epochs"] for row in rows), sum(row["seconds"] for row in rows)
