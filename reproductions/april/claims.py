"""The claims of the APRIL paper, what we measured for each, and why the verdict is what it is."""

from __future__ import annotations

from pathlib import Path

from reproductions.april.batches import RULE, first, newest
from reproductions.april.table1 import NAMES, PAPER, chosen, common
from reproductions.common import gates
from reproductions.common.page import Claim
from reproductions.common.runner import Row, read
from reproductions.common.verdicts import Evidence

RECOVERED = 0.95
"""SSIM of a recovered image."""
STRICT = {"papers_scale": True, "papers_setting": True, "papers_metric": True}
SETTINGS = (
    "The order hangs on the settings, which the paper does not give. Our grid was too small for DLG: its best rate was at the edge, and rate 0.3 gives "
    "SSIM 0.959 on four CIFAR-10 images, the paper's number (`edges.py`). TAG and APRIL are a tie: APRIL is closer on 264 of 500 CIFAR-10 images. APRIL's "
    "own term has no effect at α = 1 (2.284e-10 with it, 2.290e-10 without), and α was never varied. The paper's MSE is not on images in [0, 1]."
)
VARIANT = (
    "Eq. (4) as printed does not divide the logits by √d; our architecture A does. With that division the attention of fresh weights is nearly even, and "
    "patches look alike in the gradient. Without it APRIL reaches SSIM 0.86 instead of 0.02 in 400 steps on MNIST (`why.py`)."
)
NOISE = (
    "Two ill-conditioned inverses enlarge the noise (conditions 2e3 and 3e3). Both depend on the variant: the MNIST model without division by √d keeps SSIM 0.82 "
    "and 1.00 (`why.py`). How the paper scales its noise is not clear either; we tried two readings."
)


SQUARED = ("APRIL", "DLG", "april", "l2")
"""Attacks with squared distance of gradients as their objective, which can be compared with ‖g*‖²."""


def gate_rows(folder: Path) -> list[tuple[str, str, Row]]:
    """Whether searches by squared distance ended near the gradient; TAG and Inverting Gradients have objectives of other units."""
    found: list[tuple[str, str, Row]] = []
    for part in ("architecture_a", "progress", "positions", "without_encoder"):
        for row in rows_of(folder, part):
            if "frame_steps" not in row or row.get("attack", "l2") not in SQUARED:
                continue
            gate = gates.converged(row["loss"][-1], 0.0).row()
            found.append((part, row["unit"], {**gate, "why": f"{row['loss'][-1]:.1e} of ‖g‖²"}))
    for row in rows_of(folder, "batches"):
        if row["rule"] == RULE:
            gate = gates.converged(row["relative_loss"], 0.0).row()
            found.append(("batches", row["unit"], {**gate, "why": f"{row['relative_loss']:.1e} of ‖g‖²"}))
    return found


def one(rows: list[Row], **wanted: object) -> Row:
    """The row with these values."""
    return next(row for row in rows if all(row.get(key) == value for key, value in wanted.items()))


def rows_of(folder: Path, name: str) -> list[Row]:
    rows = read(folder / f"{name}.jsonl")
    assert not any(row["quick"] for row in rows), f"{name} holds a quick run"
    return rows


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
        large = all(r.get("each_ssim_reduced") for r in own.values())
        agrees = in_order(papers) == in_order(ours)
        found.append(
            Claim(
                where="Table 1",
                paper=f"{own['april']['of']}: by MSE {in_order(papers)}",
                ours=f"{in_order(ours, shown=True)} ({len(images)} images)",
                evidence=Evidence(agrees=True if agrees else None, finished=not large),
                confidence="medium",
                note="30 of 500 images. Settings were chosen on two images in 500 steps, where nothing had moved yet."
                if large
                else SETTINGS,
            )
        )
    return found


def in_order(errors: dict[str, float], *, shown: bool = False) -> str:
    """The attacks from the least error to the largest."""
    return " < ".join(
        NAMES[name] + (f" {errors[name]:.1e}" if shown else "") for name in sorted(errors, key=errors.__getitem__)
    )


def architecture_a(rows: list[Row]) -> list[Claim]:
    found: list[Claim] = []
    for data in dict.fromkeys(r["data"] for r in rows):
        ssim = {r["attack"]: r["ssim"] for r in rows if r["data"] == data}
        exact = ssim.pop("closed form")
        large = "photographs" in data
        listed = ", ".join(f"{name} {value:.2f}" for name, value in ssim.items())
        found += [
            Claim(
                where="Fig. 2",
                paper=f"{data}: the closed form is perfect",
                ours=f"SSIM {exact:.3f}",
                evidence=Evidence(agrees=exact > RECOVERED),
                confidence="high",
            ),
            Claim(
                where="Fig. 2",
                paper=f"{data}: APRIL shows much more than the others"
                if large
                else f"{data}: all attacks by optimisation break privacy",
                ours=f"SSIM {listed}",
                evidence=Evidence(agrees=None, finished=False) if large else Evidence(agrees=None, tested=False),
                confidence="high" if large else "medium",
                note="400 of the paper's 5,000 steps." if large else VARIANT,
            ),
        ]
    return found


def progress(rows: list[Row]) -> list[Claim]:
    found: list[Claim] = []
    for data in dict.fromkeys(r["data"] for r in rows):
        own = {r["attack"]: r for r in rows if r["data"] == data}
        best = min((r for name, r in own.items() if name != "APRIL"), key=lambda r: r["mse"])
        pairs = list(zip(own["APRIL"]["each_mse"], best["each_mse"], strict=False))  # the first images are the same
        large = "photographs" in data
        found.append(
            Claim(
                where="Figs. 3, 11",
                paper=f"{data}: APRIL ends better than DLG and TAG",
                ours="MSE " + ", ".join(f"{name} {r['mse']:.2g}" for name, r in own.items())
                + f"; closer than {best['attack']} on {sum(a < b for a, b in pairs)} of {len(pairs)} images",
                evidence=Evidence(
                    agrees=None if data == "CIFAR-10" else own["APRIL"]["mse"] < best["mse"], finished=not large
                ),
                confidence="medium" if data == "CIFAR-10" else "high",
                note="600 of the paper's 5,000 steps."
                if large
                else "On 500 CIFAR-10 images TAG and APRIL are a tie (Table 1)."
                if data == "CIFAR-10"
                else "",
            )
        )  # fmt: skip
    return found


def batches(rows: list[Row]) -> list[Claim]:
    found = {(r["model"], r["batch"]): r for r in newest(rows)}
    claims: list[Claim] = []
    for model in dict.fromkeys(m for m, _ in found):
        own = [found[model, size] for size in (4, 24)]
        large = model == "ViT-Base"
        claims.append(
            Claim(
                where="Figs. 4, 12-14",
                paper=f"{model}: batches of 4 to 24 are recognisable",
                ours="SSIM " + ", ".join(f"{r['ssim']:.2f} for {r['batch']}" for r in own)
                + "; most like their own image: " + " and ".join(first(r, "each_rank") for r in own),
                evidence=Evidence(agrees=all(set(r["each_rank"]) == {1} for r in own), tested=large),
                confidence="high" if large else "medium",
                note="Judged as the paper does, by eye: each picture is most like its own image. Grain keeps SSIM low."
                if large
                else "The paper shows batches on ImageNet; nothing in its text is about the CIFAR model. With three times the steps SSIM is 0.88 for 8 and "
                "0.09 for 24 images (`why_batches.py`).",
            )
        )  # fmt: skip
    return claims


def width(rows: list[Row]) -> list[Claim]:
    leak = {r["width"]: r["ssim"] for r in rows if r["part"] == "leak" and r["model"] == "ViT-Base"}
    wide, narrow = (one(rows, part="accuracy", architecture="B", width=w)["accuracy"] for w in (384, 24))
    return [
        Claim(
            where="Fig. 5",
            paper="width 768 leaks the image entirely",
            ours=f"SSIM {leak[768]:.3f}",
            evidence=Evidence(agrees=leak[768] > RECOVERED),
            confidence="high",
        ),
        Claim(
            where="Fig. 5",
            paper="only a width of about half the patch number (96) protects",
            ours="SSIM " + ", ".join(f"{leak[w]:.2f} at {w}" for w in (384, 192, 96)),
            evidence=Evidence(agrees=leak[384] > leak[192] > 2 * leak[96]),
            confidence="medium",
            note="By eye, as the paper judges: at 384 and 192 the astronaut, the cat, the cup and the cameraman are plain to see, dark and grainy; at 96 nothing is.",
        ),
        Claim(
            where="Fig. 5",
            paper="a width that protects is feared to cost accuracy",
            ours=f"{wide:.1%} at 384, {narrow:.1%} at 24 (CIFAR-10, B)",
            evidence=Evidence(agrees=wide - narrow > 0.02),
            confidence="medium",
        ),
    ]  # fmt: skip


def noise(rows: list[Row]) -> list[Claim]:
    return [
        Claim(
            where="Fig. 6",
            paper=f"{kind} noise of variance {c} × norm does not defend",
            ours=", ".join(
                f"SSIM {one(rows, kind=kind, reading=reading, factor=c)['ssim']:.2f} ({words})"
                for reading, words in (("length", f"noise {c} times as long as the gradient"), ("literal", "variance as written"))
            ),
            evidence=Evidence(agrees=None),
            confidence="low",
            note=NOISE,
        )
        for kind, c in (("Gaussian", 0.1), ("Laplacian", 0.01))
    ]  # fmt: skip


def positions(rows: list[Row]) -> list[Claim]:
    def ssim(data: str, architecture: str, setting: str) -> float:
        return one(rows, part="attack", data=data, architecture=architecture, setting=setting, position_std=1.0)["ssim"]

    refused = [one(rows, part="closed form", setting=s)["refused"] for s in ("gradient withheld", "fixed")]
    fixed, shared = ssim("MNIST", "B", "fixed"), ssim("MNIST", "B", "shared, APRIL")
    accuracy = [
        one(rows, part="accuracy", architecture="B", positions=kind)["accuracy"]
        for kind in ("learnable", "fixed sinusoids")
    ]
    found = [
        Claim(
            where="Fig. 7",
            paper="no closed form without the positions' gradient",
            ours="refused in both settings",
            evidence=Evidence(agrees=all(refused)),
            confidence="high",
        ),
        Claim(
            where="Figs. 7, 8",
            paper="MNIST, architecture B: fixed (sinusoidal) positions turn the result into twin data",
            ours=f"SSIM {fixed:.2f} fixed, {shared:.2f} learnable and shared",
            evidence=Evidence(agrees=shared - fixed > 0.2),
            confidence="medium",
            note="The gradient is matched (6e-6 of ‖g‖²) by scrambled digits. One rate and 800 steps: whether the positions or the search do it is open. Not run on CIFAR-10.",
        ),
    ]  # fmt: skip
    for data in ("MNIST", "CIFAR-10"):
        withheld, with_it, secret = (
            ssim(data, "B", setting)
            for setting in ("gradient withheld", "shared, APRIL", "gradient withheld, values unknown")
        )
        found.append(
            Claim(
                where="Figs. 7, 8",
                paper=f"{data}, architecture B: withholding the gradient of learnable positions turns the result into twin data",
                ours=f"SSIM {withheld:.2f} withheld, {with_it:.2f} shared, {secret:.2f} if the values are secret too (10 images)",
                evidence=Evidence(agrees=with_it - withheld > 0.2, **STRICT, repeats=10),
                confidence="medium",
                note="The other gradients alone lead to the image, as long as the positions' values are public, as in a federated model. Untrained network, positions N(0, 1).",
            )
        )  # fmt: skip
    plain = ssim("MNIST", "A", "shared, APRIL")
    found += [
        Claim(
            where="Figs. 7, 8",
            paper="MNIST, architecture A: withholding the gradient turns the result into twin data",
            ours=f"SSIM {plain:.2f} with the gradient already",
            evidence=Evidence(agrees=None, tested=False),
            confidence="high",
            note=VARIANT,
        ),
        Claim(
            where="Fig. 8",
            paper="fixed positions are an economic defense",
            ours=f"{100 * (accuracy[0] - accuracy[1]):+.1f} points of accuracy lost (CIFAR-10, B)",
            evidence=Evidence(agrees=accuracy[0] - accuracy[1] < 0.02),
            confidence="medium",
        ),
    ]
    return found


def without_encoder(rows: list[Row]) -> list[Claim]:
    ssim = {r["case"]: r["ssim"] for r in rows}
    attention = min(v for case, v in ssim.items() if "attention" in case)
    return [
        Claim(
            where="Fig. 9",
            paper="without one encoder the image is found, without the positions it is not",
            ours=f"SSIM {attention:.2f} at worst without an attention, {ssim['without positions']:.2f} without positions, {ssim['everything']:.2f} with all",
            evidence=Evidence(agrees=attention - ssim["without positions"] > 0.2, **STRICT, repeats=10),
            confidence="high",
            note="The same model (7,116,682 and 6,533,002 parameters without those parts, as in the paper's Table 2), 10 images.",
        )
    ]  # fmt: skip


def closed_form_batches(rows: list[Row]) -> list[Claim]:
    r = one(rows, model="ViT-Base", batch=4)
    return [
        Claim(
            where="Fig. 10",
            paper="a batch in closed form shows almost nothing",
            ours=f"SSIM {r['best_ssim']:.2f} with the most similar of 4",
            evidence=Evidence(agrees=r["best_ssim"] < 0.3),
            confidence="high",
        )
    ]


STUDIES = {
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


def claims(folder: Path) -> list[Claim]:
    return [claim for name, made in STUDIES.items() for claim in made(rows_of(folder, name))]
