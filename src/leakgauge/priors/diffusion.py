"""A diffusion prior: what images of one kind look like, learned from public ones by removing noise from them."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from leakgauge.core import Learned
from leakgauge.core.randomness import private_randomness
from leakgauge.errors import BadInput
from leakgauge.inversion.sampling import levels, share_of_image
from leakgauge.priors.unet import UNet

LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Shares of noise at which a prior is checked on images it has not seen."""
FORMAT = "leakgauge diffusion prior 1"
EMBEDDED = ("fashion",)
"""Priors that ship with the package."""


@dataclass(frozen=True)
class Training:
    """What a prior learned from, and what it cannot make.

    ``unexplained`` is, for each of :data:`LEVELS`, the error of the denoised held-out images divided by their variance: 0 is perfect, 1
    is the mean image. ``copies`` is the distance of unguided samples to the nearest training image, divided by that of held-out images
    (means of root mean squares): about 1 means the samples are as new as new images are, far below 1 that they are copies.
    """

    images: int
    held_out: int
    steps: int
    batch: int
    seed: int
    digest: str
    unexplained: tuple[float, ...]
    copies: float


@dataclass(frozen=True, eq=False, repr=False)
class Diffusion:
    """A denoiser for every noise level, trained on public images.

        x_a = √(1 − a²)·x + a·ε,    ε ~ N(0, 1),    E[x | x_a] = √(1 − a²)·x_a − a·v(x_a, a, label)

    x is an image scaled to [−1, 1], a the noise ``level``; ``network`` predicts the velocity v = √(1 − a²)·ε − a·x (Salimans and Ho 2022).
    ``trained`` says on what it was trained. It is printed as a digest of its weights.
    """

    network: UNet
    trained: Training

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.network.image

    @property
    def classes(self) -> int:
        """How many classes it can be asked for; 0 if it knows none."""
        return self.network.classes

    def __call__(self, x: Tensor, level: Tensor, label: Tensor | None = None, /) -> Tensor:
        """The expected image E[x | x_a] for noisy images x (N, C, H, W), levels (N,) and, if known, classes (N,)."""
        unknown = torch.full((len(x),), self.classes, device=x.device)
        label = unknown if label is None else torch.where(label < self.classes, label, unknown)
        wide, level = x.float(), level.float()
        # trained in bfloat16 on a GPU; what it makes is judged in full precision
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda, cache_enabled=False):
            v = self.network(wide, level, label).float()
        a = level[:, None, None, None]
        return (share_of_image(a) * wide - a * v).to(x.dtype)

    def digest(self) -> str:
        found = hashlib.sha256()
        for name, value in sorted(self.network.state_dict().items()):
            found.update(name.encode())
            found.update(value.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data)
        return found.hexdigest()

    def __repr__(self) -> str:
        return f"Diffusion({'×'.join(map(str, self.shape))}, sha256 {self.digest()[:12]})"

    def __str__(self) -> str:
        learned = self.trained
        middle = learned.unexplained[LEVELS.index(0.7)]
        return (
            f"diffusion prior from {learned.images:,} images, {learned.steps:,} steps: at 70 % noise {middle:.0%} of the variance of "
            f"held-out images stays unexplained; its own samples are {learned.copies:.2f} times as far from the nearest training image "
            "as held-out images are"
        )

    def learned(self) -> Learned:
        """What it learned from and what it cannot make, as a record keeps it."""
        known = self.trained
        return Learned(known.images, known.held_out, known.steps, LEVELS, known.unexplained, known.copies)

    def to(self, device: torch.device) -> Diffusion:
        """The same prior on ``device``; itself where it is there already."""
        if next(self.network.parameters()).device == device:
            return self
        state = self.network.state_dict()
        return Diffusion(frozen(state, self.shape, self.network.width, self.classes, device), self.trained)

    def save(self, file: Path, *, half: bool = False) -> None:
        """Writes weights and facts as one safetensors file; with ``half`` in half precision."""
        state = {
            name: (value.half() if half else value).contiguous().cpu()
            for name, value in self.network.state_dict().items()
        }
        facts = {
            "format": FORMAT,
            "shape": self.shape,
            "width": self.network.width,
            "classes": self.classes,
            "trained": asdict(self.trained),
        }
        file.write_bytes(save(state, metadata={"leakgauge": json.dumps(facts)}))


def load_diffusion(source: str | Path) -> Diffusion:
    """A prior from a file that :meth:`Diffusion.save` wrote, or an embedded one by its name (:data:`EMBEDDED`)."""
    if source in EMBEDDED:
        file = Path(str(files("leakgauge.priors") / "weights" / f"{source}.safetensors"))
    else:
        file = Path(source)
        if not file.is_file():
            raise BadInput(f"there is no prior {str(source)!r}; give a file, or one of {', '.join(EMBEDDED)}")
    try:
        with safe_open(file, "pt") as opened:
            facts = json.loads((opened.metadata() or {}).get("leakgauge", "{}"))
            state = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, json.JSONDecodeError) as broken:
        raise BadInput(f"{file} is not a prior: {broken}") from None
    if facts.get("format") != FORMAT:
        raise BadInput(f"{file} is not a diffusion prior of this version")
    channels, height, width = facts["shape"]
    network = frozen(state, (channels, height, width), facts["width"], facts["classes"], torch.device("cpu"))
    trained = {**facts["trained"], "unexplained": tuple(facts["trained"]["unexplained"])}
    return Diffusion(network, Training(**trained))


def frozen(
    state: Mapping[str, Tensor], shape: tuple[int, int, int], width: int, classes: int, device: torch.device
) -> UNet:
    """The network with these weights, for use only."""
    with private_randomness(0, torch.device("cpu")):  # drawn and replaced
        network = UNet(shape, width=width, classes=classes)
    network.load_state_dict(state)
    layout = torch.channels_last if device.type == "cuda" else torch.preserve_format
    return network.to(device, memory_format=layout).eval().requires_grad_(False)  # pyright: ignore[reportCallIssue]


def sample(prior: Diffusion, count: int, *, steps: int = 50, labels: Tensor | None = None, seed: int = 0) -> Tensor:
    """``count`` images in [0, 1] that the prior makes without any guidance.

    Ref: Song et al. 2021, Eq. (12) — deterministic sampling, σ = 0
    """
    device = next(prior.network.parameters()).device
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, *prior.shape, generator=rng).to(device)
    return denoise(prior, x, path=levels(steps), labels=labels).add(1).div(2)


GALLERY, GALLERY_STEPS = 8, 25
"""Samples that are shown beside a result, and the steps that draw one."""


@lru_cache(maxsize=4)
def gallery(prior: Diffusion) -> Tensor:
    """Images in [0, 1] that the prior makes by itself, to be looked at; of different classes where it knows some."""
    device = next(prior.network.parameters()).device
    asked = torch.arange(GALLERY, device=device) % prior.classes if prior.classes else None
    return sample(prior, GALLERY, steps=GALLERY_STEPS, labels=asked).clamp(0, 1).cpu()


@torch.no_grad()
def denoise(prior: Diffusion, x: Tensor, *, path: Sequence[float], labels: Tensor | None = None) -> Tensor:
    """Images in [−1, 1] from noisy ones at the first level of ``path``, through all of them down to the last."""
    made = x
    for now, after in itertools.pairwise(path):
        a, b = x.new_tensor(now), x.new_tensor(after)
        made = prior(x, a.expand(len(x)), labels).clamp(-1, 1)
        noise = (x - share_of_image(a) * made) / a
        x = share_of_image(b) * made + b * noise
    return made


def noisy(x: Tensor, level: Tensor, noise: Tensor) -> Tensor:
    """x_a for images x (N, ...) in [−1, 1] and levels a (N,)."""
    a = level.view(-1, *[1] * (x.dim() - 1))
    return share_of_image(a) * x + a * noise


def velocity(x: Tensor, level: Tensor, noise: Tensor) -> Tensor:
    """v = √(1 − a²)·ε − a·x, what the network learns to predict.

    Ref: Salimans and Ho 2022, Appendix D — v-prediction
    """
    a = level.view(-1, *[1] * (x.dim() - 1))
    return share_of_image(a) * noise - a * x
