"""Draws the figures of the README from the results and the reconstructions that were kept.

    python -m reproductions.golden_partition_zone.figures

Curves are the mean over the seeds with their range behind it. What was not measured is not drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

import numpy as np

from reproductions.common.drawing import Line, Panel, grid, svg
from reproductions.common.runner import Row, read_pictures
from reproductions.golden_partition_zone.published import IR152_MSE, VGG19_MSE
from reproductions.golden_partition_zone.results_rows import (
    PAPERS_DECODER,
    RESULTS,
    STRONGER,
    all_rows,
    by_block,
    matching,
)

ERROR, PSNR, FVU, RADIUS = "test_mse_paper", "test_psnr_batches", "fvu", "radius_per_dimension"
WORDS = {ERROR: "squared error, as in the paper", PSNR: "PSNR of batches, dB", FVU: "FVU", RADIUS: "R_c² per dimension"}
ORACLE = "mean picture of the class"

ALT = {
    "vgg19.svg": "Error, PSNR, FVU and class radius over the blocks of VGG19, one-hot labels and LS+, with the range of the seeds",
    "ir152.svg": "Error, PSNR, FVU and class radius over the blocks of IR-152 for one-hot labels, LS+ and LS-",
    "vit.svg": "Error, PSNR and FVU over the six blocks of the ViT from patch tokens and from the class token",
    "classes.svg": "FVU and class radius over the blocks of VGG19 trained on 2, 5 and 10 classes",
    "auxiliary.svg": "Error and FVU over the blocks of a reader of Kuzushiji, attacked with Kuzushiji and with digits",
    "faces.svg": "Error, PSNR, FVU and class radius over the blocks of VGG19 trained on faces",
    "zone.svg": "FVU of ridge and decoder at every cut of VGG19 with the cuts that the search names, and the seconds of each way",
    "training.svg": "Class radius and gradient norm at block 52 of VGG19 during training, one-hot labels and LS+",
    "maps.svg": "t-SNE maps of IR-152's features over the blocks, one-hot labels and LS+",
    "strips_vgg19.png": "Test images and their reconstructions from every block of VGG19",
    "strips_ir152.png": "Test images and their reconstructions from every block of IR-152",
    "strips_vit.png": "Test images and their reconstructions from every block of the ViT, by patch tokens and by the class token",
    "strips_auxiliary.png": "Kuzushiji and their reconstructions from every block, learned on Kuzushiji and on digits",
    "strips_faces.png": "Faces and their reconstructions from every block of VGG19",
}
"""Every figure and what a reader who cannot see it is told."""


@dataclass(frozen=True)
class Series:
    """One line of a figure: its name and the rows it is made of."""

    name: str
    wanted: Mapping[str, object]


def paper_line(name: str, part: str, **wanted: object) -> Series:
    return Series(name, {"part": part, "decoder": PAPERS_DECODER, **wanted})


@dataclass(frozen=True)
class Figure:
    """Panels of several columns over the blocks of one network; ``published`` are the paper's errors where it prints them."""

    series: tuple[Series, ...]
    columns: tuple[str, ...] = (ERROR, PSNR, FVU, RADIUS)
    published: Mapping[int, float] = field(default_factory=dict)

    def rows(self, rows: list[Row]) -> list[Row]:
        return [row for one in self.series for row in matching(rows, **one.wanted) if FVU in row]

    def panels(self, rows: list[Row]) -> list[Panel]:
        blocks = sorted({row["block"] for row in self.rows(rows)})
        place = {block: float(number) for number, block in enumerate(blocks)}
        return [
            self._panel(rows, column, place) for column in self.columns if any(column in r for r in self.rows(rows))
        ]

    def _panel(self, rows: list[Row], column: str, place: dict[int, float]) -> Panel:
        lines = []
        for one in self.series:
            found = by_block(rows, column, **one.wanted)
            if found and not (column == RADIUS and one.wanted.get("decoder") != PAPERS_DECODER):
                lines.append(_line(one.name, {place[block]: values for block, values in found.items()}))
        if column == ERROR and self.published:
            points = [(place[block], value) for block, value in self.published.items() if block in place]
            lines.append(Line("paper", points, joined=False))
        if column == FVU:
            lines += self._oracles(rows, max(1.0, *place.values()))
        top = max(
            (v for line in lines for v in (*(y for _, y in line.points), *(h for _, _, h in line.spread))), default=1
        )
        return Panel(
            "class radius" if column == RADIUS else WORDS[column].split(",")[0],
            "block",
            WORDS[column],
            lines,
            log_y=column == RADIUS,
            bounds=(0, 1.05 * top) if column in (ERROR, FVU) else None,
            ticks=list(place.values()),
            words=[str(block) for block in place],
        )

    def _oracles(self, rows: list[Row], end: float) -> list[Line]:
        """The error of knowing the class: one level, or one a series where their data or classes differ."""
        found = {
            one.name: [row["class_mean_fvu"] for row in matching(rows, **one.wanted) if "class_mean_fvu" in row]
            for one in self.series
        }
        values = [value for of in found.values() for value in of]
        if not values:
            return []
        if max(values) < 1.02 * min(values):
            return [Line(ORACLE, [(x, mean(values)) for x in (0.0, end)], dashed=True)]
        return [
            Line(f"{ORACLE}, {name}", [(x, mean(of)) for x in (0.0, end)], dashed=True)
            for name, of in found.items()
            if of
        ]


def _line(name: str, found: dict[float, list[float]]) -> Line:
    band = (
        [(x, min(values), max(values)) for x, values in found.items()]
        if any(len(v) > 1 for v in found.values())
        else []
    )
    return Line(name, [(x, mean(values)) for x, values in found.items()], spread=band)


def curves(rows: list[Row]) -> dict[str, Figure]:
    """The figures over blocks. Rows of the number of classes name their data after it."""
    sets = sorted(
        {r["data"] for r in matching(rows, part="classes")}, key=lambda data: int(data.split(", ")[1].split()[0])
    )
    vgg, strong = "vgg19-curve", {"part": "vgg19-curve", "labels": "one-hot", "decoder": STRONGER}
    return {
        "vgg19.svg": Figure(
            (
                *(paper_line(k, f"{vgg}-100", labels=k) for k in ("one-hot", "LS+")),
                *(paper_line(f"{k}, 30 epochs", vgg, labels=k) for k in ("one-hot", "LS+")),
                Series("one-hot, residual decoder", strong),
                paper_line("one-hot, the paper's recipe", f"{vgg}-plateau-100", labels="one-hot"),
            ),
            published=VGG19_MSE,
        ),
        "ir152.svg": Figure(
            (
                *(paper_line(k, "ir152-curve-100", labels=k) for k in ("one-hot", "LS+", "LS-")),
                *(paper_line(f"{k}, 30 epochs", "ir152-curve", labels=k) for k in ("one-hot", "LS+")),
                Series("one-hot, residual decoder", {**strong, "part": "ir152-curve"}),
            ),
            published=IR152_MSE,
        ),
        "vit.svg": Figure(
            tuple(
                Series(f"{decoder}, {labels}", {"part": "vit-curve", "decoder": decoder, "labels": labels})
                for decoder in ("token grid", "class token", "token grid, residual", "flattened")
                for labels in ("one-hot", "LS+")
                if (decoder, labels) != ("flattened", "LS+")
            ),
            (ERROR, PSNR, FVU),
        ),
        "classes.svg": Figure(
            tuple(paper_line(data.split(", ")[1], "classes", data=data) for data in sets), (FVU, RADIUS)
        ),
        "auxiliary.svg": Figure(
            (
                paper_line("learned on Kuzushiji", "auxiliary", owned="kmnist"),
                paper_line("learned on digits", "auxiliary", owned="mnist"),
            ),
            (ERROR, FVU),
        ),
        "faces.svg": Figure(
            (
                paper_line("LS+", "faces", labels="LS+"),
                Series("LS+, residual decoder", {"part": "faces", "labels": "LS+", "decoder": STRONGER}),
            )
        ),
    }


def zone(rows: list[Row], path: Path) -> bool:
    """The curve of ridge and decoder with the cuts that the search names, and the seconds of the three ways."""
    compared = sorted((r for r in rows if r["unit"].startswith("zone/compared/")), key=lambda row: row["threshold"])
    decoders = matching(rows, part="zone", attack="decoder", enough=None)
    longest = max((r["epochs"] for r in decoders), default=0)
    if not compared or not decoders:
        return False

    def at(cut: str) -> float:
        return float(cut.split(".")[1])

    ends = [min(at(r["cut"]) for r in decoders), max(at(r["cut"]) for r in decoders)]
    every = f"decoder at every cut, {longest} epochs"
    shown = [
        Line("ridge", sorted((at(r["cut"]), r["fvu"]) for r in matching(rows, part="zone", attack="ridge"))),
        Line(every, sorted((at(r["cut"]), r["fvu"]) for r in decoders if r["epochs"] == longest)),
        *(Line("threshold", [(x, r["threshold"]) for x in ends], dashed=True) for r in compared),
        Line(
            "find_zone",
            [(at(r["find_zone"]["cut"]), r["threshold"]) for r in compared if r["find_zone"]["cut"]],
            joined=False,
        ),
    ]
    ways = {every: "exhaustive", "find_zone": "find_zone", "bisection by depth": "bisection"}
    spent = [Line(name, [(r["threshold"], r[way]["seconds"]) for r in compared]) for name, way in ways.items()]
    thresholds = [r["threshold"] for r in compared]
    panels = [
        Panel("cuts of VGG19; diamonds: the cut that find_zone names", "layer of the features", "FVU", shown),
        Panel("time of each way", "threshold", "seconds", spent, log_y=True, ticks=thresholds),
    ]
    svg(path, panels, title=ALT[path.name])
    return True


def training(rows: list[Row], path: Path) -> bool:
    """R_c² and the gradient's norm at block 52 while VGG19 is trained."""
    logged = [row for row in matching(rows, part="training", seed=0) if "radius" in row]
    found = sorted(logged, key=lambda row: row["epoch"])
    if not found:
        return False

    def lines(value: Callable[[Row], float]) -> list[Line]:
        return [
            Line(labels, [(r["epoch"], value(r)) for r in found if r["labels"] == labels])
            for labels in dict.fromkeys(r["labels"] for r in found)
        ]

    panels = [
        Panel("class radius", "epoch", "mean R_c²", lines(lambda r: float(np.nanmean(r["radius"]))), log_y=True),
        Panel("gradient at the features", "epoch", "mean norm", lines(lambda r: r["gradient_norm"]), log_y=True),
    ]
    svg(path, panels, title=ALT[path.name])
    return True


def maps(rows: list[Row], path: Path) -> bool:
    """t-SNE maps over the blocks, one-hot labels above LS+."""
    found = sorted(matching(rows, part="clusters-100"), key=lambda row: (row["labels"] == "LS+", row["block"]))
    panels = [
        Panel(
            f"{row['labels']}, block {row['block']}",
            "",
            "",
            [
                Line(
                    f"class {k}",
                    [(x, y) for (x, y), of in zip(row["map"], row["classes"], strict=True) if of == k],
                    joined=False,
                )
                for k in sorted(set(row["classes"]))
            ],
        )
        for row in found
    ]
    if panels:
        svg(path, panels, columns=4, title=ALT[path.name])
    return bool(panels)


Pictures = Mapping[str, np.ndarray]
IMAGES = 3
"""Test images of which a strip shows the reconstructions."""

STRIPS: dict[str, tuple[Series, ...]] = {
    "strips_vgg19.png": tuple(
        paper_line(labels, "vgg19-curve", labels=labels, seed=0) for labels in ("one-hot", "LS+")
    ),
    "strips_ir152.png": tuple(paper_line(k, "ir152-curve", labels=k, seed=0) for k in ("one-hot", "LS+", "LS-")),
    "strips_vit.png": tuple(
        Series(f"{decoder}, {k}", {"part": "vit-curve", "decoder": decoder, "labels": k})
        for decoder in ("token grid", "class token")
        for k in ("one-hot", "LS+")
    ),
    "strips_auxiliary.png": (
        paper_line("learned on Kuzushiji", "auxiliary", owned="kmnist"),
        paper_line("learned on digits", "auxiliary", owned="mnist"),
    ),
    "strips_faces.png": (paper_line("LS+", "faces", labels="LS+"),),
}


def strip(path: Path, series: tuple[Series, ...], rows: list[Row], pictures: Pictures) -> bool:
    """Truth and every block side by side; a row is one test image by one way. A missing reconstruction stays white."""
    own = [[row for row in matching(rows, **one.wanted) if row["unit"] in pictures] for one in series]
    blocks = sorted({row["block"] for found in own for row in found})
    lines: list[tuple[str, np.ndarray]] = []
    for one, found in zip(series, own, strict=True):
        truth = pictures.get(f"truth/{found[0]['data']}") if found else None
        if truth is None:
            continue
        by = {row["block"]: pictures[row["unit"]] for row in found}
        blank = np.full_like(truth, 255)
        for image in range(min(IMAGES, len(truth))):
            shown = [truth[image], *(by.get(block, blank)[image] for block in blocks)]
            lines.append((one.name if image == 0 else "", np.stack(shown)))
    if lines:
        grid(path, lines, side=64, heads=["truth", *map(str, blocks)])
    return bool(lines)


def draw(rows: list[Row], pictures: Pictures, folder: Path) -> list[Path]:
    """Every figure that has something to show; returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    made: list[Path] = []
    for name, figure in curves(rows).items():
        if figure.rows(rows):
            panels = figure.panels(rows)
            svg(folder / name, panels, columns=2 if len(panels) != 3 else 3, title=ALT[name])
            made.append(folder / name)
    made += [
        folder / name
        for name, way in (("zone.svg", zone), ("training.svg", training), ("maps.svg", maps))
        if way(rows, folder / name)
    ]
    return made + [folder / name for name, series in STRIPS.items() if strip(folder / name, series, rows, pictures)]


if __name__ == "__main__":
    everything = all_rows()
    print(*draw(everything, read_pictures(RESULTS.parent, "run"), RESULTS.parent), sep="\n")
