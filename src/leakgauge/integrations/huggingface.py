"""Image and text classifiers of Hugging Face transformers, by architecture, configuration or from a local folder."""

from __future__ import annotations

import inspect
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from leakgauge.core import Pixels, Tokens
from leakgauge.core.randomness import private_randomness
from leakgauge.errors import BadInput, MissingExtra
from leakgauge.families.nearest import nearest
from leakgauge.integrations.torchvision_guest import invite_torchvision

_NO_PIXELS = ("imagegpt", "perceiver", "shieldgemma2", "siglip2", "timm_wrapper")
"""Architectures listed as image classifiers that do not take a plain batch of images, or only wrap another package."""

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_SIZE_WHERE_UNSAID = 224


class Logits(nn.Module):
    """A Hugging Face classifier whose forward is ``images -> logits``; its names get the prefix ``model.``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        return self.model(pixel_values=pixels, return_dict=True).logits


class TextLogits(nn.Module):
    """A Hugging Face text model whose forward is ``token ids -> logits``; its names get the prefix ``model.``.

    Nothing attends to the id ``padding``, which fills short sentences. A decoder needs no mask for that: what follows a token does not
    change what the model makes of it. A decoder can also go on from a ``memory`` of keys and values: with ``fill`` it adds ``ids`` to it,
    otherwise all of ``ids`` are candidates for the next place.
    """

    def __init__(self, model: nn.Module, *, padding: int | None = None) -> None:
        super().__init__()
        self.model = model
        self.padding = padding
        inner = cast(Any, model).get_base_model() if hasattr(model, "get_base_model") else model  # peft's
        self.continues = "past_key_values" in inspect.signature(inner.forward).parameters

    def forward(self, ids: Tensor, memory: Any = None, fill: bool = False) -> Tensor:
        given: dict[str, Any] = {}
        if self.continues:
            given = {"past_key_values": memory, "use_cache": memory is not None}
            if memory is not None and not fill:
                given |= self._beside(ids, memory.get_seq_length())
        elif self.padding is not None:
            given = {"attention_mask": (ids != self.padding).long()}
        return self.model(input_ids=ids, return_dict=True, **given).logits

    def _beside(self, ids: Tensor, place: int) -> dict[str, Tensor]:
        """Every token at the same place: it attends to what is kept and to itself."""
        rows, count = ids.shape
        weight = next(p for p in self.model.parameters() if p.is_floating_point())
        own = torch.eye(count, dtype=torch.bool, device=ids.device)
        seen = torch.cat([own.new_ones(count, place), own], 1)
        mask = weight.new_zeros(seen.shape).masked_fill(~seen, torch.finfo(weight.dtype).min)
        return {"attention_mask": mask.expand(rows, 1, -1, -1), "position_ids": torch.full_like(ids, place)}

    def memory(self, of: Any = None) -> Any:
        from transformers import DynamicCache

        found = DynamicCache()
        for number, layer in enumerate(() if of is None else of.layers):
            found.update(layer.keys, layer.values, number)
        return found


def has_weights(folder: str | Path) -> bool:
    """Whether a local folder holds safetensors weights, as ``save_pretrained`` writes them."""
    return any((Path(folder) / name).is_file() for name in _WEIGHTS)


def load(name: str, *, classes: int | None = None, seed: int = 0, pretrained: bool = False) -> tuple[nn.Module, Pixels]:
    """An image classifier with weights drawn from ``seed``, wrapped to return logits, and the images it takes.

    ``name`` is an architecture (``vit``, ``deit``, ``dinov2``, ``swin``, ``convnext``, ``resnet``, …: its default
    configuration, which has two classes), or a local ``config.json`` or a folder with one; a configuration needs
    ``model_type`` and whatever differs from the default. ``pretrained`` loads the folder's safetensors; nothing is
    ever downloaded. Attention is the eager one, which can be differentiated twice. Mean and deviation are those of
    the folder's ``preprocessor_config.json``, whose scale of the pixels counts too, else 0.5.
    """
    transformers = transformers_package()
    architectures = _architectures()
    path = Path(name)
    local = path.exists() and name not in architectures
    if not local and (path.suffix == ".json" or "/" in name):
        raise BadInput(f"there is no {name}; give a config.json, a folder with one, or an architecture such as vit")
    if pretrained and not local:
        raise BadInput(f"{name} is an architecture without weights; write ./{name} if a local folder is meant")
    settings = _read_json(path / "config.json" if path.is_dir() else path) if local else {"model_type": name}
    config = _configure(transformers, architectures, settings, source=name, classes=classes)
    with private_randomness(seed, torch.device("cpu")):
        model = (
            _build(transformers.AutoModelForImageClassification, config, source=name)
            if not pretrained
            else _restore(transformers, config, path)
        )
    keep_window_masks(model)
    return Logits(model), _pixels(config.to_dict(), _read_preprocessor(path) if local else {})


def load_text(
    source: str | Mapping[str, Any],
    *,
    length: int,
    classes: int | None = None,
    language_model: bool = False,
    seed: int = 0,
) -> tuple[nn.Module, Tokens]:
    """A text classifier with weights drawn from ``seed``, wrapped to return logits, and the sentences it takes.

    ``source`` is an architecture (``bert``, ``gpt2``, ``roberta``, …: its default configuration), a local ``config.json``
    or a folder with one, or the configuration itself, which needs ``model_type`` and whatever differs from the default.
    Nothing is downloaded; weights are random. Every token is attended to: no mask is given. A ``language_model`` scores
    every token of the vocabulary at every place (masked for BERT and its kin, causal for GPT-2), as a rule with an
    output layer tied to the token embedding.
    """
    name = source if isinstance(source, str) else f"of {source.get('model_type')}"
    settings = read_config(source) if isinstance(source, str) else source
    with private_randomness(seed, torch.device("cpu")):
        model = text_model(settings, name=name, classes=classes, language_model=language_model)
    config = cast(Any, model).config
    places = config.to_dict().get("max_position_embeddings")  # XLNet's itself says -1
    if places is not None and length > places:
        raise BadInput(f"the configuration {name} has {places} positions, too few for sentences of {length} tokens")
    if config.pad_token_id is None:  # such a model (GPT-2) takes no batches until it knows which token is no text
        config.pad_token_id = -1
    return TextLogits(model), Tokens(length, config.vocab_size)


def read_config(source: str) -> dict[str, Any]:
    """The settings of an architecture, a ``config.json`` or a folder with one."""
    path = Path(source)
    if path.is_dir():
        return _read_json(path / "config.json")
    return _read_json(path) if path.is_file() else {"model_type": source}


def text_model(
    settings: Mapping[str, Any], *, name: str, classes: int | None = None, language_model: bool = False
) -> nn.Module:
    """A text model with random weights."""
    transformers = transformers_package()
    architectures, automatic = _text_architectures(transformers, language_model=language_model)
    config = _configure(transformers, architectures, settings, source=name, classes=classes, kind_of="text")
    return _build(automatic[config.model_type], config, source=name)


def transformers_package(extra: str = "huggingface") -> ModuleType:
    try:
        invite_torchvision()
        import transformers
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise MissingExtra("transformers", extra) from error
    return transformers


def _architectures() -> dict[str, tuple[str, ...]]:
    """Class names of the image classifiers, by architecture; the first one is the plain one."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES as NAMES

    return {
        name: (classes,) if isinstance(classes, str) else tuple(classes)
        for name, classes in NAMES.items()
        if name not in _NO_PIXELS
    }


def kinds_of_architectures() -> dict[str, Collection[str]]:
    """Names of the architectures that classify images or text, or predict masked or next tokens."""
    transformers_package()
    from transformers.models.auto import modeling_auto as auto

    return {
        "image": auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
        "classifier": auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
        "masked": auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        "causal": auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    }


def _text_architectures(
    transformers: ModuleType, *, language_model: bool
) -> tuple[dict[str, tuple[str, ...]], dict[str, Any]]:
    """Class names of the text models, and the automatic class that builds them, by architecture."""
    from transformers.models.auto import modeling_auto as auto

    found = [(auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES, transformers.AutoModelForSequenceClassification)]
    if language_model:
        found = [
            (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, transformers.AutoModelForCausalLM),
            (
                auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
                transformers.AutoModelForMaskedLM,
            ),  # comes last, so it is preferred
        ]
    classes = {name: (str(cls),) for names, _ in found for name, cls in names.items()}
    return classes, {name: automatic for names, automatic in found for name in names}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadInput(f"there is no configuration at {path}") from error
    except ValueError as error:
        raise BadInput(f"{path} is not JSON: {error}") from error
    if not isinstance(settings, dict):
        raise BadInput(f"{path} must hold a JSON object, got a {type(settings).__name__}")
    return settings


def _read_preprocessor(path: Path) -> dict[str, Any]:
    settings = (path if path.is_dir() else path.parent) / "preprocessor_config.json"
    return _read_json(settings) if settings.is_file() else {}


def _configure(
    transformers: ModuleType,
    architectures: Mapping[str, tuple[str, ...]],
    settings: Mapping[str, Any],
    *,
    source: str,
    classes: int | None,
    kind_of: str = "image",
) -> Any:
    from huggingface_hub import errors

    kind = str(settings.get("model_type"))
    if kind not in architectures:
        raise BadInput(f"{kind!r} is no {kind_of} classifier of transformers; {nearest(kind, architectures)}")
    invalid = getattr(errors, "StrictDataclassError", ValueError)  # older versions check nothing
    try:
        config = transformers.CONFIG_MAPPING[kind].from_dict(dict(settings))
    except (TypeError, ValueError, NotImplementedError, invalid) as error:
        raise BadInput(f"the configuration {source} is wrong: {' '.join(str(error).split())}") from error
    if classes is not None:
        config.num_labels = classes
    named = config.architectures if isinstance(config.architectures, list) else ()
    if not set(map(str, named)) & set(architectures[kind]):
        config.architectures = [architectures[kind][0]]  # the automatic class cannot choose among several by itself
    return config


def _build(automatic: Any, config: Any, *, source: str) -> nn.Module:
    try:
        return automatic.from_config(config, attn_implementation="eager")
    except (ImportError, TypeError, ValueError, RuntimeError, ZeroDivisionError) as error:
        reason = " ".join(str(error).split())
        raise BadInput(f"transformers cannot build the configuration {source}: {reason}") from error


def _restore(transformers: ModuleType, config: Any, folder: Path) -> nn.Module:
    """The model with the folder's weights; transformers translates the parameter names of its earlier versions."""
    if not has_weights(folder):
        raise BadInput(f"{folder} holds no model.safetensors; pretrained weights are read from a local folder only")
    try:
        with quiet():
            model, info = transformers.AutoModelForImageClassification.from_pretrained(
                folder,
                config=config,
                attn_implementation="eager",
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
            )
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise BadInput(f"the weights in {folder} do not load: {' '.join(str(error).split())}") from error
    missing = sorted(info["missing_keys"])
    if missing:
        raise BadInput(f"the weights in {folder} lack {len(missing)} parameters of the model, first {missing[0]}")
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """Holds back transformers' progress bar and load report: what is wrong with the weights is raised instead."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


def _pixels(config: Mapping[str, Any], preprocessor: Mapping[str, Any]) -> Pixels:
    vision = config.get("vision_config", config)
    size = vision.get("image_size") or _SIZE_WHERE_UNSAID
    height, width = (size, size) if isinstance(size, int) else size
    mean, std = _normalisation(preprocessor)
    return Pixels((vision.get("num_channels") or 3, height, width), mean=mean, std=std)


def _normalisation(preprocessor: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation that take images in [0, 1] to what the preprocessor makes of their bytes: (255 f p − o − mean) / std.

    EfficientNet's preprocessor has an offset o of 1 and divides by its deviation once more, normalised or not.
    """
    mean, std = (tuple(preprocessor.get(key) or (0.5,)) for key in ("image_mean", "image_std"))
    again = std if preprocessor.get("include_top") else (1.0,) * len(std)
    if preprocessor.get("do_normalize") is False:
        mean, std = (0.0,) * len(std), (1.0,) * len(std)
    std = tuple(s * a for s, a in zip(std, again, strict=True))
    factor = 1.0 if preprocessor.get("do_rescale") is False else preprocessor.get("rescale_factor") or 1 / 255
    scale = 255 * factor
    if preprocessor.get("rescale_offset") and preprocessor.get("do_rescale") is not False:
        mean = tuple(m + 1.0 for m in mean)
    if abs(scale - 1) < 1e-6:  # as usual: the figures stay as they are written
        return mean, std
    return tuple(m / scale for m in mean), tuple(s / scale for s in std)


class KeptMask:
    """Replaces a layer's method ``get_attn_mask``; off the CPU it computes each mask once.

    SwinV2 in transformers before 5.20 or so makes its masks on the host in every pass and copies them over. A step that is recorded as a
    CUDA graph must not do that, and would run eagerly, many times slower.
    """

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer
        self.kept: dict[Any, Tensor | None] = {}

    def __call__(self, height: int, width: int, dtype: torch.dtype) -> Tensor | None:
        layer: Any = self.layer
        device = next(layer.parameters()).device
        if device.type == "cpu" or torch.compiler.is_compiling():
            return type(layer).get_attn_mask(layer, height, width, dtype)
        key = (height, width, dtype, device, layer.window_size, layer.shift_size)
        if key not in self.kept:
            with torch.inference_mode(False):  # what is made inside could not be differentiated through later
                mask = type(layer).get_attn_mask(layer, height, width, dtype)
                self.kept[key] = None if mask is None else mask.to(device)
        return self.kept[key]


def keep_window_masks(model: nn.Module) -> None:
    """Changes, in place, the layers of ``model`` that make their masks on the host: those that are not given a device."""
    for layer in model.modules():
        make = getattr(type(layer), "get_attn_mask", None)
        if make is not None and list(inspect.signature(make).parameters) == ["self", "height", "width", "dtype"]:
            vars(layer)["get_attn_mask"] = KeptMask(layer)
