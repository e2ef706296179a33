"""What the paper says, what was measured, and whether the two agree, by rules that are written down here.

An image counts as *recovered* at SSIM 0.9; two numbers *differ* from 0.05 on in SSIM and from 5 points on in accuracy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ledger import Row, mean

RECOVERED, DIFFER, POINTS = 0.9, 0.05, 0.05
HEAD = ("| where | paper | ours | gap | why |", "|---|---|---|---|---|")


@dataclass(frozen=True)
class Claim:
    """One line of the table; ``why`` is shown only where there is a gap, and says *probably* where it was not tested."""

    where: str
    paper: str
    ours: str
    holds: bool
    why: str = ""

    def line(self) -> str:
        gap = "none" if self.holds else "**does not reproduce**"
        return f"| {self.where} | {self.paper} | {self.ours} | {gap} | {'' if self.holds else self.why} |"


def by_case(rows: list[Row], *names: str) -> list[Row] | None:
    """The rows of these cases, or None if one is missing or was refused."""
    found = {row["case"]: row for row in rows if "refused" not in row}
    return [found[name] for name in names] if all(name in found for name in names) else None


def ssim(row: Row, kind: str = "attack") -> float:
    return mean(row[kind]["ssim"])


UNTRAINED = "probably: the networks here are untrained"


def accuracy(rows: list[Row]) -> list[Claim]:
    found = [
        Claim(
            "training",
            f"{row['case']} reaches at least 85 %",
            f"{row['accuracy']:.1%}",
            row["accuracy"] >= 0.85,
            "probably too few epochs",
        )
        for name in ("resnet18_pre", "resnet18_post", "swin_t", "convnext_t")
        for row in by_case(rows, name) or []
    ]
    pair = by_case(rows, "convnext_t", "convnext_t_imagenet_stem")
    if pair:
        gain = pair[0]["accuracy"] - pair[1]["accuracy"]
        epochs = [row["epochs"] for row in pair]
        words = f"{100 * gain:+.1f} points ({pair[1]['accuracy']:.1%} to {pair[0]['accuracy']:.1%})"
        words += f", {epochs[0]} epochs each" if epochs[0] == epochs[1] else f", {epochs[1]} and {epochs[0]} epochs"
        found.append(
            Claim(
                "4.5.3",
                "adapting ConvNeXt's stem brings about 13 points",
                words,
                gain > POINTS and epochs[0] == epochs[1],
                "probably too few epochs" if epochs[0] == epochs[1] else "not comparable: unequal epochs",
            )
        )
    return found


def small(rows: list[Row]) -> list[Claim]:
    found: list[Claim] = []
    for name in ("convnext_t", "swin_t"):
        pair = by_case(rows, f"{name}, train mode", f"{name}_imagenet_stem, train mode")
        if pair:
            values = [ssim(row) for row in pair]
            words = f"SSIM {values[1]:.2f} with ImageNet's stem, {values[0]:.2f} adapted"
            found.append(
                Claim(
                    "4.5.3",
                    f"{name}: the stem of ImageNet on small images leaks more than the adapted one",
                    words,
                    values[1] > values[0] + DIFFER,
                    "not found out",
                )
            )
    ladder = by_case(rows, *(f"vit_b{kind}, train mode" for kind in ("_patch2", "", "_patch8", "_patch16")))
    if ladder:
        values = [ssim(row) for row in ladder]
        words = "SSIM " + ", ".join(f"{v:.2f} at {p}" for v, p in zip(values, (2, 4, 8, 16), strict=True))
        found.append(
            Claim(
                "4.5.2",
                "small patches leak, patches of 16 do not",
                words,
                values[0] > values[-1] + DIFFER,
                "not found out",
            )
        )
    three = by_case(rows, "resnet18_post, eval mode", "resnet18_post, train mode", "resnet18_pre, train mode")
    if three:
        inference, post, pre = (ssim(row) for row in three)
        words = f"SSIM {inference:.2f} eval, {post:.2f} train; pre-activation {pre:.2f} train"
        found.append(
            Claim(
                "Table 1",
                "post-activation ResNet18 leaks in inference mode only, pre-activation in train mode too",
                words,
                min(inference, pre) > post + DIFFER,
                "not found out",
            )
        )
    return found


def large(rows: list[Row]) -> list[Claim]:
    found: list[Claim] = []
    names = ("swin_t", "convnext_t", "swinv2_t", "vit_b")
    four = by_case(rows, *(f"{name}, batch 1, train mode" for name in names))
    if four:
        values = [ssim(row) for row in four]
        words = ", ".join(f"{name} {value:.2f}" for name, value in zip(names, values, strict=True))
        why = "not found out" if four[0]["trained"] else UNTRAINED
        found.append(
            Claim(
                "Fig. 1",
                "Swin-T alone gives a partial reconstruction",
                f"SSIM {words}",
                values[0] > max(values[1:]) + DIFFER,
                why,
            )
        )
    pair = by_case(rows, "swin_t, batch 1, train mode", "swin_t, batch 2, train mode")
    if pair:
        one, two = (ssim(row) for row in pair)
        why = "not found out" if pair[0]["trained"] else UNTRAINED
        found.append(
            Claim(
                "Fig. 3",
                "two images in place of one end Swin-T's reconstruction",
                f"SSIM {one:.2f} for 1, {two:.2f} for 2",
                one > two + DIFFER,
                why,
            )
        )
    return found


def shared_statistics(rows: list[Row]) -> list[Claim]:
    found: list[Claim] = []
    kinds = ("shared", "not shared", "Huang")
    for name in ("resnet18_pre", "resnet18_post"):
        three = by_case(rows, *(f"{name}, {kind}" for kind in kinds))
        if three:
            values = [ssim(row) for row in three]
            paper = " > ".join(f"{row['paper_ssim']}" for row in three)
            words = ", ".join(f"{value:.3f}" for value in values)
            found.append(
                Claim(
                    "Fig. 2",
                    f"{name}: exact, proxy, naive statistics: {paper}",
                    f"SSIM {words} (paired)",
                    values == sorted(values, reverse=True),
                    "not found out",
                )
            )
    both = by_case(rows, "resnet18_pre, shared", "resnet18_post, shared")
    if both:
        values = [ssim(row) for row in both]
        found.append(
            Claim(
                "Fig. 2",
                "pre-activation leaks, post-activation does not",
                f"SSIM {values[0]:.3f} against {values[1]:.3f} (paired)",
                values[0] > values[1] + DIFFER,
                "not found out",
            )
        )
    return found


def controlled(rows: list[Row]) -> list[Claim]:
    found: list[Claim] = []
    for row in [row for name in ("swin_t", "swinv2_t") for row in by_case(rows, name) or []]:
        least = min(row["attack"])
        words = f"SSIM at least {least:.2f}"
        found.append(
            Claim(
                "Fig. 4", f"{row['case']}: accurate from any start", words, least > RECOVERED, "probably too few steps"
            )
        )
    for name in ("vit_b", "convnext_t", "maxvit_t"):
        for row in by_case(rows, name) or []:
            gain = max(a - n for p, a, n in zip(row["shares"], row["attack"], row["null"], strict=True) if p >= 0.7)
            found.append(
                Claim(
                    "Fig. 4",
                    f"{name}: nothing gained where less than 40 % of the pixels are right",
                    f"at most {gain:+.2f} SSIM over the null run",
                    gain < 0.2,
                    "not found out",
                )
            )
    return found


def detection(rows: list[Row]) -> list[Claim]:
    three = by_case(rows, "canonical, eval mode", "pre_activation, train mode", "basic_block, eval mode")
    if not three:
        return []
    canonical, pre, basic = (ssim(row) for row in three)
    words = f"SSIM {canonical:.3f}, {pre:.3f}, {basic:.3f} (paper 0.016, 0.024, 0.299)"
    return [
        Claim(
            "Fig. 5",
            "only BasicBlocks in inference mode leak",
            words,
            basic > max(canonical, pre) + DIFFER,
            "not found out; other data and other training",
        )
    ]


CLAIMS: dict[str, Callable[[list[Row]], list[Claim]]] = {
    "accuracy": accuracy, "small": small, "large": large, "shared_statistics": shared_statistics, "controlled": controlled,
    "detection": detection,
}  # fmt: skip
