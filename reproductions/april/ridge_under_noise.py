"""Closed-form APRIL under noise: PSNR of the plain and of the ridge solution against the noise, architecture A.

    python -m reproductions.april.ridge_under_noise [--quick]

``--quick``: two settings, three noise levels, one image. Noise is Gaussian, ``relative`` times as long as the
whole gradient; the adversary of "ridge, declared" knows its deviation, that of "ridge, estimated" does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from leakgauge.attacks import april_closed_form
from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.data import photographs
from leakgauge.defenses import GaussianNoise
from leakgauge.measures.image import psnr
from leakgauge.models.vit import ViT
from reproductions.common import runner
from reproductions.common.runner import Part, Pictures, Row, Rows, run_part

RESULTS = Path(__file__).parent / "results"
NOISE = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
COLOURS = {"plain": "#d55e00", "ridge, declared": "#0072b2", "ridge, estimated": "#009e73"}
CAP = 120.0
"""Decibels at which the figure ends."""


@dataclass(frozen=True)
class Setting:
    """Architecture A: side of the image, patch, width, and the type of the client's numbers."""

    side: int
    patch: int
    width: int
    dtype: str

    def victim(self) -> Victim:
        model = ViT(
            in_channels=3, side=self.side, patch=self.patch, width=self.width, heads=12, depth=2, residual=False,
            position_std=1.0, class_token=False,
        )  # fmt: skip
        kind = torch.float64 if self.dtype == "float64" else torch.float32
        space = Pixels((3, self.side, self.side), mean=(0.45,), std=(0.25,))
        return Victim(model.to(kind), space)


SETTINGS = [Setting(s, p, w, d) for s, p, w in ((32, 4, 192), (224, 16, 768)) for d in ("float64", "float32")]


@dataclass(frozen=True, kw_only=True)
class Options(runner.Options):
    images: int = 3


def measured(setting: Setting, pictures: Tensor, noise: Sequence[float]) -> Iterator[Row]:
    victim = setting.victim()
    space, label = victim.space, torch.tensor([1])
    for number, picture in enumerate(pictures.to(victim.dtype)):
        x = space.encode(picture[None])
        clean = share(victim, Gradient(), x, label).signal
        for relative in noise:
            defense = GaussianNoise(relative=relative)
            std = defense.deviation(clean)
            seen = share(victim, Gradient(), x, label, defenses=[defense], secret=0)
            attacks = {
                "plain": april_closed_form(),
                "ridge, declared": april_closed_form(ridge="auto", noise=std),
                "ridge, estimated": april_closed_form(ridge="auto"),
            }
            for name, attack in attacks.items():
                result = attack(victim, seen)
                decibel = float(psnr(space.decode(result.x), picture[None]))
                found = {"image": number, "relative": relative, "solution": name}
                yield asdict(setting) | found | {"psnr": round(min(decibel, 300.0), 2), "notes": result.notes[1:]}


def means(rows: Sequence[Row], **chosen: object) -> float:
    own = [r["psnr"] for r in rows if all(r[k] == v for k, v in chosen.items())]
    return sum(own) / len(own)


def drawn(rows: Sequence[Row], settings: Sequence[Setting]) -> str:
    """One panel per setting: decibels against the logarithm of the noise."""
    wide, high, left, top = 330, 260, 50, 40
    levels = sorted({r["relative"] for r in rows} - {0.0})
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * wide + 40} {math.ceil(len(settings) / 2) * (high + 50) + 30}" '
        'font-family="sans-serif" font-size="12">',
        "<title>PSNR of closed-form APRIL against noise, plain and with a ridge</title>",
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for panel, setting in enumerate(settings):
        x0, y0 = left + (panel % 2) * (wide + 10), top + (panel // 2) * (high + 50)

        def at(level: float, decibel: float, x0: float = x0, y0: float = y0) -> str:
            across = (math.log10(level) - math.log10(levels[0])) / max(
                1, math.log10(levels[-1]) - math.log10(levels[0])
            )
            return f"{x0 + across * (wide - 80):.1f},{y0 + (high - 40) * (1 - min(decibel, CAP) / CAP):.1f}"

        title = f"{setting.side}×{setting.side}, width {setting.width}, {setting.dtype}"
        parts.append(f'<text x="{x0}" y="{y0 - 8}" font-weight="bold">{title}</text>')
        for decibel in range(0, int(CAP) + 1, 40):
            start, end = at(levels[0], decibel), at(levels[-1], decibel)
            parts.append(f'<polyline points="{start} {end}" stroke="#ddd"/>')
            x, y = start.split(",")
            parts.append(f'<text x="{float(x) - 6}" y="{float(y) + 4}" text-anchor="end">{decibel}</text>')
        for level in levels:
            x, y = at(level, 0).split(",")
            parts.append(f'<text x="{x}" y="{float(y) + 16}" text-anchor="middle">{level:.0e}</text>')
        for name, colour in COLOURS.items():
            path = " ".join(
                at(level, means(rows, **asdict(setting), relative=level, solution=name)) for level in levels
            )
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    for number, (name, colour) in enumerate(COLOURS.items()):
        parts.append(f'<text x="{left + 130 * number}" y="16" fill="{colour}">{name} (dB)</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def run(options: Options, results: Rows) -> None:
    noise = (0.0, 1e-4, 1e-2) if options.quick else NOISE
    for setting in SETTINGS[:2] if options.quick else SETTINGS:
        unit = f"{setting.side}×{setting.side}, width {setting.width}, {setting.dtype}"
        if not results.has(unit):
            pictures = photographs(setting.side)[1 : 1 + (1 if options.quick else options.images)]
            results.add(unit, *measured(setting, pictures, noise))


def draw(rows: list[Row], pictures: Pictures, out: Path) -> None:
    settings = [setting for setting in SETTINGS if any(asdict(setting).items() <= row.items() for row in rows)]
    (out / "ridge_under_noise.svg").write_text(drawn(rows, settings), encoding="utf-8")


def main() -> None:
    parser = runner.parser(__doc__, out=RESULTS)
    parser.add_argument("--images", type=int, default=3)
    given = parser.parse_args()
    run_part(Part("ridge_under_noise", run, draw), Options.of(given, images=given.images))


if __name__ == "__main__":
    main()
