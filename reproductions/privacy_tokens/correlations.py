"""How well each leakage measure orders the checkpoints as the attack does: Spearman's ρ with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata

from reproductions.privacy_tokens.results_file import Row

Z = 1.959964


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Spearman's ρ, or None where it has no meaning: fewer than three values, or all the same."""
    if len(a) < 3 or len(set(a)) == 1 or len(set(b)) == 1:
        return None
    return float(np.corrcoef(rankdata(a), rankdata(b))[0, 1])


def interval(rho: float, n: int) -> tuple[float, float]:
    """95 % interval tanh(artanh ρ ± z √((1 + ρ²/2)/(n − 3))); everything for n ≤ 3. At n = 7 it is wide, as it should be.

    Ref: Bonett and Wright 2000, section 3 — interval of Spearman's correlation
    """
    if n <= 3:
        return -1.0, 1.0
    middle = math.atanh(max(-1 + 1e-9, min(1 - 1e-9, rho)))
    half = Z * math.sqrt((1 + rho**2 / 2) / (n - 3))
    return math.tanh(middle - half), math.tanh(middle + half)


def over_targets(
    values: Sequence[float], errors: Sequence[Sequence[float]], *, resamples: int = 500
) -> tuple[float, float] | None:
    """How far ρ with −MSE moves when other targets had been drawn: 2.5 and 97.5 % of a bootstrap over the targets."""
    every = np.asarray(errors)  # (checkpoints, targets)
    rng = np.random.default_rng(0)
    found = []
    for _ in range(resamples):
        drawn = every[:, rng.integers(every.shape[1], size=every.shape[1])].mean(1)
        rho = rank_correlation(values, list(-drawn))
        if rho is not None:
            found.append(rho)
    return (float(np.quantile(found, 0.025)), float(np.quantile(found, 0.975))) if found else None


def correlations(rows: list[Row]) -> list[Row]:
    """Each measure against −MSE of the attack over the checkpoints that have both."""
    errors = {r["sub_epoch"]: r["mse"] for r in rows if r["kind"] == "attack"}
    curves: dict[str, dict[int, float | None]] = {}
    for row in rows:
        if row["kind"] == "paper":
            for column in ("gap", "collected", "held_out"):
                curves.setdefault(f"{row['token']}, {row['reading']}: {column}", {})[row["sub_epoch"]] = row[column]
        elif row["kind"] == "leakage":
            if "infonce_nats" in row:
                curves.setdefault("InfoNCE", {})[row["sub_epoch"]] = row["infonce_nats"]
            for found in row.get("identification", ()):
                curves.setdefault(f"batch identified, noise {found['noise']:g}", {})[row["sub_epoch"]] = found["nats"]
            for found in row["decoder"]:
                curves.setdefault(f"decoder AUC, noise {found['noise']:g}", {})[row["sub_epoch"]] = found["auc"]
    out: list[Row] = []
    for measure, curve in curves.items():
        shared = [s for s in errors if curve.get(s) is not None]
        values = [v for s in shared if (v := curve[s]) is not None]
        rho = rank_correlation(values, [-float(np.mean(errors[s])) for s in shared])
        line: Row = {"measure": measure, "rho": rho, "n": len(shared)}
        line["first"] = rank_correlation(values, [-errors[s][0] for s in shared])
        line["interval"] = None if rho is None else interval(rho, len(shared))
        line["targets"] = None if rho is None else over_targets(values, [errors[s] for s in shared])
        out.append(line)
    return out
