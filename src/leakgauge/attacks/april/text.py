"""Closed-form APRIL on text: recovers the input of the first self-attention, and from it the tokens by nearest embedding."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakgauge.attacks.april.closed_form import (
    attention_products,
    close,
    require_identity,
    require_one_step,
    tokens_from_attention,
)
from leakgauge.attacks.april.identifiability import identifiability
from leakgauge.channels.facts import require_shared
from leakgauge.core import Observation, Reconstruction, Signal, Victim
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.examples import example
from leakgauge.engine import Observed
from leakgauge.errors import Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.families import Attention
from leakgauge.inversion.labels import LabelRule, batch_size, infer_labels, labels_or_none
from leakgauge.inversion.text_tables import (
    Probe,
    TextModel,
    noise_size,
    position_table,
    probe,
    require_one_sentence,
    sent_ids,
    text_model,
)

COLUMNS = "Conv1D"
"""GPT-2's linear layer in transformers, with a weight of shape (inputs, outputs)."""


@dataclass(frozen=True)
class AprilText:
    """The attack made by :func:`april_text`."""

    labels: LabelRule

    @plain_defaults()
    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        began = time.perf_counter()
        require_one_sentence(batch_size(seen))
        require_one_step(seen)
        signal = Observed.check(seen.signal, victim).signal
        model = text_model(victim)
        table = position_table(model, victim, signal)
        attention, columns = _first_attention(victim, model, signal)
        tried = probe(model, victim, seed=seed, reads=attention.layers[0])
        embeddings, positions = _layout(victim, model, attention, tried, in_columns=columns)
        gradient = table[tried.places].double().cpu()
        stated = identifiability(gradient, None, table.dtype)
        products = attention_products(signal, victim.parameters(), attention, in_columns=columns)
        z = tokens_from_attention(gradient, products)
        among, known = _candidates(model, signal)
        ids = nearest_rows(z - positions, embeddings, among.cpu())
        x = victim.to_input(ids)[None]
        return Reconstruction.single(
            x,
            labels_or_none(self.labels, victim, seen, seed=seed),
            made_by=repr(self),
            began=began,
            notes=(str(stated), known),
        )


def nearest_rows(embedded: Tensor, table: Tensor, among: Tensor) -> Tensor:
    """The ids out of ``among`` with the row of ``table`` (vocabulary, width) nearest to each row of ``embedded``."""
    return among[torch.cdist(embedded, table[among]).argmin(1)]


def _first_attention(victim: Victim, model: TextModel, signal: Signal) -> tuple[Attention, bool]:
    """The first attention layer, and whether an output is a column of its weights; refuses unusable layers."""
    attention = model.roles.attention[0]
    kinds: set[str] = set()
    for name in attention.layers:
        layer = victim.model.get_submodule(name)
        kinds.add("Linear" if isinstance(layer, nn.Linear) else type(layer).__name__)
        if not kinds <= {"Linear", COLUMNS}:
            raise Inapplicable(f"{name} is a {type(layer).__name__}; the closed form needs linear layers")
        require_shared(signal, f"{name}.weight")
    return attention, kinds == {COLUMNS}


def _layout(
    victim: Victim, model: TextModel, attention: Attention, tried: Probe, *, in_columns: bool
) -> tuple[Tensor, Tensor]:
    """Token embedding (vocabulary, width) and the rows of the positions. Tests the model on the adversary's own ids, and refuses
    it if the first attention reads anything but their sum, or if Eq. (8) does not hold.
    """
    weights = {name: p.detach().double().cpu() for name, p in victim.model.named_parameters()}
    assert tried.inputs is not None
    assert model.position is not None
    positions = weights[model.position].flatten(0, -2)[tried.places.cpu()]
    z = tried.inputs.double().cpu()
    if z.shape != positions.shape or not close(z, weights[model.token][tried.ids.cpu()] + positions):
        raise Inapplicable(
            "the first attention does not read the sum of token and position embedding: there is something, such as a "
            "normalisation or a token type, between them"
        )
    gradient = position_table(model, victim, tried.signal)[tried.places].double().cpu()
    products = attention_products(tried.signal, victim.parameters(), attention, in_columns=in_columns)
    require_identity(gradient, z, products.cpu())
    return weights[model.token], positions


def _candidates(model: TextModel, signal: Signal) -> tuple[Tensor, str]:
    """Ids to choose from, and where they come from."""
    everything = torch.arange(model.space.vocab)
    if model.token not in signal:
        return everything, f"the gradient of {model.token} is not shared: nearest of all {model.space.vocab} tokens"
    rows = signal[model.token]
    found = sent_ids(rows, noise_size(rows, model.space.length))
    if model.padding is not None:
        found = torch.cat([found, found.new_tensor([model.padding])])
    if len(found) == 0:
        return everything, f"the gradient of {model.token} is zero: nearest of all {model.space.vocab} tokens"
    return found, f"nearest of {len(found)} tokens, those with a gradient in {model.token}"


@example("text_a")
@checked
def april_text() -> AprilText:
    """Lu et al. 2022 on text: the gradient of the positions gives the attention's input, its rows give the tokens.

        (∂l/∂E_pos)ᵀ z = Qᵀ ∂l/∂Q + Kᵀ ∂l/∂K + Vᵀ ∂l/∂V,     t_p = argmin_v ‖z_p − E_pos[p] − E[v]‖

    over the tokens v with a nonzero row in the token embedding's gradient, or over the whole vocabulary if that gradient is not
    shared; the order follows from the positions. Needs one sentence and a first attention that reads exactly the sum of token
    and position embedding, with nothing around it (architecture A, ``TextTransformer(residual=False)``, or GPT-2 after
    ``families.attention_first``). Standard BERT and GPT-2 are refused with the reason; use
    :func:`leakgauge.attacks.token_positions` for them. The notes of the result predict, before solving, what will be lost.

    Deviations: the paper inverts a patch embedding by its pseudo-inverse; ids are found by the nearest row.

    Ref: APRIL (Lu et al. 2022), Algorithm 1 — closed-form attack, on a look-up table
    """
    return AprilText(labels=infer_labels())
