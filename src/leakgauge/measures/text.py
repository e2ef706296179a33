"""How similar two sentences of token ids are: token by token, as sets, and in order."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from leakgauge.errors import BadInput


def token_accuracy(guesses: Tensor, truths: Tensor) -> Tensor:
    """Share of positions with the right id in each sentence (N, length); shape (N,), float64."""
    _check(guesses, truths)
    return (guesses == truths).double().mean(1)


def pair_sentences(guesses: Tensor, truths: Tensor) -> Tensor:
    """Index of the truth matched to each guess: the one-to-one matching with the most right positions in total.

    >>> truths = torch.tensor([[1, 2], [3, 4]])
    >>> pair_sentences(truths[[1, 0]], truths).tolist()
    [1, 0]
    """
    _check(guesses, truths)
    right = (guesses[:, None] == truths[None]).sum(2)
    from scipy.optimize import linear_sum_assignment  # here, because it takes longer to import than this whole package

    _, columns = linear_sum_assignment(-right.cpu().numpy())
    return torch.as_tensor(columns, dtype=torch.long, device=guesses.device)


def set_precision_recall(guesses: Tensor, truths: Tensor) -> tuple[float, float]:
    """Share of the distinct guessed ids that occur in the truth, and share of the distinct true ids that were guessed.

    Both over the whole batch: a bag of tokens does not know which sentence a token comes from.
    """
    found, wanted = set(guesses.flatten().tolist()), set(truths.flatten().tolist())
    if not found or not wanted:
        raise BadInput("precision and recall of tokens need at least one token on either side")
    both = len(found & wanted)
    return both / len(found), both / len(wanted)


def adjacent_pairs(guesses: Tensor, truths: Tensor) -> Tensor:
    """Share of the adjacent pairs of each true sentence that are also adjacent in the guess, shape (N,).

    A pair that occurs several times counts as often as both sentences have it. The position of a pair does not matter, so
    shifted text keeps its score. A sentence of one token has no pair and scores 1 if it is right.
    """
    _check(guesses, truths)
    if truths.shape[1] < 2:
        return token_accuracy(guesses, truths)
    return torch.tensor([_shared_pairs(g, t) for g, t in zip(guesses, truths, strict=True)], dtype=torch.float64)


def _shared_pairs(guess: Tensor, truth: Tensor) -> float:
    pairs = [torch.stack([s[:-1], s[1:]], 1) for s in (guess, truth)]
    _, which = torch.unique(torch.cat(pairs), dim=0, return_inverse=True)
    mine, theirs = (torch.bincount(part, minlength=int(which.max()) + 1) for part in which.split(len(pairs[0])))
    return float(torch.minimum(mine, theirs).sum()) / len(pairs[0])


def exact_sentences(guesses: Tensor, truths: Tensor) -> Tensor:
    """1 where every id of the sentence is right, else 0; shape (N,), float64."""
    _check(guesses, truths)
    return (guesses == truths).all(1).double()


def rouge_n(guesses: Tensor, truths: Tensor, n: int, *, padding: int | None = None) -> Tensor:
    """ROUGE-n as F-measure on token ids, in [0, 1], shape (N,): 2 · shared / (runs of n tokens in the guess + those in the truth).

    A run of ``n`` neighbouring tokens is shared as often as both sentences have it. ``padding`` is left out. If the truth has no run, the
    score is 1 if the guess has none either.

    Ref: Lin 2004, section 2 — ROUGE-N

    >>> rouge_n(torch.tensor([[1, 2, 4]]), torch.tensor([[1, 2, 3]]), 1).item()
    0.6666666666666666
    """
    _check(guesses, truths)
    if n < 1:
        raise BadInput(f"ROUGE-n needs runs of at least 1 token, got n = {n}")
    pairs = zip(_texts(guesses, padding), _texts(truths, padding), strict=True)
    return torch.tensor([_f_measure(*_shared_runs(g, t, n)) for g, t in pairs], dtype=torch.float64)


def rouge_l(guesses: Tensor, truths: Tensor, *, padding: int | None = None) -> Tensor:
    """ROUGE-L as F-measure on token ids, in [0, 1], shape (N,): 2 · longest common subsequence / (length of the guess + of the truth).

    Ref: Lin 2004, section 3 — ROUGE-L

    >>> rouge_l(torch.tensor([[1, 3, 2, 4]]), torch.tensor([[1, 2, 3, 4]])).item()
    0.75
    """
    _check(guesses, truths)
    pairs = zip(_texts(guesses, padding), _texts(truths, padding), strict=True)
    return torch.tensor([_f_measure(_common(g, t), len(g), len(t)) for g, t in pairs], dtype=torch.float64)


def _texts(ids: Tensor, padding: int | None) -> list[list[int]]:
    return [[token for token in row if token != padding] for row in ids.tolist()]


def _shared_runs(guess: list[int], truth: list[int], n: int) -> tuple[int, int, int]:
    mine, theirs = (Counter(tuple(s[k : k + n]) for k in range(len(s) - n + 1)) for s in (guess, truth))
    return (mine & theirs).total(), mine.total(), theirs.total()


def _f_measure(shared: int, mine: int, theirs: int) -> float:
    return 2 * shared / (mine + theirs) if mine + theirs else 1.0


def _common(a: list[int], b: list[int]) -> int:
    """Length of the longest common subsequence."""
    best = [0] * (len(b) + 1)
    for one in a:
        diagonal = 0
        for k, other in enumerate(b, 1):
            above = best[k]
            best[k] = diagonal + 1 if one == other else max(above, best[k - 1])
            diagonal = above
    return best[-1]


def most_frequent(ids: Tensor, count: int, length: int) -> Tensor:
    """A guess without any update: sentences (count, length) of the most frequent of ``ids``, which are public text of the same kind.

    The most frequent tokens are dealt out in turn, so the batch holds as many different ones as it has places, as far as there are.
    """
    tokens, counts = ids.flatten().unique(return_counts=True)
    ranked = tokens[counts.argsort(descending=True, stable=True)]
    dealt = torch.arange(count * length, device=ids.device) % len(ranked)
    return ranked[dealt].view(length, count).T.contiguous()


def kendall_tau(guesses: Tensor, truths: Tensor) -> Tensor:
    """Agreement of the order of the tokens that occur once in both sentences, in [-1, 1], shape (N,).

    τ = (pairs in the same order − pairs in the other order) / pairs. NaN if fewer than two tokens can be compared.
    """
    _check(guesses, truths)
    return torch.tensor([_tau(g, t) for g, t in zip(guesses, truths, strict=True)], dtype=torch.float64)


def _tau(guess: Tensor, truth: Tensor) -> float:
    same = guess[:, None] == truth[None]
    once = same & (same.sum(1, keepdim=True) == 1) & (same.sum(0) == 1)
    place, true_place = once.nonzero(as_tuple=True)  # positions in the guess in order, and their true positions
    pairs = len(place) * (len(place) - 1) / 2
    if pairs == 0:
        return float("nan")
    order = torch.sign(true_place[None] - true_place[:, None]).triu(1)
    return float(order.sum()) / pairs


def _check(guesses: Tensor, truths: Tensor) -> None:
    if guesses.shape != truths.shape or guesses.dim() != 2 or guesses.numel() == 0:
        raise BadInput(
            f"sentences must be two batches of ids of one shape (N, length), got {tuple(guesses.shape)} and "
            f"{tuple(truths.shape)}"
        )
