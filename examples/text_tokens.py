"""Read a sentence out of one shared gradient of a text classifier, and see what takes the order away.

    python examples/text_tokens.py [--quick] [--out FOLDER]

No image is needed for a leak: the gradients of the two look-up tables (tokens and positions) hold the words and their order in
closed form. Look at which words move when noise is added, and at what is refused when the positions stay on the device. What
was read is also in ``read.txt``. Full: a wider model. About 3 s, quick 3 s, on one core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from leakgauge import Inapplicable, Tokens, Victim, share
from leakgauge.attacks import april_text, bag_of_tokens, token_positions
from leakgauge.audit import score_text
from leakgauge.channels import Gradient
from leakgauge.defenses import GaussianNoise, Withhold
from leakgauge.models import TextTransformer

SENTENCE = "the patient said that the new pills make the pain in the left knee worse at night"
OTHER_WORDS = "a doctor asked why old tablets did not help her right arm in spring and what else she took by day"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model; the same in every other respect")
    parser.add_argument("--out", type=Path, default=Path("leakgauge-runs/example-text_tokens"), help="run folder")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    width = 32 if options.quick else 128

    words = sorted({*SENTENCE.split(), *OTHER_WORDS.split()})  # any tokenizer will do; attacks see ids alone
    x = torch.tensor([[words.index(word) for word in SENTENCE.split()]])
    space = Tokens(x.shape[1], vocab=len(words))
    standard = TextTransformer(vocab=space.vocab, length=space.length, width=width, classes=2)
    bare = TextTransformer(
        vocab=space.vocab, length=space.length, width=width, classes=2, residual=False, position_std=1.0
    )
    y = torch.tensor([1])

    exposed, refused, read = [], [], []
    for name, model, attack, defenses in (
        ("bag of tokens", standard, bag_of_tokens(), []),
        ("both tables", standard, token_positions(), []),
        ("both tables, 5 % noise", standard, token_positions(), [GaussianNoise(relative=0.05)]),
        ("both tables, positions withheld", standard, token_positions(), [Withhold(("position_embedding",))]),
        ("APRIL on bare attention", bare, april_text(), [Withhold(("token_embedding",))]),
    ):
        victim = Victim(model, space)
        try:
            found = attack(victim, share(victim, Gradient(), x, y, defenses=defenses))
        except Inapplicable as reason:
            refused.append(name)
            print(f"{name}: refused, {reason}\n")
            continue
        scores = score_text(found, x, y)
        if scores.tokens[0] == 1:
            exposed.append(name)
        read.append(f"{name}: {' '.join(words[i] for i in found.x[0].tolist())}")
        print(f"{name}: tokens in place {scores.tokens[0]:.0%}, order {scores.order[0]:.0%}, set {scores.recall:.0%}")
        print(f"  {read[-1].partition(': ')[2]}\n  {found.notes[0]}\n")
    (options.out / "read.txt").write_text("\n".join(read) + "\n")
    print(f"Finding: the whole sentence is read, word by word: {'; '.join(exposed)}. Refused: {'; '.join(refused)}.")


if __name__ == "__main__":
    main()
