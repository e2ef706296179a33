"""The parts of the reproduction, each of which stands for figures or tables of the paper."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from leaks import OUTPUT, Attempt, Leak, Ledger, Row, attacked, features_at, leaks, radius_per_dimension
from splits import Part, Splits, as_input, embedded, load, of_classes, split
from targets import LABELS, RATE, Shelf, Target, Watch
from torch import nn

from leakgauge.attacks.decoders import (
    AttentionAsConv,
    ClassToken,
    Decoder,
    Deconvolution,
    Enhanced,
    Flattened,
    Fourier,
    Learned,
    Logarithm,
    MultiHead,
    Normalise,
    Power,
    PredictionVector,
    Residual,
    ReversedIR,
    TokenGrid,
    Unchanged,
    Vector,
    WeakToStrong,
)
from leakgauge.errors import Inapplicable
from leakgauge.models import VGG19, ir152, vgg19
from leakgauge.split.training_log import snapshot


class BudgetSpent(Exception):
    """The time of a part is over; what was measured is kept."""


@dataclass(frozen=True)
class Files:
    """Where the data lie; what is not given is not run."""

    cifar: Path | None = None
    kmnist: Path | None = None
    mnist: Path | None = None
    faces: Path | None = None


@dataclass
class Study:
    """What every part needs: data, trained targets, results, time."""

    files: Files
    shelf: Shelf
    ledger: Ledger
    device: torch.device
    seeds: int
    decoder_epochs: int
    quick: bool
    deadline: float = float("inf")
    coloured: Splits | None = None

    def go_on(self) -> None:
        if time.monotonic() > self.deadline:
            raise BudgetSpent

    def cifar(self) -> Splits:
        if self.coloured is None and self.quick:
            self.coloured = split("quick", embedded(48, self.device), shares=(0.34, 0.4, 0.26))
        elif self.coloured is None and self.files.cifar is not None:
            self.coloured = split("cifar10", load(self.files.cifar, self.device), shares=(4 / 6, 1 / 6, 1 / 6))
        if self.coloured is None:
            raise SystemExit("this part needs CIFAR-10; give it with --data")
        return self.coloured

    def grey(self, file: Path | None, name: str, shares: tuple[float, float, float]) -> Splits | None:
        if self.quick:
            return split(f"quick-{name}", embedded(80, self.device, grey=True), shares=shares)
        return None if file is None else split(name, load(file, self.device), shares=shares)

    def target(self, network: str, splits: Splits, labels: str, seed: int, *, watch: Watch | None = None) -> Target:
        """The trained network; its accuracy is a result of its own."""
        self.go_on()
        target = self.shelf.get(network, splits, labels, seed, watch=watch)
        key = f"target/{network}/{splits.name}/{labels}/{seed}"
        if key not in self.ledger.done:
            about = {"network": network, "data": splits.name, "labels": labels, "seed": seed}
            self.ledger.add(key, {**about, "accuracy": target.accuracy, "seconds": round(target.seconds, 1)})
            print(f"{key}: {target.accuracy:.2%} in {target.seconds:.0f} s", flush=True)
        return target

    def measure(
        self, key: str, about: Row, attempt: Attempt, leak: Leak, splits: Splits, *, owned: Part | None = None
    ) -> None:
        """One decoder at one cut, unless it was measured before; ``owned`` takes the place of the auxiliary part."""
        key = f"{key}/{attempt.name}"
        if key in self.ledger.done:
            return
        self.go_on()
        try:
            row = attacked(attempt, leak, splits, seed=about["seed"], auxiliary=owned)
        except Inapplicable as refusal:  # a diverging decoder is a result; the others go on
            row = {"decoder": attempt.name, "refused": str(refusal)}
        self.ledger.add(key, {**about, **row})
        print(f"{key}: FVU {row.get('fvu', float('nan')):.3f}, {row.get('seconds', 0)} s", flush=True)

    @property
    def short(self) -> int:
        """Epochs of a one-cycle training, which needs few."""
        return min(12, self.decoder_epochs)

    @property
    def strong(self) -> Residual:
        return Residual(width=8 if self.quick else 64)

    def basic(self) -> list[Attempt]:
        return [
            Attempt("deconvolution, paper", Deconvolution(), self.decoder_epochs),
            Attempt("residual, one-cycle", self.strong, self.short, paper=False),
        ]  # fmt: skip

    def papers(self, name: str, decoder: Decoder) -> Attempt:
        return Attempt(name, decoder, self.decoder_epochs)


def _curve(
    study: Study, part: str, network: str, blocks: tuple[int, ...], splits: Splits, labels: str, seed: int, *,
    watch: Watch | None = None,
) -> None:  # fmt: skip
    """All blocks of one trained network: the basic decoders, and R_c² per dimension."""
    target = study.target(network, splits, labels, seed, watch=watch)
    names = {block: target.cut(block) for block in blocks}
    found = leaks(target.model, list(names.values()), splits)
    for block, name in names.items():
        about = {"part": part, "network": network, "data": splits.name, "labels": labels, "seed": seed, "block": block}
        about["accuracy"] = target.accuracy
        about["radius_per_dimension"] = radius_per_dimension(found[name], splits.test, splits.classes)
        for attempt in study.basic():
            key = f"{part}/{splits.name}/{labels}/{seed}/{block}"
            study.measure(key, about, attempt, found[name], splits)


def vgg19_curve(study: Study) -> None:
    """Figs. 5 and 6, three seeds; blocks 33 and 36 show whether the step between 30 and 39 is a cliff or a ramp."""
    splits = study.cifar()
    blocks = tuple(sorted((*vgg19.BLOCKS, 33, 36)))
    for labels in ("one-hot", "LS+"):
        for seed in range(study.seeds):
            watch = _radius_watch(study, splits, labels, seed, block=52)
            _curve(study, "vgg19-curve", "vgg19", blocks, splits, labels, seed, watch=watch)


def _radius_watch(study: Study, splits: Splits, labels: str, seed: int, *, block: int) -> Watch:
    """Logs R_c², Eqs. 6-8 and the bound of Appendix D at a block of VGG19 every fifth epoch of its training."""
    some = splits.test.first(500)

    def watch(epoch: int, model: nn.Module) -> None:
        key = f"training/vgg19/{splits.name}/{labels}/{seed}/{block}/{epoch}"
        if (epoch % 5 and epoch > 1) or key in study.ledger.done:
            return
        assert isinstance(model, VGG19)
        with torch.no_grad():
            z = torch.cat([model.features[:block](as_input(piece)) for piece in some.images.split(128)])
        cloud = nn.Sequential(model.features[block:], model.head)
        log = snapshot(cloud, z.contiguous(), some.labels, smoothing=LABELS[labels], rate=RATE, samples=32)
        about = {"part": "training", "labels": labels, "seed": seed, "block": block, "epoch": epoch}
        study.ledger.add(key, {**about, **asdict(log)})

    return watch


def ir152_curve(study: Study) -> None:
    """Fig. 4: one-hot, LS+ and LS−."""
    splits = study.cifar()
    for labels in LABELS:
        _curve(study, "ir152-curve", "ir152", ir152.BLOCKS, splits, labels, 0)


def vit_curve(study: Study) -> None:
    """Figs. 2 and 7: the class token alone, the patch tokens in their places, and the authors' flattening decoder."""
    splits = study.cifar()
    width = 2 if study.quick else 64
    for labels in ("one-hot", "LS+"):
        target = study.target("vit", splits, labels, 0)
        names = {block: target.cut(block) for block in range(1, 7)}
        found = leaks(target.model, list(names.values()), splits)
        for block, name in names.items():
            about = {"part": "vit-curve", "network": "vit", "labels": labels, "seed": 0, "block": block}
            attempts = [
                study.papers("token grid", TokenGrid()),
                Attempt("token grid, residual", TokenGrid(study.strong), study.short, paper=False),
                study.papers("class token", ClassToken(Vector(width=width))),
            ]
            if block in (1, 6):
                attempts.append(study.papers("flattened", Flattened(Vector(width=width))))
            for attempt in attempts:
                study.measure(f"vit-curve/{labels}/{block}", about, attempt, found[name], splits)


def predictions(study: Study) -> None:
    """Table 3: the prediction vector of IR-152."""
    splits = study.cifar()
    settings = [("Normal", "one-hot", Unchanged()), ("LS+", "LS+", Unchanged()), ("LS-", "LS-", Unchanged()),
                ("Log", "one-hot", Logarithm()), ("Power", "one-hot", Power())]  # fmt: skip
    for name, labels, transform in settings:
        target = study.target("ir152", splits, labels, 0)
        leak = leaks(target.model, [], splits)[OUTPUT]
        about = {"part": "predictions", "network": "ir152", "labels": labels, "seed": 0}
        decoder = PredictionVector(transform, Vector(width=4 if study.quick else 64))
        study.measure(f"predictions/{labels}", about, study.papers(name, decoder), leak, splits)


ENHANCEMENTS: dict[str, Decoder] = {
    "baseline": Deconvolution(),
    "FFT (residual)": Enhanced(enhancements=(Fourier(join="residual"),)),
    "FFT (concat)": Enhanced(enhancements=(Fourier(),)),
    "Normalize (input)": Enhanced(enhancements=(Normalise(),)),
    "Normalize (residual)": Enhanced(enhancements=(Normalise(join="residual"),)),
    "Normalize (concat)": Enhanced(enhancements=(Normalise(join="concat"),)),
    "NN without dropout (residual)": Enhanced(enhancements=(Learned(dropout=0.0, join="residual"),)),
    "NN with dropout (residual)": Enhanced(enhancements=(Learned(join="residual"),)),
    "NN without dropout (concat)": Enhanced(enhancements=(Learned(dropout=0.0),)),
    "NN with dropout (concat)": Enhanced(enhancements=(Learned(),)),
    "Normalize (input) & NN without dropout": Enhanced(enhancements=(Normalise(), Learned(dropout=0.0))),
    "Normalize (input) & NN with dropout": Enhanced(enhancements=(Normalise(), Learned())),
}
ATTENTION: dict[str, Decoder] = {
    "baseline": Deconvolution(),
    "MHA": Deconvolution(attention=MultiHead()),
    "AttentionAsConv": Deconvolution(attention=AttentionAsConv()),
    "AttentionAsConv+SE": Deconvolution(attention=AttentionAsConv(squeeze=True)),
    "AttentionAsConv+SE+LSK+MSCA": Deconvolution(attention=WeakToStrong()),
    "Attention & NN with dropout": Enhanced(Deconvolution(attention=WeakToStrong()), (Learned(),)),
    "Inversion-IR152": ReversedIR(),
}
AT_40 = {"enhancements": ("baseline", "Normalize (input) & NN with dropout"),
         "attention": ("baseline", "Attention & NN with dropout")}  # fmt: skip
"""What the paper also measures at block 40; everything is measured at block 50."""


def _table(study: Study, part: str, decoders: dict[str, Decoder]) -> None:
    splits = study.cifar()
    target = study.target("ir152", splits, "one-hot", 0)
    found = leaks(target.model, [target.cut(block) for block in (40, 50)], splits)
    for block in (50, 40):
        for name, decoder in decoders.items():
            if block == 50 or name in AT_40[part]:
                about = {"part": part, "network": "ir152", "labels": "one-hot", "seed": 0, "block": block}
                attempt = study.papers(name, decoder)
                study.measure(f"{part}/{block}", about, attempt, found[target.cut(block)], splits)


def enhancements(study: Study) -> None:
    """Table 4: enhancements of the feature, blocks 50 and 40 of IR-152."""
    _table(study, "enhancements", ENHANCEMENTS)


def attention(study: Study) -> None:
    """Table 5: enhancements of the decoder, blocks 50 and 40 of IR-152."""
    _table(study, "attention", ATTENTION)


def classes(study: Study) -> None:
    """Does the transition come earlier with more classes? VGG19 on 2, 5 and 10 classes, as many images each."""
    whole = study.cifar()
    total = 20 if study.quick else 8000
    for count in (2, 5, 10):
        splits = of_classes(whole, count, total=total)
        if study.quick:  # a quarter of twenty images is too few to learn from
            splits = Splits(splits.name, splits.train, whole.auxiliary, whole.test, 10)
        for seed in range(study.seeds):
            _curve(study, "classes", "vgg19", vgg19.BLOCKS, splits, "one-hot", seed)


def auxiliary(study: Study) -> None:
    """Figs. 8 and 9: a reader of Kuzushiji characters, attacked with its own kind of images and with as many digits."""
    splits = study.grey(study.files.kmnist, "kmnist", (0.6, 0.2, 0.2))
    digits = study.grey(study.files.mnist, "mnist", (0.1, 0.8, 0.1))
    if splits is None or digits is None:
        return
    target = study.target("vgg19", splits, "one-hot", 0)
    kinds = {"kmnist": splits.auxiliary, "mnist": digits.auxiliary.first(len(splits.auxiliary.labels))}
    names = {block: target.cut(block) for block in vgg19.BLOCKS}
    sent = features_at(target.model, list(names.values()), splits.test.images)
    for kind, part in kinds.items():
        known = features_at(target.model, list(names.values()), part.images)
        for block, name in names.items():
            about = {
                "part": "auxiliary",
                "network": "vgg19",
                "labels": "one-hot",
                "seed": 0,
                "block": block,
                "owned": kind,
            }
            for attempt in study.basic():
                leak = Leak(known[name], sent[name])
                study.measure(f"auxiliary/{kind}/{block}", about, attempt, leak, splits, owned=part)


def faces(study: Study) -> None:
    """In place of Figs. 10 and 11: faces with two labels (smile or not) and no identities; do they regress to the mean face?"""
    splits = study.grey(study.files.faces, "faces", (0.6, 0.2, 0.2))
    if splits is not None:
        _curve(study, "faces", "vgg19", vgg19.BLOCKS, splits, "LS+", 0)


PARTS: dict[str, Callable[[Study], None]] = {
    "vgg19-curve": vgg19_curve,
    "ir152-curve": ir152_curve,
    "vit-curve": vit_curve,
    "predictions": predictions,
    "enhancements": enhancements,
    "attention": attention,
    "classes": classes,
    "auxiliary": auxiliary,
    "faces": faces,
}
