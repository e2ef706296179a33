"""The gate before an update leaves: the client, who knows its own batch, attacks what it is about to send."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leakgauge.attacks.strongest import CLOSED
from leakgauge.audit.files import infinity_as_text
from leakgauge.audit.scoring import pair_images
from leakgauge.channels import FedAvg, Gradient
from leakgauge.channels.facts import is_weight_update
from leakgauge.core import Channel, Loss, Mode, Observation, Signal, Space, Victim, as_images
from leakgauge.defenses import Clip, GaussianNoise
from leakgauge.errors import BadInput, Inapplicable, LeakgaugeError
from leakgauge.measures.rdp import Overspent, RDPFilter
from leakgauge.monitor import MonitorWarning
from leakgauge.monitor.whitebox import Protection, probe

Pair = tuple[Tensor, Tensor]
Action = Literal["sent", "unchecked", "warned", "noised", "refused"]


@dataclass(frozen=True, eq=False)
class Guarded:
    """The local training that a gate guards: the model's architecture, its input, and what the client trained on and how.

    ``batch`` are the samples (model space) of a round, or a function of the platform's context. ``local_steps`` and ``local_lr`` are those
    of the client's training.
    """

    model: nn.Module
    space: Space
    batch: Pair | Callable[[Any], Pair]
    loss: Loss = nn.functional.cross_entropy
    mode: Mode = "train"
    local_steps: int = 1
    local_lr: float = 0.01

    def victim(self, model: nn.Module | None = None) -> Victim:
        """The victim of ``model``, which holds the weights that the server sent; by default that of the guarded model itself."""
        return Victim(self.model if model is None else model, self.space, self.loss, self.mode)

    def trained_on(self, context: Any) -> Pair:
        """The samples of this round."""
        return self.batch(context) if callable(self.batch) else self.batch

    @property
    def channel(self) -> FedAvg:
        return FedAvg(steps=self.local_steps, lr=self.local_lr)


class Refused(LeakgaugeError):
    """The gate did not let an update leave."""


@dataclass(frozen=True)
class GateRecord:
    """What the gate found in one update, and what it did.

    ``psnr`` is that of the best image that a closed form read off, by the attack ``by``; ``certified`` counts images that it proved exact
    without looking at the batch. ``auc`` and its lower bound ``auc_low`` are of the white-box probe. ``refusals`` says why a check did
    not apply; ``checked`` is False where none did.
    """

    round: int
    action: Action
    leaks: bool
    psnr: float | None = None
    by: str = ""
    certified: int = 0
    auc: float | None = None
    auc_low: float | None = None
    refusals: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    finished: str = ""
    checked: bool = True


@dataclass
class Gate:
    """Checks every update before it leaves, and warns or refuses (``on_leak``).

    An update leaks if a closed form reads an image of the client's own batch off it with at least ``psnr`` dB, if it certifies one, or,
    with ``others`` (samples that were not trained on), if the white-box probe recognises the batch among them with an AUC whose lower
    bound is at least ``auc``. Closed forms take milliseconds on most networks, because those without a fitting layer refuse at once. No
    search is run, so a gate that lets an update pass has proved nothing.

    With a ``budget`` every update is first clipped to ``clip`` and gets Gaussian noise of ``multiplier`` · clip, paid for beforehand
    at half of the multiplier, because another batch moves a clipped update by up to 2 · clip; when
    the budget is spent, nothing leaves. Noise for leaking updates alone would have no guarantee, since who gets it depends on private data.
    What is refused depends on private data too, and the server sees that an update is missing.
    ``record`` is a file that gets one JSON line for each update. It holds facts about private data and stays with the client.
    """

    on_leak: Literal["warn", "refuse"] = "refuse"
    psnr: float = 20.0
    others: Pair | None = None
    auc: float = 0.9
    clip: float | None = None
    multiplier: float = 1.0
    budget: RDPFilter | None = None
    record: str | Path | None = None
    seed: int | None = None
    """Of the noise; only for tests, since noise that others can draw again protects nothing."""
    rounds: int = 0

    def __post_init__(self) -> None:
        if self.on_leak not in ("warn", "refuse"):
            raise BadInput(f"a gate can warn or refuse when something leaks, got {self.on_leak!r}")
        if (self.clip is None) != (self.budget is None):
            raise BadInput(
                "a gate adds noise if it has a clip and a budget; give both, as in Gate(clip=1.0, budget=RDPFilter(…))"
            )

    def __call__(
        self, victim: Victim, update: Signal, x: Tensor, y: Tensor, /, *, channel: Channel | None = None
    ) -> dict[str, Tensor]:
        """What may leave in place of ``update`` (the signal of ``channel``, by default the gradient); raises ``Refused`` if nothing may."""
        if not update:
            raise BadInput("the update has none of the model's parameters by name, so the gate cannot check it")
        self.rounds += 1
        try:
            sent = self._noised(update)
        except Overspent as spent:
            self._write(GateRecord(self.rounds, "refused", leaks=False, refusals={"noise": str(spent)}))
            raise Refused(f"the update of round {self.rounds} was not sent: {spent}") from spent
        found = self.check(victim, sent, x, y, channel=channel)
        passed: Action = "noised" if self.budget is not None else "sent" if found.checked else "unchecked"
        action: Action = passed if not found.leaks else "refused" if self.on_leak == "refuse" else "warned"
        self._write(replace(found, action=action))
        if action == "warned":
            warnings.warn(f"the update of round {self.rounds} leaks: {_why(found)}", MonitorWarning, stacklevel=2)
        if action == "unchecked":
            why = "; ".join(f"{name}: {reason}" for name, reason in found.refusals.items())
            warnings.warn(f"the update of round {self.rounds} was sent unchecked ({why})", MonitorWarning, stacklevel=2)
        if action == "refused":
            raise Refused(f"the update of round {self.rounds} leaks and was not sent: {_why(found)}")
        return sent

    def check(
        self, victim: Victim, update: Signal, x: Tensor, y: Tensor, /, *, channel: Channel | None = None
    ) -> GateRecord:
        """What closed forms and the probe read of the update; nothing is sent or changed."""
        began = time.perf_counter()
        x, y = victim.to_input(x), y.to(victim.device)
        seen = Observation(signal=update, channel=channel or Gradient(), size=len(x))
        best, by, certified, ran = None, "", 0, 0
        refusals: dict[str, str] = {}
        truths = as_images(victim.space, x)
        for entrant in CLOSED:
            if certified:  # it leaks already
                break
            try:
                if entrant.most is not None and len(x) > entrant.most:
                    raise Inapplicable(f"tried for at most {entrant.most} samples")
                found = entrant.make(1, 1)(victim, seen, seed=0)
            except Inapplicable as refusal:
                refusals[entrant.name] = str(refusal)
                continue
            ran += 1
            exact = 0 if found.certified is None else int(found.certified.sum())
            scores = pair_images(as_images(victim.space, found.x), truths).scores if len(found.x) == len(x) else None
            value = None if scores is None else max(scores.psnr)
            if exact > certified or (value is not None and (best is None or value > best)):
                best, by, certified = value if value is not None else best, entrant.name, max(exact, certified)
        auc = auc_low = None
        if self.others is not None:
            try:
                members = probe(
                    victim.model, victim.loss, _descending(update, seen.channel), (x, y), self.others, protection=Protection(),
                    step=self.rounds, seed=0, whole=True,
                ).auc  # fmt: skip
                auc, auc_low = members.value, members.low
            except Inapplicable as refusal:
                refusals["probe"] = str(refusal)
        leaks = (
            bool(certified) or (best is not None and best >= self.psnr) or (auc_low is not None and auc_low >= self.auc)
        )
        seconds, finished = time.perf_counter() - began, datetime.now(UTC).isoformat(timespec="seconds")
        checked = bool(ran) or auc is not None
        return GateRecord(
            self.rounds, "sent", leaks, best, by, certified, auc, auc_low, refusals, seconds, finished, checked
        )

    def _noised(self, update: Signal) -> dict[str, Tensor]:
        if self.clip is None or self.budget is None:
            return dict(update)
        # another batch can turn a clipped update from one side to the other: its sensitivity is 2 · clip
        self.budget = self.budget.spend(noise=self.multiplier / 2, rate=1.0)
        rng = torch.Generator()
        if self.seed is None:
            rng.seed()
        else:
            rng.manual_seed(self.seed + self.rounds)
        clipped = Clip(self.clip)(update, rng=rng)
        return dict(GaussianNoise(std=self.multiplier * self.clip)(clipped, rng=rng))

    def _write(self, found: GateRecord) -> None:
        if self.record is None:
            return
        path = Path(self.record)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(infinity_as_text(asdict(found)), ensure_ascii=False) + "\n")


def _descending(update: Signal, channel: Channel) -> Signal:
    """The update with the sign of a gradient."""
    return {name: -t for name, t in update.items()} if is_weight_update(channel) else update


def _why(found: GateRecord) -> str:
    said: list[str] = []
    if found.certified:
        said.append(f"{found.by} certifies {found.certified} image{'s' if found.certified > 1 else ''}")
    elif found.psnr is not None and found.by:
        said.append(f"{found.by} reads an image with {found.psnr:.0f} dB")
    if found.auc is not None:
        said.append(f"members are recognised with an AUC of {found.auc:.2f}")
    return "; ".join(said)
