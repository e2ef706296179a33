"""Inverts the images of the class that a malicious server's head lets through."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from leakgauge.attacks.found_images import batch_of
from leakgauge.attacks.inverting_gradients import inverting_gradients
from leakgauge.channels.facts import is_weight_update, require_shared
from leakgauge.core import Observation, Reconstruction, Victim
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.examples import example
from leakgauge.errors import Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.families import find_roles
from leakgauge.inversion import Matching
from leakgauge.inversion.labels import batch_size
from leakgauge.servers.fishing import FishingServer, fished_class


@dataclass(frozen=True)
class FishingAttack:
    """The attack made by :func:`fishing`."""

    of: Matching

    def effort(self) -> tuple[str, int]:
        return self.of.effort()

    def blind(self) -> FishingAttack:
        """The same without the signal; it still knows how many images there are."""
        return replace(self, of=self.of.blind())

    @plain_defaults()
    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        size, target = batch_size(seen), fished_class(victim)
        count = count_target(victim, seen, target, size)
        head = set(find_roles(victim.model).parameters("head", victim.model))
        body = {name: value for name, value in seen.signal.items() if name not in head}
        if not body:
            raise Inapplicable("not shared: every parameter outside the head")
        labels = torch.full((count,), target, device=victim.device)
        found = self.of(victim, replace(seen, signal=body, size=count, labels=labels, near=None), seed=seed)
        whole = [batch_of(one, size, victim) for one in found.candidates]
        note = f"class {target} has {count} of the {size} images, by the gradient of its bias; the others do not reach the body"
        trace = replace(found.trace, snapshots=torch.empty(0), snapshot_steps=())
        return replace(
            found, x=batch_of(found.x, size, victim), candidates=torch.stack(whole), y=None, trace=trace,
            made_by=f"fishing by {found.made_by}", notes=(*found.notes, note),
        )  # fmt: skip


def count_target(victim: Victim, seen: Observation, target: int, size: int) -> int:
    """How many images of the class are in the batch: ∂L/∂b_target = Σ_i (p − y)_target / size = −count / size."""
    if is_weight_update(seen.channel):
        raise Inapplicable("fishing reads a single gradient, but local steps change the head that the server sent")
    name = f"{find_roles(victim.model).head}.bias"
    count = round(-float(require_shared(seen.signal, name)[target]) * size)
    if count < 1:
        raise Inapplicable(f"the batch has no image of class {target}, or a defense hides it; fish for another class")
    return min(count, size)


@example("lenet", server=FishingServer(0), steps=80, tv=0.01)
@checked
def fishing(*, tv: float = 0.1, lr: float = 0.1, steps: int = 4800, restarts: int = 1) -> FishingAttack:
    """Wen et al. 2022: inverting gradients on the part of the update that :class:`leakgauge.servers.FishingServer` left to one class.

    The number of images of that class is read from the gradient of its bias, their labels are known, and only they contribute to the
    gradient of the body. The options are those of inverting gradients. Images of other classes are grey.

    Deviations: the head's own gradient, which also contains other classes, is left out; the paper uses other attacks as well.

    Ref: Wen et al. 2022 — inversion of the class that was fished for
    """
    return FishingAttack(inverting_gradients(tv=tv, lr=lr, steps=steps, restarts=restarts))
