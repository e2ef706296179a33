"""Writes the tables of README.md from the lines under results/: paper | ours | gap | why, with the controls beside it.

python -m reproductions.privacy_tokens.tables [--check]   (with --check nothing is written; exit code 1 if it is not up to date)
"""

from __future__ import annotations

import sys
from pathlib import Path

from reproductions.privacy_tokens import verdicts
from reproductions.privacy_tokens.correlations import correlations
from reproductions.privacy_tokens.published import PUBLISHED
from reproductions.privacy_tokens.results_file import Row, read

HERE = Path(__file__).parent
PAGE, RESULTS = HERE / "README.md", HERE / "results"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"


def shown(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def mean(values: list[float] | None) -> float | None:
    return sum(values) / len(values) if values else None


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def gaps(model: str, token: str, reading: str, rows: list[Row]) -> str:
    heads = [
        "sub-epoch",
        "accuracy (paper / ours)",
        "gap, paper",
        "gap, ours (frozen weights)",
        "difference",
        "matched",
    ]
    heads += ["mismatched", "held out", "collected pairs", "decoy", "null"]
    out = []
    for row in rows:
        published = PUBLISHED[model].get(row["sub_epoch"])
        said = None if published is None else published[1 if token == "autoencoder" else 2]
        accuracy = f"{'' if published is None else f'{published[0]:.0%}'} / {row['accuracy']:.0%}"
        cells = [str(row["sub_epoch"]), accuracy, shown(said), shown(row["gap"])]
        cells += [shown(None if said is None else row["gap"] - said)]
        cells += [shown(row[c]) for c in ("matched", "mismatched", "held_out", "collected", "decoy", "null")]
        out.append(cells)
    return f"### {model}, {token} token, critic trained: {reading}\n\n" + table(heads, out)


def leaks(model: str, rows: list[Row]) -> str:
    noises = [found["noise"] for found in rows[0]["decoder"]]
    known = rows[0].get("identification", [])
    heads = ["sub-epoch"]
    heads += [f"batch identified, noise {f['noise']:g}, nats of {f['ceiling']:.2f} [95 %]" for f in known]
    heads += [] if known else ["InfoNCE, nats [95 %]", "of at most"]
    heads += [f"decoder AUC, noise {n:g} [95 %]" for n in noises]
    out = []
    for row in rows:
        cells = [str(row["sub_epoch"])]
        if known:
            cells += [f"{f['nats']:.2f} [{f['low']:.2f}, {f['high']:.2f}]" for f in row["identification"]]
        else:
            cells += [f"{row['infonce_nats']:.2f} [{row['infonce_low']:.2f}, {row['infonce_high']:.2f}]"]
            cells += [shown(row["infonce_ceiling"], 2)]
        cells += [f"{d['auc']:.3f} [{shown(d['low'])}, {shown(d['high'])}]" for d in row["decoder"]]
        out.append(cells)
    return f"### {model}: calibrated measures\n\n" + table(heads, out)


def attacks(model: str, kind: str, rows: list[Row]) -> str:
    count = len(rows[0]["mse"])
    heads = ["sub-epoch", "MSE, paper", "MSE, ours", "PSNR, paper", "PSNR, ours", "SSIM, paper", "SSIM, ours"]
    heads += ["SSIM, data range 255", "LPIPS, paper", "LPIPS, ours", "LPIPS, images / 255"]
    out = []
    for row in rows:
        said = PUBLISHED[model].get(row["sub_epoch"])
        mse, ssim, psnr, lpips = (None,) * 4 if said is None else said[3:]
        wrong = mean(row.get("lpips_over_255"))
        cells = [str(row["sub_epoch"]), shown(mse, 4), shown(mean(row["mse"]), 4), shown(psnr, 1)]
        cells += [
            shown(mean(row["psnr"]), 1),
            shown(ssim, 4),
            shown(mean(row["ssim"])),
            shown(mean(row["ssim_data_range_255"]), 4),
        ]
        cells += [
            "" if lpips is None else f"{lpips:.1e}",
            shown(mean(row.get("lpips"))),
            "" if wrong is None else f"{wrong:.1e}",
        ]
        out.append(cells)
    words = f"{rows[0]['attack']}, {rows[0]['steps']} steps, " + (
        "one target" if count == 1 else f"mean of {count} targets"
    )
    return f"### {model}: {'attack as in the paper' if kind == 'single' else 'attack'} ({words})\n\n" + table(
        heads, out
    )


def ranks(model: str, rows: list[Row]) -> str:
    def two(values: tuple[float, float] | None) -> str:
        return "" if values is None else f"{values[0]:.2f} to {values[1]:.2f}"

    heads = ["measure", "ρ with −MSE", "95 % over checkpoints", "95 % over targets", "ρ, first target", "checkpoints"]
    out = [
        [
            r["measure"],
            shown(r["rho"], 2) or "none",
            two(r["interval"]),
            two(r["targets"]),
            shown(r["first"], 2),
            str(r["n"]),
        ]
        for r in correlations(rows)
    ]
    return f"### {model}: rank correlation with the attack's quality over checkpoints\n\n" + table(heads, out)


def of_model(model: str, rows: list[Row]) -> list[str]:
    parts: list[str] = []
    for token, reading in dict.fromkeys((r["token"], r["reading"]) for r in rows if r["kind"] == "paper"):
        mine = [r for r in rows if (r.get("token"), r.get("reading")) == (token, reading)]
        parts.append(gaps(model, token, reading, [r for r in mine if r["kind"] == "paper"]))
        (cost,) = [r for r in mine if r["kind"] == "cost"]
        parts.append(
            f"{cost['critic_steps']} critic steps, {cost['critic_parameters'] / 1e6:.1f} million critic parameters, "
            f"{cost['stored'] / 1e6:.0f} MB of stored pairs. " + " ".join(f"Note: {n}." for n in cost["notes"]) + "\n"
        )
    for kind, make in (("leakage", leaks), ("attack", None), ("single", None)):
        mine = [r for r in rows if r["kind"] == kind]
        if mine:
            parts.append(attacks(model, kind, mine) if make is None else make(model, mine))
    if any(r["kind"] == "attack" for r in rows):
        parts.append(ranks(model, rows))
    return parts


def of_noise(rows: list[Row]) -> str:
    heads = [
        "schedule",
        "share of training",
        "noise",
        "ε so far",
        "accuracy",
        "decoder AUC",
        "attack, PSNR",
        "attack, SSIM",
    ]
    out = []
    for name, fraction in dict.fromkeys((r["schedule"], r["fraction"]) for r in rows):
        mine = [r for r in rows if (r["schedule"], r["fraction"]) == (name, fraction)]
        seeds, hit = [r for r in mine if r["kind"] == "noise"], [r for r in mine if r["kind"] == "noise attack"]
        spent = seeds[0]["epsilon"]
        cells = [name, f"{fraction:.0%}", shown(seeds[0]["noise"], 2), "∞" if spent is None else shown(spent, 2)]
        cells += [shown(mean([r["accuracy"] for r in seeds])), shown(mean([r["decoder"]["auc"] for r in seeds]))]
        cells += [shown(mean(hit[0]["psnr"]), 1), shown(mean(hit[0]["ssim"]))] if hit else ["", ""]
        out.append(cells)
    return "### The same noise early and late (LeNet)\n\n" + table(heads, out)


def tables() -> str:
    """The verdicts first, then all tables in the order of models; quick runs and stopped ones are marked."""
    parts: list[str] = []
    judged: list[str] = []
    missing: list[str] = []
    for part in [*PUBLISHED, *(f"batch_sizes_{m}" for m in PUBLISHED), "noise"]:
        path = RESULTS / f"{part}.jsonl"
        if not path.is_file():
            missing.append(part)
            continue
        facts, rows = read(path)
        words = f"*{part}: {facts['device']}, torch {facts['torch']}, seed {facts['seed']}, {facts['seconds']:.0f} s.*"
        if "training" in facts:
            words += f" Training: {facts['training']}."
        if not facts["complete"]:
            words += " **Stopped before its end; rows are missing.**"
        if facts["quick"]:
            words += " **A quick run: it shows that the script works, nothing else.**"
        parts.append(words + "\n")
        if facts["complete"] and not facts["quick"]:
            judged += [v.line() for v in (verdicts.of_model(part, rows) if part in PUBLISHED else [])]
            judged += [v.line() for v in (verdicts.noise(rows) if part == "noise" else [])]
        if part in PUBLISHED:
            parts += of_model(part, rows)
        elif part == "noise":
            parts.append(of_noise(rows))
        else:
            parts.append(f"Figure: `results/heat_{part.removeprefix('batch_sizes_')}.svg`.\n")
    if judged:
        parts.insert(0, "\n".join([*verdicts.HEAD, *judged]) + "\n")
    if missing:
        parts.append(f"Not yet run in full: {', '.join(missing)}.\n")
    return "\n".join(parts)


def page() -> str:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"


def main(arguments: list[str]) -> int:
    made = page()
    if "--check" in arguments:
        same = PAGE.read_text(encoding="utf-8") == made
        print("README.md: up to date" if same else "README.md is not up to date; run tables.py")
        return 0 if same else 1
    PAGE.write_text(made, encoding="utf-8")
    print("written: README.md")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
