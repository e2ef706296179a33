"""Language models and text classifiers of Hugging Face, with their tokenizer: from a folder, a GGUF file, an adapter or a configuration."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol, cast

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from leakgauge.core import Loss, Tokens, Victim
from leakgauge.core.randomness import private_randomness
from leakgauge.data.sentences import Sentences
from leakgauge.errors import BadInput, MissingExtra, one_line
from leakgauge.families.nearest import nearest
from leakgauge.integrations.huggingface import (
    TextLogits,
    has_weights,
    kinds_of_architectures,
    quiet,
    read_config,
    text_model,
    transformers_package,
)
from leakgauge.models.next_token import IGNORED, MaskedTokens, NextToken

Kind = Literal["causal", "masked", "classifier"]
"""Predicts the next token, tokens that were masked, or a class of the sentence."""
LONGEST = 128
"""Tokens of a sentence that are read at most, unless a length is asked for."""
MASKED = 0.15
"""Share of the tokens that a masked language model is asked for."""
ADAPTER = "adapter_config.json"
UNREADABLE = (
    OSError, RuntimeError, ValueError, KeyError, ImportError, TypeError, AttributeError, SafetensorError
)  # fmt: skip
"""What transformers and peft raise for files that are damaged, of another kind, or need a package that is not installed."""
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""Nothing is downloaded, and the Python code of a folder never runs; without this transformers asks on the terminal."""


class Tokenizer(Protocol):
    """Sentences as ids and back. ``padding`` fills short sentences, ``mask`` stands for a token that is asked for."""

    @property
    def padding(self) -> int: ...
    @property
    def mask(self) -> int | None: ...
    def encode(self, sentence: str) -> list[int]: ...
    def token(self, number: int) -> str:
        """The piece of text that an id stands for."""
        ...


@dataclass(frozen=True)
class Bytes:
    """The bytes of a sentence in UTF-8, for models that come without a tokenizer: id 0 is padding, id 1 a mask, id 2 + b is the byte b."""

    padding: int = 0
    mask: int | None = 1

    def encode(self, sentence: str) -> list[int]:
        return [2 + byte for byte in sentence.encode()]

    def token(self, number: int) -> str:
        return bytes([number - 2]).decode("latin-1") if 2 <= number < 258 else ""


@dataclass(frozen=True)
class FromFiles:
    """A tokenizer of transformers. Special tokens are not added: the sentence is what is private."""

    inner: Any
    padding: int
    mask: int | None

    def encode(self, sentence: str) -> list[int]:
        return list(self.inner(sentence, add_special_tokens=False)["input_ids"])

    def token(self, number: int) -> str:
        return self.inner.decode([number], clean_up_tokenization_spaces=False)


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A text model, the tokenizer it was trained with, and what it learns: ``loss`` follows from ``kind``."""

    model: nn.Module
    tokenizer: Tokenizer
    vocab: int
    positions: int | None
    kind: Kind

    @property
    def loss(self) -> Loss:
        padding = self.tokenizer.padding
        losses = {"causal": NextToken(padding), "masked": MaskedTokens(padding)}
        return losses.get(self.kind, torch.nn.functional.cross_entropy)

    def ids(self, sentences: Sequence[str], length: int | None = None) -> Tensor:
        """One row per sentence, cut or filled up to ``length``; without one as long as the longest, up to ``LONGEST`` tokens."""
        rows = [self.tokenizer.encode(one) for one in sentences]
        if not any(rows):
            raise BadInput("there is no sentence with a token in it; give text")
        if length is None:
            longest = max(map(len, rows)) + 2 * (self.kind == "causal")  # room for the end, and for nothing after it
            length = min(longest, LONGEST, self.positions or LONGEST)
        if self.positions is not None and length > self.positions:
            raise BadInput(f"the model has {self.positions} positions, too few for sentences of {length} tokens")
        found = torch.full((len(rows), length), self.tokenizer.padding)
        for row, ids in zip(found, rows, strict=True):
            row[: len(ids)] = torch.tensor(ids[:length])
        if int(found.max()) >= self.vocab:
            raise BadInput(f"the tokenizer has ids up to {int(found.max())}, but the model only {self.vocab} tokens")
        return found

    def victim(self, length: int) -> Victim:
        return Victim(self.model, Tokens(length, self.vocab), loss=self.loss)

    def private(self, ids: Tensor, labels: Tensor | None, *, seed: int = 0) -> tuple[Tensor, Tensor]:
        """What the model reads and what it is asked for: the ids themselves, those that were masked, or the labels."""
        if self.kind == "causal":
            return ids, ids
        if self.kind == "classifier":
            if labels is None:
                raise BadInput("a classifier needs a label for each sentence; write LABEL, a tab and the sentence")
            return ids, labels
        mask = self.tokenizer.mask
        if mask is None:
            raise BadInput("the tokenizer names no mask token, which a masked language model needs")
        rng = torch.Generator().manual_seed(seed)
        asked = (torch.rand(ids.shape, generator=rng) < MASKED) & (ids != self.tokenizer.padding)
        asked[:, 0] |= ~asked.any(1)  # every sentence asks for something
        return ids.masked_fill(asked, mask), ids.masked_fill(~asked, IGNORED)

    def tokens(self, ids: Tensor) -> list[str]:
        """The pieces of text of one sentence, without the padding at its end."""
        kept = (
            ids[: int((ids != self.tokenizer.padding).nonzero().max()) + 1]
            if (ids != self.tokenizer.padding).any()
            else ids[:0]
        )
        return [self.tokenizer.token(int(number)) for number in kept]


def load_language(source: str, *, kind: Kind | None = None, classes: int | None = None, seed: int = 0) -> LanguageModel:
    """The text model that ``source`` names.

    That is a folder as ``save_pretrained`` writes it, a GGUF file, a folder with an adapter of peft (its base model is read from the path
    that it names), a ``config.json``, or an architecture such as ``gpt2``. A folder without weights, a configuration and an architecture
    get weights drawn from ``seed``; nothing is downloaded. Without a tokenizer sentences are read byte by byte. ``kind`` follows from the
    configuration, unless it is given; ``classes`` means a classifier.
    """
    path = Path(source)
    kind = "classifier" if kind is None and classes is not None else kind
    if path.suffix == ".gguf":
        return _from_gguf(path, kind)
    if (path / ADAPTER).is_file():
        return _with_adapter(path, kind, classes, seed=seed)
    settings = read_config(source)
    kind = _kind_of(settings) if kind is None else kind
    if path.is_dir() and has_weights(path):
        model = _restored(_automatic(kind), path, num_labels=classes)
    else:
        with private_randomness(seed, torch.device("cpu")):
            model = text_model(settings, name=source, classes=classes, language_model=kind != "classifier")
    return _finished(model, _tokenizer(path), kind)


def _kind_of(settings: dict[str, Any]) -> Kind:
    """As the configuration says which class it is of; otherwise masked before causal, as for BERT."""
    given = settings.get("architectures")
    named = " ".join(map(str, given)) if isinstance(given, list) else ""
    said: tuple[tuple[str, Kind], ...] = (
        ("SequenceClassification", "classifier"), ("MaskedLM", "masked"), ("CausalLM", "causal"), ("LMHead", "causal"),
    )  # fmt: skip
    name, known = str(settings.get("model_type")), kinds_of_architectures()
    for part, kind in (*said, *((name, kind) for kind in ("masked", "causal") if name in known[kind])):
        if part in f"{named} {name}":
            return cast(Kind, kind)
    raise BadInput(
        f"{name!r} is no language model of transformers; {nearest(name, [*known['masked'], *known['causal']])}"
    )


def is_text(source: str) -> bool:
    """Whether ``source`` names a text model and not one of images."""
    path = Path(source)
    if path.suffix == ".gguf" or (path / ADAPTER).is_file():
        return True
    if not path.exists() and (path.suffix == ".json" or "/" in source):
        return False  # the loader of images says that there is none
    name, known = str(read_config(source).get("model_type")), kinds_of_architectures()
    return name not in known["image"] and any(name in known[kind] for kind in ("masked", "causal", "classifier"))


def _automatic(kind: Kind) -> Any:
    package = transformers_package()
    return {
        "causal": package.AutoModelForCausalLM,
        "masked": package.AutoModelForMaskedLM,
        "classifier": package.AutoModelForSequenceClassification,
    }[kind]


def _restored(automatic: Any, folder: Path, *, num_labels: int | None = None, **how: Any) -> nn.Module:
    if num_labels is not None:
        how["num_labels"] = num_labels
    try:
        with quiet():
            return automatic.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32, **LOCAL, **how)
    except UNREADABLE as error:
        raise BadInput(f"the weights in {folder} do not load: {one_line(error)}") from error


def _from_gguf(path: Path, kind: Kind | None) -> LanguageModel:
    """A GGUF file, with what is quantised in it converted to float32."""
    if kind not in (None, "causal"):
        raise BadInput(f"{path} holds a causal language model; it cannot be loaded as {kind}")
    if not path.is_file():
        raise BadInput(f"there is no {path}; give a GGUF file")
    package = transformers_package()
    if importlib.util.find_spec("gguf") is None:
        raise MissingExtra("gguf", "gguf")
    with redirect_stderr(StringIO()):  # it draws a progress bar that no setting turns off
        model = _restored(package.AutoModelForCausalLM, path.parent, gguf_file=path.name)
        tokenizer = _loaded(path.parent, named=path, gguf_file=path.name)
    return _finished(model, tokenizer, "causal")


def _with_adapter(folder: Path, kind: Kind | None, classes: int | None, *, seed: int) -> LanguageModel:
    peft = _peft()
    named = read_config(str(folder / ADAPTER)).get("base_model_name_or_path")
    base = next((str(p) for p in (Path(str(named)), folder / str(named)) if named and p.exists()), None)
    if base is None:
        raise BadInput(
            f"{folder / ADAPTER} names the base model {named!r}, which is no local path; nothing is downloaded"
        )
    found = load_language(base, kind=kind, classes=classes, seed=seed)
    inner = cast(TextLogits, found.model).model
    try:
        model = peft.PeftModel.from_pretrained(inner, folder, is_trainable=True)
    except UNREADABLE as error:
        raise BadInput(f"the adapter in {folder} does not fit its base model: {one_line(error)}") from error
    return _finished(model, found.tokenizer, found.kind)


def with_lora(
    found: LanguageModel, rank: int, *, modules: Sequence[str] = ("q_proj", "v_proj"), seed: int = 0
) -> LanguageModel:
    """The model with new LoRA adapters of peft on the named layers; everything else is frozen. Changes ``found``'s own module."""
    peft = _peft()
    with private_randomness(seed, torch.device("cpu")):
        settings = peft.LoraConfig(r=rank, target_modules=list(modules))
        adapted = peft.get_peft_model(cast(TextLogits, found.model).model, settings)
    return _finished(adapted, found.tokenizer, found.kind)


def _peft() -> ModuleType:
    transformers_package()
    try:
        import peft
    except ModuleNotFoundError as error:
        if error.name != "peft":
            raise
        raise MissingExtra("peft", "peft") from error
    return peft


def _tokenizer(path: Path) -> Tokenizer:
    if not path.is_dir() or not any(
        (path / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
    ):
        return Bytes()
    return _loaded(path, named=path)


def _loaded(folder: Path, *, named: Path, **options: str) -> Tokenizer:
    try:
        return _wrapped(transformers_package().AutoTokenizer.from_pretrained(folder, **options, **LOCAL))
    except UNREADABLE as error:
        raise BadInput(f"the tokenizer in {named} does not load: {one_line(error)}") from error


def _wrapped(inner: Any) -> Tokenizer:
    named = (inner.pad_token_id, inner.eos_token_id, inner.sep_token_id, 0)
    return FromFiles(inner, next(one for one in named if one is not None), inner.mask_token_id)


def _finished(model: nn.Module, tokenizer: Tokenizer, kind: Kind) -> LanguageModel:
    """Padding is what the tokenizer says; a classifier of the last token needs to know it too."""
    config = cast(Any, model).config
    config.pad_token_id = tokenizer.padding
    model.eval()
    return LanguageModel(
        TextLogits(model, padding=tokenizer.padding), tokenizer, config.vocab_size, _positions(model), kind
    )


def _positions(model: nn.Module) -> int | None:
    """The longest sentence. A table of positions with a padding row counts from the row after it (RoBERTa)."""
    named = getattr(cast(Any, model).config, "max_position_embeddings", None)  # by any name: GPT-2 says n_positions
    if not isinstance(named, int) or named < 1:
        return None
    tables = (part for name, part in model.named_modules() if name.endswith("position_embeddings"))
    rows = (
        one.num_embeddings - one.padding_idx - 1
        for one in tables
        if isinstance(one, nn.Embedding) and one.padding_idx is not None
    )
    return min((named, *rows))


def read_ids(found: LanguageModel, given: Sentences, *, length: int | None = None) -> tuple[Tensor, Tensor | None]:
    """Ids and labels of the sentences of a file, of ``length`` if that is given."""
    if found.kind == "classifier" and given.labels is not None:
        classes = cast(Any, cast(TextLogits, found.model).model).config.num_labels
        if max(given.labels) >= classes:
            raise BadInput(
                f"the label {max(given.labels)} is too large for a classifier of {classes} classes; labels count from 0"
            )
    labels = None if given.labels is None else torch.tensor(given.labels)
    return found.ids(given.texts, length), labels
