"""What the head's gradient of a small batch gives away: images by search, and without one through fully connected networks.

    python -m benchmarks.small_batches [--models cnn vgg vit] [--out FILE]           six minutes on one core
    python -m benchmarks.small_batches --models resnet20 resnet56 --data DIR …       trained on CIFAR-10; DIR of benchmarks.diffusion_cifar
    python -m benchmarks.small_batches --exact [--seeds 10] [--out FILE]             without a search, in four minutes
    python -m benchmarks.small_batches --labels --data DIR [--out FILE]              labels through the networks of CIFAR-10, six minutes
    python -m benchmarks.small_batches --quick                                       half a minute, shows that it runs

Trained networks in eval mode, labels read, batches of four. Three searches of equal steps: one replays the loss, the two others follow the
gradient at the output, as the head shows it for every sample, without and with the features of each sample. The weight of the features was
chosen on images 20 to 39 of the embedded data and is the product's; reported are images from 40 on, and the pool of CIFAR-10's.
``loudness`` is the length of a sample's p − y relative to the largest of its batch.

With ``--exact`` the attacks ``small_batches`` and, behind a ReLU, ``relu_batches`` read test images of embedded Fashion-MNIST from
networks with one and two hidden layers, fresh and after two epochs on 2,000 images. An image is exact if some result has a PSNR of 60 dB
to it, and a certificate is false if no image does. ``seen`` counts the images with a probability below 1 in float32: the others leave at
most a rounded trace.

With ``--labels``, 40 batches of two and of four in each mode: how many labels the expected counts give, and how many the rule for labels
does, which separates the images at the head. ``seen`` is counted as above, ``separated`` are the images that were.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from benchmarks.diffusion_cifar import drawn, network
from benchmarks.json_lines import write_lines
from benchmarks.label_rules import train
from benchmarks.relu_batches import EPOCHS, EXACT, SPACE, decibels
from leakgauge.attacks import inverting_gradients, relu_batches, small_batches
from leakgauge.audit.case import Case
from leakgauge.audit.session import embedded
from leakgauge.channels import Gradient
from leakgauge.core import Attack, Observation, Size, Victim, share
from leakgauge.data.embedded import fashion
from leakgauge.errors import Inapplicable
from leakgauge.inversion import Adam, Cosine, CosineDecay, Descent, HeadFeatures, Matching, TotalVariation, infer_labels
from leakgauge.inversion.labels import ExpectedCounts, class_labels
from leakgauge.inversion.output_gradient import FEATURES, samples_at_head
from leakgauge.measures.image import ssim
from reproductions.common.runner import commit

EMBEDDED = ("cnn", "vgg", "vit")
NETWORKS = ("resnet20", "resnet56")
FIRST, RATE, TV = 40, 0.3, 0.1
LOUD = 0.1
"""Samples of at least this loudness are counted apart: a search sees them first."""


def searches(steps: int) -> dict[str, Matching]:
    solver = Descent(Adam(RATE), steps, schedule=CosineDecay())
    loss = replace(inverting_gradients(tv=TV, restarts=2), solver=solver)
    along = replace(loss, along=True)
    plain = Cosine() + TV * TotalVariation()
    return {
        "the loss": loss,
        "the output's gradient": along,
        "and features": replace(along, objective=plain + FEATURES * HeadFeatures()),
    }


def victim_and_images(name: str, data: Path | None) -> tuple[Victim, Tensor, Tensor]:
    if name in EMBEDDED:
        setup = embedded(Case(model=name, batch_size=4))
        return setup.victim, setup.images[FIRST:], setup.labels[FIRST:]
    if data is None:
        raise SystemExit(f"{name} needs --data DIR")
    model, space = network(int(name.removeprefix("resnet")), data)
    return Victim(model, space, mode="eval", name=name), *drawn(data).pool


def measure(name: str, victim: Victim, x: Tensor, y: Tensor, steps: int) -> list[dict[str, object]]:
    encoded = victim.to_input(victim.space.encode(x))
    seen = share(victim, Gradient(), encoded, y, reveal=(Size(),))
    with torch.no_grad():
        outputs = victim(encoded)
        length = (outputs.double().softmax(1) - F.one_hot(y, outputs.shape[1])).norm(dim=1)
    facts = {
        "model": name,
        "labels": y.tolist(),
        "loudness": [float(f"{v:.1e}") for v in (length / length.max()).tolist()],
    }
    facts |= {"separated": _separated(victim, seen), "steps": steps, "torch": torch.__version__, "commit": commit()}
    rows: list[dict[str, object]] = []
    for search, attack in searches(steps).items():
        began = time.perf_counter()
        found = attack(victim, seen, seed=0)
        seconds, made = time.perf_counter() - began, victim.space.decode(found.x)
        alike = torch.stack([ssim(made, one.expand_as(made).contiguous()) for one in x])
        each = alike.numpy()[linear_sum_assignment(alike, maximize=True)].tolist()
        rows.append({**facts, "search": search, "ssim": [round(v, 3) for v in each], "seconds": round(seconds, 1)})
    return rows


def _separated(victim: Victim, seen: Observation) -> int:
    with contextlib.suppress(Inapplicable):
        return samples_at_head(victim, seen).seen
    return 0


def _visible(victim: Victim, x: Tensor, y: Tensor) -> int:
    with torch.no_grad():
        return int((victim(x).softmax(1)[torch.arange(len(y)), y] < 1).sum())


ACTIVATIONS: dict[str, type[nn.Module]] = {"ReLU": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}
HIDDEN = ((256,), (256, 128))


def dense(activation: type[nn.Module], hidden: Sequence[int], *, epochs: int, seed: int) -> nn.Sequential:
    """A fully connected network for images of 28 × 28."""
    torch.manual_seed(seed)
    widths = (784, *hidden)
    layers = [layer for pair in itertools.pairwise(widths) for layer in (nn.Linear(*pair), activation())]
    model = nn.Sequential(nn.Flatten(), *layers, nn.Linear(widths[-1], 10))
    images, labels = fashion()
    train(model, SPACE.encode(images[:2000]), labels[:2000], epochs=epochs, seed=seed)
    return model


def exactly(attack: Attack, victim: Victim, x: Tensor, y: Tensor, seed: int) -> dict[str, object]:
    """How many images of one batch come back exactly, how many are certified, and how many of these wrongly."""
    seen = share(victim, Gradient(), x, y, reveal=(Size(),), seed=seed)
    row: dict[str, object] = {"attack": repr(attack), "batch": len(y), "seed": seed, "seen": _visible(victim, x, y)}
    began = time.process_time()
    try:
        found = attack(victim, seen, seed=seed)
    except Inapplicable as reason:
        return {**row, "refused": str(reason), "exact": 0, "certified": 0, "false": 0}
    assert found.certified is not None
    near = decibels(found.x[found.certified], x)
    return {
        **row,
        "exact": int((decibels(x, found.x) >= EXACT).sum()),
        "certified": len(near),
        "false": int((near < EXACT).sum()),
        "cpu_seconds": round(time.process_time() - began, 2),
    }


def exact(seeds: int, out: Path | None) -> None:
    images, labels = fashion("test")
    rows: list[dict[str, object]] = []
    for name, hidden, epochs in itertools.product(ACTIVATIONS, HIDDEN, (0, EPOCHS)):
        facts = {"activation": name, "hidden": hidden, "epochs": epochs, "torch": torch.__version__, "commit": commit()}
        attacks = (small_batches(), relu_batches()) if name == "ReLU" else (small_batches(),)
        own: list[dict[str, object]] = []
        for seed in range(seeds):
            victim = Victim(dense(ACTIVATIONS[name], hidden, epochs=epochs, seed=seed), SPACE)
            for size, attack in itertools.product((2, 3, 4, 5), attacks):
                chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(100 * seed + size))[:size]
                own.append(facts | exactly(attack, victim, SPACE.encode(images[chosen]), labels[chosen], seed))
        rows += own
        write_lines(out, rows)
        for attack in dict.fromkeys(str(row["attack"]) for row in own):
            part = [row for row in own if row["attack"] == attack]
            counts = {
                key: sum(int(str(row[key])) for row in part) for key in ("batch", "seen", "exact", "certified", "false")
            }
            print(f"{name} {hidden}, {epochs} epochs, {attack}: {counts}", flush=True)


def read_labels(data: Path, batches: int, out: Path | None) -> None:
    """Which labels are read: by the expected counts alone, and with the images separated at the head."""
    rows: list[dict[str, object]] = []
    for name, mode, size in itertools.product(NETWORKS, ("train", "eval"), (2, 4)):
        victim, x, y = victim_and_images(name, data)
        victim = replace(victim, mode="train" if mode == "train" else "eval")
        right, separated, visible = Counter[str](), 0, 0
        for begin in range(0, batches * size, size):
            own, images = y[begin : begin + size], victim.to_input(victim.space.encode(x[begin : begin + size]))
            seen = share(victim, Gradient(), images, own, reveal=(Size(),))
            for rule_name, rule in (("expected counts", ExpectedCounts()), ("separated", infer_labels())):
                read = class_labels(rule, victim, seen, rng=torch.Generator().manual_seed(0))
                common = 0 if read is None else (Counter(read.tolist()) & Counter(own.tolist())).total()
                right[f"{rule_name}, labels"] += common
                right[f"{rule_name}, batches"] += common == size
            visible += _visible(victim, images, own)
            separated += _separated(victim, seen)
        facts = {"model": name, "mode": mode, "batch": size, "batches": batches, "of_labels": batches * size}
        rows.append(
            {**facts, **right, "seen": visible, "separated": separated, "torch": torch.__version__, "commit": commit()}
        )
        print(rows[-1], flush=True)
        write_lines(out, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=EMBEDDED, choices=(*EMBEDDED, *NETWORKS))
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--labels", action="store_true")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args(arguments)
    if given.exact:
        exact(1 if given.quick else given.seeds, given.out)
        return
    if given.labels:
        if given.data is None:
            raise SystemExit("--labels needs --data DIR")
        read_labels(given.data, 1 if given.quick else 40, given.out)
        return
    if given.quick:
        given.models, given.batches, given.steps = ("cnn",), 1, 4
    rows: list[dict[str, object]] = []
    for name in given.models:
        victim, images, labels = victim_and_images(name, given.data)
        own: list[dict[str, object]] = []
        for begin in range(0, given.batches * given.batch, given.batch):
            part = slice(begin, begin + given.batch)
            own += measure(name, victim, images[part], labels[part], given.steps)
            write_lines(given.out, rows + own)
        rows += own
        _show(name, own)


def _show(name: str, rows: Sequence[dict[str, object]]) -> None:
    for search in dict.fromkeys(str(row["search"]) for row in rows):
        each = [
            (value, loud)
            for row in rows
            if row["search"] == search
            for value, loud in zip(_numbers(row["ssim"]), _numbers(row["loudness"]), strict=True)
        ]
        loud, faint = ([v for v, how in each if (how >= LOUD) == wanted] for wanted in (True, False))
        parts = [f"{len(part)} {kind}: {mean(part):.2f}" for kind, part in (("loud", loud), ("faint", faint)) if part]
        print(f"{name}, replaying {search}: SSIM {mean(v for v, _ in each):.2f} ({', '.join(parts)})", flush=True)


def _numbers(values: object) -> list[float]:
    assert isinstance(values, list)
    return [float(value) for value in values]


if __name__ == "__main__":
    main()
