"""Everything the privacy-token paper shows, with the controls beside it, a calibrated measure, and the attacks it is to predict.

python -m reproductions.privacy_tokens.run [PART ...] --data FOLDER --device cuda --lpips FILE --out FOLDER
python -m reproductions.privacy_tokens.run [PART ...] --quick --out FOLDER    (tiny, embedded images)
python -m reproductions.privacy_tokens.run --list
python -m reproductions.privacy_tokens.run --draw                             (figures from results/, nothing is measured)

Without a part all of them run, in their order. A stopped part resumes. ``--seed 1`` repeats Table 1 with another training.
``tables.py`` writes README.md from ``results/``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from reproductions.common import runner
from reproductions.common.runner import Part, run_part
from reproductions.common.scripts import print_parts
from reproductions.privacy_tokens import batch_sizes, diffusion_attack, figures, noise_schedules, table1
from reproductions.privacy_tokens.setups import SETUPS, WARM, Run
from reproductions.privacy_tokens.table1 import Options

WARM_PARTS: dict[str, tuple[str, Run]] = {
    f"{network}_warm_{run[0]}": (network, run) for network in ("lenet", "alexnet") for run in WARM
}
"""The longest critics by themselves, to run beside the rest."""
PARTS = {
    **{name: f"Table 1 and Figs. 2 to 15 for {name}" for name in SETUPS},
    **{part: f"a critic that is trained on through {network}'s training" for part, (network, _) in WARM_PARTS.items()},
    **{f"batch_sizes_{name}": f"Figs. 16 to 19 for {name}" for name in SETUPS},
    "noise": "the advice on noise",
    "diffusion": "Table 1's attacks on faces with diffusion models",
}
"""What there is to run, in its order."""
RESULTS = Path(__file__).parent / "results"


def part_of(name: str) -> Part[Options]:
    if name == "noise":
        return Part(name, noise_schedules.run)
    if name == "diffusion":
        return Part(name, diffusion_attack.run)
    if name in SETUPS:
        return Part(name, partial(table1.run, name))
    if name in WARM_PARTS:
        network, critic = WARM_PARTS[name]
        return Part(name, partial(table1.run, network, critics_only=(critic,)))
    return Part(name, partial(batch_sizes.run, name.removeprefix("batch_sizes_")))


def main(arguments: list[str] | None = None) -> None:
    parser = runner.parser(__doc__, out=RESULTS)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all if none is given")
    parser.add_argument("--lpips", type=Path, help="LPIPS weights (safetensors); without them it is not measured")
    parser.add_argument("--draw", action="store_true", help="only draw the figures of what is in --out")
    parser.add_argument("--list", action="store_true", help="say what there is to run, in its order")
    given = parser.parse_args(arguments)
    unknown = [part for part in given.parts if part not in PARTS]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if given.list:
        print_parts(PARTS)
        return
    if given.draw:
        figures.draw(given.out)
        return
    if not given.quick and given.data is None:
        parser.error("the real thing needs --data FOLDER; --quick does with embedded images")
    options = Options.of(given, lpips=given.lpips)
    for name in (name for name in PARTS if not given.parts or name in given.parts):
        run_part(part_of(name), options)


if __name__ == "__main__":
    main()
