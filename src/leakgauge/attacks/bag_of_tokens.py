"""Finds which tokens occur: the rows of the token embedding that received a gradient."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.channels.facts import require_no_decay
from leakgauge.core import Observation, Reconstruction, Victim
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.examples import example
from leakgauge.engine import Observed
from leakgauge.errors import Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.inversion.labels import LabelRule, batch_size, infer_labels, labels_or_none
from leakgauge.inversion.text_tables import noise_size, output_of, probe, sent_ids, text_model, token_rows


@dataclass(frozen=True)
class BagOfTokens:
    """The attack made by :func:`bag_of_tokens`."""

    labels: LabelRule

    @plain_defaults()
    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        began = time.perf_counter()
        size = batch_size(seen)
        require_no_decay(seen.channel)
        signal = Observed.check(seen.signal, victim).signal
        model = text_model(victim)
        rows = token_rows(model, victim, signal)
        slots = size * model.space.length
        output = output_of(model, rows, probe(model, victim, seed=seed), slots)
        noise = noise_size(rows, slots) if output is None else 0.0
        doubtful = 0
        if output is not None:
            doubtful, rows = output.doubtful(rows), output.without(rows)
        found = sent_ids(rows, noise if output is None else output.floor)
        if len(found) == 0:
            raise Inapplicable(f"no row of the gradient of {model.token} stands out, so no token can be read")
        if len(found) < doubtful:
            raise Inapplicable(
                f"{model.token} is also the output layer, which hides most of its rows: {len(found)} are "
                f"certainly of tokens, {doubtful} others of tokens or of rounding, so most of the batch would be missing"
            )
        notes = ["a bag of tokens: the order and the sentence of each token are unknown"]
        if output is not None:
            notes.append(f"{model.token} is also the output layer; its {output.basis.shape[1]} directions were removed")
        if doubtful:
            notes.append(f"rows that may be of tokens or of rounding, left out: {doubtful}")
        if noise:
            notes.append(
                f"more rows differ from zero than {slots} tokens can fill: only those larger than the noise were used"
            )
        if len(found) < slots:
            notes.append(f"{len(found)} distinct tokens for {slots} places: how often each occurs is an estimate")
        if model.padding is not None:
            notes.append(f"token {model.padding} is padding, gets no gradient and is never seen")
        ids = fill_places(rows[found].norm(dim=1), slots)
        x = victim.to_input(found[ids].sort().values.view(size, model.space.length))
        return Reconstruction.single(
            x, labels_or_none(self.labels, victim, seen, seed=seed), made_by=repr(self), began=began, notes=tuple(notes)
        )


def fill_places(sizes: Tensor, slots: int) -> Tensor:
    """Shares ``slots`` places among the rows: one for each row, largest first, then one by one to the row with the most size per place.

    Exact if there are as many rows as places; otherwise an estimate, because a token that occurs several times need not have a
    larger row.
    """
    counts = torch.zeros_like(sizes, dtype=torch.long)
    counts[sizes.argsort(descending=True)[:slots]] = 1
    while int(counts.sum()) < slots:
        counts[(sizes / (counts + 1)).argmax()] += 1
    return torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), counts)


@example("text")
@checked
def bag_of_tokens() -> BagOfTokens:
    """Melis et al. 2019: the gradient of a look-up table has rows for the tokens that were looked up, and zeros elsewhere.

        {tokens} = {v : ∂l/∂E_v ≠ 0},     ∂l/∂E_v = Σ over the places of v of ∂l/∂(embedded input there)

    Works for batches, weight updates and any number of local steps. Needs the token embedding to be trained and shared. An
    output layer tied to it fills every row. The adversary detects this with its own ids and removes that part
    (:func:`leakgauge.inversion.text_tables.output_part`), provided that fewer places are predicted than the model is wide. A
    padding token is not trained and so not seen. Under noise every row differs from zero; then only rows larger than the noise count.

    Deviations: the paper infers membership of words; here the tokens are also laid out as sentences, ordered by id. If the number of
    occurrences is not certain, it is estimated from the size of the row. The order has no meaning.

    Ref: Melis et al. 2019, leakage from the embedding layer — tokens from non-zero rows
    """
    return BagOfTokens(labels=infer_labels())
