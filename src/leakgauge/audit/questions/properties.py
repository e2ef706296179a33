"""What else an update tells: probes for properties of the samples behind it. One line of ``properties.jsonl`` per property."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from torch import Tensor

from leakgauge.audit.case import Case, clients_of
from leakgauge.audit.files import JsonLines, finite
from leakgauge.audit.run import versions
from leakgauge.audit.session import Setup
from leakgauge.audit.timing import Cost, elapsed
from leakgauge.audit.typed import typed
from leakgauge.core import Pixels, share
from leakgauge.errors import BadInput
from leakgauge.measures.image import brighter
from leakgauge.measures.membership import Rate, auc_interval
from leakgauge.monitor.properties import FEWEST, HELD, Share, last_layer, property_leakage, tells
from leakgauge.monitor.property_counts import MOST, own_gradients

FILE = "properties.jsonl"
UPDATES, FEWEST_UPDATES = 400, 100
"""Shadow updates of a probe, and as many updates that it is asked about: usually, and at least."""
MOST_IMAGES = 10_000
BATCHES = (32, 16, 8)
"""Sizes of a client's batch: the first for which the data make ``ENOUGH`` batches, or else the smallest. A share of a smaller one is no
property."""
ENOUGH = 30
"""Batches of either kind without a sample in two of them, for an attribute that half of the samples have."""
SHARE = Share(0.2, 0.5)
STRONG = 0.8
"""AUC of a probe that a negative should have been able to see."""


def _commonest(images: Tensor, labels: Tensor) -> Tensor:
    """Of the class that most images are of."""
    return labels == labels.mode().values


PROPERTIES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {"bright": brighter, "class": _commonest}
"""An attribute that every image has and no label tells, and the share of a class, which labels tell anyway."""


@dataclass(frozen=True)
class PropertyPlan:
    """``updates`` shadow updates and as many tests, each of ``batch`` samples, for each property."""

    batch: int
    updates: int
    command: str = ""


@dataclass(frozen=True)
class PropertyRecord:
    """How well a share of ``low`` of the samples is told from one of ``high``, with the numbers of
    :class:`~leakgauge.monitor.properties.PropertyLeakage`. ``defenses`` and ``setting`` are those of the set-up that counts."""

    name: str
    low: float
    high: float
    model: str
    setting: str
    batch: int
    shadows: int
    tests: int
    auc: Rate
    tpr: float
    blind: Rate
    null_low: float
    null_high: float
    disjoint: int
    defenses: tuple[str, ...] = ()
    seconds: float = 0.0
    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def leaks(self) -> bool:
        return tells(self.auc, self.blind, self.null_high)

    @property
    def could_tell(self) -> bool:
        """Whether a probe that separates the two kinds as well as ``STRONG`` would have been seen in so few batches without common samples.
        Where not, that nothing was found says nothing."""
        low, _ = auc_interval(STRONG, self.disjoint, self.disjoint)
        return low > 0.5 and self.null_high < STRONG

    @property
    def told_by_labels(self) -> bool:
        """Whether labels alone tell it already."""
        return self.blind.low > 0.5


STORE = JsonLines(
    FILE,
    encode=lambda record: finite(asdict(record)),
    decode=partial(typed, PropertyRecord),
    missing="{folder} holds no probes of properties: it has no {file}; make some with `leakgauge audit --only properties`",
)
exists = STORE.exists


def read(folder: Path) -> tuple[PropertyRecord, ...]:
    """The properties in the order of ``PROPERTIES``. Of two lines on one the later counts."""
    found = {record.name: record for record in STORE.read(folder)}
    return tuple(found[name] for name in PROPERTIES if name in found)


def plan_properties(setup: Setup, main: Case, *, command: str = "") -> PropertyPlan:
    """The largest batch that the data allow; refused where they hold too few images."""
    if not setup.classes or not isinstance(setup.victim.space, Pixels):
        raise BadInput(
            "the audit probes properties of images with classes; for other data or targets call property_leakage with your own property"
        )
    images, labels = _data(setup)
    smallest, quarter, clients = BATCHES[-1], len(images) // 4, clients_of(main.channel)
    if not all(_allows(has(images, labels), smallest) for has in PROPERTIES.values()):
        raise BadInput(
            f"probes of properties need more than {len(images)} images: the adversary and the client each need {FEWEST} with a property "
            f"and {FEWEST} without; give more data"
        )
    enough = [batch for batch in BATCHES if SHARE.disjoint(quarter, quarter, batch, clients) >= ENOUGH]
    fits = [batch for batch in enough if all(_allows(has(images, labels), batch) for has in PROPERTIES.values())]
    return PropertyPlan(next(iter(fits), smallest), UPDATES, command)


def _data(setup: Setup) -> tuple[Tensor, Tensor]:
    return setup.images[:MOST_IMAGES], setup.labels[:MOST_IMAGES]


def _allows(has: Tensor, batch: int) -> bool:
    """Whether the smallest part of the data, what the adversary holds out, can fill batches of either kind."""
    those, rest = int(has.sum()) // 2, int((~has).sum()) // 2
    return min(those, rest) >= FEWEST and SHARE.disjoint(int(HELD * those), int(HELD * rest), batch) >= 1


def cost_of_probes(setup: Setup, main: Case, plan: PropertyPlan) -> Cost:
    """Of all properties. A step is a shadow update and a test of each; fixed are the gradients of the adversary's own samples, which the
    count of the last layer is learned from."""
    case = replace(main, batch_size=plan.batch)
    x, y = setup.private(replace(case, first=0))
    defenses = case.build_defenses()
    channel = case.build_channel()
    update = elapsed(lambda: share(setup.victim, channel, x, y, defenses=defenses))
    counted = 0.0
    if (layer := last_layer(setup.victim.parameters())) is not None:
        own_gradients(setup.victim, layer, x[:1], y[:1], seed=0)  # the first call of a process takes longer
        own = min(MOST, (1 - HELD) * len(_data(setup)[0]) / 2)
        counted = elapsed(lambda: own_gradients(setup.victim, layer, x, y, seed=0)) * own / len(x)
    return Cost(fixed=len(PROPERTIES) * counted, step=2 * len(PROPERTIES) * update)


def probe(
    setup: Setup,
    main: Case,
    plan: PropertyPlan,
    folder: Path,
    *,
    on_update: Callable[[int], None] | None = None,
) -> None:
    """Measures what has no record yet; ``on_update`` is given the number of updates made."""
    images, labels = _data(setup)
    case = replace(main, batch_size=plan.batch)
    known = {record.name for record in STORE.read_if_there(folder)}
    done = len(known) * 2 * plan.updates
    x = setup.victim.space.encode(images)
    for name, has in PROPERTIES.items():
        if name in known:
            continue
        began, before = time.perf_counter(), done

        def moved(number: int, _: int, before: int = before) -> None:
            if on_update is not None:
                on_update(before + number)

        found = property_leakage(
            setup.victim,
            case.build_channel(),
            x,
            labels,
            has(images, labels),
            share_of=SHARE,
            batch=case.images,
            shadows=plan.updates,
            tests=plan.updates,
            defenses=case.build_defenses(),
            seed=main.seed,
            on_update=moved,
        )
        low, high = found.null_interval
        STORE.append(
            folder,
            PropertyRecord(
                name=name,
                low=SHARE.low,
                high=SHARE.high,
                model=main.model,
                setting=case.setting(),
                batch=found.batch,
                shadows=found.shadows,
                tests=found.tests,
                auc=found.auc,
                tpr=found.tpr,
                blind=found.blind,
                null_low=low,
                null_high=high,
                disjoint=found.disjoint,
                defenses=case.protections(),
                seconds=round(time.perf_counter() - began, 2),
                command=plan.command,
                versions=versions(),
            ),
        )
        done = before + 2 * plan.updates
