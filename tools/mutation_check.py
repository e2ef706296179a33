"""Breaks formulas on purpose, one at a time, and expects the tests to notice.

Each mutant is one wrong sign, factor, square or comparison in a temporary copy of the package; the working tree is not
touched. The check fails when a mutant survives, when a formula to be broken is no longer found exactly once, or when the
named tests do not pass on the unbroken package. Usage: mutation_check.py [WORD]  (only mutants whose name holds WORD)
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = "tests/formulas/test_by_hand.py"
AT_ONCE = 2
PASSED, FAILED = 0, 1  # exit codes of pytest; anything else means that the tests could not run


@dataclass(frozen=True)
class Mutant:
    """In ``file`` the text ``right`` becomes ``wrong``, and a test of the class ``caught_by`` has to fail."""

    name: str
    file: str
    right: str
    wrong: str
    caught_by: str


MI = "measures/mutual_information"

MUTANTS = (
    Mutant("pixels: mean added", "core/spaces.py", "return (image - mean) / std", "return (image + mean) / std", "TestSpace"),
    Mutant("mse: square missing", "measures/image.py", "difference.square()", "difference.abs()", "TestMeasures"),
    Mutant("psnr: factor 20", "measures/image.py", "-10 * torch.log10", "-20 * torch.log10", "TestMeasures"),
    Mutant("ssim: constants not squared", "measures/image.py", "c1, c2 = K1**2, K2**2", "c1, c2 = K1, K2", "TestMeasures"),
    Mutant("dv: log of the mean left out", f"{MI}/dv.py", "mean() - log_mean_exp(", "mean() + log_mean_exp(", "TestInformation"),
    Mutant("nwj: the one missing", f"{MI}/nwj.py", "return 1 + scores", "return scores", "TestInformation"),
    Mutant("infonce: true partner not counted", f"{MI}/infonce.py", "[scores.joint[:, None], ", "[", "TestInformation"),
    Mutant("gaussian information: half missing", f"{MI}/cca.py", "-0.5 * torch.log1p(-corr", "-torch.log1p(-corr", "TestInformation"),
    Mutant("ksg: neighbours at the radius count", f"{MI}/ksg.py", "nextafter(radius, 0)", "nextafter(radius, 99)", "TestInformation"),
    Mutant("cosine: sign", "inversion/distances.py", "1 - replay.dot", "1 + replay.dot", "TestObjective"),
    Mutant("total variation: one direction", "inversion/priors.py", "in (across, down)", "in (across,)", "TestObjective"),
    Mutant("weights by restart: order", "inversion/terms.py", "enumerate(weights)], 1)", "enumerate(weights)], 0)", "TestObjective"),
    Mutant("batch norm prior: deviation for variance", "inversion/priors.py", "inputs.var(2,", "inputs.std(2,", "TestObjective"),
    Mutant("step decay: factor not to the power", "inversion/solvers.py", "self.factor ** sum(", "self.factor * sum(", "TestObjective"),
    Mutant("sign rule: comparison", "inversion/labels.py", "(agreement < 0)", "(agreement > 0)", "TestLabels"),
    Mutant("bias counts: sign", "inversion/labels.py", "missing = -head_gradient", "missing = head_gradient", "TestLabels"),
    Mutant("targets read: sign", "inversion/output_gradient.py", "(sent - slope(zero)", "(sent + slope(zero)", "TestLabels"),
    Mutant("patches: on another scale", "attacks/patch_positions.py", "inner[:known] / values", "inner[:known] * values", "TestClosedForm"),
    Mutant("beneath the head: not divided by s", "inversion/beneath_head.py", ":-1] / solved[:, -1:]", ":-1]", "TestClosedForm"),
    Mutant("beneath the head: a mean for the sum", "inversion/beneath_head.py", "return scale * torch", "return torch", "TestClosedForm"),
    Mutant("beneath the head: noise of one equation", "inversion/beneath_head.py", "left / spare**0.5 if", "left if", "TestClosedForm"),
    Mutant("linear: square missing", "attacks/linear.py", ") / square)", ") / square.sqrt())", "TestClosedForm"),
    Mutant("r-gap: output on another scale", "attacks/r_gap/system.py", "[known] / scale]", "[known] * scale]", "TestClosedForm"),
    Mutant("r-gap: index without depth", "attacks/r_gap/system.py", "(depth - i) / depth * (layer", "1 * (layer", "TestClosedForm"),
    Mutant("fedavg: sign of the momentum", "channels/optimizers.py", "self.momentum * moments", "-self.momentum * moments", "TestFedAvg"),
    Mutant("clip: max for min", "channels/rows.py", "clamp(max=1.0)", "clamp(min=1.0)", "TestDefenses"),
    Mutant("dp-sgd: noise without the clip", "channels/dpsgd.py", "sigma = self.noise * self.clip", "sigma = self.noise", "TestChannels"),
    Mutant("aggregate: clients count alike", "channels/aggregate.py", "len(rows) / total", "1 / self.clients", "TestChannels"),
    Mutant("aggregate: dropped clients count", "channels/aggregate.py", "sum(map(len, present.values()))", "len(x)", "TestChannels"),
    Mutant("mixup: with the sample before", "channels/mixup.py", "x.roll(-1, 0)", "x.roll(1, 0)", "TestChannels"),
    Mutant("signs: range not used", "inversion/encoded.py", "(size > slack - low)", "(size > slack + high)", "TestChannels"),
    Mutant("signs: turned round", "inversion/encoded.py", "torch.tanh(size * (mixing", "torch.tanh(-size * (mixing", "TestChannels"),
    Mutant("prune: the largest go", "defenses/prune.py", "argsort(1)[:, :dropped]", "argsort(1)[:, dropped:]", "TestDefenses"),
    Mutant("quantize: one bit too many", "defenses/quantize.py", "/ (2 ** (self.bits - 1) - 1)", "/ (2**self.bits - 1)", "TestDefenses"),
    Mutant("laplace: root of two missing", "defenses/noise.py", "(first - second) / math.sqrt(2)", "(first - second)", "TestDefenses"),
    Mutant("relative noise: root missing", "defenses/noise.py", "norms / math.sqrt(", "norms / (", "TestDefenses"),
    Mutant("verdict: sign of the margin", "audit/verdict.py", "bar + self.margin", "bar - self.margin", "TestVerdict"),
    Mutant("verdict: absolute bar turned", "audit/verdict.py", "value >= self.margin", "value <= self.margin", "TestVerdict"),
    Mutant("batch statistics: Bessel's factor turned", "inversion/statistics.py", "((n - 1) / n)", "(n / (n - 1))", "TestStatistics"),
    Mutant("batch statistics: average of one too many", "inversion/statistics.py", "return tracked / (", "return 1 / (", "TestStatistics"),
    Mutant("bound: no root of the steps", "measures/rero.py", "+ math.sqrt(steps.steps) /", "+ steps.steps /", "TestBounds"),
    Mutant("law: lower end forgotten", "measures/first_layer.py", "+ x.square() * below", "", "TestBounds"),
    Mutant("limit: prior not squared", "measures/spectrum.py", ".square() + 1 / spread**2)", ".square() + 1 / spread)", "TestBounds"),
    Mutant("matching: the worst is kept", "inversion/search.py", "losses <= self.best[rows]", "losses >= self.best[rows]", "TestMatching"),
    Mutant("rouge: no factor 2", "measures/text.py", "return 2 * shared / (mine + theirs)", "return shared / (mine + theirs)", "TestText"),
    Mutant("spans: columns scaled the other way", "inversion/row_spans.py", "1 / columns[0], inputs", "columns[0], inputs", "TestText"),
    Mutant("next token: its own place", "models/next_token.py", "scores[:, :-1].flatten(", "scores[:, 1:].flatten(", "TestText"),
    Mutant("prompts: noise of a whole feature", "split/prompts.py", ".median()) / math.sqrt(", ".median()) * math.sqrt(", "TestText"),
    Mutant("peeling: the factor is the eigenvalue", "inversion/peeling.py", "return 1 / float(real", "return float(real", "TestText"),
    Mutant("spans: the farthest point of a line", "inversion/row_spans.py", "share = -(start", "share = (start", "TestText"),
    Mutant("spans: values not squared", "inversion/row_spans.py", "rank].square()).sum(1)", "rank]).sum(1)", "TestText"),
)  # fmt: skip


def run_tests(folder: Path, selection: str = "") -> tuple[int, str]:
    """Runs the tests against the copy in ``folder``."""
    tests = f"{folder / TESTS}{'::' + selection if selection else ''}"
    switched_off = [
        word for plugin in ("cacheprovider", "cov", "xdist", "hypothesispytest") for word in ("-p", f"no:{plugin}")
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-c", os.devnull, "--rootdir", folder, *switched_off, tests],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def copy_to(folder: Path) -> None:
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (folder / TESTS).parent.mkdir(parents=True)
    shutil.copy(ROOT / TESTS, folder / TESTS)


def trouble_with(mutant: Mutant | None) -> str | None:
    """What is wrong with a mutant's fate, or None; without a mutant, what is wrong with the unbroken package."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_to(folder)
        if mutant is None:
            code, said = run_tests(folder)
            return None if code == PASSED else f"the tests do not pass before anything is broken:\n{said}"
        path = folder / "src" / "leakgauge" / mutant.file
        text = path.read_text(encoding="utf-8")
        if text.count(mutant.right) != 1:
            return f"{mutant.right!r} is found {text.count(mutant.right)} times in {mutant.file}, expected once"
        path.write_text(text.replace(mutant.right, mutant.wrong), encoding="utf-8")
        code, said = run_tests(folder, mutant.caught_by)
        if code == PASSED:
            return f"survived {mutant.caught_by}: {mutant.right!r} became {mutant.wrong!r} in {mutant.file}"
        return None if code == FAILED else f"its tests could not run:\n{said}"


def main(arguments: list[str]) -> int:
    began = time.perf_counter()
    mutants = [m for m in MUTANTS if not arguments or arguments[0] in m.name]
    chosen: list[Mutant | None] = [None, *mutants]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        troubles = list(pool.map(trouble_with, chosen))
    for mutant, trouble in zip(chosen, troubles, strict=True):
        print(
            f"{'unbroken package' if mutant is None else mutant.name:<42} {trouble or ('passes' if mutant is None else 'caught')}"
        )
    wrong = sum(trouble is not None for trouble in troubles)
    print(f"mutation check: {len(mutants)} mutants, {wrong} in trouble, {time.perf_counter() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
