"""What the paper says, what was measured, and whether the two agree, by rules that are written down here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reproductions.privacy_tokens.correlations import correlations, rank_correlation
from reproductions.privacy_tokens.published import PUBLISHED
from reproductions.privacy_tokens.results_file import Row

HEAD = ("| model | paper | ours | gap | why |", "|---|---|---|---|---|")
CLEAR = 0.05
"""Nats that a critic's gap must have to count as one."""


@dataclass(frozen=True)
class Verdict:
    """One line; ``why`` stands only where there is a gap, and says *probably* where it was not tested."""

    model: str
    paper: str
    ours: str
    holds: bool
    why: str = ""

    def line(self) -> str:
        gap = "none" if self.holds else "**does not reproduce**"
        return f"| {self.model} | {self.paper} | {self.ours} | {gap} | {'' if self.holds else self.why} |"


def of_model(model: str, rows: list[Row]) -> list[Verdict]:
    """The claims about one model of Table 1."""
    return [
        verdict
        for claim in (_rises_and_falls, _tokens_agree, _predicts, _best_first, _impossible_ssim)
        for verdict in claim(model, rows)
    ]


def _curve(rows: list[Row], token: str, column: str = "gap") -> dict[int, float]:
    mine = [r for r in rows if r["kind"] == "paper" and (r["token"], r["reading"]) == (token, "once")]
    return {r["sub_epoch"]: r[column] for r in mine if r[column] is not None}


def _rises_and_falls(model: str, rows: list[Row]) -> list[Verdict]:
    said = {s: v[2] for s, v in PUBLISHED[model].items()}
    ours, collected, decoy = (_curve(rows, "transformer", c) for c in ("gap", "collected", "decoy"))
    peak = max(ours, key=lambda s: ours[s])
    last = max(ours)
    return [
        Verdict(
            model,
            f"the difference rises from {said[0]:.2f} to {max(said.values()):.2f}, then falls to {said[max(said)]:.2f}",
            f"{ours[min(ours)]:.2f}, at most {ours[peak]:.2f} (sub-epoch {peak}), {ours[last]:.2f} at the end; collected pairs "
            f"{collected[last]:.2f}, their decoy {decoy[last]:.2f}",
            ours[peak] > CLEAR and min(ours) < peak < last and ours[last] < ours[peak],
            "at frozen weights little is left; what collected pairs show, the decoy shows as well: the critic tells the time"
            if collected[last] > CLEAR and abs(decoy[last] - collected[last]) < 0.25 * collected[last]
            else "the text leaves open when the critic is trained and among which pairs gradients are shuffled",
        )
    ]


def _tokens_agree(model: str, rows: list[Row]) -> list[Verdict]:
    one, other = (_curve(rows, token) for token in ("autoencoder", "transformer"))
    if not one or not other:
        return []
    rho = rank_correlation([one[s] for s in other], list(other.values()))
    shown = "none" if rho is None else f"{rho:.2f}"
    why = "gaps near 0 are ordered by chance" if max(*one.values(), *other.values()) < CLEAR else "not explained"
    return [Verdict(model, "both tokens show the same trend", f"ρ = {shown} over checkpoints", (rho or 0.0) > 0.5, why)]


def _predicts(model: str, rows: list[Row]) -> list[Verdict]:
    (found,) = [r for r in correlations(rows) if r["measure"] == "transformer, once: gap"]
    said = rank_correlation([v[2] for v in PUBLISHED[model].values()], [-v[3] for v in PUBLISHED[model].values()])
    rho = found["rho"]
    shown = "none" if rho is None else f"{rho:.2f} [{found['interval'][0]:.2f}, {found['interval'][1]:.2f}]"
    return [
        Verdict(
            model,
            f"the difference is strongly correlated with the attack's success (its own Table 1: ρ = {said:.2f})",
            f"ρ = {shown}",
            rho is not None and found["interval"][0] > 0,
            "the published table does not show it either"
            if (said or 0.0) < 0.5
            else "seven checkpoints; see the decoy",
        )
    ]


def _best_first(model: str, rows: list[Row]) -> list[Verdict]:
    errors = {r["sub_epoch"]: sum(r["mse"]) / len(r["mse"]) for r in rows if r["kind"] == "attack"}
    best = min(errors, key=lambda s: errors[s])
    early = sorted(errors)[: len(errors) // 2]
    shown = f"MSE {errors[min(errors)]:.4f} at 0, {errors[max(errors)]:.4f} at {max(errors)}, least at {best}"
    why = "another attack on other targets; the paper attacked one image once"
    return [Verdict(model, "the attack does best before and early in training", shown, best in early, why)]


def _impossible_ssim(model: str, rows: list[Row]) -> list[Verdict]:
    mine = [r for r in rows if r["kind"] == "attack"]
    right, wrong = ([sum(r[key]) / len(r[key]) for r in mine] for key in ("ssim", "ssim_data_range_255"))
    said = [v[4] for v in PUBLISHED[model].values()]
    return [
        Verdict(
            model,
            f"SSIM {min(said):.4f} to {max(said):.4f}",
            f"{min(right):.2f} to {max(right):.2f}; with data range 255 for images in [0, 1]: {min(wrong):.4f} to {max(wrong):.4f}",
            min(right) > 0.99,
            "with the constants for 0 … 255 images in [0, 1] all look alike: probably the slip behind the published column",
        )
    ]


def noise(rows: list[Row]) -> list[Verdict]:
    """The advice: strong noise early, little or none late."""

    def end(schedule: str, value: Callable[[Row], float | None]) -> float:
        mine = [r for r in rows if r["kind"] == "noise" and r["schedule"] == schedule and r["fraction"] == 1.0]
        found = [v for r in mine if (v := value(r)) is not None]
        return sum(found) / len(found) if found else float("inf")

    names = list(dict.fromkeys(r["schedule"] for r in rows))
    advice, reverse, constant = names[1:4]
    got = {n: end(n, lambda r: r["accuracy"]) for n in (advice, reverse, constant)}
    letter = next(n for n in names if n.startswith("early only"))
    auc = end(letter, lambda r: r["decoder"]["auc"])
    budget = end(advice, lambda r: r["epsilon"])
    return [
        Verdict(
            "lenet", "strong noise early and weak noise late keeps utility",
            f"at ε = {budget:.2f} in all three: {got[advice]:.1%} as advised, {got[reverse]:.1%} the other way round, "
            f"{got[constant]:.1%} constant",
            got[advice] >= max(got[reverse], got[constant]),
            "order changes nothing in ε; accuracy was better otherwise",
        ),
        Verdict(
            "lenet", "late gradients need minimal or no noise",
            f"without noise late: ε infinite, decoder AUC {auc:.3f} at the end",
            auc < 0.6,
            "a gradient without noise tells members from others whenever it is released; a small critic gap does not change that",
        ),
    ]  # fmt: skip
