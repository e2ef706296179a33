"""Ridge inversion at the cuts of the embedded VGG, and defenses at one of them: the figures of docs/split.md.

python -m benchmarks.split_scan [--out benchmarks/results/split_scan_cpu.jsonl]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.json_lines import write_lines
from leakgauge import Defense, Pixels, Victim
from leakgauge.data import MEAN, STD, fashion
from leakgauge.defenses import GaussianNoise, MaskChannels, PruneChannels, Quantize
from leakgauge.models.pretrained import pretrained
from leakgauge.split import Images, cuts, scan

AUXILIARY = 800
"""Of the 1,000 embedded test images, which the victim never saw; the other 200 are attacked."""
AT = "features.pool2"
DEFENSES: list[tuple[Defense, ...]] = [
    (Quantize(8),),
    (Quantize(4),),
    (Quantize(2),),
    (GaussianNoise(relative=0.5),),
    (GaussianNoise(relative=2.0),),
    (PruneChannels(0.5),),
    (MaskChannels(0.5),),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "split_scan_cpu.jsonl")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    victim = Victim(pretrained("vgg"), Pixels((1, 28, 28), mean=MEAN, std=STD), name="vgg")
    images, labels = fashion("test")
    auxiliary = Images(images[:AUXILIARY], labels[:AUXILIARY])
    test = Images(images[AUXILIARY:], labels[AUXILIARY:])
    listed = {cut.name: cut for cut in cuts(victim, images=test.images)}
    names = [name for name, cut in listed.items() if cut.operation in ("relu", "max_pool2d", "linear")]
    began = time.process_time()
    found = scan(victim, auxiliary, test, names, seed=options.seed)
    took = time.process_time() - began
    lines: list[dict[str, Any]] = []
    for row in found.rows:
        cut = listed[row.cut]
        cost = {
            "int8_bytes": cut.bytes("int8"),
            "raw_bytes": cut.image.raw_image,
            "jpeg_bytes": cut.image.jpeg,
            "edge_share": cut.edge_share,
            "edge_flops": cut.edge_flops,
        }
        lines.append(asdict(row) | cost)
        print(f"{row.cut:20} FVU {row.fvu:.3f} ({row.fvu_low:.3f} to {row.fvu_high:.3f})  accuracy {row.accuracy}")
    print(f"class-mean image: FVU {found.rows[0].fvu_of_class_mean:.3f}; {len(names)} cuts in {took:.1f} CPU seconds")
    for defenses in DEFENSES:
        (row,) = scan(victim, auxiliary, test, [AT], defenses=defenses, seed=options.seed).rows
        lines.append(asdict(row) | {"defenses": repr(defenses)})
        print(f"{AT}: FVU {row.fvu:.3f}, accuracy {row.accuracy}, {' + '.join(map(repr, defenses))}")
    lines.append({"cpu_seconds": took, "torch": torch.__version__, "seed": options.seed})
    write_lines(options.out, lines)


if __name__ == "__main__":
    main()
