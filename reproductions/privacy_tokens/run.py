"""Everything the privacy-token paper shows, with the controls beside it, a calibrated measure, and the attacks it is to predict.

python -m reproductions.privacy_tokens.run PART ... --data FOLDER --device cuda --lpips FILE --out FOLDER
python -m reproductions.privacy_tokens.run PART ... --quick --out FOLDER      (tiny, embedded images)
python -m reproductions.privacy_tokens.run --draw                             (figures from results/, nothing is measured)

Parts: lenet alexnet cnn mlp (Table 1, Figs. 2-15), lenet_warm_TOKEN (a critic trained on through the training), batch_sizes_MODEL
(Figs. 16-19), noise (the advice on noise). A stopped part resumes. ``tables.py`` writes README.md from ``results/``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from reproductions.common.runner import Rows
from reproductions.privacy_tokens import batch_sizes, figures, noise_schedules, table1
from reproductions.privacy_tokens.setups import SETUPS, WARM, Run
from reproductions.privacy_tokens.table1 import Options

WARM_PARTS: dict[str, Run] = {f"lenet_warm_{run[0]}": run for run in WARM}
"""The longest critics by themselves, to run beside the rest."""
PARTS = (*SETUPS, *WARM_PARTS, *(f"batch_sizes_{name}" for name in SETUPS), "noise")
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="embedded images and a few steps, in seconds")
    parser.add_argument(
        "--data", type=Path, help="folder with cifar10_train.zip (or _a), cifar10_test.zip and smile_faces64_4000.zip"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--lpips", type=Path, help="LPIPS weights (safetensors); without them it is not measured")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
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
    device = torch.device(given.device)
    options = Options(given.quick, device, None if given.quick else given.data, given.lpips, given.seed)
    for part in given.parts:
        name = part if given.seed == 0 else f"{part}_seed{given.seed}"
        results = Rows.resumed(given.out, name, seed=given.seed, quick=given.quick, device=device)
        if part == "noise":
            noise_schedules.run(options, results)
        elif part in SETUPS:
            table1.run(part, options, results)
        elif part in WARM_PARTS:
            table1.run("lenet", options, results, critics_only=(WARM_PARTS[part],))
        else:
            batch_sizes.run(part.removeprefix("batch_sizes_"), options, results)


if __name__ == "__main__":
    main()
