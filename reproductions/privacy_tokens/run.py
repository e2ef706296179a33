"""Everything the privacy-token paper shows, with the controls beside it, a calibrated measure, and the attacks it is to predict.

python -m reproductions.privacy_tokens.run PART ... --data FOLDER --device cuda --lpips FILE --out FOLDER
python -m reproductions.privacy_tokens.run PART ... --quick --out FOLDER      (tiny, embedded images)
python -m reproductions.privacy_tokens.run --draw                             (figures from results/, nothing is measured)

Parts: lenet alexnet cnn mlp (Table 1, Figs. 2-15), lenet_warm_TOKEN (a critic trained on through the training), batch_sizes_MODEL
(Figs. 16-19), noise (the advice on noise), diffusion (Table 1's attacks on faces with diffusion models). A stopped part resumes.
``tables.py`` writes README.md from ``results/``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from reproductions.common import runner
from reproductions.common.runner import Part, run_part
from reproductions.privacy_tokens import batch_sizes, diffusion_attack, figures, noise_schedules, table1
from reproductions.privacy_tokens.setups import SETUPS, WARM, Run
from reproductions.privacy_tokens.table1 import Options

WARM_PARTS: dict[str, Run] = {f"lenet_warm_{run[0]}": run for run in WARM}
"""The longest critics by themselves, to run beside the rest."""
PARTS = (*SETUPS, *WARM_PARTS, *(f"batch_sizes_{name}" for name in SETUPS), "noise", "diffusion")
RESULTS = Path(__file__).parent / "results"


def part_of(name: str) -> Part[Options]:
    if name == "noise":
        return Part(name, noise_schedules.run)
    if name == "diffusion":
        return Part(name, diffusion_attack.run)
    if name in SETUPS:
        return Part(name, partial(table1.run, name))
    if name in WARM_PARTS:
        return Part(name, partial(table1.run, "lenet", critics_only=(WARM_PARTS[name],)))
    return Part(name, partial(batch_sizes.run, name.removeprefix("batch_sizes_")))


def main() -> None:
    parser = runner.parser(__doc__, out=RESULTS)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--lpips", type=Path, help="LPIPS weights (safetensors); without them it is not measured")
    parser.add_argument("--draw", action="store_true", help="only draw the figures of what is in --out")
    given = parser.parse_args()
    unknown = [part for part in given.parts if part not in PARTS]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if given.draw:
        figures.draw(given.out)
        return
    if not given.parts:
        parser.error("name a part, or --draw")
    if not given.quick and given.data is None:
        parser.error("the real thing needs --data FOLDER; --quick does with embedded images")
    options = Options.of(given, lpips=given.lpips)
    for name in given.parts:
        run_part(part_of(name), options)


if __name__ == "__main__":
    main()
