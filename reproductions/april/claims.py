"""What the paper says, what was measured, and whether the two agree, by rules that are written down here.

An image counts as *recovered* at SSIM 0.95 and as *recognisable* at 0.5; an accuracy as *kept* within 2 points. Pictures of a batch, which
the paper judges by eye, count as recognisable where each is more like its own image than like any other of the batch: SSIM of large images
falls with grain that an eye looks through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reproductions.april import study
from reproductions.april.batches import BY_BIAS, first, newest
from reproductions.april.edges import in_words
from reproductions.april.study import Row
from reproductions.april.table1 import NAMES, PAPER, chosen, common
from reproductions.april.why_table1 import ABSOLUTE, ALL, CASES, OPTIMISED, POSITIONS, READ, SQUARED

RECOVERED, RECOGNISABLE, KEPT = 0.95, 0.5, 0.02
PAPERS_STEPS = 5000
"""On ImageNet."""


@dataclass(frozen=True)
class Claim:
    """One line of the table; ``why`` is shown only where there is a gap, and says *probably* where it was not tested.

    ``shorter`` marks a run of fewer steps than the paper's: missing its result there is no contradiction.
    """

    figure: str
    paper: str
    ours: str
    holds: bool
    why: str = ""
    shorter: bool = False

    def line(self) -> str:
        missed = "not reached in a shorter run" if self.shorter else "**does not reproduce**"
        gap = "none" if self.holds else missed
        return f"| {self.figure} | {self.paper} | {self.ours} | {gap} | {'' if self.holds else self.why} |"


def one(rows: list[Row], **wanted: object) -> Row:
    """The row with these values."""
    return next(row for row in rows if all(row.get(key) == value for key, value in wanted.items()))


def reasons(name: str) -> list[Row]:
    """Rows of a study that looked for a reason; none where it has not been run at full size."""
    path = study.RESULTS / f"{name}.jsonl"
    facts, rows = study.read(path) if path.is_file() else ({"quick": True}, [])
    return [] if facts["quick"] else rows


USUAL, UNSCALED = "as in the studies", "logits not divided by √d"


def even_attention() -> str:
    """Why architecture A hides the patches from each other, from ``why.py``."""
    rows = [r for r in reasons("why") if r.get("start") == "noise"]
    if not {USUAL, UNSCALED} <= {r["model"] for r in rows}:
        return "not found out"
    usual, sharp = one(rows, model=USUAL), one(rows, model=UNSCALED)
    return (
        f"attention of fresh weights is nearly even (largest weight {usual['weight']:.2f}), so the tokens' gradients are almost the "
        f"same ({usual['spread']:.1%} of Σ‖∂l/∂z‖² is not their mean) and hardly tell patches apart; with logits not divided by √d it is "
        f"{sharp['spread']:.0%}, and APRIL reaches SSIM {sharp['ssim']:.2f} instead of {usual['ssim']:.2f} in {sharp['steps']} steps "
        "(MNIST, `why.py`)"
    )


def noisy_inverse(factor: float) -> str:
    """Why noise destroys the closed form, from ``why.py``."""
    rows = reasons("why")
    small = [r for r in rows if r["part"] == "noise" and r["reading"] == "tensor" and not r["ridge"]]
    base = [r for r in rows if r["part"] == "noise base" and r["reading"] == "tensor"]
    if not {USUAL, UNSCALED} <= {r["model"] for r in small} or len({r["model"] for r in base}) < 3:
        return "the system is ill-conditioned"
    usual, sharp = (one(small, model=m, factor=factor) for m in (USUAL, UNSCALED))
    large, orthogonal = (
        one(base, model=USUAL),
        next(r for r in base if "orthogonal" in r["model"] and r["factor"] == factor),
    )
    return (
        f"two inverses enlarge the noise: of ∂l/∂z (condition {large['condition']:.0e}, since attention is nearly even) and of a square "
        f"patch embedding (condition {large['patch_condition']:.0e}); without both, and noise c times as long as each tensor's own "
        f"gradient, SSIM {orthogonal['ssim']:.2f} at c = {factor:g}. The MNIST model, whose patches have 49 values: {usual['ssim']:.2f}, "
        f"not divided by √d {sharp['ssim']:.2f} (`why.py`)"
    )


def wrong_labels() -> str:
    """Why batches on the CIFAR model fail, from ``why_batches.py``."""
    rows = reasons("why_batches")
    read = {(r["rule"], r["batch"]): r["labels_read"] for r in rows if r["part"] == "labels"}
    found = [r for r in rows if r["part"] == "attack"]
    if not found:
        return "not found out"
    favoured = max(r["favoured"] for r in rows if r["part"] == "labels")
    counted = ", ".join(f"{read[BY_BIAS, size]:.0%} of {size}" for size in (4, 8, 24))
    return (
        f"wrong labels: the untrained model gives one class a chance of {favoured:.2f} whatever it sees; counts from the bias are "
        f"right for "
        f"{counted}; less these chances all are right, and SSIM is "
        + ", ".join(f"{r['ssim']:.2f} for {r['batch']}" for r in found)
        + " (`why_batches.py`)"
    )


def width(rows: list[Row]) -> list[Claim]:
    leak = {r["width"]: r["ssim"] for r in rows if r["part"] == "leak" and r["model"] == "ViT-Base"}
    wide, narrow = (one(rows, part="accuracy", architecture="B", width=w)["accuracy"] for w in (384, 24))
    return [
        Claim("5", "width 768 leaks the image entirely", f"SSIM {leak[768]:.3f}", leak[768] > RECOVERED),
        Claim(
            "5",
            "only a width of about half the patch number (96) protects",
            "SSIM " + ", ".join(f"{leak[w]:.2f} at {w}" for w in (384, 192, 96)),
            min(leak[384], leak[192]) > RECOGNISABLE > leak[96],
            "a patch has 16×16×3 = 768 values, so any width below loses part of them in the inverse of Eq. (11), before tokens mix",
        ),
        Claim(
            "5",
            "a width that protects is feared to cost accuracy",
            f"{wide:.1%} at 384, {narrow:.1%} at 24 (CIFAR-10, B)",
            wide - narrow > KEPT,
        ),
    ]


def noise(rows: list[Row]) -> list[Claim]:
    def ssim(kind: str, reading: str, factor: float) -> float:
        return one(rows, kind=kind, reading=reading, factor=factor)["ssim"]

    cases = (("Gaussian", 0.1), ("Laplacian", 0.01))
    weak = {kind: [ssim(kind, reading, c) for reading in ("length", "literal")] for kind, c in cases}
    survives = max((r["factor"] for r in rows if r["reading"] == "length" and r["ssim"] > RECOGNISABLE), default=0.0)
    return [
        Claim(
            "6",
            f"{kind} noise of variance {c} × norm does not defend",
            f"SSIM {weak[kind][0]:.2f} (noise {c} times as long as the gradient), {weak[kind][1]:.2f} (variance as written)",
            max(weak[kind]) > RECOGNISABLE,
            (f"noise {survives:g} times as long as the gradient still leaves SSIM {RECOGNISABLE}; " if survives else "")
            + noisy_inverse(c),
        )
        for kind, c in cases
    ]


def positions(rows: list[Row]) -> list[Claim]:
    refused = [one(rows, part="closed form", setting=s)["refused"] for s in ("gradient withheld", "fixed")]
    found = [Claim("7", "no closed form without the positions' gradient", "refused in both settings", all(refused))]
    for r in rows:
        if r["part"] == "attack" and r["setting"] == "gradient withheld" and r["position_std"] == 1.0:
            where = {"part": "attack", "data": r["data"], "architecture": r["architecture"], "position_std": 1.0}
            shared = one(rows, setting="shared, APRIL", **where)
            unknown = one(rows, setting="gradient withheld, values unknown", **where)
            found.append(
                Claim(
                    "7, 8",
                    f"{r['data']}, architecture {r['architecture']}: withholding the gradient turns the result into twin data",
                    f"SSIM {r['ssim']:.2f} withheld, {shared['ssim']:.2f} shared, {unknown['ssim']:.2f} if the values are secret too",
                    shared["ssim"] - r["ssim"] > 0.2,
                    "the other gradients alone lead to the same image"
                    if shared["ssim"] > RECOGNISABLE
                    else f"not found with the gradient either (loss {shared['loss'][-1]:.0e} of ‖g*‖²): nothing to lose",
                )
            )
    kinds = ("learnable", "fixed sinusoids")
    learnable, fixed = (one(rows, part="accuracy", architecture="B", positions=k)["accuracy"] for k in kinds)
    difference = learnable - fixed
    found.append(
        Claim(
            "8",
            "fixed positions are an economic defense",
            f"{100 * difference:+.1f} points of accuracy lost (CIFAR-10, B)",
            difference < KEPT,
        )
    )
    return found


def without_encoder(rows: list[Row]) -> list[Claim]:
    ssim = {r["case"]: r["ssim"] for r in rows}
    attention = min(v for case, v in ssim.items() if "attention" in case)
    lost = ssim["without positions"]
    return [
        Claim(
            "9",
            "without one encoder the image is found, without the positions it is not",
            f"SSIM {attention:.2f} at worst without an attention, {lost:.2f} without positions, {ssim['everything']:.2f} with all",
            attention - lost > 0.2,
            "leaving out the positions' gradient changes the result no more than leaving out an encoder does",
        )
    ]


def batches(rows: list[Row]) -> list[Claim]:
    found = {(r["model"], r["batch"]): r for r in newest(rows)}
    claims: list[Claim] = []
    for model in dict.fromkeys(m for m, _ in found):
        own = [found[model, size] for size in (4, 24)]
        wanted = PAPERS_STEPS if model == "ViT-Base" else max(r.get("of_steps", r["steps"]) for r in own)
        shorter = min(r["steps"] for r in own) < wanted
        claims.append(
            Claim(
                "4, 12–14",
                f"{model}: batches of 4 to 24 are recognisable",
                "SSIM " + ", ".join(f"{r['ssim']:.2f} for {r['batch']}" for r in own) + apart(own),
                all(set(r.get("each_rank", [0])) == {1} for r in own),
                f"{' and '.join(str(r['steps']) for r in own)} steps of {wanted}" if shorter else unrecognised(own),
                shorter=shorter,
            )
        )
    return claims


def apart(rows: list[Row]) -> str:
    """How many pictures are most like their own image."""
    counted = [first(row, "each_rank") for row in rows if "each_rank" in row]
    return f"; most like their own image: {' and '.join(counted)}" if counted else ""


def unrecognised(rows: list[Row]) -> str:
    """Why batches were not found: labels that were read wrongly, or what the loss says."""
    if min(r["labels_read"] for r in rows) < 1:
        return wrong_labels()
    losses = ", ".join(f"{r['relative_loss']:.0e} for {r['batch']}" for r in rows)
    steps = {r["steps"] for r in rows}
    longer = [r for r in reasons("why_batches") if r["part"] == "attack" and r["steps"] > max(steps)]
    more = ", ".join(f"{r['ssim']:.2f} for {r['batch']}" for r in longer)
    longer_runs = f"with three times the steps SSIM is {more} (`why_batches.py`); " if more else ""
    return (
        f"not found out; {longer_runs}all labels are right, the loss ends at {losses} of ‖g*‖². The paper does not say its steps for "
        "batches, and judges by eye"
    )


def closed_form_batches(rows: list[Row]) -> list[Claim]:
    r = one(rows, model="ViT-Base", batch=4)
    return [
        Claim(
            "10",
            "a batch in closed form shows almost nothing",
            f"SSIM {r['best_ssim']:.2f} with the most similar of 4",
            r["best_ssim"] < 0.3,
            "probably: tokens come out as weighted means over the batch, and some weights favour one image",
        )
    ]


def architecture_a(rows: list[Row]) -> list[Claim]:
    found: list[Claim] = []
    for data in dict.fromkeys(r["data"] for r in rows):
        ssim = {r["attack"]: r["ssim"] for r in rows if r["data"] == data}
        exact = ssim.pop("closed form")
        loss = one(rows, data=data, attack="APRIL")["loss"][-1]
        found.append(Claim("2", f"{data}: the closed form is perfect", f"SSIM {exact:.3f}", exact > RECOVERED))
        listed = ", ".join(f"{name} {value:.2f}" for name, value in ssim.items())
        if "photographs" in data:
            others = max(value for name, value in ssim.items() if name != "APRIL")
            found.append(
                Claim(
                    "2",
                    f"{data}: APRIL shows much more than the others",
                    f"SSIM {listed}",
                    ssim["APRIL"] - others > 0.1,
                    "the paper runs 5000 steps",
                    shorter=True,
                )
            )
        else:
            found.append(
                Claim(
                    "2",
                    f"{data}: all attacks by optimisation break privacy",
                    f"SSIM {listed}",
                    min(ssim.values()) > RECOGNISABLE,
                    f"{even_attention()}; APRIL's loss falls to {loss:.0e} of ‖g*‖² all the same",
                )
            )
    return found


def progress(rows: list[Row]) -> list[Claim]:
    found: list[Claim] = []
    for data in dict.fromkeys(r["data"] for r in rows):
        own = {r["attack"]: r for r in rows if r["data"] == data}
        listed = ", ".join(f"{name} {r['mse']:.2g}" for name, r in own.items())
        best = min((r for name, r in own.items() if name != "APRIL"), key=lambda r: r["mse"])
        pairs = list(zip(own["APRIL"]["each_mse"], best["each_mse"], strict=False))  # the first images are the same
        ahead = f"; APRIL is closer than {best['attack']} on {sum(a < b for a, b in pairs)} of {len(pairs)} images"
        found.append(
            Claim(
                "3, 11",
                f"{data}: APRIL ends better than DLG and TAG",
                f"MSE {listed}{ahead}" + ("; on 500 images see Table 1" if data in ("MNIST", "CIFAR-10") else ""),
                own["APRIL"]["mse"] < best["mse"],
                "the positions' direction adds nothing to the squared distance, absolute differences do (`why_table1.py`, smaller images)",
                shorter="photographs" in data,
            )
        )
    return found


def table1(rows: list[Row]) -> list[Claim]:
    """The order of the four attacks by their error, on the images that all of them have."""
    found: list[Claim] = []
    for data_set, cells in PAPER.items():
        own = {r["attack"]: r for r in rows if r["data_set"] == data_set}
        if set(own) != set(cells):
            continue
        images = common(list(own.values()))
        ours = {name: float(chosen(r, "each_mse", images).mean()) for name, r in own.items()}
        papers = {name: float(cell.split(",")[0]) for name, cell in cells.items()}
        data, wanted = own["april"]["of"], own["april"].get("wanted", len(images))
        number = f"{len(images)} images" if len(images) == wanted else f"{len(images)} of {wanted} images"
        large = all(r.get("each_ssim_reduced") for r in own.values())
        why = from_afar(own, images) if large else one_by_one(data)
        found.append(
            Claim(
                "Table 1",
                f"{data}: by MSE {in_order(papers)}",
                f"{in_order(ours, shown=True)} ({number})",
                in_order(papers) == in_order(ours),
                "; ".join(filter(None, (why, in_words(data_set)))),
            )
        )
    return found


def from_afar(rows: dict[str, Row], images: list[int]) -> str:
    """The order on large images once their grain is averaged away."""
    alike = {name: float(chosen(r, "each_ssim_reduced", images).mean()) for name, r in rows.items()}
    order = ", ".join(f"{NAMES[name]} {alike[name]:.2f}" for name in sorted(alike, key=alike.__getitem__, reverse=True))
    return (
        "the errors are of two kinds: grain, which only Inverting Gradients' total variation forbids, and lost detail. Averaged down to "
        f"56×56, SSIM is {order}. The paper does not say its learning rates"
    )


def in_order(errors: dict[str, float], *, shown: bool = False) -> str:
    """The attacks from the least error to the largest."""
    return " < ".join(
        NAMES[name] + (f" {errors[name]:.1e}" if shown else "") for name in sorted(errors, key=errors.__getitem__)
    )


def one_by_one(data: str) -> str:
    """What the label, the positions and absolute differences do by themselves, from ``why_table1.py``."""
    rows = [r for r in reasons("why_table1") if r["data"] == data]
    if len(rows) < len(CASES):
        return "not found out; each attack has the best of a few learning rates, and the paper does not say its own"
    error = {(r["distance"], r["labels"]): r["mse"] for r in rows}
    return (
        f"one optimiser for all, four images: squared distance {error[SQUARED, OPTIMISED]:.0e} where the label is optimised too (DLG), "
        f"{error[SQUARED, READ]:.0e} where it is read; the direction of the positions makes that {error[POSITIONS, READ]:.0e} (APRIL), "
        f"absolute differences {error[ABSOLUTE, READ]:.0e} (TAG, label optimised: {error[ABSOLUTE, OPTIMISED]:.0e}), both "
        f"{error[ALL, READ]:.0e} (`why_table1.py`)"
    )


def told(name: str, facts: Row, rows: list[Row]) -> bool:
    """Whether a study has run to its end, or has all rows that its claims are about; those of batches say their steps."""
    if name == "table1":  # of each data set that all attacks have images of
        return bool(table1(rows))
    if name == "width":
        wanted = {("leak", w) for w in (768, 384, 192, 96)} | {("accuracy", w) for w in (384, 24)}
        return wanted <= {(r["part"], r["width"]) for r in rows if r.get("architecture", "B") == "B"}
    wanted = {(model, size) for model in ("CIFAR model", "ViT-Base") for size in (4, 24)}
    return facts["complete"] or (name == "batches" and wanted <= {(r["model"], r["batch"]) for r in rows})


CLAIMS: dict[str, Callable[[list[Row]], list[Claim]]] = {
    "table1": table1,
    "architecture_a": architecture_a,
    "progress": progress,
    "batches": batches,
    "width": width,
    "noise": noise,
    "positions": positions,
    "without_encoder": without_encoder,
    "closed_form_batches": closed_form_batches,
}
"""In the order of the paper's text."""

HEAD = ("| figure | paper | ours | gap | why |", "|---|---|---|---|---|")
