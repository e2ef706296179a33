"""Fig. 9: is it the missing parameters, or the missing positions? Matching without one encoder against without the positions.

    python -m reproductions.april.without_encoder --data FOLDER

The paper counts 6,533,002 parameters without one encoder, which is the model less the *attention* of one encoder. Both are
measured here: without one attention, and without a whole encoder. APRIL's objective is used where positions are shared,
its squared distance where they are not.
"""

from __future__ import annotations

from pathlib import Path

from leakgauge.defenses import WithholdNames
from reproductions.april import study
from reproductions.april.study import Options
from reproductions.common.drawing import Line, Panel, grid, svg
from reproductions.common.runner import Part, Pictures, Row, Rows

FRAMES = (10, 20, 50, 100, 200, 300, 400, 500, 600, 700)


def run(options: Options, results: Rows) -> None:
    images = study.digits(options, options.count(10))
    model = study.small_model(images, architecture="B", quick=options.quick, seed=options.seed)
    victim, space = study.victim_of(model, images, options.device), study.space_of(images)
    sizes = {name: value.numel() for name, value in victim.parameters().items()}
    depth = len(model.blocks)
    cases = {"everything": "", "without positions": "pos_embed"}
    cases |= {f"without attention {k + 1}": f"blocks.{k}.attn." for k in range(depth)}
    cases |= {f"without encoder {k + 1}": f"blocks.{k}." for k in (0, depth - 1)}
    results.keep("original", images.x)
    for name, prefix in cases.items():
        if results.has(name):
            continue
        kept_back = tuple(n for n in sizes if prefix and n.startswith(prefix))
        seen = study.observed(victim, images, defenses=[WithholdNames(kept_back)])
        attack = "l2" if name == "without positions" else "april"
        matching = study.matching_attack(attack, steps=options.steps(800), frames=FRAMES)
        found = matching.many(victim, seen, seed=options.seed)
        results.keep(name, study.shown(found, space))
        results.add(
            name,
            case=name,
            attack=attack,
            parameters=sum(sizes[n] for n in sizes if n not in kept_back),
            data=images.name,
            steps=matching.solver.steps,
            **study.measured(found, images),
            **study.curves(found, seen, images),
        )


def draw(rows: list[Row], pictures: Pictures, out: Path) -> None:
    lines = [
        Line(r["case"], list(zip(r["frame_steps"], r["frame_mse"], strict=True)), dashed="encoder" in r["case"])
        for r in rows
    ]
    panel = Panel(
        "Leaving parameters out of the match", "iteration", "mean squared error of the image", lines, log_y=True
    )
    svg(out / "without_encoder.svg", [panel], title="Image error when some gradients are not matched")
    if pictures:
        names = ["original", *(r["case"] for r in rows)]
        grid(out / "without_encoder.png", [(name, pictures[name]) for name in names], side=64)


def table(rows: list[Row]) -> str:
    lines = ["| matched | parameters | paper | MSE | SSIM |", "|---|---|---|---|---|"]
    for r in rows:
        paper = {"everything": "recovered", "without positions": "twin data"}.get(r["case"], "recovered")
        lines.append(f"| {r['case']} | {r['parameters']:,} | {paper} | {r['mse']:.4f} | {r['ssim']:.3f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    study.main(Part("without_encoder", run, draw), __doc__)
