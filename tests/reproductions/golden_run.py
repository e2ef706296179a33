"""A made-up run of the whole split-inference study with numbers of plausible size, so that tables and rules can be tried before it."""

from math import log10
from typing import Any

Row = dict[str, Any]

BASELINE, ORACLE = 0.0587, 0.925
"""Mean-image error of CIFAR-10 at 64 × 64, and the class-mean oracle's FVU."""
VGG19 = {13: 0.008, 17: 0.012, 26: 0.019, 30: 0.06, 33: 0.07, 36: 0.08, 39: 0.137, 43: 0.15, 52: 0.16}
IR152 = {3: 0.004, 8: 0.006, 25: 0.012, 40: 0.0182, 48: 0.0195, 49: 0.05, 50: 0.057, 51: 0.06}
VIT = {1: 0.004, 2: 0.005, 3: 0.0045, 4: 0.006, 5: 0.007, 6: 0.008}
ACCURACY = {"vgg19": 0.915, "ir152": 0.9, "vit": 0.78}
PREDICTIONS = {"Normal": 0.18, "LS+": 0.1635, "LS-": 0.1695, "Log": 0.163, "Power": 0.1632}


def decoded(key: str, error: float, *, channels: int = 3, decoder: str = "deconvolution, paper", **about: Any) -> Row:
    """One decoder's line; ``error`` is in the paper's unit."""
    own = about.pop("auxiliary_mse_paper", 0.5 * error)
    mse = error / channels
    return {
        "key": key, "decoder": decoder, "epochs": 30, "best_epoch": 20, "seed": 0, "labels": "one-hot", "data": "cifar10",
        "test_mse": mse, "test_mse_paper": error, "auxiliary_mse_paper": own, "test_psnr_batches": -10 * log10(mse),
        "fvu": mse / BASELINE, "class_mean_fvu": ORACLE, "mean_image_mse": BASELINE, **about,
    }  # fmt: skip


def curve(part: str, network: str, errors: dict[int, float], *, labels: str, seed: int = 0, factor: float = 1.0, radius: float = 1.0,
          channels: int = 3, data: str = "cifar10") -> list[Row]:  # fmt: skip
    return [
        decoded(f"{part}/{data}/{labels}/{seed}/{block}/deconvolution, paper", factor * error, part=part, network=network,
                block=block, labels=labels, seed=seed, channels=channels, data=data,
                radius_per_dimension=radius / (1 + number), accuracy=ACCURACY[network])
        for number, (block, error) in enumerate(errors.items())
    ]  # fmt: skip


def target(network: str, labels: str, seed: int = 0) -> Row:
    key = f"target/{network}/cifar10/{labels}/{seed}"
    return {
        "key": key,
        "network": network,
        "data": "cifar10",
        "labels": labels,
        "seed": seed,
        "epochs": 32,
        "accuracy": ACCURACY[network],
    }


def networks() -> list[Row]:
    kinds = {"vgg19": ("one-hot", "LS+"), "ir152": ("one-hot", "LS+", "LS-"), "vit": ("one-hot", "LS+")}
    rows = [target(network, labels) for network, of in kinds.items() for labels in of]
    for seed, factor in ((0, 1.0), (1, 1.04), (2, 0.97)):
        rows += curve("vgg19-curve", "vgg19", VGG19, labels="one-hot", seed=seed, factor=factor)
        rows += curve("vgg19-curve", "vgg19", VGG19, labels="LS+", seed=seed, factor=1.1 * factor, radius=0.7)
    rows += [
        decoded(f"vgg19-curve/cifar10/one-hot/0/{block}/residual, one-cycle", 0.8 * VGG19[block], part="vgg19-curve", network="vgg19",
                block=block, decoder="residual, one-cycle")
        for block in (26, 30, 39, 52)
    ]  # fmt: skip
    for labels, factor in (("one-hot", 1.0), ("LS+", 1.2), ("LS-", 1.1)):
        rows += curve("ir152-curve", "ir152", IR152, labels=labels, factor=factor, radius=2 - factor)
    for labels, factor in (("one-hot", 1.0), ("LS+", 1.1)):
        for block, error in VIT.items():
            about = {"part": "vit-curve", "network": "vit", "labels": labels, "block": block, "accuracy": 0.78}
            rows.append(decoded(f"vit-curve/{labels}/{block}/token grid", error, decoder="token grid", **about))
            rows.append(
                decoded(
                    f"vit-curve/{labels}/{block}/class token", factor * (0.08 + error), decoder="class token", **about
                )
            )
    return rows


def outputs() -> list[Row]:
    rows = [
        decoded(f"predictions/x/{name}", error, part="predictions", network="ir152", decoder=name, accuracy=0.9)
        for name, error in PREDICTIONS.items()
    ]
    for part, strong in (
        ("enhancements", "Normalize (input) & NN with dropout"),
        ("attention", "Attention & NN with dropout"),
    ):
        for block, plain, better in ((50, 0.057, 0.052), (40, 0.0182, 0.0125)):
            for name, error in (("baseline", plain), (strong, better)):
                rows.append(
                    decoded(
                        f"{part}/{block}/{name}",
                        error,
                        part=part,
                        network="ir152",
                        block=block,
                        decoder=name,
                        accuracy=0.9,
                    )
                )
    for name, error, own in (
        ("NN without dropout (residual)", 0.06, 0.015),
        ("NN with dropout (residual)", 0.055, 0.02),
    ):
        rows.append(decoded(f"enhancements/50/{name}", error, part="enhancements", network="ir152", block=50, decoder=name,
                            auxiliary_mse_paper=own, accuracy=0.9))  # fmt: skip
    return rows


def data() -> list[Row]:
    rows: list[Row] = []
    for count, factor in ((2, 0.5), (5, 0.8), (10, 1.0)):
        errors = {block: VGG19[block] for block in (26, 30, 36, 39, 43, 52)}
        for seed in (0, 1):
            rows += curve("classes", "vgg19", errors, labels="one-hot", seed=seed, factor=factor * (1 + 0.05 * seed),
                          data=f"cifar10, {count} classes")  # fmt: skip
    late = {13: 0.001, 17: 0.002, 26: 0.003, 30: 0.006, 39: 0.01, 43: 0.03, 52: 0.04}
    for owned, factor in (("kmnist", 1.0), ("mnist", 1.5)):
        for row in curve("auxiliary", "vgg19", late, labels="one-hot", factor=factor, channels=1, data="kmnist"):
            rows.append({**row, "owned": owned, "key": f"auxiliary/{owned}/{row['block']}/{row['decoder']}"})
    early = {13: 0.001, 17: 0.0015, 26: 0.003, 30: 0.006, 39: 0.03, 43: 0.045, 52: 0.055}
    return rows + curve("faces", "vgg19", early, labels="LS+", channels=1, data="faces")


def training() -> list[Row]:
    rows: list[Row] = []
    for labels, factor in (("one-hot", 1.0), ("LS+", 3.0)):
        for epoch in (1, 5, 10, 15, 20, 25, 30):
            key = f"training/vgg19/cifar10/{labels}/0/52/{epoch}"
            rows.append({
                "key": key, "part": "training", "labels": labels, "seed": 0, "block": 52, "epoch": epoch, "confidence": 0.7,
                "radius": [100 / epoch / factor] * 10, "change": [-0.1] * 8 + [0.1] * 2, "gradient_norm": factor / epoch,
            })  # fmt: skip
    return rows


def zone() -> list[Row]:
    layers = [2, 5, 6, 9, 12, 13, 16, 19, 22, 25, 26, 29, 32, 35, 38, 39, 42, 45, 48, 51, 52]
    rows: list[Row] = []
    for number, layer in enumerate(layers):
        cut, fvu = f"features.{layer}", 0.01 + 0.9 * (number / 20) ** 2
        rows.append(
            {
                "key": f"zone/ridge/{cut}",
                "part": "zone",
                "attack": "ridge",
                "cut": cut,
                "fvu": min(1.0, 1.3 * fvu + 0.05),
                "seconds": 0.5,
            }
        )
        rows.append({
            "key": f"zone/decoder/{cut}/100/None", "part": "zone", "attack": "decoder", "cut": cut, "epochs": 100, "enough": None,
            "fvu": fvu, "test_mse_paper": 3 * BASELINE * fvu, "seconds": 15.0, "trained_epochs": 100,
        })  # fmt: skip
    for threshold, cut, ratio in ((0.11, "features.13", 14.0), (0.25, "features.25", 11.0), (0.5, "features.38", 7.0)):
        slow = {"cut": cut, "decoders": 21, "epochs": 2100, "seconds": 325.0}
        fast = {"cut": cut, "decoders": 4, "epochs": 150, "seconds": 325.0 / ratio, "ratio": ratio, "same_cut": True}
        half = {"cut": cut, "decoders": 5, "epochs": 500, "seconds": 85.0, "ratio": 325 / 85, "same_cut": True}
        rows.append(
            {
                "key": f"zone/compared/{threshold}",
                "part": "zone",
                "threshold": threshold,
                "exhaustive": slow,
                "find_zone": fast,
                "bisection": half,
                "at_best": {"epochs": 140, "seconds": 22.0, "ratio": 325 / 22},
            }
        )
    return rows


def full_size() -> list[Row]:
    """Everything, in which every claim of the paper holds but the last threshold of the search."""
    return [*networks(), *outputs(), *data(), *training(), *zone()]
