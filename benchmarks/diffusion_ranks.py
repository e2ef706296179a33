"""Ranks of the pictures that ``benchmarks.diffusion_studies`` left, by correlation, by the features of the other network and by LPIPS.

    python -m benchmarks.diffusion_ranks --data DIR --out FOLDER      DIR of benchmarks.diffusion_cifar, FOLDER of the studies
    python -m benchmarks.diffusion_ranks --quick --out FOLDER         pictures of a --quick study; the numbers mean nothing

A gradient does not say in which order its batch was, so pictures of a batch are paired with the true ones first. Without its weights
LPIPS is left out.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.diffusion_cifar import drawn, network
from benchmarks.json_lines import write_lines
from leakgauge.measures.lpips import load_lpips
from leakgauge.measures.reidentification import normalised_correlation, rank


def _batch(name: str) -> int:
    """Of pictures by their name, which ends in depth, mode, batch, defense, whether that is known, and attack."""
    found = re.search(r" (?:train|eval) (\d+) ", name)
    assert found is not None
    return int(found[1])


def _matched(made: Tensor, truth: Tensor, alike: Callable[[Tensor, Tensor], Tensor], batch: int) -> Tensor:
    """The pictures of every batch in the order in which they are most like the true ones, all together, by the measure that ranks them."""
    from scipy.optimize import linear_sum_assignment

    def order(one: Tensor, other: Tensor) -> Tensor:
        return torch.from_numpy(linear_sum_assignment(alike(one, other).T.cpu().numpy(), maximize=True)[1])

    pairs = zip(made.split(batch), truth.split(batch), strict=True)
    return torch.cat([one[order(one, other)] for one, other in pairs])


def rank_pictures(out: Path, data: Path | None) -> None:
    """Writes ``ranks.jsonl`` beside the pictures."""
    lpips, images = load_lpips(), drawn(data)
    judges = {depth: network(depth, data) for depth in (20, 56)}
    known: dict[tuple[object, bytes], Tensor] = {}

    def once(name: object, vectors: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """The vectors of these images; the candidates are the same for many pictures, and a network need see them only once."""
        at = (name, x.numpy().tobytes())
        if at not in known:
            known[at] = vectors(x.float())
        return known[at]

    def features(depth: int) -> Callable[[Tensor, Tensor], Tensor]:
        judge, space = judges[depth]

        @torch.no_grad()
        def seen(x: Tensor) -> Tensor:
            return torch.nn.functional.normalize(judge.features(space.encode(x)))

        return lambda a, b: once(depth, seen, a) @ once(depth, seen, b).T

    lines: list[dict[str, object]] = []
    for file in sorted(out.glob("pictures_*.npz")):
        with np.load(file, allow_pickle=False) as kept:
            for name in kept.files:
                made = torch.from_numpy(kept[name]).float() / 255
                truth = images.attacked[0][: len(made)]
                kinds = {"correlation": normalised_correlation, "features": features(20 if " 56 " in name else 56)}
                if lpips is not None:
                    look = lpips.vectors
                    kinds["lpips"] = lambda a, b, look=look: -torch.cdist(once("l", look, a), once("l", look, b))
                each = {
                    kind: rank(_matched(made, truth, alike, _batch(name)), truth, images.pool[0], alike=alike).tolist()
                    for kind, alike in kinds.items()
                }
                first = {kind: sum(r == 1 for r in values) for kind, values in each.items()}
                lines.append({"pictures": name, "file": file.name, "images": len(made), "rank_1": first, "ranks": each})
                print(name, first, flush=True)
                write_lines(out / "ranks.jsonl", lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    if given.data is None and not given.quick:
        parser.error("give --data DIR, or --quick")
    rank_pictures(given.out, None if given.quick else given.data)


if __name__ == "__main__":
    main()
