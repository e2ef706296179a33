"""Defenses by name."""

from __future__ import annotations


def defense_words(spec: str) -> tuple[str, str]:
    """The defense and its strength for people; what is not known keeps its own name and options.

    >>> defense_words("gaussian_noise:relative=10.0"), defense_words("prune:0.9"), defense_words("withhold:position_embedding")
    (('Gaussian noise', '10 × gradient norm'), ('Pruning', '90 % of entries'), ('Withheld', 'position embedding'))
    >>> defense_words("dpsgd:clip=1.0,noise=0.5")
    ('DP-SGD', 'clip 1, noise 0.5')
    """
    name, _, options = spec.partition(":")
    first, *more = [part.strip() for part in options.split(",")]
    key, _, value = first.rpartition("=")
    known = _STRENGTHS.get((name, key)) if not more else None
    if name == "dpsgd":
        pairs = [part.partition("=") for part in (first, *more)]
        return _DEFENSES[name], ", ".join(f"{k.strip()} {_shortest(v)}" if v else _shortest(k) for k, _, v in pairs)
    if known is None:
        return (_DEFENSES.get(name) or name.replace("_", " ").capitalize()), options.replace("_", " ")
    figure = _figure(value)
    strength = known.format(value.replace("_", " ") if figure is None else f"{figure * (100 if '%' in known else 1):g}")
    return _DEFENSES[name], strength


_DEFENSES = {
    "gaussian_noise": "Gaussian noise",
    "laplacian_noise": "Laplacian noise",
    "clip": "Clipping",
    "prune": "Pruning",
    "quantize": "Quantisation",
    "dpsgd": "DP-SGD",
    "withhold": "Withheld",
    "sign": "Signs only",
    "gradient_dropout": "Gradient dropout",
    "layer_noise": "Noise by layer",
    "soteria": "Soteria",
    "precode": "PRECODE",
    "transformed": "Transformed images",
    "mixup": "MixUp",
    "instahide": "InstaHide",
    "percentile_privacy": "NVFlare PercentilePrivacy",
    "svt_privacy": "NVFlare SVTPrivacy",
    "exclude_vars": "NVFlare ExcludeVars",
    "flower_local_dp": "Flower local privacy",
}
_STRENGTHS = {
    **{(noise, "relative"): "{} × gradient norm" for noise in ("gaussian_noise", "laplacian_noise")},
    **{(noise, "std"): "deviation {}" for noise in ("gaussian_noise", "laplacian_noise")},
    **{("clip", key): "to norm {}" for key in ("", "norm")},
    **{("prune", key): "{} % of entries" for key in ("", "fraction")},
    **{("gradient_dropout", key): "{} % of entries" for key in ("", "fraction")},
    **{("layer_noise", key): "{} × each tensor" for key in ("", "relative")},
    **{("soteria", key): "{} % of features" for key in ("", "fraction")},
    **{("precode", key): "width {}" for key in ("", "width")},
    **{(mixing, key): "share {}" for mixing in ("mixup", "instahide") for key in ("", "share")},
    **{("quantize", key): "{} bits" for key in ("", "bits")},
    **{("withhold", key): "{}" for key in ("", "roles")},
}
"""By name and option; a bare value has none."""


def _shortest(text: str) -> str:
    figure = _figure(text)
    return text.strip() if figure is None else f"{figure:g}"


def _figure(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
