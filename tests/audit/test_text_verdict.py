"""Verdicts on text: the table by hand, nulls that need no update, and whole evaluations of attacks."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from leakgauge.attacks import bag_of_tokens, token_spans
from leakgauge.audit import evaluate_text, judge_text
from leakgauge.audit.cause import Cause
from leakgauge.audit.evaluate_text import explain_text, own_guesses
from leakgauge.audit.scoring import TextScores
from leakgauge.audit.text_verdict import READ, RECONSTRUCTED, strongest_null
from leakgauge.audit.verdict import Outcome
from leakgauge.channels import Gradient
from leakgauge.core import Assumption, Victim, share
from leakgauge.defenses import GaussianNoise
from leakgauge.errors import BadInput
from leakgauge.integrations.huggingface import load_text
from leakgauge.inversion.mismatch import layer_mismatch
from leakgauge.models import NextToken
from leakgauge.testing import tiny_case


def scores(rouge1, rouge_l, *, exact=None) -> TextScores:
    n = len(rouge1)
    return TextScores(
        tokens=(0.0,) * n, order=(0.0,) * n, tau=(0.0,) * n, precision=0.5, recall=0.5, exact=exact or (0.0,) * n,
        rouge1=rouge1, rouge2=(0.0,) * n, rouge_l=rouge_l,
    )  # fmt: skip


NULL = scores((0.2, 0.2), (0.1, 0.1))


@pytest.mark.parametrize(
    ("rouge1", "rouge_l", "outcome", "counts", "missed"),
    [
        ((1.0, 1.0), (1.0, 0.8), Outcome.FEASIBLE, (2, 2), None),
        ((1.0, 0.0), (0.8, 0.0), Outcome.FEASIBLE, (1, 1), RECONSTRUCTED[0]),
        ((0.5, 0.4), (0.4, 0.3), Outcome.PARTIAL, (0, 1), RECONSTRUCTED[0]),
        ((0.4, 0.4), (0.3, 0.3), Outcome.INCONCLUSIVE, (0, 0), READ[0]),
    ],
)
def test_the_table(rouge1, rouge_l, outcome, counts, missed):
    verdict = judge_text(scores(rouge1, rouge_l), NULL, cause=Cause.INFORMATION)
    assert verdict.outcome is outcome
    assert verdict.cause is (Cause.INFORMATION if outcome is Outcome.INCONCLUSIVE else None)
    assert (verdict.reconstructed, verdict.read) == counts
    assert verdict.missed == missed
    assert verdict.kind == "deployable"


def test_a_sentence_that_anyone_could_guess_is_no_leakage():
    easy = scores((1.0, 1.0), (0.9, 0.9))
    for cause in (Cause.INFORMATION, Cause.KNOWLEDGE, Cause.SEARCH, Cause.UNTESTED):
        verdict = judge_text(easy, easy, cause=cause)
        assert (verdict.outcome, verdict.cause) == (Outcome.INCONCLUSIVE, cause)  # text has no positive control
    given = judge_text(easy, NULL, (Assumption("labels", "diagnostic"),), certified=2)
    assert (given.kind, given.certified) == ("diagnostic", 2)


def test_a_failed_attack_on_text_says_why():
    victim, x, y = tiny_case("text_deep")
    seen = share(victim, Gradient(), x, y)
    right = replace(token_spans()(victim, seen), x=x)
    assert right.y is not None
    assert explain_text(victim, seen, right, x, y) is Cause.INFORMATION  # nothing fits better than the truth
    wrong = replace(right, x=(x + 1) % victim.space.vocab)
    assert explain_text(victim, seen, wrong, x, y) is Cause.SEARCH
    other = replace(seen, labels=(y + 1) % 2)  # wrong labels: ids that fit better with these than the truth does
    ids = torch.stack(
        [
            torch.randint(0, victim.space.vocab, x.shape[1:], generator=torch.Generator().manual_seed(k))
            for k in range(200)
        ]
    )
    fit = min(ids, key=lambda one: layer_mismatch(victim, other, one[None], other.labels))[None]
    assert layer_mismatch(victim, other, fit, other.labels) < layer_mismatch(victim, other, x, other.labels)
    assert explain_text(victim, other, replace(right, x=fit), x, y) is Cause.KNOWLEDGE
    assert explain_text(victim, seen, replace(right, y=None), x, y) is Cause.UNTESTED
    broken = replace(seen, signal={name: one * float("nan") for name, one in seen.signal.items()})
    assert explain_text(victim, broken, right, x, y) is Cause.UNTESTED


def test_the_best_guess_counts_sentence_by_sentence():
    best = strongest_null(scores((0.1, 0.9), (0.3, 0.0)), scores((0.5, 0.2), (0.1, 0.2)))
    assert best.rouge1 == (0.5, 0.9)
    assert best.rouge_l == (0.3, 0.2)


def test_an_exact_attack_is_feasible_and_a_bag_is_partial():
    victim, x, y = tiny_case("text_deep")
    exact = evaluate_text(token_spans(), victim, Gradient(), x, y)
    assert exact.verdict.outcome is Outcome.FEASIBLE
    assert (exact.verdict.exact, exact.verdict.certified) == (1, 1)
    assert {"random tokens", "null run"} <= set(exact.guesses)
    bag = evaluate_text(bag_of_tokens(), victim, Gradient(), x, y)
    assert bag.verdict.outcome is Outcome.PARTIAL
    assert bag.verdict.read == 1


def test_strong_noise_stops_the_attack_but_not_a_better_search():
    victim, x, y = tiny_case("text_deep")
    result = evaluate_text(token_spans(), victim, Gradient(), x, y, defenses=[GaussianNoise(relative=3.0)])
    assert (result.verdict.outcome, result.verdict.cause) == (Outcome.INCONCLUSIVE, Cause.SEARCH)
    assert result.verdict.certified == 0


def test_a_language_model_may_guess_what_it_knows_by_heart():
    """A model that always writes 5 after 4 and 4 after 5: a sentence of these is no leakage."""
    gpt2 = {"model_type": "gpt2", "vocab_size": 40, "n_embd": 16, "n_layer": 1, "n_head": 2}
    model, space = load_text({**gpt2, "bos_token_id": 1, "eos_token_id": 1}, length=6, language_model=True)

    class ByHeart(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, ids):
            return self.inner(ids) * 0 + 50 * F.one_hot(torch.where(ids == 4, 5, 4), 40)

    victim = Victim(ByHeart(), space, loss=NextToken())
    public = torch.tensor([[4, 4, 5, 5, 7, 8]])
    guesses = own_guesses(victim, 2, public, seed=0)
    assert guesses["language model"].tolist() == [[4, 5, 4, 5, 4, 5], [5, 4, 5, 4, 5, 4]]
    assert guesses["frequent tokens"].shape == (2, 6)


def test_images_are_refused():
    victim, x, y = tiny_case("mlp")
    with pytest.raises(BadInput, match="token ids"):
        evaluate_text(token_spans(), victim, Gradient(), x, y)
