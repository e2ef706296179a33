"""Section 4.5.3: every network trained on CIFAR-10, with the stem adapted to 32×32 images and with ImageNet's.

    python -m reproductions.practical_feasibility.accuracy --data FOLDER

The trained weights are kept for the attacks of the other parts. The ladder of patch sizes (section 4.5.2) is trained too.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from leakgauge.errors import Inapplicable
from reproductions.common.drawing import Line, Panel, svg
from reproductions.common.runner import Pictures, Row, Rows, save_weights
from reproductions.practical_feasibility import setting
from reproductions.practical_feasibility.networks import Network, weights_file
from reproductions.practical_feasibility.setting import Images, Options, Plan
from reproductions.practical_feasibility.training import ATTENTION, CONVNEXT, RESIDUAL, SWIN, Recipe, trained

NETWORKS = {
    net.key: net
    for net in (
        Network("resnet18_pre"), Network("resnet18_post"), Network("swin_t"), Network("convnext_t"),
        Network("convnext_t", adapted=False), Network("vit_b"), Network("vit_b", patch=8), Network("vit_b", patch=16),
        Network("resnet18_post", adapted=False), Network("swinv2_t"), Network("swin_t", adapted=False), Network("maxvit_t"),
    )
}  # fmt: skip
"""The most important first."""
RECIPES = {"resnet18_pre": RESIDUAL, "resnet18_post": RESIDUAL, "swin_t": SWIN, "convnext_t": CONVNEXT}
PLAN: Plan = {
    "resnet18_pre": 20.0, "resnet18_post": 20.0, "swin_t": 178.0, "convnext_t": 146.0, "convnext_t_imagenet_stem": 80.0,
    "vit_b": 36.0, "vit_b_patch8": 20.0, "vit_b_patch16": 17.0, "resnet18_post_imagenet_stem": 8.0, "swinv2_t": 60.0,
    "swin_t_imagenet_stem": 25.0, "maxvit_t": 40.0,
}  # fmt: skip
"""On an H200 with nothing beside it. Where the epochs are given (ConvNeXt with ImageNet's stem, ViT) it is an estimate."""
COMPARED = ("convnext_t",)
"""Networks whose two stems the paper compares by accuracy."""
LADDER_EPOCHS = 3
"""Of the ViTs, so that their accuracies compare patch sizes."""
QUICK = ("resnet18_pre", "convnext_t", "convnext_t_imagenet_stem", "vit_b_patch8", "maxvit_t")
MOST_EPOCHS = 80


def run(options: Options, ledger: Rows, plan: Plan) -> None:
    train, test = setting.cifar_train(options), setting.cifar_test(options, 64 if options.quick else 10_000)
    for key, net in NETWORKS.items():
        if key not in plan or (options.quick and key not in QUICK and len(plan) == len(PLAN)):
            continue
        if ledger.has(key) and (options.quick or weights_file(options.weights, net).is_file()):
            continue  # a row without its weights is trained again, for the attacks
        options.require_time(key, plan[key])
        with ledger.attempt(key):
            measure(key, net, options, ledger, plan[key], train, test)


def measure(
    key: str, net: Network, options: Options, ledger: Rows, seconds: float, train: Images, test: Images
) -> None:
    try:
        model, space, changes = net.made(classes=10, seed=options.seed, quick=options.quick)
    except Inapplicable as refusal:
        ledger.add(key, refused=str(refusal))
        return
    recipe = RECIPES.get(net.name, ATTENTION)
    recipes = [recipe] if isinstance(recipe, Recipe) else recipe
    if not net.adapted:  # with little time there is none for trying; the last has won where there was
        recipes = recipes[-1:]
    if options.quick:
        recipes = [replace(one, batch=64) for one in recipes]
    done = trained(
        model, space, (train.x, train.y), (test.x, test.y), recipe=recipes, seconds=options.scale * seconds, device=options.device,
        epochs=given_epochs(net, ledger, options.scale), most_epochs=1 if options.quick else MOST_EPOCHS, seed=options.seed,
    )  # fmt: skip
    print(
        f"{key}: {done.accuracy:.1%} after {done.epochs} epochs", flush=True
    )  # also where there is a row of another training
    save_weights(weights_file(options.weights, net), model, half=True)
    if ledger.has(key):
        return
    ledger.add(
        key, data=train.name, changes=changes, parameters=sum(p.numel() for p in model.parameters()), batch=done.recipe.batch,
        lr=done.recipe.lr, muon=done.recipe.muon, mixed=done.recipe.mixed,
        accuracy=done.accuracy, train_accuracy=done.train_accuracy, epochs=done.epochs, trained_on=done.images, tested_on=len(test.x),
        seconds=done.seconds, ms_per_step=done.ms_per_step, step=done.note,
    )  # fmt: skip


def given_epochs(net: Network, ledger: Rows, scale: float) -> int | None:
    """Where accuracies are compared, stems or patch sizes, networks are trained for equally many epochs; else as time allows."""
    if net.name == "vit_b":
        return max(1, round(scale * LADDER_EPOCHS))
    if net.adapted or net.name not in COMPARED:
        return None
    found = [row["epochs"] for row in ledger.rows if row["unit"] == net.name and "epochs" in row]
    return found[0] if found else None


def draw(rows: list[Row], pictures: Pictures, out: Path) -> None:
    reached = {row["unit"]: row["accuracy"] for row in rows if "accuracy" in row}
    ladder = [
        (patch, reached[key])
        for patch in (4, 8, 16)
        if (key := "vit_b" if patch == 4 else f"vit_b_patch{patch}") in reached
    ]
    if ladder:
        panel = Panel(
            "ViT-B on CIFAR-10", "side of a patch in pixels", "accuracy", [Line("accuracy on test images", ladder)], log_x=True,
            bounds=(0.0, 1.0), ticks=[patch for patch, _ in ladder],
        )  # fmt: skip
        svg(out / "accuracy.svg", [panel], title="Accuracy by patch size")


def table(rows: list[Row]) -> str:
    lines = [
        "| network | changed for 32×32 | parameters | epochs | seconds | accuracy | on training images |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "refused" in row:
            lines.append(f"| {row['unit']} | not run: {row['refused']} | | | | | |")
        else:
            words = f"| {row['unit']} | {row['changes']} | {row['parameters'] / 1e6:.1f} M | {row['epochs']} | {row['seconds']:.0f} "
            lines.append(f"{words}| {row['accuracy']:.1%} | {row['train_accuracy']:.1%} |")
    return "\n".join(lines)


if __name__ == "__main__":
    setting.main("accuracy", PLAN, run, draw, __doc__)
