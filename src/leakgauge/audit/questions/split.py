"""Where the network may be cut: regression at every cut, least squares and decoders around the crossing; resumable."""

from __future__ import annotations

import math
import shutil
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from leakgauge.attacks.decoder import FEW, ByShape, DecoderInverter, Narrowed, Vector
from leakgauge.audit.case import Case
from leakgauge.audit.files import finite, save_strip
from leakgauge.audit.phrasing import few, plural
from leakgauge.audit.questions.split_records import (
    DECODER,
    RIDGE,
    Conclusion,
    CutRecord,
    PlannedCut,
    ScanPlan,
    append,
    conclude,
    read,
    risk_of,
    save_conclusion,
    save_plan,
)
from leakgauge.audit.run import versions
from leakgauge.audit.session import Setup, check_fits
from leakgauge.core import Pixels
from leakgauge.errors import BadInput
from leakgauge.graphs import trace_of
from leakgauge.measures.tsne import tsne
from leakgauge.split.attacker import Attacker
from leakgauge.split.cache import cache_features
from leakgauge.split.cuts import Cut, cuts, find_cut, worthwhile
from leakgauge.split.inverters import Inverter, LinearInverter
from leakgauge.split.query import parse_constraints
from leakgauge.split.remedies import Remedy, find_remedy
from leakgauge.split.scan import FEWEST_AUXILIARY, CutRisk, Images, distinct_cuts, scan
from leakgauge.split.whitebox import LEAST_SQUARES, WORK, WhiteBox
from leakgauge.split.zone import RECOGNISED, Zone, advance, crossing, expected_crossing, find_zone, kept

THRESHOLD = 0.25
"""FVU that a cut must keep unless another is asked for: at most three quarters of the pictures' variance recovered."""
EPOCHS = 24
"""Full effort of a decoder at the embedded model."""
MOST_EPOCHS = 200
SHARE = 0.5
"""Time of the first pass, as a part of the time that is given to the decoders after it."""
HELD_OUT, MOST_TESTED = 5, 500
"""Every fifth image of a class is attacked and the others are the adversary's; at most so many are attacked."""
SHOWN, MAPPED = 8, 200
"""Images in the pictures, and features in a map."""
FEWEST_TO_HALVE = 4
"""Epochs of a decoder below which half of them say nothing."""
HALVES = 1.25
"""Decoders at the two cuts that decide, and a half at the one that holds, as a multiple of the two."""
FLOPS_A_SECOND, WHITEBOX_SHARE = 1e10, 0.1
"""What a core does, and the share of a time budget that least squares may take at one cut."""
SLIM = Vector(width=16, activation="prelu")
DECODERS = ByShape(vector=SLIM, long=Narrowed(SLIM))
"""What is trained at a cut. From a vector a slim decoder reaches in twice the epochs what the wide one does, in a third of the time."""
FEATURES = "features"
"""Folder of cached features; it is removed when the scan is done."""


@dataclass(frozen=True)
class Asked:
    """What a user asks a scan for. ``names`` are cuts; without them all that are worth it, or ``every`` one."""

    threshold: float | None = None
    epochs: int | None = None
    budget: float | None = None
    require: str = ""
    numbers: str = "fp32"
    names: tuple[str, ...] = ()
    every: bool = False

    def __post_init__(self) -> None:
        if self.epochs is not None and self.epochs < 0:
            raise BadInput(f"the number of epochs must be at least 0, got {self.epochs}")
        if self.epochs is not None and self.budget is not None:
            raise BadInput("give either --epochs or --attack-budget, which decides the number of epochs")
        _threshold(self)


def parted(setup: Setup) -> tuple[Images, Images]:
    """The adversary's images and those that are attacked: every fifth of each class, whatever the order of the data.

    Of more than enough to attack, all classes give the same share. Images without classes, or with one class, get no labels here: what
    the model says of them cannot be right or wrong.
    """
    known = setup.facts.labelled and setup.classes
    images, labels = setup.images, setup.labels if known else torch.zeros(len(setup.images), dtype=torch.long)
    turn = torch.zeros_like(labels)
    for label in labels.unique():
        mine = labels == label
        turn[mine] = torch.arange(int(mine.sum()))
    held = turn % HELD_OUT == HELD_OUT - 1
    by_turn = torch.where(held, turn, len(labels)).argsort(stable=True)[: int(held.sum())]
    tested = by_turn[:MOST_TESTED]  # class after class in turn, so a picture of the first few shows all of them
    if int((~held).sum()) < FEWEST_AUXILIARY or len(tested) < 2:
        raise BadInput(
            f"a scan needs at least {FEWEST_AUXILIARY} images for the adversary to learn from, and every fifth of a class is kept "
            f"to be attacked; the data holds {plural(len(labels), 'image')} in {plural(len(labels.unique()), 'class', 'classes')}; give "
            "more with --data"
        )
    if len(labels.unique()) == 1:
        return Images(images[~held]), Images(images[tested])
    return Images(images[~held], labels[~held]), Images(images[tested], labels[tested])


def plan_scan(setup: Setup, case: Case, asked: Asked, folder: Path, *, command: str, audited: bool = False) -> ScanPlan:
    """Checks everything that can be wrong, decides what the scan will do, and writes that into ``folder``."""
    if not isinstance(setup.victim.space, Pixels):
        raise BadInput(
            f"a scan turns features back into images, but the model takes a {type(setup.victim.space).__name__}"
        )
    classes = check_fits(setup)
    auxiliary, test = parted(setup)
    threshold = _threshold(asked)
    grey_or_colour = test.images.shape[1] in (1, 3)
    every = cuts(setup.victim, images=test.images if grey_or_colour else None, multi_tensor=True)
    listed = tuple(cut for cut in every if cut.single)
    chosen = _chosen(setup, listed, every, asked)
    missing = sorted(set(range(classes)) - set(auxiliary.labels.tolist())) if auxiliary.labels is not None else []
    notes = [f"{len(missing)} of the model's {classes} classes have no image in the data."] if missing else []
    if len(auxiliary.images) < FEW:
        notes.append(f"Only {len(auxiliary.images)} images to learn from: an adversary with more would do better.")
    left_out = len(listed) - len(chosen)
    if left_out and asked.every:
        notes.append(f"{left_out} of {len(listed)} cuts were left out: they send the same numbers as the cut before.")
    elif left_out and not asked.names:
        notes.append(
            f"{left_out} of {len(listed)} cuts were left out: a neighbour with the same edge work "
            "sends no more and leaks no more (--every-cut scans them too)."
        )
    first = chosen[0].name  # a defense that does not work at a cut is refused before anything is written
    cache_features(setup.victim, test.images[:1], [first], defenses=case.build_defenses(), seed=case.seed)
    plan = ScanPlan(
        case=case,
        cuts=tuple(_cost(cut, asked.numbers, place) for place, cut in enumerate(chosen)),
        threshold=threshold,
        epochs=asked.epochs,
        budget=asked.budget,
        require=asked.require,
        numbers=asked.numbers,
        raw_bytes=chosen[0].image.raw_image,
        jpeg_bytes=chosen[0].image.jpeg,
        auxiliary=len(auxiliary.images),
        tested=len(test.images),
        traced=trace_of(setup.victim).how,
        labels=tuple(int(label) for label in (test.labels if test.labels is not None else ())[:MAPPED]),
        truth=save_strip(folder, "scan-truth", test.images[:SHOWN]),
        shown=min(SHOWN, len(test.images)),
        versions=versions(),
        command=command,
        notes=tuple(notes),
        named=bool(asked.names),
        audited=audited,
        recognised=min(1.0, RECOGNISED + _named_by_class(test)),
        data=replace(setup.facts, labelled=auxiliary.labels is not None),
    )
    save_plan(folder, plan)
    return plan


def _named_by_class(test: Images) -> float:
    """The share of images that an attacker names right if it knows the class alone and guesses among the images of that class."""
    return (1 if test.labels is None else len(test.labels.unique())) / len(test.images)


def _threshold(asked: Asked) -> float:
    required = parse_constraints(asked.require).fvu if asked.require else None
    if None not in (asked.threshold, required) and asked.threshold != required:
        raise BadInput(f"--threshold {asked.threshold:g} and the required FVU of {required:g} differ; give one of them")
    found = asked.threshold if asked.threshold is not None else required
    found = THRESHOLD if found is None else found
    if not 0 < found <= 1:
        raise BadInput(f"the threshold is an FVU between 0 (a copy) and 1 (nothing learned), got {found:g}")
    return found


def _chosen(setup: Setup, listed: tuple[Cut, ...], every: tuple[Cut, ...], asked: Asked) -> tuple[Cut, ...]:
    """Of the ``listed`` cuts of one tensor; one of several, which are among ``every``, is scanned if it is named."""
    chosen = listed if asked.every else worthwhile(listed)
    if asked.names:
        names = {find_cut(every, name, setup.victim).name for name in asked.names}
        chosen = tuple(cut for cut in every if cut.name in names)
    attacked = distinct_cuts(setup.victim, chosen)
    return tuple(cut for cut in chosen if cut.name in attacked)


def _cost(cut: Cut, numbers: str, place: int) -> PlannedCut:
    return {
        "name": cut.name,
        "shape": list(cut.tensors[0].shape) if cut.single else [cut.elements],
        "bytes": cut.bytes(numbers),
        "edge_flops": cut.edge_flops,
        "edge_share": cut.edge_share,
        "place": place,
    }


@dataclass(eq=False)
class ScanRun:
    """A scan under way. ``on_record`` gets each record, ``inverter`` is what is trained around the crossing, ``whitebox`` what is
    computed before that.
    """

    setup: Setup
    plan: ScanPlan
    folder: Path
    on_record: Callable[[CutRecord], None] = lambda record: None
    inverter: Inverter = field(default_factory=lambda: DecoderInverter(decoder=DECODERS))
    whitebox: WhiteBox | None = None

    def __post_init__(self) -> None:
        self.known = {record.key: record for record in read(self.folder)}
        self.auxiliary, self.test = parted(self.setup)
        self.case = self.plan.case
        self.defenses = self.case.build_defenses()
        if self.whitebox is None:
            limit = WORK if self.plan.budget is None else WHITEBOX_SHARE * self.plan.budget * FLOPS_A_SECOND
            self.whitebox = WhiteBox(work=min(WORK, limit))

    @property
    def names(self) -> list[str]:
        return self.plan.names

    def __call__(self) -> Conclusion:
        """Does what is not done yet, and concludes."""
        curve = self.ridge(None if self.plan.budget is None else SHARE * self.plan.budget)
        if self.plan.epochs is None:
            self.decide(curve)
        attacker = self.attacker()
        curve = advance(self.names, curve, attacker.compute, threshold=self.plan.threshold)
        attacker = replace(attacker, cheap=dict(zip(self.names, curve, strict=True)))
        zone = find_zone(
            self.names, curve, attacker, threshold=self.plan.threshold, epochs=max(1, self.plan.epochs or 0)
        )
        self._train_half(zone, attacker)
        found = conclude(self.plan, list(self.known.values()), zone)
        found = replace(found, remedy=self._remedy(found))
        save_conclusion(self.folder, found)
        shutil.rmtree(self.folder / FEATURES, ignore_errors=True)
        return found

    def _train_half(self, zone: Zone, attacker: Attacker) -> None:
        """A decoder with half of the epochs at the cut that held, to see what the other half gained."""
        cut, epochs = zone.recommended, self.plan.epochs or 0
        held = None if cut is None else self.known.get((cut, DECODER, epochs))
        if cut is not None and held is not None and epochs >= FEWEST_TO_HALVE and not math.isnan(held.fvu):
            attacker(cut, epochs // 2)

    def ridge(self, seconds: float | None = None) -> list[float]:
        """What regression leaves at every cut of the plan, by depth (:func:`leakgauge.split.zone.kept`); cuts for which ``seconds`` do
        not last leave the plan before.
        """
        if seconds is not None and not self.plan.named:
            self._thin(seconds)
        found = self._ridge_at(self.names)
        return [found.get(name, math.nan) for name in self.names]

    def _thin(self, seconds: float) -> None:
        """Attacks three cuts, learns from them what the others will take, and leaves out evenly what is too much, with a note."""
        count, began = len(self.names), time.perf_counter()
        if all((name, RIDGE, 0) in self.known for name in self.names):
            return
        tried = sorted(evenly(count, 3))
        fresh = [self.names[place] for place in tried if (self.names[place], RIDGE, 0) not in self.known]
        self._ridge_at([self.names[place] for place in tried])
        passed = time.perf_counter() - began
        records = {place: self.known.get((self.names[place], RIDGE, 0)) for place in tried}
        own = {place: float(record.risk["seconds"] or 0.0) for place, record in records.items() if record is not None}
        if not own:  # cuts that repeat their neighbour are passed over by a scan
            return
        new = sum(seconds_there for place, seconds_there in own.items() if self.names[place] in fresh)
        more = passed / new if new > 0 else 1.0  # features, maps and pictures take time too, shared out over the cuts
        done = [place for place, name in enumerate(self.names) if (name, RIDGE, 0) in self.known]
        kept = places_within(count, {p: max(1.0, more) * s for p, s in own.items()}, done, seconds - passed)
        if len(kept) == count:
            return
        left_out = [name for place, name in enumerate(self.names) if place not in kept]
        note = (
            f"{len(left_out)} of {count} cuts were not attacked for lack of time: {few(left_out)}; a longer budget or --cut "
            "attacks them. Each leaks at least what the attacked cuts after it leak; more is not known."
        )
        self.plan = replace(
            self.plan, cuts=tuple(self.plan.cuts[place] for place in kept), notes=(*self.plan.notes, note)
        )
        save_plan(self.folder, self.plan)

    def _ridge_at(self, names: list[str]) -> dict[str, float]:
        """FVU of ridge regression by cut; what is known is not attacked again."""
        known = {name: risk_of(self.known[name, RIDGE, 0]) for name in names if (name, RIDGE, 0) in self.known}
        maps = self.test.images[:MAPPED]

        def done(row: CutRisk, made: Tensor | None) -> None:
            places: tuple[tuple[float, float], ...] = ()
            if not row.refusal:
                sent = cache_features(
                    self.setup.victim, maps, [row.cut], defenses=self.defenses, seed=self.case.seed + 1
                )
                places = placed(sent[row.cut])
            self._keep(row, RIDGE, 0, made, places)

        found = scan(
            self.setup.victim,
            self.auxiliary,
            self.test,
            names,
            inverter=LinearInverter(),
            defenses=self.defenses,
            known=known,
            on_cut=done,
            seed=self.case.seed,
        )
        limits = {"threshold": self.plan.threshold, "recognised": self.plan.recognised}
        return {row.cut: kept(row.fvu, row.reidentified, **limits) for row in found.rows}

    def _remedy(self, found: Conclusion) -> Remedy | None:
        """What would protect the cut that leaks least, where no cut before the output is recommended and nothing defends yet."""
        shares = {str(cut["name"]): float(cut["edge_share"]) for cut in self.plan.cuts}
        inside = {
            name: fvu
            for name, fvu in zip(self.names, found.envelope, strict=True)
            if fvu is not None and shares[name] < 1
        }
        recommended = found.recommended is not None and shares[found.recommended] < 1
        if recommended or found.undertrained or self.defenses or not inside:
            return None
        cut = max(inside, key=lambda name: (inside[name], self.names.index(name)))
        return find_remedy(
            self.setup.victim,
            self.auxiliary,
            self.test,
            cut,
            threshold=self.plan.threshold,
            recognised=self.plan.recognised,
            seed=self.case.seed,
        )

    def attacker(self) -> Attacker:
        """Attacks a cut and keeps each result as a record; what is on record is not done again."""
        return Attacker(
            self.setup.victim,
            self.auxiliary,
            self.test,
            None if self.plan.epochs == 0 else self.inverter,
            defenses=self.defenses,
            folder=self.folder / FEATURES,
            seed=self.case.seed,
            enough=self.plan.threshold,
            recognised=self.plan.recognised,
            whitebox=self.whitebox,
            flops={str(cut["name"]): int(cut["edge_flops"]) for cut in self.plan.cuts},
            computed={
                cut: risk_of(record) for (cut, attack, _), record in self.known.items() if attack == LEAST_SQUARES
            },
            on_computed=lambda row, made: self._keep(row, LEAST_SQUARES, 0, made),
            rows={
                (cut, allowed): risk_of(record)
                for (cut, attack, allowed), record in self.known.items()
                if attack == DECODER
            },
            on_row=lambda allowed, row, made: self._keep(row, DECODER, allowed, made),
        )

    def _keep(
        self, row: CutRisk, attack: str, allowed: int, made: Tensor | None, places: tuple[tuple[float, float], ...] = ()
    ) -> None:
        picture = ""
        if made is not None:
            place = self.names.index(row.cut)
            number = self.plan.cuts[place].get("place", place)  # cuts may have left the plan; the number stays
            name = f"scan-{number:03d}-{attack.replace(' ', '-')}" + (f"-{allowed}" if allowed else "")
            picture = save_strip(self.folder, name, made[:SHOWN].float())
        trained = row.epochs if row.epochs else allowed
        record = CutRecord(row.cut, attack, trained, finite(asdict(row)), picture, places, allowed=allowed)
        append(self.folder, record)
        self.known[record.key] = record
        self.on_record(record)

    def decide(self, curve: list[float]) -> float:
        """Turns the time budget into epochs by short trials, which count as attacks too. Returns the seconds to come."""
        epochs, seconds = self._epochs_within_budget(curve)
        self.plan = replace(self.plan, epochs=epochs)
        save_plan(self.folder, self.plan)
        return seconds

    def _epochs_within_budget(self, curve: list[float]) -> tuple[int, float]:
        """Epochs that the decoders which the search will probably train can have within the budget, and the seconds that they then take."""
        if self.plan.budget is None:
            return EPOCHS, 0.0
        began = time.perf_counter()
        curve = advance(self.names, curve, self.attacker().compute, threshold=self.plan.threshold)
        computing = time.perf_counter() - began
        likely = self._likely(curve)
        if not likely:
            return 0, 0.0
        spent, an_epoch = self._trial(likely, 1)
        if not an_epoch:
            return EPOCHS, 0.0  # least squares breaks them all
        if 3 * spent < self.plan.budget / 4:  # a second point separates the epochs' own time from what surrounds them
            again, longer = self._trial(likely, 3)
            spent += again
            an_epoch = max((longer - an_epoch) / 2, 0.1 * an_epoch)
        left = self.plan.budget - spent - computing
        an_epoch *= HALVES
        epochs = MOST_EPOCHS if left >= MOST_EPOCHS * an_epoch else max(1, int(left / an_epoch))
        return epochs, epochs * an_epoch

    def _likely(self, curve: list[float]) -> list[str]:
        """The cut that gets the first full effort, and the one that decides with it: the one before it, or where that leaks the next."""
        first = crossing(self.names, curve, threshold=self.plan.threshold)
        if first == len(self.names):
            return []
        aim = expected_crossing(curve, first, threshold=self.plan.threshold)
        beside = aim - 1 if aim > first else aim + 1
        return [self.names[aim], *self.names[beside : beside + 1]]

    def _trial(self, likely: list[str], epochs: int) -> tuple[float, float]:
        """Seconds that decoders of so many epochs took, one at each of the cuts; the second number is the same without early stops."""
        attacker = self.attacker()
        for cut in likely:
            attacker(cut, epochs)
        rows = [attacker.rows[cut, epochs] for cut in likely if (cut, epochs) in attacker.rows]
        whole = sum(row.seconds * epochs / max(1, row.epochs or epochs) for row in rows)
        return sum(row.seconds for row in rows), whole


def placed(features: Tensor) -> tuple[tuple[float, float], ...]:
    """A map of the features by t-SNE, scaled into the unit square; empty for a handful of points or for no spread at all."""
    count = len(features)
    if count < 10:
        return ()
    y = tsne(features.float(), perplexity=min(30.0, (count - 1) / 3))
    middle, span = (y.amax(0) + y.amin(0)) / 2, (y.amax(0) - y.amin(0)).max()
    if not bool(torch.isfinite(y).all()) or not float(span) > 0:
        return ()
    return tuple((round(a, 3), round(b, 3)) for a, b in ((y - middle) / span + 0.5).tolist())


def evenly(count: int, kept: int) -> set[int]:
    """``kept`` of the places 0 … count − 1, as far apart as can be, the first and the last among them.

    >>> sorted(evenly(9, 4))
    [0, 3, 5, 8]
    """
    if kept >= count:
        return set(range(count))
    return {round(i * (count - 1) / (kept - 1)) for i in range(kept)}


def expected(place: int, measured: Mapping[int, float]) -> float:
    """Seconds at a place, on the straight line between the measured ones around it; beyond them, those of the nearest."""
    known = sorted(measured)
    after = bisect_left(known, place)
    if after == len(known):
        return measured[known[-1]]
    if known[after] == place or after == 0:
        return measured[known[after]]
    low, high = known[after - 1], known[after]
    share = (place - low) / (high - low)
    return (1 - share) * measured[low] + share * measured[high]


def places_within(count: int, measured: Mapping[int, float], done: Collection[int], seconds: float) -> list[int]:
    """As many of ``count`` places as there is time for, evenly thinned. Those that are ``done`` cost nothing, and the two ends stay."""
    for places in range(count, 1, -1):
        chosen = evenly(count, places) | set(done)
        if sum(expected(place, measured) for place in chosen if place not in done) <= seconds:
            return sorted(chosen)
    return sorted(evenly(count, 2) | set(done)) if count > 1 else list(range(count))
