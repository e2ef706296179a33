"""Tokens and their order from the gradients of two look-up tables: token embedding and position embedding."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.channels.facts import require_gradients, require_no_decay
from leakgauge.core import Observation, Reconstruction, Victim
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.examples import example
from leakgauge.engine import Observed
from leakgauge.errors import Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.inversion.labels import LabelRule, batch_size, infer_labels, labels_or_none
from leakgauge.inversion.row_cover import NONE, Cover, cover
from leakgauge.inversion.text_tables import (
    ABOVE,
    Output,
    TextModel,
    noise_size,
    output_of,
    position_table,
    probe,
    require_one_sentence,
    require_sums,
    row_rounding,
    sent_ids,
    text_model,
    token_rows,
)


@dataclass(frozen=True)
class TokenPositions:
    """The attack made by :func:`token_positions`."""

    labels: LabelRule

    @plain_defaults()
    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        began = time.perf_counter()
        require_one_sentence(batch_size(seen))
        require_gradients(seen.channel)
        require_no_decay(seen.channel)
        signal = Observed.check(seen.signal, victim).signal
        model = text_model(victim)
        rows, table = token_rows(model, victim, signal), position_table(model, victim, signal)
        tried = probe(model, victim, seed=seed)
        require_sums(model, victim, tried)
        parts = table[tried.places]
        relative, absolute = row_rounding(rows, victim.parameters()[model.token], seen.channel, batch_size(seen))
        output = output_of(model, rows, tried, model.space.length)
        if output is not None:
            rows, parts, noise, floor = output.without(rows), output.without(parts), 0.0, output.floor
        else:
            floor = noise = noise_size(rows, model.space.length)
        alive, found = sent_ids(parts, floor), sent_ids(rows, floor)
        if len(found) == 0 or len(alive) == 0:
            raise Inapplicable("no row stands out in the gradients of both embeddings, so no token can be read")
        loose = model.padding is not None or noise > 0
        solved = cover(rows[found], parts[alive], relative=relative, absolute=absolute + ABOVE * floor, loose=loose)
        filler = 0 if model.padding is None else model.padding
        ids = torch.full((model.space.length,), filler, device=rows.device)
        ids[alive] = torch.where(solved.owner == NONE, filler, found[solved.owner])
        x = victim.to_input(ids)[None]
        return Reconstruction.single(
            x,
            labels_or_none(self.labels, victim, seen, seed=seed),
            loss=solved.residual,
            made_by=repr(self),
            began=began,
            notes=_notes(model, solved, parts[alive], noise, output),
        )


def _notes(model: TextModel, solved: Cover, parts: Tensor, noise: float, output: Output | None) -> tuple[str, ...]:
    """What is certain and what is not, from the adversary's point of view."""
    silent = model.space.length - len(parts)
    if not solved.exact:
        found = [f"the rows are explained up to {solved.residual:.1e}: a best guess"]
    elif noise:  # its size is an estimate, so nothing is proven
        found = ["every row that stands out is explained within the noise"]
    elif solved.unique:
        found = [
            f"every row is explained exactly, and no other order of {'these' if silent else 'the'} tokens explains them"
        ]
    else:
        found = ["every row is explained exactly; another order of tokens may explain them too"]
    if noise:
        found.append(
            f"more rows differ from zero than {model.space.length} tokens can fill: the smaller ones are treated as noise"
        )
    if output is not None:
        found.append(f"{model.token} is also the output layer; its {output.basis.shape[1]} directions were removed")
    if silent:
        why = "no gradient above the noise" if noise else "no gradient (nothing reads them, or it was rounded to zero)"
        found.append(f"{silent} positions got {why}, so their tokens are unknown")
    alike = equal_rows(parts)
    if alike:
        found.append(f"{alike} positions share their gradient with another: their tokens may be swapped")
    unowned = int((solved.owner == NONE).sum())
    if unowned:
        found.append(
            f"{unowned} positions fit no row" + ("" if model.padding is None else " and are treated as padding")
        )
    return tuple(found)


def equal_rows(parts: Tensor) -> int:
    """How many rows occur more than once."""
    counts = torch.unique(parts, dim=0, return_counts=True)[1]
    return int(counts[counts > 1].sum())


@example("text")
@checked
def token_positions() -> TokenPositions:
    """If a position embedding is added to the token embedding, both gradients consist of the same rows.

        h_p = E[t_p] + E_pos[p],   δ_p = ∂l/∂h_p   ⟹   ∂l/∂E_pos[p] = δ_p,   ∂l/∂E[v] = Σ_{p: t_p = v} δ_p

    So the shared gradient of the positions lists the δ_p one by one, and each row of the token embedding's gradient is the sum
    of the δ_p at the positions of its token. Finding them is an exact cover problem, solved by equality, least squares or
    integer search (:func:`leakgauge.inversion.row_cover.cover`); tokens and order follow. The network after the sum does not
    matter, so residual connections, normalisation (BERT), causal masks (GPT-2) and dropout after the sum do no harm. Neither
    do several local steps on the same sentence, because the relation is linear.

    Needs both embeddings trained and shared, and a single sentence: a batch sums its δ_p by position. An output layer tied to
    the token embedding (language models) adds to every row; its part spans as many directions as there are predicted places
    and is removed from both gradients (:func:`leakgauge.inversion.text_tables.output_part`). If no direction is left, the model
    is refused. Further summands, such as BERT's token types, do not matter. Padding has no row and is what remains. The
    adversary first tests the relation on its own ids. The notes say whether the solution is unique; positions with equal δ_p
    cannot be distinguished, and those that nothing reads (δ_p = 0) cannot be recovered.

    Deviations: APRIL uses ∂l/∂E_pos = ∂l/∂z for a linear system in z, which needs a bare first attention. Here only that
    gradient is used, together with the token embedding's, which the paper does not do.

    Ref: APRIL (Lu et al. 2022), Theorem 3.2 and Eq. (9) — the gradient of the positions is that of the embedded input
    """
    return TokenPositions(labels=infer_labels())
