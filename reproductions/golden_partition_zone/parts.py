"""The parts of the reproduction that follow one network over its blocks: Figs. 2 and 4 to 11, and the number of classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace

import torch
from torch import nn

from leakgauge.attacks.decoder import Deconvolution, TokenGrid, Vector
from leakgauge.measures.features import class_radii
from leakgauge.measures.tsne import tsne
from reproductions.common.decoders import ClassToken, Flattened
from reproductions.common.networks import VGG19, ir152, vgg19
from reproductions.common.runner import Row
from reproductions.golden_partition_zone.leaks import Attempt, Leak, features_at, leaks, radius_per_dimension
from reproductions.golden_partition_zone.splits import Part, Splits, as_input, of_classes
from reproductions.golden_partition_zone.study import Study
from reproductions.golden_partition_zone.targets import LABELS, RECIPES, Watch
from reproductions.golden_partition_zone.training_log import snapshot

CURVE = tuple(sorted((*vgg19.BLOCKS, 33, 36)))
"""Blocks 33 and 36 show whether the step between 30 and 39 is a cliff or a ramp."""
STRONG = {"vgg19-curve": (26, 30, 39, 52), "ir152-curve": (8, 40, 50), "auxiliary": (30, 39), "faces": (30, 39, 52)}
"""Blocks at which the residual decoder attacks as well, one network of every kind of labels each, trained by our recipe.

It is trained by one cycle of 12 epochs, so a run with more epochs for the paper's decoder has nothing to add."""
IN_QUESTION = (30, 39)
"""Blocks where our VGG19 and the paper's differ most: attacked first where the network has the paper's recipe."""


def _curve(
    study: Study, part: str, network: str, blocks: tuple[int, ...], splits: Splits, labels: str, seed: int, *,
    watch: Watch | None = None, paper: Attempt | None = None,
) -> None:  # fmt: skip
    """All blocks of one trained network: the paper's decoder, a stronger one at a few, and R_c² per dimension."""
    paper, by_paper = paper or study.paper, study.shelf.plateau
    strong = () if by_paper or seed or study.decoder_epochs > 30 else STRONG.get(part, ())
    blocks = tuple(sorted(filter(study.at, blocks), key=lambda block: by_paper and block not in IN_QUESTION))
    work = [
        (block, f"{part}/{splits.name}/{labels}/{seed}/{block}", attempt)
        for block in blocks
        for attempt in (paper, *([study.stronger] if block in strong else []))
    ]
    if not study.open_ones((key, attempt) for _, key, attempt in work):
        return
    target = study.target(network, splits, labels, seed, watch=watch)
    names = {block: target.cut(block) for block in blocks}
    found = leaks(target.model, list(names.values()), splits)
    radii = {block: radius_per_dimension(found[name], splits.test) for block, name in names.items()}
    for block, key, attempt in work:
        about = {"part": part, "network": network, "data": splits.name, "labels": labels, "seed": seed, "block": block}
        about |= {"accuracy": target.accuracy, "radius_per_dimension": radii[block]}
        study.measure(key, about, attempt, found[names[block]], splits)


def vgg19_curve(study: Study) -> None:
    """Figs. 5 and 6: one-hot labels and LS+, then two more trainings with one-hot labels."""
    _vgg19(study, [("one-hot", 0), ("LS+", 0), *(("one-hot", seed) for seed in range(1, study.seeds))])


def vgg19_smoothing(study: Study) -> None:
    """Two more trainings with LS+: does it make shallow features easier to invert, beyond what seeds do?"""
    _vgg19(study, [("LS+", seed) for seed in range(1, study.seeds)])


def _vgg19(study: Study, trainings: list[tuple[str, int]]) -> None:
    splits = study.cifar()
    for labels, seed in trainings:
        if labels not in study.labels:
            continue
        watch = _radius_watch(study, splits, labels, seed, block=52) if seed == 0 else None
        _curve(study, "vgg19-curve", "vgg19", CURVE, splits, labels, seed, watch=watch)


def _radius_watch(study: Study, splits: Splits, labels: str, seed: int, *, block: int) -> Watch:
    """Logs R_c², Eqs. 6-8 and the bound of Appendix D at a block of VGG19 every fifth epoch of its training (paper's recipe: 20th).

    On test images (part ``training``) and on images that the network is trained on (``training-images``), which Appendix D is about.
    """

    def log_of(model: VGG19, some: Part) -> Row:
        with torch.no_grad():
            z = torch.cat([model.features[:block](as_input(piece)) for piece in some.images.split(128)])
        cloud = nn.Sequential(model.features[block:], model.head)
        smoothing, rate = LABELS[labels], RECIPES["vgg19"].rate
        return asdict(snapshot(cloud, z.contiguous(), some.labels, smoothing=smoothing, rate=rate, samples=32))

    def watch(epoch: int, model: nn.Module) -> None:
        assert isinstance(model, VGG19)
        for part, some in (("training", splits.test.first(500)), ("training-images", splits.train.first(500))):
            key = f"{part}/vgg19/{splits.name}/{labels}/{seed}/{block}/{epoch}"
            if (epoch % (20 if study.shelf.plateau else 5) and epoch > 1) or key in study.rows.done:
                continue
            try:
                log = log_of(model, some)
            except RuntimeError as refusal:  # a missing derivative, say; the network that is being trained matters more
                log = {"refused": str(refusal)}
                print(f"{key}: refused: {refusal}", flush=True)
            about = {"part": part, "labels": labels, "seed": seed, "block": block, "epoch": epoch}
            study.rows.add(key, {**about, **log})

    return watch


def ir152_curve(study: Study) -> None:
    """Fig. 4: one-hot, LS+ and LS−."""
    splits = study.cifar()
    for labels in study.labels:
        _curve(study, "ir152-curve", "ir152", ir152.BLOCKS, splits, labels, 0)


def ir152_smoothing(study: Study) -> None:
    """A second training with LS+ and one with one-hot labels beside it: does LS+ change the errors beyond what seeds do?"""
    for labels in ("LS+", "one-hot"):
        _curve(study, "ir152-curve", "ir152", ir152.BLOCKS, study.cifar(), labels, 1)


MAPPED, MEASURED = 500, 2000
"""Test images on a t-SNE map, and those whose features give radii and variance."""


def clusters(study: Study) -> None:
    """Fig. 3, and what Eqs. (3) and (4) need: t-SNE maps of IR-152's features with their purity, radii and variance.

    Purity is the share of points whose nearest neighbour on the map has the same class.
    """
    splits = study.cifar()
    some = splits.test.first(min(MEASURED, len(splits.test.labels)))
    truth = some.labels[:MAPPED]
    for labels in study.labels:
        keys = {block: f"clusters/{labels}/0/{block}" for block in ir152.BLOCKS}
        if all(key in study.rows.done for key in keys.values()):
            continue
        target = study.target("ir152", splits, labels, 0)
        found = features_at(target.model, [target.cut(block) for block in keys], some.images)
        for block, key in keys.items():
            if key in study.rows.done:
                continue
            study.go_on()
            z = found[target.cut(block)].float().flatten(1)
            radii, y = class_radii(z, some.labels), tsne(z[:MAPPED], perplexity=min(30.0, (len(truth) - 1) / 3))
            apart = torch.cdist(y, y).fill_diagonal_(float("inf"))
            about = {"part": "clusters", "network": "ir152", "labels": labels, "seed": 0, "block": block}
            about |= {"accuracy": target.accuracy, "dimensions": radii.dimensions, "within": radii.within}
            about |= {"radius_largest": radii.largest, "radius_mean": radii.mean, "variance": radii.total}
            purity = float((truth[apart.argmin(1)] == truth).double().mean())
            shown = [[float(f"{v:.3g}") for v in point] for point in y.tolist()]
            study.rows.add(key, {**about, "purity": purity, "map": shown, "classes": truth.tolist()})


def vit_curve(study: Study) -> None:
    """Figs. 2 and 7: the class token alone, the patch tokens in their places, and the authors' flattening decoder."""
    splits = study.cifar()
    for labels in ("one-hot", "LS+"):
        work = [
            (block, f"vit-curve/{labels}/{block}", attempt)
            for block in range(1, 7)
            for attempt in _vit_attempts(study, block, labels)
        ]
        if not study.open_ones((key, attempt) for _, key, attempt in work):
            continue
        target = study.target("vit", splits, labels, 0)
        found = leaks(target.model, [target.cut(block) for block in range(1, 7)], splits)
        for block, key, attempt in work:
            about = {
                "part": "vit-curve",
                "network": "vit",
                "data": splits.name,
                "labels": labels,
                "seed": 0,
                "block": block,
            }
            about["accuracy"] = target.accuracy
            study.measure(key, about, attempt, found[target.cut(block)], splits)


def _vit_attempts(study: Study, block: int, labels: str) -> Iterator[Attempt]:
    width = 2 if study.quick else 64
    yield study.papers("token grid", TokenGrid())
    yield study.papers("class token", ClassToken(Vector(width=width)))
    if block in (1, 6):
        yield Attempt("token grid, residual", TokenGrid(study.strong), study.short, paper=False)
        if labels == "one-hot":
            yield study.papers("flattened", Flattened(Vector(width=width)))


def classes(study: Study) -> None:
    """Does the transition come earlier with more classes? VGG19 on 2, 5 and 10 classes, as many images each."""
    whole = study.cifar()
    total = 20 if study.quick else 8000
    calm = replace(
        study.paper, decoder=Deconvolution(start="calm")
    )  # with few images, pixels that start white may stay so
    for count in (2, 5, 10):
        splits = of_classes(whole, count, total=total)
        if study.quick:  # a quarter of twenty images is too few to learn from
            splits = Splits(splits.name, splits.train, whole.auxiliary, whole.test, 10)
        for seed in range(min(2, study.seeds)):
            _curve(study, "classes", "vgg19", (26, 30, 36, 39, 43, 52), splits, "one-hot", seed, paper=calm)


def auxiliary(study: Study) -> None:
    """Figs. 8 and 9: a reader of Kuzushiji characters, attacked with its own kind of images and with as many digits."""
    splits = study.grey(study.files.kmnist, "kmnist", (0.6, 0.2, 0.2))
    digits = study.grey(study.files.mnist, "mnist", (0.1, 0.8, 0.1))
    if splits is None or digits is None:
        return
    owned = len(splits.auxiliary.labels)
    kinds = {"kmnist": splits.auxiliary, "mnist": digits.auxiliary.first(owned)}
    paper = study.paper_on_few(owned)
    work = [
        (kind, block, f"auxiliary/{kind}/{block}", attempt)
        for kind in kinds
        for block in vgg19.BLOCKS
        for attempt in (paper, *([study.stronger] if block in STRONG["auxiliary"] else ()))
    ]
    if not study.open_ones((key, attempt) for _, _, key, attempt in work):
        return
    target = study.target("vgg19", splits, "one-hot", 0)
    names = {block: target.cut(block) for block in vgg19.BLOCKS}
    sent = features_at(target.model, list(names.values()), splits.test.images)
    known = {kind: features_at(target.model, list(names.values()), part.images) for kind, part in kinds.items()}
    for kind, block, key, attempt in work:
        about = {"part": "auxiliary", "network": "vgg19", "labels": "one-hot", "seed": 0, "block": block, "owned": kind}
        about |= {"data": splits.name, "accuracy": target.accuracy}
        leak = Leak(known[kind][names[block]], sent[names[block]])
        study.measure(key, about, attempt, leak, splits, owned=kinds[kind])


OWNED, FEWEST = (1 / 10, 1 / 3, 1.0), 16
"""Shares of the auxiliary images that the adversary owns, and images that a decoder needs at least."""


def sample_size(study: Study) -> None:
    """On Figs. 8 and 9: the same attack with a tenth, a third and all of the auxiliary images, in as many steps."""
    shares = (0.3, 0.5, 0.2) if study.quick else (0.6, 0.2, 0.2)
    splits = study.grey(study.files.kmnist, "kmnist", shares)
    if splits is None:
        return
    whole = splits.auxiliary
    sizes = sorted({max(FEWEST, round(share * len(whole.labels))) for share in OWNED})
    work = [
        (size, block, f"sample-size/{size}/{block}", study.paper_on_few(size)) for size in sizes for block in (30, 43)
    ]
    if not study.open_ones((key, attempt) for _, _, key, attempt in work):
        return
    target = study.target("vgg19", splits, "one-hot", 0)
    names = {block: target.cut(block) for _, block, _, _ in work}
    found = leaks(target.model, list(names.values()), splits)
    for size, block, key, attempt in work:
        leak = found[names[block]]
        about = {"part": "sample-size", "network": "vgg19", "labels": "one-hot", "seed": 0, "block": block}
        about |= {"owned": "kmnist", "data": splits.name, "accuracy": target.accuracy}
        study.measure(key, about, attempt, Leak(leak.known[:size], leak.sent), splits, owned=whole.first(size))


def faces(study: Study) -> None:
    """In place of Figs. 10 and 11: faces with two labels (smile or not) and no identities; do they regress to the mean face?"""
    splits = study.grey(study.files.faces, "faces", (0.6, 0.2, 0.2))
    if splits is not None:
        paper = study.paper_on_few(len(splits.auxiliary.labels))
        _curve(study, "faces", "vgg19", vgg19.BLOCKS, splits, "LS+", 0, paper=paper)
