"""How many images of a batch a malicious server reads off one update, and what stands against it, on embedded data.

python -m benchmarks.malicious [--rounds 3] [--out FILE]     minutes on two cores
python -m benchmarks.malicious --quick                       seconds, to see it run
python -m benchmarks.malicious --show FILE                   the tables of what was measured

Part "alone" is what the client itself sees of the model, over ten batches (column "images read": share of samples that stand alone).
An image counts as read where its SSIM reaches 0.95. Every round has a batch of its own (images never meet those that the server
holds); a cell gives the mean and the range over rounds. Seed 0 for weights, servers, noise and starts.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import nn

from benchmarks.json_lines import read_lines, write_lines
from leakgauge.audit.case import Case
from leakgauge.audit.scoring import score
from leakgauge.audit.session import Setup, embedded, set_up
from leakgauge.core import Victim
from leakgauge.errors import Inapplicable
from leakgauge.servers import find_isolated

READ = 0.95
HELD = "auxiliary:64"
FISHED = 1


@dataclass(frozen=True)
class Row:
    """A set-up, and for each round the share of images that were read and the median PSNR (dB; 200 where exact).

    ``target`` is the PSNR of the one image of class ``FISHED``, where the batch has one.
    """

    part: str
    what: str
    batch: int
    read: tuple[float, ...]
    psnr: tuple[float, ...]
    target: tuple[float, ...] = ()
    refused: str = ""


def fully_connected(case: Case) -> Setup:
    """The embedded data with an untrained network whose first layer sees the image."""
    torch.manual_seed(0)
    setup = embedded(replace(case, model="cnn", name=""))
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))
    return replace(setup, victim=Victim(model, setup.victim.space, mode=case.mode, name="mlp"))


def measured(part: str, what: str, case: Case, rounds: int) -> Row:
    """Attacks as many batches as there are rounds."""
    load = fully_connected if case.model == "mlp" else embedded
    read: list[float] = []
    psnr: list[float] = []
    target: list[float] = []
    for turn in range(rounds):
        one = replace(
            case, first=case.first + turn * max(case.batch_size, 10), name=""
        )  # ten classes, one of each in turn
        setup = set_up(one, load)
        x, y = setup.private(one)
        try:
            found = one.build_attack()(setup.victim, setup.observation(one), seed=0)
        except Inapplicable as refusal:
            return Row(part, what, case.batch_size, (), (), refused=str(refusal))
        scores = score(found, x, y, space=setup.victim.space)
        read.append(sum(value >= READ for value in scores.ssim) / len(x))
        psnr.append(min(200.0, statistics.median(scores.psnr)))
        if (y == FISHED).sum() == 1:
            target.append(min(200.0, scores.psnr[int((y == FISHED).nonzero())]))
    return Row(part, what, case.batch_size, tuple(read), tuple(psnr), tuple(target))


def singled_out(what: str, case: Case, rounds: int) -> Row:
    """The share of samples that a client sees stand alone, in as many batches as there are rounds."""
    load = fully_connected if case.model == "mlp" else embedded
    shares: list[float] = []
    for turn in range(rounds):
        one = replace(case, first=turn * max(case.batch_size, 10), name="")
        setup = set_up(one, load)
        shares.append(len(find_isolated(setup.victim, *setup.private(one)).samples) / case.batch_size)
    return Row("alone", what, case.batch_size, tuple(shares), ())


def inspected() -> Iterator[tuple[str, Case]]:
    """Honest and changed models that a client looks at."""
    for model in ("cnn", "vit", "vgg", "mlp"):
        for batch in (4, 16):
            yield f"{model}, honest", Case(model=model, batch_size=batch)
    for server in ("imprint:bins=256", "fishing:target=1"):
        for batch in (4, 10, 16):
            yield f"cnn, {server}", Case(model="cnn", server=server, batch_size=batch)
    yield "mlp, trap_weights", Case(model="mlp", server="trap_weights", batch_size=16)


def protections(case: Case) -> Iterator[tuple[str, Case]]:
    """What may stand between the client and the server, one thing at a time."""
    yield "nothing", case
    yield "train mode", replace(case, mode="train", name="")
    yield "4 local steps", replace(case, local_epochs=4, name="")
    for spec in ("aggregate:clients=4", *(f"dpsgd:clip=1,noise={noise}" for noise in (0.001, 0.01, 0.1, 1))):
        yield spec, replace(case, channel=spec, name="")
    for spec in ("clip:1", "quantize:8", "prune:0.9", *(f"gaussian_noise:relative={r}" for r in (0.001, 0.01, 0.1, 1))):
        yield spec, replace(case, defenses=(spec,), name="")


def cases(quick: bool) -> Iterator[tuple[str, str, Case]]:
    """The parts of the page: batches and bins, honest and trapped weights, what is tried against an imprint, and fishing."""
    base = Case(model="cnn", server="imprint", attack="imprint")
    for batch in (4, 16, 64, 128)[: 2 if quick else None]:
        for bins in (64, 256, 1024)[: 2 if quick else None]:
            server = f"imprint:bins={bins}"
            yield "imprint", f"{bins} bins", replace(base, server=server, batch_size=batch, name="")
            yield (
                "imprint",
                f"{bins} bins, {HELD}",
                replace(base, server=server, batch_size=batch, reveal=("size", HELD), name=""),
            )
    mlp = Case(model="mlp", attack="linear_rows")
    for batch in (4, 16, 64)[: 2 if quick else None]:
        trap = f"trap_weights:share={1 / batch:.4g}"
        yield "rows", "honest weights", replace(mlp, batch_size=batch, name="")
        yield "rows", "trap weights", replace(mlp, server="trap_weights", batch_size=batch, name="")
        yield (
            "rows",
            f"trap weights, {HELD}",
            replace(mlp, server=trap, batch_size=batch, reveal=("size", HELD), name=""),
        )
    for change in (0.01, 100):  # of a pixel's range: hardly to be seen, and as loud as it gets
        server = f"imprint:bins=256,change={change}"
        against = replace(base, server=server, batch_size=16, reveal=("size", HELD), name="")
        for what, changed in protections(against):
            yield "against", f"change {change}: {what}", changed
    steps = {"steps": 5 if quick else 300}
    for size in (1, 10, 20)[: 2 if quick else None]:
        caught = Case(model="cnn", batch_size=size, first=FISHED if size == 1 else 0, options={"tv": 0.01, **steps})
        yield "fishing", "inverting_gradients", caught
        if size > 1:
            yield "fishing", "fishing", replace(caught, server=f"fishing:target={FISHED}", attack="fishing", name="")


def table(rows: list[Row]) -> str:
    """Markdown, a part after another."""
    lines: list[str] = []
    for part in dict.fromkeys(row.part for row in rows):
        lines += [
            "",
            f"### {part}",
            "",
            "| set-up | batch | images read | median PSNR | of the one of class 1 |",
            "|---|---|---|---|---|",
        ]
        for row in (one for one in rows if one.part == part):
            cells = (
                ("refused: " + row.refused, "–")
                if row.refused
                else (spread(row.read, "{:.0%}"), spread(row.psnr, "{:.1f}"))
            )
            lines.append(f"| {row.what} | {row.batch} | {cells[0]} | {cells[1]} | {spread(row.target, '{:.1f}')} |")
    return "\n".join(lines[1:])


def spread(values: tuple[float, ...], form: str) -> str:
    if not values:
        return "–"
    mean, low, high = (form.format(one) for one in (statistics.fmean(values), min(values), max(values)))
    return mean if low == high else f"{mean} [{low}..{high}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path)
    given = parser.parse_args()
    if given.show is not None:
        kept = read_lines(given.show)[1:]
        print(
            table([Row(**{**one, **{name: tuple(one[name]) for name in ("read", "psnr", "target")}}) for one in kept])
        )
        return
    rounds = 1 if given.quick else given.rounds
    rows: list[Row] = []
    for part, what, case in cases(given.quick):
        rows.append(measured(part, what, case, rounds))
        print(rows[-1], flush=True)
    for what, case in inspected():
        rows.append(singled_out(what, case, 1 if given.quick else 10))
        print(rows[-1], flush=True)
    print(table(rows))
    facts = {
        "benchmark": "malicious",
        "rounds": rounds,
        "seed": 0,
        "quick": given.quick,
        "torch": str(torch.__version__),
    }
    write_lines(given.out, [facts, *map(asdict, rows)])


if __name__ == "__main__":
    main()
