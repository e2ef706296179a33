"""Tables 3 to 5 of the paper: the prediction vector, enhancements of the feature, enhancements of the decoder, all on IR-152."""

from __future__ import annotations

from leakgauge.attacks.decoder import Decoder, Deconvolution, Vector
from reproductions.common.decoders import (
    AttentionAsConv,
    Enhanced,
    Fourier,
    Learned,
    Logarithm,
    MultiHead,
    Normalise,
    Power,
    PredictionVector,
    ReversedIR,
    Unchanged,
    WeakToStrong,
)
from reproductions.golden_partition_zone.leaks import OUTPUT, leaks
from reproductions.golden_partition_zone.study import Study


def predictions(study: Study) -> None:
    """Table 3: the prediction vector of IR-152."""
    splits = study.cifar()
    settings = [("Normal", "one-hot", Unchanged()), ("LS+", "LS+", Unchanged()), ("LS-", "LS-", Unchanged()),
                ("Log", "one-hot", Logarithm()), ("Power", "one-hot", Power())]  # fmt: skip
    width = 4 if study.quick else 64
    for name, labels, transform in settings:
        if labels not in study.labels:
            continue
        attempt = study.papers(name, PredictionVector(transform, Vector(width=width)))
        key = f"predictions/{labels}"
        if not study.open_ones([(key, attempt)]):
            continue
        target = study.target("ir152", splits, labels, 0)
        leak = leaks(target.model, [], splits, exact=True)[OUTPUT]  # a logarithm shows what bfloat16 rounds away
        about = {
            "part": "predictions",
            "network": "ir152",
            "data": splits.name,
            "labels": labels,
            "seed": 0,
            "accuracy": target.accuracy,
        }
        study.measure(key, about, attempt, leak, splits)


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
    _take_baselines(study, part, splits.name)
    work = [
        (block, f"{part}/{block}", study.papers(name, decoder))
        for block in (50, 40)
        for name, decoder in decoders.items()
        if study.at(block) and (block == 50 or name in AT_40[part])
    ]
    if not study.open_ones((key, attempt) for _, key, attempt in work):
        return
    target = study.target("ir152", splits, "one-hot", 0)
    found = leaks(target.model, [target.cut(block) for block in (40, 50)], splits)
    for block, key, attempt in work:
        about = {"part": part, "network": "ir152", "labels": "one-hot", "seed": 0, "block": block}
        about |= {"data": splits.name, "accuracy": target.accuracy}
        study.measure(key, about, attempt, found[target.cut(block)], splits)


def _take_baselines(study: Study, part: str, data: str) -> None:
    """The baseline is the decoder of the curve, on the same network: where that has been measured, its row is taken over."""
    for block in (50, 40):
        curve = study.rows.done.get(f"ir152-curve/{data}/one-hot/0/{block}/{study.paper.name}")
        key = f"{part}/{block}/baseline"
        if curve is not None and key not in study.rows.done:
            row = {name: value for name, value in curve.items() if name not in ("unit", "radius_per_dimension")}
            study.rows.add(key, {**row, "part": part, "decoder": "baseline"})


def enhancements(study: Study) -> None:
    """Table 4: enhancements of the feature, blocks 50 and 40 of IR-152."""
    _table(study, "enhancements", ENHANCEMENTS)


def attention(study: Study) -> None:
    """Table 5: enhancements of the decoder, blocks 50 and 40 of IR-152."""
    _table(study, "attention", ATTENTION)
