"""APRIL says that its attack also works on language; measured here: tokens and order from one shared gradient.

20 random sentences of 16 and of 64 tokens for each model, and 10 of 16 for each defense and the like. Ids are drawn with the
frequencies 1/rank of a language, so that some repeat. Sentence i is drawn from seed i, the model's weights from seed i as well.

    python -m reproductions.april.text            # about three minutes
    python -m reproductions.april.text --quick    # one or two sentences of length 16 each
    python -m reproductions.april.text --base     # the sizes of BERT base and GPT-2, random weights, needs about 4 GB
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge import Inapplicable, Tokens, Victim, share
from leakgauge.attacks import april_text, bag_of_tokens, token_positions
from leakgauge.audit import TextScores, score_text
from leakgauge.channels import FedAvg, Gradient
from leakgauge.core import Attack, Channel, Defense, Mode
from leakgauge.defenses import GaussianNoise, Prune, Quantize, Withhold
from leakgauge.integrations.huggingface import load_text
from leakgauge.models import TextTransformer
from reproductions.common import runner
from reproductions.common.runner import Options, Part, Rows, run_part

RESULTS = Path(__file__).parent / "results"
VOCAB, WIDTH, CLASSES = 1000, 64, 4
BERT = {
    "model_type": "bert", "vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 4 * WIDTH,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "bos_token_id": 1,
    "eos_token_id": 1,
}  # fmt: skip
CONFIGURATIONS = {
    "bert": BERT,
    "gpt2": GPT2,
    "bert language model": BERT,
    "gpt2 language model": GPT2,
    "bert_base": {"model_type": "bert"},
    "gpt2_small": {"model_type": "gpt2"},
}


@dataclass(frozen=True)
class Condition:
    """What the client does, and how many sentences it sends at once."""

    name: str
    channel: Channel = Gradient()  # noqa: RUF009 - frozen
    defenses: tuple[Defense, ...] = ()
    mode: Mode = "eval"
    batch: int = 1


PLAIN = Condition("gradient")
UPDATE = Condition("4 local steps", FedAvg(steps=4, lr=0.05))
SHORT = (
    UPDATE,
    Condition("train mode (dropout)", mode="train"),
    Condition("batch of 4", batch=4),
    Condition("token embedding withheld", defenses=(Withhold(("token_embedding",)),)),
    Condition("position embedding withheld", defenses=(Withhold(("position_embedding",)),)),
    *(Condition(f"noise {r:g} of the gradient", defenses=(GaussianNoise(relative=r),)) for r in (1e-3, 1e-2, 1e-1)),
    Condition("8 bits", defenses=(Quantize(8),)),
    Condition("90 % pruned", defenses=(Prune(0.9),)),
)
ATTACKS: tuple[tuple[str, Attack], ...] = (
    ("bag_of_tokens", bag_of_tokens()),
    ("token_positions", token_positions()),
    ("april_text", april_text()),
)


def of_every_place(scores: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), y.flatten())


def victim(name: str, length: int, mode: Mode, seed: int) -> Victim:
    if name.endswith("language model"):
        model, space = load_text(CONFIGURATIONS[name], length=length, language_model=True, seed=seed)
        return Victim(model, space, mode=mode, loss=of_every_place)
    if name in CONFIGURATIONS:
        model, space = load_text(CONFIGURATIONS[name], length=length, classes=CLASSES, seed=seed)
        return Victim(model, space, mode=mode)
    options: dict[str, Any] = {"residual": False, "position_std": 1.0} if name == "architecture A" else {}
    model = TextTransformer(vocab=VOCAB, length=length, width=WIDTH, classes=CLASSES, seed=seed, **options)
    return Victim(model, Tokens(length, VOCAB), mode=mode)


def sentences(count: int, length: int, vocab: int, seed: int) -> Tensor:
    """Ids 3 and up with frequency 1/rank; 0 to 2 are left to padding and the like."""
    rng = torch.Generator().manual_seed(seed)
    frequency = 1 / torch.arange(1, vocab - 2, dtype=torch.float64)
    return 3 + torch.multinomial(frequency, count * length, replacement=True, generator=rng).view(count, length)


def measured(name: str, length: int, condition: Condition, count: int) -> Iterator[dict[str, Any]]:
    """One row per attack: mean and lowest over the sentences, or the reason of the refusal."""
    scores: dict[str, list[TextScores]] = {key: [] for key, _ in ATTACKS}
    seconds: dict[str, list[float]] = {key: [] for key, _ in ATTACKS}
    proven: dict[str, int] = {key: 0 for key, _ in ATTACKS}
    refused: dict[str, str] = {}
    for seed in range(count):
        target = victim(name, length, condition.mode, seed)
        assert isinstance(target.space, Tokens)
        x = sentences(condition.batch, length, target.space.vocab, seed)
        y = torch.arange(seed, seed + condition.batch) % CLASSES
        if name.endswith("language model"):
            y = x.roll(-1, 1)  # the next token of each place
        seen = share(target, condition.channel, x, y, defenses=condition.defenses, secret=seed)
        for key, attack in ATTACKS:
            try:
                found = attack(target, seen, seed=seed)
            except Inapplicable as reason:
                refused[key] = str(reason)
                continue
            scores[key].append(score_text(found, x, None))
            seconds[key].append(found.seconds)
            proven[key] += "no other order" in found.notes[0]
    for key, _ in ATTACKS:
        row: dict[str, Any] = {
            "model": name,
            "length": length,
            "condition": condition.name,
            "attack": key,
            "runs": count,
        }
        if key in refused:
            yield {**row, "done": len(scores[key]), "refused": refused[key]}
            continue
        tokens = [value for one in scores[key] for value in one.tokens]
        yield {
            **row,
            "tokens": round(mean(tokens), 4),
            "tokens_lowest": round(min(tokens), 4),
            "order": round(mean(value for one in scores[key] for value in one.order), 4),
            "precision": round(mean(one.precision for one in scores[key]), 4),
            "recall": round(mean(one.recall for one in scores[key]), 4),
            "proven_the_only_one": proven[key],
            "seconds": round(mean(seconds[key]), 3),
        }


def plan(*, quick: bool, base: bool) -> Iterator[tuple[str, int, Condition, int]]:
    if base:
        yield from ((name, 128, PLAIN, 3) for name in ("bert_base", "gpt2_small"))
        return
    sentences_each, others = (2, 1) if quick else (20, 10)
    for name in ("architecture A", "standard", "bert", "gpt2", "bert language model", "gpt2 language model"):
        yield name, 16, PLAIN, sentences_each
        if not quick:
            yield name, 64, PLAIN, sentences_each
        if name.endswith("language model"):
            yield name, 32, PLAIN, sentences_each
        else:
            yield from ((name, 16, condition, others) for condition in SHORT)


def run(options: Options, results: Rows, *, base: bool = False) -> None:
    for name, length, condition, count in plan(quick=options.quick, base=base):
        unit = f"{name}, {length} tokens, {condition.name}"
        if not results.has(unit):
            results.add(unit, *measured(name, length, condition, count))


def main() -> None:
    parser = runner.parser(__doc__, out=RESULTS)
    parser.add_argument("--base", action="store_true", help="full-size models, three sentences of length 128")
    given = parser.parse_args()
    run_part(Part("text_base" if given.base else "text", partial(run, base=given.base)), Options.of(given))


if __name__ == "__main__":
    main()
