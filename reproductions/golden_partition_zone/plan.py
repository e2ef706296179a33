"""What a part will train and about how long that takes on one H200, from rates measured there."""

from __future__ import annotations

from dataclasses import dataclass

from reproductions.golden_partition_zone.targets import RECIPES

IMAGES_A_SECOND = {"vgg19": 23_800, "ir152": 8_900, "vit": 18_200}
"""Training at 64 × 64 in bfloat16 by single launches; a recorded step is at least as fast."""

EPOCH = {"deconvolution": 0.17, "residual": 1.1, "flattened": 0.6, "attention": 2.0}
"""Seconds of an epoch over 10,000 auxiliary images, by single launches; 'attention' is a guess for 4096 tokens."""


@dataclass(frozen=True)
class Work:
    """Trainings of a network on so many images, and decoders of each kind on so many auxiliary images."""

    targets: tuple[tuple[str, int, int], ...] = ()
    """Network, how many of them, images."""
    decoders: tuple[tuple[str, int, int, int], ...] = ()
    """Kind, how many, epochs, auxiliary images."""

    @property
    def target_seconds(self) -> float:
        return sum(n * RECIPES[net].epochs * images / IMAGES_A_SECOND[net] for net, n, images in self.targets)

    @property
    def decoder_seconds(self) -> float:
        return sum(n * epochs * EPOCH[kind] * images / 10_000 for kind, n, epochs, images in self.decoders)


def planned(part: str, *, seeds: int, epochs: int) -> Work:
    """The work of a part; a network that an earlier part has trained is not counted twice."""
    full, short = 40_000, min(12, epochs)
    plans = {
        "vgg19-curve": Work(
            (("vgg19", seeds + 1, full),),
            (("deconvolution", 9 * (seeds + 1), epochs, 10_000), ("residual", 8, short, 10_000)),
        ),
        "vgg19-smoothing": Work((("vgg19", seeds - 1, full),), (("deconvolution", 9 * (seeds - 1), epochs, 10_000),)),
        "ir152-curve": Work(
            (("ir152", 3, full),), (("deconvolution", 24, epochs, 10_000), ("residual", 9, short, 10_000))
        ),
        "ir152-epochs": Work((), (("deconvolution", 4, 100, 10_000),)),
        "vit-curve": Work(
            (("vit", 2, full),),
            (("deconvolution", 24, epochs, 10_000), ("residual", 4, short, 10_000), ("flattened", 2, epochs, 10_000)),
        ),
        "predictions": Work((), (("deconvolution", 5, epochs, 10_000),)),
        "enhancements": Work((), (("deconvolution", 14, epochs, 10_000),)),
        "attention": Work((), (("deconvolution", 8, epochs, 10_000), ("attention", 1, epochs, 10_000))),
        "classes": Work(
            (("vgg19", 3 * min(2, seeds), 8_000),), (("deconvolution", 18 * min(2, seeds), epochs, 2_000),)
        ),
        "auxiliary": Work(
            (("vgg19", 1, 6_000),), (("deconvolution", 14, 5 * epochs, 2_000), ("residual", 4, short, 2_000))
        ),
        "faces": Work((("vgg19", 1, 2_400),), (("deconvolution", 7, 12 * epochs, 800), ("residual", 3, short, 800))),
        "zone": Work((), (("deconvolution", 21, 100, 10_000), ("deconvolution", 12, 40, 10_000))),
    }
    return plans[part]


def told(parts: list[str], *, seeds: int, epochs: int) -> list[str]:
    """One line a part and one for all; seconds are those of one process with the GPU for itself."""
    lines, whole = [], 0.0
    for part in parts:
        work = planned(part, seeds=seeds, epochs=epochs)
        networks, decoders = sum(n for _, n, _ in work.targets), sum(n for _, n, _, _ in work.decoders)
        whole += work.target_seconds + work.decoder_seconds
        lines.append(
            f"{part}: {networks} networks {work.target_seconds:.0f} s, {decoders} decoders {work.decoder_seconds:.0f} s"
        )
    return [*lines, f"all: {whole / 60:.0f} minutes one after the other"]
