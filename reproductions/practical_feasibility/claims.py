"""What the paper says, what was measured, and whether the two agree, by rules that are written down here and in ``reasons.py``.

An image counts as *recovered* at SSIM 0.9; two numbers *differ* from 0.05 on in SSIM, from 0.2 on in the correlation of layouts and
from 5 points on in accuracy. What *leaks* is at least *partial* by the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from reproductions.practical_feasibility.ledger import Row
from reproductions.practical_feasibility.reasons import (
    DIFFER,
    DIFFER_LAYOUT,
    WELL_TRAINED,
    Beside,
    layout,
    spread,
    ssim,
)

RECOVERED, POINTS, GAINED = 0.9, 0.05, 0.2
"""SSIM of a recovered image, points of accuracy that count, SSIM over the null run that counts as a gain in Fig. 4."""
HEAD = ("| where | paper | ours | gap | why |", "|---|---|---|---|---|")


@dataclass(frozen=True)
class Finding:
    """``why`` is shown only where the claim does not hold."""

    ours: str
    holds: bool
    why: str = ""


@dataclass(frozen=True)
class Claim:
    """One line of the table, decided from the rows of ``cases``, in their order."""

    part: str
    where: str
    paper: str
    cases: tuple[str, ...]
    judge: Callable[[list[Row], Beside], Finding]

    def line(self, rows: list[Row] | None, beside: Beside) -> str:
        """``rows`` are those of the part at full size, None where there are none."""
        by_name = {row["case"]: row for row in rows or []}
        missing = [name for name in self.cases if name not in by_name]
        refused = [f"{name} ({by_name[name]['refused']})" for name in self.cases if "refused" in by_name.get(name, {})]
        if missing or refused:
            words = [f"not measured: {', '.join(missing)}"] if missing else []
            words += [f"not run: {', '.join(refused)}"] if refused else []
            return f"| {self.where} | {self.paper} | {'; '.join(words)} | open | |"
        found = self.judge([by_name[name] for name in self.cases], beside)
        gap = "none" if found.holds else "**does not reproduce**"
        return f"| {self.where} | {self.paper} | {found.ours} | {gap} | {'' if found.holds else found.why} |"


# --- accuracy --------------------------------------------------------------------------------------------------------


def too_short(row: Row) -> str:
    """Accuracy on training images tells overfitting from too short a training."""
    own, other = row["train_accuracy"], row["accuracy"]
    if own - other > 2 * POINTS:
        return f"overfits: {own:.0%} on training images after {row['epochs']} epochs"
    return f"too short a training: {own:.0%} on training images after {row['epochs']} epochs"


def _well_trained(rows: list[Row], beside: Beside) -> Finding:
    (row,) = rows
    return Finding(f"{row['accuracy']:.1%}", row["accuracy"] >= WELL_TRAINED, too_short(row))


def _stem_helps(rows: list[Row], beside: Beside) -> Finding:
    adapted, other = rows
    gain, equal = adapted["accuracy"] - other["accuracy"], adapted["epochs"] == other["epochs"]
    epochs = f"{adapted['epochs']} epochs each" if equal else f"{other['epochs']} and {adapted['epochs']} epochs"
    words = f"{100 * gain:+.1f} points ({other['accuracy']:.1%} to {adapted['accuracy']:.1%}), {epochs}"
    why = f"adapted {too_short(adapted)}" if equal else "not comparable: unequal epochs"
    return Finding(words, gain > POINTS and equal, why)


# --- attacks ---------------------------------------------------------------------------------------------------------


def _above(
    words: Callable[[list[Row]], str], leaking: slice, *, less: bool = False
) -> Callable[[list[Row], Beside], Finding]:
    """The rows of ``leaking`` must leak, and the others must not; with ``less`` they may, but clearly less: by SSIM or by their layout."""

    def judge(rows: list[Row], beside: Beside) -> Finding:
        leaks = rows[leaking]
        safe = [row for row in rows if row not in leaks]
        shown, other = min(beside.level(row) for row in leaks), max(beside.level(row) for row in safe)
        apart = any(
            min(measure(row) for row in leaks) > max(measure(row) for row in safe) + least
            for measure, least in ((ssim, DIFFER), (layout, DIFFER_LAYOUT))
        )
        holds = shown > 0 and (other == 0 or (less and (shown > other or (shown == other and apart))))
        alike = len({row["trained"] for row in rows}) == 1
        why = [] if holds else [beside.should_differ(leaks, safe)]
        why += [] if alike else ["trained and untrained networks are not comparable"]
        return Finding(words(rows), holds and alike, "; ".join(why))

    return judge


def _named(*names: str) -> Callable[[list[Row]], str]:
    def words(rows: list[Row]) -> str:
        each = (f"{ssim(row):.2f} ({layout(row):.2f}) {name}" for row, name in zip(rows, names, strict=True))
        return "SSIM (layout) " + ", ".join(each)

    return words


def _in_order(rows: list[Row], beside: Beside) -> Finding:
    values = [ssim(row) for row in rows]
    words = "SSIM " + ", ".join(f"{value:.3f}" for value in values) + " (paired)"
    worst = max(after - before for before, after in pairwise(values))
    over = spread(rows)
    if not any(row["settings"]["statistics"] for row in rows):
        why = "the settings that match the gradient best give statistics no weight: nothing is compared"
    elif worst <= over:
        why = f"out of order by {worst:.3f}, less than restarts differ (standard deviation {over:.3f})"
    else:
        why = "; ".join(beside.miss(row) for row in rows[:-1] if ssim(row) < max(values))
    return Finding(words, worst < 0, why)


def _from_any_start(rows: list[Row], beside: Beside) -> Finding:
    (row,) = rows
    least = min(row["attack"])
    at = row["shares"][row["attack"].index(least)]
    found = [*beside.training(row), f"{row['steps']} steps", f"worst at a share of {at:g}"]
    return Finding(f"SSIM at least {least:.2f}", least > RECOVERED, ", ".join(found))


def _nothing_gained(rows: list[Row], beside: Beside) -> Finding:
    (row,) = rows
    three = zip(row["shares"], row["attack"], row["null"], strict=True)
    gain, at = max((attack - null, share) for share, attack, null in three if share > 0.6)
    found = [*beside.training(row), f"most at a share of {at:g}"]
    return Finding(f"at most {gain:+.2f} SSIM over the null run", gain < GAINED, ", ".join(found))


def _drifts(rows: list[Row], beside: Beside) -> Finding:
    (row,) = rows
    at_truth = row["attack"][row["shares"].index(0.0)]
    why = "here the candidate of lowest objective is kept, and at the original 1 − cos is 0"
    return Finding(f"SSIM {at_truth:.2f}", at_truth < 1 - DIFFER, why)


TRAINED = ("resnet18_pre", "resnet18_post", "swin_t", "convnext_t")
CLAIMS = (
    *(Claim("accuracy", "training", f"{name} reaches at least 85 % (our bar)", (name,), _well_trained) for name in TRAINED),
    Claim("accuracy", "4.5.3", "adapting ConvNeXt's stem brings about 13 points", ("convnext_t", "convnext_t_imagenet_stem"), _stem_helps),
    *(
        Claim(
            "small", "4.5.3", f"{name}: the stem of ImageNet on small images leaks more than the adapted one",
            (f"{name}_imagenet_stem, train mode", f"{name}, train mode"),
            _above(_named("with ImageNet's stem", "adapted"), slice(1), less=True),
        )
        for name in ("convnext_t", "swin_t")
    ),
    Claim(
        "small", "4.5.2", "small patches leak, patches of 16 do not",
        ("vit_b, train mode", "vit_b_patch8, train mode", "vit_b_patch16, train mode"),
        _above(_named("at 4", "at 8", "at 16"), slice(1)),
    ),
    Claim(
        "small", "Table 1", "post-activation ResNet18 leaks in inference mode only, pre-activation in train mode too",
        ("resnet18_post, eval mode", "resnet18_pre, train mode", "resnet18_post, train mode"),
        _above(_named("post, eval", "pre, train", "post, train"), slice(2)),
    ),
    Claim(
        "large", "Fig. 1", "Swin-T alone gives a partial reconstruction",
        tuple(f"{name}, batch 1, train mode" for name in ("swin_t", "convnext_t", "swinv2_t", "vit_b")),
        _above(_named("Swin-T", "ConvNeXt-T", "SwinV2-T", "ViT-B"), slice(1)),
    ),
    Claim(
        "large", "Fig. 3", "two images in place of one end Swin-T's reconstruction",
        ("swin_t, batch 1, train mode", "swin_t, batch 2, train mode"), _above(_named("for 1", "for 2"), slice(1)),
    ),
    *(
        Claim(
            "shared_statistics", "Fig. 2", f"{name}: exact, proxy, naive statistics: {numbers}",
            tuple(f"{name}, {kind}" for kind in ("shared", "not shared", "Huang")), _in_order,
        )
        for name, numbers in (("resnet18_pre", "0.054 > 0.040 > 0.030"), ("resnet18_post", "0.041 > 0.024 > 0.013"))
    ),
    Claim(
        "shared_statistics", "Fig. 2", "pre-activation leaks, post-activation does not",
        ("resnet18_pre, shared", "resnet18_post, shared"), _above(_named("pre", "post (paired)"), slice(1)),
    ),
    *(Claim("controlled", "Fig. 4", f"{name}: accurate from any start", (name,), _from_any_start) for name in ("swin_t", "swinv2_t")),
    *(
        Claim("controlled", "Fig. 4", f"{name}: nothing gained where less than 40 % of the pixels are right", (name,), _nothing_gained)
        for name in ("vit_b", "convnext_t", "maxvit_t")
    ),
    *(
        Claim("controlled", "Fig. 4", f"{name}: the search leaves the right image (SSIM {number} from the original)", (name,), _drifts)
        for name, number in (("vit_b", 0.73), ("maxvit_t", 0.52))
    ),
    Claim(
        "detection", "Fig. 5", "only BasicBlocks in inference mode leak: SSIM 0.299 against 0.016 and 0.024",
        ("basic_block, eval mode", "canonical, eval mode", "pre_activation, train mode"),
        _above(_named("BasicBlock", "canonical", "pre-activation"), slice(1)),
    ),
)  # fmt: skip


def lines(parts: Mapping[str, list[Row] | None], beside: Beside) -> list[str]:
    """The table; ``parts`` holds the rows of each part at full size."""
    return [*HEAD, *(claim.line(parts.get(claim.part), beside) for claim in CLAIMS)]
