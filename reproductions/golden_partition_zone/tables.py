"""What the paper prints beside what ``run.py`` measured, as markdown: Tables 3 to 5, the numbers of section 4.2, Eqs. (3) to (5).

    python -m reproductions.golden_partition_zone.tables

Errors are in the paper's unit, summed over channels. Several seeds are shown as mean and range. What was not run says so; nothing is
filled in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import mean

from reproductions.common import gates, page
from reproductions.common.runner import Row
from reproductions.golden_partition_zone import entropy
from reproductions.golden_partition_zone.published import ATTENTION, ENHANCEMENTS, PREDICTIONS, VGG19_MSE, Error
from reproductions.golden_partition_zone.results_rows import PAPERS_DECODER, all_rows, chosen, matching, own

HEAD = ("| what | paper | 100 epochs | difference | 30 epochs | own images: paper | 100 | 30 |", "|---" * 8 + "|")


def error_line(what: str, paper: Error | float, rows: list[Row], part: str, **wanted: object) -> str:
    """One number of the paper and ours, on attacked images and, where the paper prints them, on the adversary's own.

    The difference is that of 100 epochs, which the paper trains, and where these were not run that of 30.
    """
    expected, own = (paper.test, paper.auxiliary) if isinstance(paper, Error) else (paper, None)
    found = {30: matching(rows, part=part, **wanted), 100: matching(rows, part=f"{part}-100", **wanted)}
    if wanted.get("decoder") == "baseline":  # the decoder of the curve
        curve = {"part": "ir152-curve-100", "labels": "one-hot", "seed": 0, "decoder": PAPERS_DECODER}
        found[100] = found[100] or matching(rows, block=wanted["block"], **curve)
    errors = {epochs: [row["test_mse_paper"] for row in own_rows] for epochs, own_rows in found.items()}
    best = errors[100] or errors[30]
    off = f"{mean(best) / expected - 1:+.0%}" if best else ""
    cells = [what, f"{expected:.4g}", _spread(errors[100]), off, _spread(errors[30]), *["", "", ""]]
    if own is not None:
        known = [[row["auxiliary_mse_paper"] for row in found[epochs]] for epochs in (100, 30)]
        cells[5:] = [f"{own:.4g}", *map(_spread, known)]
    return f"| {' | '.join(cells)} |"


def _spread(values: list[float]) -> str:
    if not values:
        return "not run"
    return f"{mean(values):.4g}" + (f" ({min(values):.4g} to {max(values):.4g})" if len(values) > 1 else "")


def curve_lines(rows: list[Row]) -> Iterator[str]:
    """Section 4.2: the two blocks of VGG19 whose error the text prints."""
    about = {"labels": "one-hot", "decoder": PAPERS_DECODER}
    for block, paper in VGG19_MSE.items():
        yield error_line(f"VGG19 block {block}", paper, rows, "vgg19-curve", block=block, **about)
    for block, paper in VGG19_MSE.items():
        what = f"VGG19 by the paper's recipe, block {block}"
        yield error_line(what, paper, rows, "vgg19-curve-plateau", block=block, **about)


def prediction_lines(rows: list[Row]) -> Iterator[str]:
    for name, paper in PREDICTIONS.items():
        yield error_line(name, paper, rows, "predictions", decoder=name)


def decoder_lines(rows: list[Row], part: str, numbers: dict[tuple[int, str], Error]) -> Iterator[str]:
    for (block, name), paper in numbers.items():
        yield error_line(f"block {block}, {name}", paper, rows, part, block=block, decoder=name)


def zone_lines(rows: list[Row]) -> Iterator[str]:
    """The search of the zone against decoders at every cut, from one run; seconds of the GPU, ridge included."""
    for row in sorted((r for r in rows if r["unit"].startswith("zone/compared/")), key=lambda row: row["threshold"]):
        ways = [f"`{row['exhaustive']['cut']}`, {row['exhaustive']['seconds']:.0f} s"]
        for name in ("find_zone", "bisection"):
            way = row[name]
            ways.append(f"`{way['cut']}`, {way['seconds']:.0f} s, {way['epochs']} epochs ({way['ratio']:.1f}×)")
        best = row["at_best"]
        ways.append(f"{best['seconds']:.0f} s, {best['epochs']} epochs ({best['ratio']:.1f}×)")
        yield f"| {row['threshold']:g} | {' | '.join(ways)} |"


def class_lines(rows: list[Row]) -> Iterator[str]:
    """FVU and R_c² per dimension by the number of classes; several seeds as their mean. The head is the first two lines."""
    found = [row for row in matching(rows, part="classes") if "fvu" in row]
    sets = sorted({row["data"] for row in found}, key=lambda name: int(name.split(", ")[1].split()[0]))
    if found:
        yield "| block | " + " | ".join(f"{name.split(', ')[1]}: FVU, R_c²/D" for name in sets) + " |"
        yield "|---" * (1 + len(sets)) + "|"
    for block in sorted({row["block"] for row in found}):
        cells = []
        for name in sets:
            pair = [chosen(found, column, data=name, block=block) for column in ("fvu", "radius_per_dimension")]
            cells.append(f"{mean(pair[0]):.3f}, {mean(pair[1]):.3g}" if pair[0] else "not measured")
        yield f"| {block} | {' | '.join(cells)} |"


def entropy_lines(rows: list[Row]) -> Iterator[str]:
    """Eqs. (3) to (5): what is subtracted from H(x) at every block, beside the measured FVU."""
    for one in entropy.curves(rows):
        for at in one.blocks:
            cells = [
                one.name,
                str(at.block),
                f"{at.dimensions:,}",
                f"{at.radius:.3g}",
                f"{at.nats:,.0f}",
                f"{at.fvu:.3f}",
            ]
            yield f"| {' | '.join(cells)} |"


ENTROPY_HEAD = ("| network, labels | block | D | R_c²/D | D/2·ln(2πe R_c²/D) + ln K, nats | FVU |", "|---" * 6 + "|")
ZONE_HEAD = (
    "| threshold | every cut, 100 epochs | find_zone | bisection by depth | at best |",
    "|---|---|---|---|---|",
)

TABLES: dict[str, tuple[tuple[str, ...], Callable[[list[Row]], Iterator[str]], Callable[[Row], bool]]] = {
    "curve": (HEAD, curve_lines, lambda row: row.get("part") == "vgg19-curve"),
    "table3": (HEAD, prediction_lines, lambda row: row.get("part") == "predictions"),
    "table4": (HEAD, lambda rows: decoder_lines(rows, "enhancements", ENHANCEMENTS), lambda row: row.get("part") == "enhancements"),
    "table5": (HEAD, lambda rows: decoder_lines(rows, "attention", ATTENTION), lambda row: row.get("part") == "attention"),
    "entropy": (ENTROPY_HEAD, entropy_lines, lambda row: row.get("part") in entropy.NETWORKS),
    "zone": (ZONE_HEAD, zone_lines, lambda row: row["unit"].startswith("zone/compared/")),
    "classes": ((), class_lines, lambda row: row.get("part") == "classes" and "fvu" in row),
}  # fmt: skip
"""Head, lines, and whether a row is one of the table's own measurements: without any there is no table."""


def table(name: str, rows: list[Row]) -> str:
    head, lines, of_it = TABLES[name]
    return "\n".join([*head, *lines(rows)]) if any(of_it(row) for row in rows) else "Not measured yet."


def main() -> None:
    rows = all_rows()
    for name in TABLES:
        print(f"{name}\n\n{table(name, rows)}\n")


def gate_rows(rows: list[Row]) -> list[tuple[str, str, Row]]:
    """Networks above chance, and decoders that had ended: the best epoch is not the last."""
    found = [
        ("data" if row["unit"].startswith("splits/") else "networks", row["unit"], gate)
        for row in rows
        for gate in own(row)["gates"]
    ]
    for row in (row for row in rows if "best_epoch" in row):
        ended = row["best_epoch"] < row["epochs"]
        why = f"best epoch {row['best_epoch']} of {row['epochs']}"
        found.append((row["part"], row["unit"], gates.Gate("decoder ended", ended, why).row()))
    return found


def gates_section(rows: list[Row]) -> str:
    """Decoders are too many to name: a line for each part."""
    checked = gate_rows(rows)
    named = page.gates_table([one for one in checked if one[0] in ("data", "networks")])
    parts = dict.fromkeys(part for part, _, _ in checked if part not in ("data", "networks"))
    lines = []
    for part in parts:
        own = [gate["passed"] for name, _, gate in checked if name == part]
        lines.append([part, f"{sum(own)} of {len(own)}"])
    return f"{named}\n\n{page.table(['part', 'decoders with their best epoch before the last'], lines)}"


if __name__ == "__main__":
    main()
