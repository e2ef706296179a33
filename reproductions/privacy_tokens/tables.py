"""Writes README.md from the rows under results/.

python -m reproductions.privacy_tokens.tables [--check]   (with --check nothing is written; exit code 1 if it is not up to date)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from reproductions.common import page
from reproductions.common.runner import Row, read
from reproductions.privacy_tokens.claims import WRITTEN, claims, gaps, gate_rows, rows_of
from reproductions.privacy_tokens.published import PUBLISHED

HERE = Path(__file__).parent
PAGE, RESULTS = HERE / "README.md", HERE / "results"


def shown(values: Sequence[float | None], digits: int = 3) -> str:
    present = [value for value in values if value is not None]
    return f"{fmean(present):.{digits}f}" if present else ""


def with_error(rows: Sequence[Row]) -> str:
    """Mean over seeds and its standard error over batches."""
    if not rows:
        return ""
    error = sum(r["gap_error"] ** 2 for r in rows) ** 0.5 / len(rows)
    return f"{fmean([r['gap'] for r in rows]):.3f} ± {error:.3f}"


def critics(model: str, rows: Sequence[Row]) -> str:
    heads = ["sub-epoch", "accuracy (paper / ours)", "paper: autoencoder", "paper: transformer"]
    heads += ["as written: autoencoder", "as written: transformer", "negatives from all"]
    heads += ["collected pairs, negatives from all", "their decoy", "their null"]
    lines = []
    for at, said in PUBLISHED[model].items():
        here = [r for r in gaps(rows) if r["sub_epoch"] == at]
        written, every = (
            [r for r in here if r["token"] == "transformer" and r["reading"] == reading]
            for reading in (WRITTEN, "once")
        )
        coded = [r for r in here if r["token"] == "autoencoder" and r["reading"] == WRITTEN]
        cells = [str(at), f"{said[0]:.0%} / {fmean([r['accuracy'] for r in written]):.0%}", f"{said[1]:.2f}"]
        cells += [f"{said[2]:.2f}", *map(with_error, (coded, written, every))]
        cells += [shown([r[key] for r in every], 2) for key in ("collected", "decoy", "null")]
        lines.append(cells)
    return page.table(heads, lines)


def warm() -> str:
    """The critic that is trained on through the training, at frozen weights and on the pairs collected so far, beside the decoy."""
    heads = ["network", "sub-epoch"]
    for token in ("transformer", "autoencoder"):
        heads += [f"paper: {token}", f"{token}, frozen weights", "collected pairs", "their decoy"]
    lines = []
    for model in PUBLISHED:
        rows = gaps(rows_of(RESULTS, model), reading="warm, within sub-epochs")
        for at, said in PUBLISHED[model].items() if rows else ():
            cells = [model, str(at)]
            for token, place in (("transformer", 2), ("autoencoder", 1)):
                here = [r for r in rows if r["token"] == token and r["sub_epoch"] == at]
                ran = any(r["token"] == token for r in rows)
                cells += [f"{said[place]:.2f}", with_error(here) or ("void" if ran else "not run")]
                cells += [shown([r[key] for r in here], 2) for key in ("collected", "decoy")]
            lines.append(cells)
    return page.table(heads, lines)


def leaks(model: str, rows: Sequence[Row]) -> str:
    heads = ["sub-epoch", "MSE (paper / ours)", "PSNR (paper / ours)", "SSIM, paper", "SSIM, ours"]
    heads += ["SSIM, data range 255", "batch identified, σ = 0.5, of 4.16 nats"]
    heads += [f"decoder AUC, σ = {noise}" for noise in (0, 0.1, 0.5)]
    lines = []
    for at, said in PUBLISHED[model].items():
        hit = [r for r in rows if r["kind"] == "attack" and r["sub_epoch"] == at]
        leak = [r for r in rows if r["kind"] == "leakage" and r["sub_epoch"] == at]
        mse, psnr, ssim, wrong = (
            fmean([fmean(r[key]) for r in hit]) for key in ("mse", "psnr", "ssim", "ssim_data_range_255")
        )
        cells = [str(at), f"{said[3]:.4f} / {mse:.4f}", f"{said[5]:.1f} / {psnr:.1f}", f"{said[4]:.4f}", f"{ssim:.3f}"]
        cells += [f"{wrong:.4f}", shown([r["identification"][2]["nats"] for r in leak], 2)]
        cells += [shown([r["decoder"][i]["auc"] for r in leak]) for i in range(3)]
        lines.append(cells)
    return page.table(heads, lines)


def of_model(model: str) -> str:
    rows = rows_of(RESULTS, model)
    seeds = sorted({r["seed"] for r in rows})
    facts = f"{rows[0]['device']}, torch {rows[0]['torch']}, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    commits = ", ".join(sorted({r["commit"] for r in rows}))
    attack = next(r for r in rows if r["kind"] == "attack")
    notes = next(r["notes"] for r in rows if r["kind"] == "cost")
    return "\n\n".join(
        [
            f"### {model}",
            f"{facts}, commit {commits}. {notes[0][0].upper()}{'; '.join(notes)[1:]}.",
            critics(model, rows),
            f"Attack: {attack['attack']}, {attack['steps']} steps, {len(attack['mse'])} images for each seed.",
            leaks(model, rows),
        ]
    )


ATTACKS = ("diffusion_guided", "diffusion")


def diffusion(rows: Sequence[Row], stand_in: Callable[[str], list[Row]]) -> str:
    """Table 1's attacks on faces with diffusion models, beside the paper's and the stand-in on the same images (its first seed)."""
    prior = next(r for r in rows if r["kind"] == "prior")
    nothing = next(r for r in rows if r.get("attack") == "prior alone")
    heads = ["network", "sub-epoch", "paper: PSNR", "inverting_gradients: PSNR, SSIM"]
    heads += [f"{name}: PSNR, SSIM, LPIPS" for name in ATTACKS]
    lines = []
    for model in ("cnn", "mlp"):
        plain = {r["sub_epoch"]: r for r in stand_in(model) if r["kind"] == "attack" and r["seed"] == 0}
        for at, said in PUBLISHED[model].items():
            cells = [
                model,
                str(at),
                f"{said[5]:.1f}",
                f"{fmean(plain[at]['psnr']):.1f}, {fmean(plain[at]['ssim']):.2f}",
            ]
            for name in ATTACKS:
                hit = next(
                    r for r in rows if (r.get("model"), r.get("sub_epoch"), r.get("attack")) == (model, at, name)
                )
                cells.append(f"{fmean(hit['psnr']):.1f}, {fmean(hit['ssim']):.2f}, {fmean(hit['lpips']):.3f}")
            lines.append(cells)
    facts = (
        f"{prior['device']}, torch {prior['torch']}, seed {prior['seed']}, {len(nothing['psnr'])} images, 4 restarts."
    )
    share = f"{100 * prior['unexplained'][3]:.0f} %"
    learned = (
        f"The prior learned from {prior['images']:,} other faces ({prior['steps']:,} steps of {prior['batch']} images, width "
        f"{prior['width']}); at 70 % noise it leaves {share} of the variance of held-out faces unexplained, and its samples are "
        f"{prior['copies']:.2f} times as far from the nearest training image as held-out faces are. The prior alone has "
        f"{fmean(nothing['psnr']):.1f} dB and an SSIM of {fmean(nothing['ssim']):.2f}."
    )
    return f"{facts} {learned}\n\n" + page.table(heads, lines)


def noise(rows: Sequence[Row]) -> str:
    heads = ["schedule", "ε", "accuracy by seed", "decoder AUC", "attack, PSNR"]
    lines = []
    for name in dict.fromkeys(r["schedule"] for r in rows):
        mine = [r for r in rows if r["schedule"] == name and r["fraction"] == 1.0]
        end, hit = ([r for r in mine if r["kind"] == kind] for kind in ("noise", "noise attack"))
        spent = end[0]["epsilon"]
        cells = [name, "∞" if spent is None else f"{spent:.2f}", ", ".join(f"{r['accuracy']:.3f}" for r in end)]
        cells += [shown([r["decoder"]["auc"] for r in end]), shown([fmean(r["psnr"]) for r in hit], 1)]
        lines.append(cells)
    facts = f"{rows[0]['device']}, torch {rows[0]['torch']}, commit {rows[0]['commit']}. {rows[0]['training']}."
    return f"{facts} At the end of training:\n\n" + page.table(heads, lines)


def sections() -> dict[str, str]:
    return {
        "claims": page.claims_table(claims(RESULTS)),
        "gates": page.gates_table(gate_rows(RESULTS)),
        "warm": warm(),
        "tables": "\n\n".join(map(of_model, PUBLISHED)),
        "diffusion": diffusion(read(RESULTS / "diffusion.jsonl"), partial(rows_of, RESULTS)),
        "noise": noise(read(RESULTS / "noise.jsonl")),
    }


if __name__ == "__main__":
    sys.exit(page.write(PAGE, sections(), sys.argv[1:]))
