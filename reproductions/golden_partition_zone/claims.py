"""What the paper says of its networks, what was measured, and whether the two agree, by rules that are written down here.

Errors are in the paper's unit. One seed tells nothing below a difference of 5 %; where there are several on both sides, their ranges
must not overlap. An accuracy agrees within 3 points. Blocks of VGG19 up to 26 are *shallow*, from 39 on *deep*, as in the paper's
figures; of IR-152 up to 48 and from 49 on. A mean over blocks is only taken where all of them are measured.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import mean

from reproductions.golden_partition_zone.leaks import Row
from reproductions.golden_partition_zone.lookup import PAPERS_DECODER, at_hundred_epochs, by_block, chosen, matching
from reproductions.golden_partition_zone.published import ACCURACY, FAITHFUL, GAINS, IR152_MSE, VGG19_MSE
from reproductions.golden_partition_zone.reasons import POINTS, UNKNOWN, another_network

NOISE = 0.05
SHARP = 2.0
"""A rise between two blocks that the paper calls sharp: its 0.0665 to 0.1369 is a factor of 2.06."""
TENTH = 0.1
SHALLOW = {"vgg19-curve": (13, 17, 26), "ir152-curve": (3, 8, 25, 40, 48)}
DEEP = {"vgg19-curve": (39, 43, 52), "ir152-curve": (49, 50, 51)}
HEAD = ("| where | paper | ours | gap | why |", "|---|---|---|---|---|")


@dataclass(frozen=True)
class Claim:
    """One line of the table; ``why`` is shown only where there is a gap, and says *probably* where it was not tested.

    ``undecided`` marks a difference that the measurements cannot tell from noise: no contradiction, and no confirmation.
    """

    where: str
    paper: str
    ours: str
    holds: bool
    why: str = ""
    undecided: bool = False

    def line(self) -> str:
        gap = "none" if self.holds else "undecided" if self.undecided else "**does not reproduce**"
        return f"| {self.where} | {self.paper} | {self.ours} | {gap} | {'' if self.holds else self.why} |"


def curve(
    rows: list[Row], part: str, labels: str = "one-hot", column: str = "test_mse_paper", **more: object
) -> dict[int, list[float]]:
    """The paper's decoder over the blocks of one network."""
    return by_block(rows, column, part=part, labels=labels, **{"decoder": PAPERS_DECODER, **more})


def complete(found: dict[int, list[float]], *blocks: int) -> bool:
    return all(found.get(block) for block in blocks)


def spread(values: list[float], digits: int = 3) -> str:
    """The mean, and the range where there are several."""
    several = f" ({min(values):.{digits}g} to {max(values):.{digits}g})" if len(values) > 1 else ""
    return f"{mean(values):.{digits}g}{several}"


def lower(one: list[float], other: list[float]) -> bool:
    """Whether ``one`` is lower than ``other``: ranges apart, or for single seeds by more than 5 %."""
    if min(len(one), len(other)) > 1:
        return max(one) < min(other)
    return mean(one) < (1 - NOISE) * mean(other)


def by_seed(rows: list[Row], part: str, blocks: Collection[int], labels: str = "one-hot") -> dict[int, float]:
    """The mean error over these blocks for every seed of which all of them are measured."""
    own = matching(rows, part=part, labels=labels, decoder=PAPERS_DECODER)
    errors = {(row["seed"], row["block"]): row["test_mse_paper"] for row in own if "test_mse_paper" in row}
    seeds = sorted({seed for seed, _ in errors if all((seed, block) in errors for block in blocks)})
    return {seed: mean(errors[seed, block] for block in blocks) for seed in seeds}


def accuracy(rows: list[Row]) -> list[Claim]:
    """Table 2."""
    made: list[Claim] = []
    targets = [row for row in matching(rows, data="cifar10") if row["key"].startswith("target/")]
    for (network, labels), paper in ACCURACY.items():
        own = matching(targets, network=network, labels=labels)
        if own:
            found = [row["accuracy"] for row in own]
            reached = [
                kind
                for (name, kind), wanted in ACCURACY.items()
                if name == network
                and any(row["accuracy"] >= wanted - POINTS for row in matching(targets, network=name, labels=kind))
            ]
            short = (
                f"{UNKNOWN}; as many epochs are enough with {' and '.join(reached)}"
                if reached
                else f"probably too short: {own[0]['epochs']} epochs, the paper trains up to 300"
            )
            made.append(
                Claim(
                    "Table 2",
                    f"{network}, {labels}: accuracy {paper:.1%}",
                    f"{mean(found):.1%}" + (f" ({min(found):.1%} to {max(found):.1%})" if len(found) > 1 else ""),
                    abs(mean(found) - paper) <= POINTS,
                    short if mean(found) < paper else "more accurate than there: another recipe",
                )
            )
    return made


def four_times(rows: list[Row]) -> list[Claim]:
    """Abstract and conclusion: deep blocks have on average four times the error of shallow ones."""
    made: list[Claim] = []
    cases = (("VGG19", "vgg19-curve", VGG19_MSE[39], 39), ("IR-152", "ir152-curve", IR152_MSE[50], 50))
    for name, part, printed, block in cases:
        found = curve(rows, part)
        low, high = (by_seed(rows, part, blocks) for blocks in (SHALLOW[part], DEEP[part]))
        ratios = [high[seed] / low[seed] for seed in low if seed in high]
        if not ratios:
            continue
        shallow = list(low.values())
        channels = matching(rows, part=part, decoder=PAPERS_DECODER)[0]
        ceiling = channels["mean_image_mse"] * channels["test_mse_paper"] / channels["test_mse"] / mean(shallow)
        said = []
        if mean(shallow) > FAITHFUL:
            said.append(f"shallow blocks give away less: mean error {mean(shallow):.3g}, there below {FAITHFUL}")
        if found.get(block) and mean(found[block]) < (1 - TENTH) * printed:
            said.append(f"deep blocks give away more: {mean(found[block]):.3g} at block {block}, there {printed:.3g}")
        said += _longer(rows, name, found, part)
        if ceiling < 4:
            said.append(
                f"no attack can reach it here: the mean picture alone has {ceiling:.1f} times the shallow error"
            )
        made.append(
            Claim(
                "abstract",
                f"{name}: error of deep over shallow blocks at least 4",
                spread(ratios),
                mean(ratios) >= 4,
                "; ".join(said) or UNKNOWN,
            )
        )
    return made


def _longer(rows: list[Row], name: str, found: dict[int, list[float]], part: str) -> list[str]:
    """What the ratio becomes where decoders of 100 epochs take the place of shorter ones."""
    network = name.replace("-", "").lower()
    blocks = (*SHALLOW[part], *DEEP[part])
    hundred = {block: at_hundred_epochs(rows, network, block) for block in blocks}
    trained = [block for block in blocks if hundred[block] is not None]
    if not trained or not complete(found, *blocks):
        return []
    errors = {block: hundred[block] or mean(found[block]) for block in blocks}
    ratio = mean(errors[block] for block in DEEP[part]) / mean(errors[block] for block in SHALLOW[part])
    return [f"100 epochs of a decoder, at blocks {', '.join(map(str, trained))}, make it {ratio:.3g}"]


def resistance(rows: list[Row]) -> list[Claim]:
    """Abstract: "66 % stronger resistance" is 1 − 0.64/1.87, a ratio of the two gains in dB by all enhancements (Table 5)."""
    gains: dict[int, float] = {}
    for block in (50, 40):
        names = ("baseline", "Attention & NN with dropout")
        plain, strong = (chosen(rows, "test_psnr_batches", part="attention", block=block, decoder=n) for n in names)
        if not plain or not strong:
            return []
        gains[block] = strong[0] - plain[0]
    words = f"{gains[50]:+.2f} dB at block 50, {gains[40]:+.2f} dB at block 40"
    if gains[40] <= 0:
        return [
            Claim(
                "abstract",
                "deep features resist 66 % more",
                words,
                False,
                "nothing is gained at block 40, so there is no ratio",
            )
        ]
    share = 1 - gains[50] / gains[40]
    said = []
    if gains[40] < (1 - TENTH) * GAINS[40]:
        said.append(f"block 40 gains less than there ({GAINS[40]:+.2f} dB)")
    if gains[50] > (1 + TENTH) * GAINS[50]:
        said.append(f"block 50 gains more than there ({GAINS[50]:+.2f} dB)")
    return [
        Claim(
            "abstract",
            "the gain by all enhancements is 66 % lower at the decision level",
            f"{share:.0%}: {words}",
            share >= 0.66 - TENTH,
            "; ".join(said) or UNKNOWN,
        )
    ]


def vgg19(rows: list[Row]) -> list[Claim]:
    """Figs. 5 and 6."""
    found, made = curve(rows, "vgg19-curve"), list[Claim]()
    if complete(found, 13, 17):
        worst = max(mean(found[13]), mean(found[17]))
        longer = [at_hundred_epochs(rows, "vgg19", block) for block in (13, 17)]
        hundred = max((value for value in longer if value is not None), default=None)
        why = UNKNOWN
        if hundred is not None:
            why = f"{'too few epochs' if hundred < FAITHFUL else 'not the number of epochs'}: 100 give {hundred:.3g}"
        words = f"at most {worst:.3g}" + (f"; block 26 {spread(found[26])}" if complete(found, 26) else "")
        made.append(
            Claim("Fig. 6", f"VGG19: faithful (below {FAITHFUL}) before block 26", words, worst < FAITHFUL, why)
        )
    if complete(found, 30, 33, 36, 39):
        errors = [mean(found[block]) for block in (30, 33, 36, 39)]
        steps, rise = [b - a for a, b in pairwise(errors)], errors[-1] / errors[0]
        cliff = rise >= SHARP and max(steps) > (errors[-1] - errors[0]) / 2
        shares = ", ".join(f"{value:.3g}" for value in errors)
        why = (
            f"the rise is a factor of {rise:.2f}"
            if rise < SHARP
            else "a ramp: no step between neighbours is half of the rise"
        )
        made.append(
            Claim(
                "Fig. 5", "VGG19: the error jumps between blocks 30 and 39", f"{shares} at 30, 33, 36, 39", cliff, why
            )
        )
    return made


def ir152(rows: list[Row]) -> list[Claim]:
    """Fig. 4, one-hot labels."""
    found = curve(rows, "ir152-curve")
    if not complete(found, 48, 49):
        return []
    before, after = mean(found[48]), mean(found[49])
    said = []
    if before >= FAITHFUL:
        longer = at_hundred_epochs(rows, "ir152", 48)
        told = "" if longer is None else f"; 100 epochs of a decoder give {longer:.3g}"
        said.append(f"block 48 is above {FAITHFUL} already{told}")
    if after < SHARP * before:
        said.append(f"block 49 has only {after / before:.2f} times its error")
    words = f"{before:.3g} at block 48, {after:.3g} at block 49"
    return [
        Claim(
            "Fig. 4", f"IR-152: below {FAITHFUL} up to block 48, sharply higher at 49", words, not said, "; ".join(said)
        )
    ]


def smoothing(rows: list[Row]) -> list[Claim]:
    """Sections 3.3 and 4.2: what label smoothing does to deep and to shallow features and to the class radius."""
    made: list[Claim] = []
    networks = (("IR-152", "ir152-curve", ("LS+", "LS-")), ("VGG19", "vgg19-curve", ("LS+",)))
    for name, part, kinds in networks:
        for kind in kinds:
            deep = [list(by_seed(rows, part, DEEP[part], labels).values()) for labels in ("one-hot", kind)]
            if all(deep):
                words = f"mean error {spread(deep[0])} one-hot, {spread(deep[1])} {kind}"
                claim = lower_claim("4.2", f"{name}: {kind} makes deep features harder to invert", words, *deep)
                other = another_network(matching(rows, part=part, labels=kind, decoder=PAPERS_DECODER))
                made.append(replace(claim, holds=False, undecided=True, why=other[0]) if other else claim)
        shallow = [list(by_seed(rows, part, SHALLOW[part], labels).values()) for labels in ("one-hot", "LS+")]
        if all(shallow):
            words = f"mean error {spread(shallow[0])} one-hot, {spread(shallow[1])} LS+"
            one, two = shallow
            made.append(lower_claim("3.3", f"{name}: LS+ makes shallow features easier to invert", words, two, one))
        block = 49 if name == "IR-152" else 52
        radii = [curve(rows, part, labels, "radius_per_dimension").get(block, []) for labels in ("one-hot", "LS+")]
        if all(radii):
            words = f"R_c²/D {spread(radii[0])} one-hot, {spread(radii[1])} LS+ at block {block}"
            one, two = radii
            made.append(lower_claim("3.3", f"{name}: LS+ shrinks the class radius", words, two, one))
    return made


def lower_claim(where: str, paper: str, ours: str, one: list[float], other: list[float]) -> Claim:
    """The claim that ``one`` is lower than ``other``; it fails where it is higher, and is undecided where neither is told."""
    several = min(len(one), len(other)) > 1
    if lower(other, one):
        return Claim(where, paper, ours, False, "the opposite" + (", beyond the seeds" if several else ", one seed"))
    why = "the seeds' ranges overlap" if several else "less than 5 % apart, one seed"
    return Claim(where, paper, ours, lower(one, other), why, undecided=True)


def vit(rows: list[Row]) -> list[Claim]:
    """Figs. 2 and 7."""
    grid, made = curve(rows, "vit-curve", decoder="token grid"), list[Claim]()
    if complete(grid, *range(1, 7)):
        last = mean(grid[6])
        made.append(
            Claim(
                "Fig. 2",
                f"ViT: the last block is still inverted faithfully (below {FAITHFUL})",
                f"{last:.3g} at block 6",
                last < FAITHFUL,
                f"{last / FAITHFUL:.1f} times that; a stronger decoder: {_stronger_vit(rows)}",
            )
        )
        falls = {b: mean(grid[a]) / mean(grid[b]) - 1 for a, b in pairwise(range(1, 7))}
        block = max(falls, key=falls.__getitem__)
        words = (
            f"block {block} is {falls[block]:.0%} better than the one before"
            if falls[block] > 0
            else "the error only rises"
        )
        if falls[block] > NOISE:
            words += "; what a later block gives an earlier one gives too, so this is the decoders' doing"
        why = "no fall above 5 %"
        made.append(
            Claim("Fig. 7", "ViT: patch tokens' error goes up and down with depth", words, falls[block] > NOISE, why)
        )
    token = [curve(rows, "vit-curve", labels, decoder="class token").get(6, []) for labels in ("one-hot", "LS+")]
    if all(token):
        words = f"{spread(token[0])} one-hot, {spread(token[1])} LS+ at block 6"
        made.append(lower_claim("Fig. 7", "ViT: the class token alone resists more with LS+", words, *token))
    return made


def _stronger_vit(rows: list[Row]) -> str:
    found = curve(rows, "vit-curve", decoder="token grid, residual").get(6, [])
    return f"{mean(found):.3g}" if found else "not measured"
