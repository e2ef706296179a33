"""Freezes the verdict's threshold of the layout on the reconstructions of ``freeze_thresholds.py``: ResNet-20 and ResNet-56 on CIFAR-10.

    python -m reproductions.practical_feasibility.freeze_layout --data FOLDER

How alike must two layouts be before it says anything? Every reconstruction (but for those that start from the image itself) is compared
with 499 images that it is not of. The threshold is the smallest correlation, in twentieths, that at most one in a hundred of them reaches.
Beside it stands how often all checks of ``OUTLINED`` together would take a wrong image for the true one, and how often the true one passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakgauge.audit.verdict import OUTLINED
from leakgauge.measures.layout import layout_pairs
from reproductions.common.drawing import Line, Panel, svg
from reproductions.common.runner import Pictures, Row, Rows
from reproductions.practical_feasibility import setting
from reproductions.practical_feasibility.freeze_thresholds import CASES, POOL, attempts, run_cases
from reproductions.practical_feasibility.setting import Images, Options, Plan

PLAN: Plan = dict.fromkeys(CASES, 20.0)
STEP = 0.05
GRID = tuple(round(STEP * i, 2) for i in range(21))
WRONG = 0.01
"""Share of wrong images that may reach the threshold."""
_BARS = {(check.metric, check.above): check.margin for check in OUTLINED}


def run(options: Options, ledger: Rows, plan: Plan) -> None:
    run_cases(options, ledger, plan, measure)


def measure(key: str, options: Options, ledger: Rows, images: Images, shares: Sequence[float], count: int) -> None:
    made = attempts(key, options, images, shares, count)
    pool = images.x[:POOL].double()
    kept = [at for at, (share, _) in enumerate(made.tried) if share > 0]
    own = torch.tensor([made.tried[at][1] for at in kept])
    from_noise = [at for at, (share, _) in enumerate(made.tried) if share == 1]
    alike = layout_pairs(made.shown["attack"][kept].double(), pool)
    null = layout_pairs(made.shown["null"][from_noise].double(), pool)
    by_image = {made.tried[at][1]: row for row, at in enumerate(from_noise)}
    bars = torch.stack([null[by_image[int(i)]] for i in own])
    right = torch.nn.functional.one_hot(own, len(pool)).bool()
    passes = outlined(alike, bars)
    ledger.add(
        key, trained=made.trained, data=images.name, steps=made.steps, bar=_BARS["layout", "zero"],
        shares=[made.tried[at][0] for at in kept], images=own.tolist(),
        layout=alike[right].tolist(), null_layout=bars[right].tolist(), found=passes[right].tolist(),
        wrong=int((~right).sum()), wrong_at_least=[int((alike[~right] >= at).sum()) for at in GRID], wrong_found=int(passes[~right].sum()),
    )  # fmt: skip


def outlined(alike: Tensor, null: Tensor) -> Tensor:
    """Which images (columns) each reconstruction (row) would be taken for, by the checks of the verdict."""
    first = alike >= alike.amax(1, keepdim=True)
    return (alike >= _BARS["layout", "zero"]) & (alike >= null + _BARS["layout", "null"]) & first


def freeze(rows: Sequence[Row]) -> dict[str, Any]:
    """The threshold, and how often wrong and true images pass all checks together."""
    own = [row for row in rows if row["unit"] in CASES]
    total = sum(row["wrong"] for row in own)
    shares = [sum(row["wrong_at_least"][i] for row in own) / total for i in range(len(GRID))]
    return {
        "layout": next((at for at, share in zip(GRID, shares, strict=True) if share <= WRONG), 1.0),
        "shares": shares,
        "wrong": total,
        "wrong_found": sum(row["wrong_found"] for row in own),
        "found": {
            share: [
                found and value >= _BARS["layout", "zero"]
                for row in own
                for p, found, value in zip(row["shares"], row["found"], row["layout"], strict=True)
                if p == share
            ]
            for share in sorted({p for row in own for p in row["shares"]})
        },
        "bar": min(row["bar"] for row in own),
    }


def draw(rows: list[Row], pictures: Pictures, out: Path) -> None:
    frozen = freeze(rows)
    lines = [Line("wrong images", list(zip(GRID, frozen["shares"], strict=True)))]
    values = [value for row in rows if row["unit"] in CASES for value in row["layout"]]
    lines.append(Line("the true image", [(at, sum(v >= at for v in values) / len(values)) for at in GRID]))
    panel = Panel("Layout", "correlation at least", "share", lines, bounds=(0.0, 1.0))
    svg(out / "freeze_layout.svg", [panel], title="Wrong and true images by the correlation of their layout")


def table(rows: list[Row]) -> str:
    frozen = freeze(rows)
    count = sum(len(found) for found in frozen["found"].values())
    words = (
        f"{count} reconstructions with {frozen['wrong']} wrong images: a correlation of {frozen['layout']:g} is reached by at most "
        f"{WRONG:.0%} of these. All three checks together, with {frozen['bar']:g}, take {frozen['wrong_found']} of them for the true one."
    )
    lines = [words, "", "| share of noise in the start | the true image passes all three |", "|---|---|"]
    lines += [f"| {share:g} | {sum(found)} of {len(found)} |" for share, found in frozen["found"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    setting.main("freeze_layout", PLAN, run, draw, __doc__)
