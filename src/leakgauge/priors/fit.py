"""Trains a diffusion prior on the adversary's public images: resumable, with an average of its weights, kept by content."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from leakgauge.core.randomness import own_stream, private_randomness
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion import progress
from leakgauge.measures.image import check_images
from leakgauge.priors.decoders import FEWEST
from leakgauge.priors.diffusion import LEVELS, Diffusion, Training, frozen, load_diffusion, noisy, sample, velocity
from leakgauge.priors.unet import UNet

LARGEST, SMALLEST = 64, 8
"""Sides of an image that the network is made for."""
HELD_OUT, MOST_HELD_OUT = 0.05, 1000
UNKNOWN = 0.15
"""Share of the images that are shown without their class, so the prior can also be asked without one."""
CHECKED = 200
"""Samples and held-out images compared with their nearest training images."""
EVERY = 500
"""Steps between two checkpoints."""


@dataclass(frozen=True)
class Schedule:
    """AdamW at ``lr`` with a warm-up of ``warm_up`` steps, then down to zero along half a cosine; weights are averaged with ``ema``."""

    steps: int
    batch: int
    lr: float
    ema: float
    warm_up: int = 200

    def rate(self, step: int) -> float:
        """
        >>> [round(Schedule(1000, 8, 1.0, 0.999).rate(s), 2) for s in (0, 199, 600, 999)]
        [0.01, 1.0, 0.5, 0.0]
        """
        rising = min(1.0, (step + 1) / min(self.warm_up, max(1, self.steps // 5)))
        done = max(0.0, (step - self.warm_up) / max(1, self.steps - self.warm_up))
        return self.lr * rising * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    def decay(self, step: int) -> float:
        """Of the averaged weights: small in the beginning, when the weights still change fast."""
        return min(self.ema, (1 + step) / (10 + step))


def fit_diffusion(
    images: Tensor,
    *,
    labels: Tensor | None = None,
    classes: int | None = None,
    width: int = 32,
    steps: int = 1000,
    batch: int = 64,
    lr: float = 2e-3,
    ema: float = 0.999,
    bf16: bool | None = None,
    mirrored: bool = False,
    stop: int | None = None,
    cache: Path | None = None,
    seed: int = 0,
) -> Diffusion:
    """Learns what ``images`` (N, C, H, W), in [0, 1] and the adversary's own, look like, by removing noise from them.

        v̂ = argmin E ‖v̂(x_a, a, label) − v‖²,    a = sin(u·π/2),  u uniform in [0, 1]

    ``labels`` (N,), if given, are their classes, of ``classes`` in all; the prior can then be asked for one class. ``width`` sets the
    size of the network (:class:`UNet`). A twentieth of the images is held out to measure what the prior cannot make. On a GPU it trains in
    bfloat16 (``bf16``, elsewhere only if asked for) and compiled. With ``mirrored`` every other image is shown left for right. ``steps``,
    ``batch``, ``lr`` and ``ema`` are those of :class:`Schedule`; with ``stop`` the weights of an earlier step of that schedule are taken.

    The last few priors of a process are kept in memory. With ``cache``, a folder, each is also kept there under the hash of images and
    settings and read back by the next call, and a training that was interrupted is resumed where it stopped.

    Ref: Ho et al. 2020, Algorithm 1 — training by denoising
    Ref: Salimans and Ho 2022, Appendix D — v-prediction
    """
    images = check_images(images).float()
    _check(images, labels, steps, batch)
    known = 0 if labels is None else max(classes or 0, int(labels.max()) + 1)
    plan = Schedule(steps, batch, lr, ema)
    fast = images.is_cuda if bf16 is None else bf16
    last = steps if stop is None else min(stop, steps)
    settings: dict[str, object] = {"width": width, "classes": known, **vars(plan), "seed": seed, "bf16": fast}
    training = _key(images, labels, settings | ({"mirrored": True} if mirrored else {}))
    key = f"{training[:24]}-{last}"
    kept = None if cache is None else cache / f"diffusion-{key}.safetensors"
    if key in _RECENT:
        return _RECENT[key].to(images.device)
    if kept is not None and kept.is_file():
        return _remember(key, load_diffusion(kept)).to(images.device)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    aside = min(MOST_HELD_OUT, max(4, round(HELD_OUT * len(images))))
    learn, check = order[aside:], order[:aside]
    with private_randomness(seed, images.device):
        network = UNet(_shape(images), width=width, classes=known).to(images.device)
    run = _Run(
        network,
        plan,
        seed,
        bf16=fast,
        mirrored=mirrored,
        file=None if cache is None else cache / f"diffusion-{training[:24]}.partial",
        key=training,
    )
    with torch.enable_grad():
        run.train(images[learn.to(images.device)], None if labels is None else labels.to(images.device)[learn], last)
    unchecked = Training(len(learn), len(check), last, batch, seed, key, (), math.nan)
    made = Diffusion(frozen(run.average, _shape(images), width, known, images.device), unchecked)
    held = None if labels is None else labels.to(images.device)[check]
    found = Diffusion(
        made.network, _measured(made, images[learn.to(images.device)], images[check.to(images.device)], held, seed)
    )
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial = kept.with_suffix(f".{os.getpid()}")
        found.save(partial)
        partial.replace(kept)
        if last == steps:
            (kept.parent / f"diffusion-{training[:24]}.partial").unlink(missing_ok=True)
    return _remember(key, found)


_RECENT: dict[str, Diffusion] = {}
RECENT = 4
"""Priors that a process keeps in memory: an attack and its null run ask for the same one."""


def _remember(key: str, prior: Diffusion) -> Diffusion:
    while len(_RECENT) >= RECENT:
        _RECENT.pop(next(iter(_RECENT)))
    _RECENT[key] = prior
    return prior


def _check(images: Tensor, labels: Tensor | None, steps: int, batch: int) -> None:
    sides = images.shape[-2:]
    if len(images) < FEWEST:
        raise BadInput(f"a diffusion prior needs at least {FEWEST} images, got {len(images)}")
    if min(sides) < SMALLEST or max(sides) > LARGEST:
        raise BadInput(
            f"a diffusion prior is for images of {SMALLEST} to {LARGEST} pixels a side, got {sides[0]} × {sides[1]}"
        )
    if labels is not None and (labels.shape != (len(images),) or labels.is_floating_point() or int(labels.min()) < 0):
        raise BadInput(f"labels of a diffusion prior are one class per image, got {tuple(labels.shape)} {labels.dtype}")
    require_counts(steps=steps, batch=batch)


def require_counts(**counts: int) -> None:
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadInput(f"a diffusion prior needs an integer of at least 1 as {name}, got {value!r}")


def _shape(images: Tensor) -> tuple[int, int, int]:
    _, channels, height, width = images.shape
    return channels, height, width


def _key(images: Tensor, labels: Tensor | None, settings: dict[str, object]) -> str:
    found = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for value in (images, labels):
        if value is not None:
            found.update(f"{tuple(value.shape)}".encode())
            found.update(value.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


class _Run:
    """One training. Every step draws its random numbers from its own number, so a resumed run equals one that was never stopped."""

    def __init__(
        self,
        network: UNet,
        plan: Schedule,
        seed: int,
        *,
        bf16: bool,
        file: Path | None,
        key: str,
        mirrored: bool = False,
    ) -> None:
        self.network, self.plan, self.bf16, self.file, self.key = network, plan, bf16, file, key
        self.mirrored = mirrored
        self.stream = own_stream(seed, "diffusion prior")
        self.device = next(network.parameters()).device
        self.optimizer = torch.optim.AdamW(network.parameters(), lr=plan.lr, weight_decay=0.01, betas=(0.9, 0.99))
        self.average = {name: value.detach().clone() for name, value in network.state_dict().items()}
        self.done = 0
        self._forward: nn.Module = network
        if self.device.type == "cuda":
            network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
            self._forward = torch.compile(network)  # pyright: ignore[reportAttributeAccessIssue]
        self._resume()

    def train(self, images: Tensor, labels: Tensor | None, last: int) -> None:
        self.network.train()
        while self.done < last:
            loss = self._step(images, labels)
            self.done += 1
            if self.done % EVERY == 0 or self.done == last:
                if not math.isfinite(float(loss)):
                    raise Inapplicable(
                        f"the prior diverged at step {self.done}; a lower rate than {self.plan.lr} may hold it"
                    )
                self._save()
            progress.report(self.done, last)

    def _step(self, images: Tensor, labels: Tensor | None) -> Tensor:
        rng = torch.Generator().manual_seed((self.stream + self.done) % 2**63)
        rows = torch.randint(len(images), (self.plan.batch,), generator=rng)
        # one level from each of as many equal parts of [0, 1]: less variance than independent ones
        parts = (torch.arange(self.plan.batch) + torch.rand(self.plan.batch, generator=rng)) / self.plan.batch
        level = (parts * math.pi / 2).sin().to(self.device)
        noise = self._noise(images.shape[1:], rng)
        hidden = (torch.rand(self.plan.batch, generator=rng) < UNKNOWN).to(self.device)
        x = images[rows.to(images.device)].to(self.device) * 2 - 1
        if self.mirrored:  # after the other draws, which stay those of a training without
            turned = (torch.rand(self.plan.batch, generator=rng) < 0.5).to(self.device)
            x = torch.where(turned[:, None, None, None], x.flip(-1), x)
        unknown = torch.full((self.plan.batch,), self.network.classes, device=self.device)
        label = unknown if labels is None else torch.where(hidden, unknown, labels[rows.to(labels.device)])
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            made = self._forward(noisy(x, level, noise), level, label)
        loss = (made.float() - velocity(x, level, noise)).square().mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.plan.rate(self.done)
        self.optimizer.step()
        keep = self.plan.decay(self.done)
        with torch.no_grad():
            values = list(self.network.state_dict().values())
            torch._foreach_lerp_(list(self.average.values()), values, 1 - keep)  # pyright: ignore[reportPrivateImportUsage]
        return loss.detach()

    def _noise(self, shape: Sequence[int], rng: torch.Generator) -> Tensor:
        """N(0, 1) for a batch; drawn on the device, as a CPU takes longer to draw it than a GPU to use it."""
        if self.device.type != "cpu":
            rng = torch.Generator(self.device).manual_seed((self.stream + self.done) % 2**63)
        return torch.randn(self.plan.batch, *shape, generator=rng, device=self.device)

    def _save(self) -> None:
        if self.file is None:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        state = {f"network.{n}": v for n, v in self.network.state_dict().items()}
        state |= {f"average.{n}": v for n, v in self.average.items()}
        for name, parameter in self.network.named_parameters():
            known = self.optimizer.state[parameter]
            state |= {f"first.{name}": known["exp_avg"], f"second.{name}": known["exp_avg_sq"]}
        state = {name: value.detach().contiguous().cpu() for name, value in state.items()}
        beside = self.file.with_suffix(f".{os.getpid()}")
        save_file(state, beside, metadata={"done": str(self.done), "key": self.key})
        beside.replace(self.file)

    def _resume(self) -> None:
        if self.file is None or not self.file.is_file():
            return
        with safe_open(self.file, "pt") as opened:
            facts = opened.metadata() or {}
        if facts.get("key") != self.key:
            return
        state = load_file(self.file, device=str(self.device))
        self.network.load_state_dict({n: state[f"network.{n}"] for n in self.average})
        self.average = {n: state[f"average.{n}"] for n in self.average}
        self.done = int(facts["done"])
        for name, parameter in self.network.named_parameters():
            self.optimizer.state[parameter] = {
                "step": torch.tensor(float(self.done)),
                "exp_avg": state[f"first.{name}"],
                "exp_avg_sq": state[f"second.{name}"],
            }


@torch.no_grad()
def _measured(prior: Diffusion, learned: Tensor, held_out: Tensor, labels: Tensor | None, seed: int) -> Training:
    """The facts of a trained prior: what it cannot make, and whether it copies."""
    rng = torch.Generator().manual_seed(own_stream(seed, "held-out images"))
    x = held_out * 2 - 1
    noise = torch.randn(x.shape, generator=rng).to(x.device)
    variance = float((x - x.mean(0)).square().mean())
    unexplained: list[float] = []
    for level in LEVELS:
        total = 0.0
        for rows in torch.arange(len(x)).split(250):
            a = x.new_full((len(rows),), level)
            known = None if labels is None else labels[rows.to(labels.device)]
            made = prior(noisy(x[rows], a, noise[rows]), a, known)
            total += float((made - x[rows]).square().mean()) * len(rows)
        unexplained.append(total / len(x) / variance)
    made = sample(prior, min(CHECKED, len(held_out)), seed=seed)
    distances = [float(nearest(images, learned)[0].mean()) for images in (made, held_out[: len(made)])]
    return replace(prior.trained, unexplained=tuple(unexplained), copies=distances[0] / max(distances[1], 1e-12))


PIECE = 20_000
"""Training images compared with at a time."""


def nearest(images: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
    """Root mean square distance of each image (N, ...) to the nearest ``among`` (M, ...), and which one that is."""
    flat, others = images.flatten(1), among.flatten(1).to(images)
    found = [torch.cdist(flat, piece).min(1) for piece in others.split(PIECE)]
    values = torch.stack([one.values for one in found])
    which = torch.stack([one.indices + PIECE * i for i, one in enumerate(found)])
    least = values.argmin(0, keepdim=True)
    return values.gather(0, least)[0] / flat.shape[1] ** 0.5, which.gather(0, least)[0]
