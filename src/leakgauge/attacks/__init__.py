"""Attacks of the papers, one file each; ``ATTACKS`` names all that need nothing but options.

A decoder is an attack that has to be trained first: :func:`fit_decoder` makes one from public images.
"""

from collections.abc import Callable

from leakgauge.attacks.april import april
from leakgauge.attacks.april.closed_form import april_closed_form
from leakgauge.attacks.april.from_closed_form import april_from_closed_form
from leakgauge.attacks.april.text import april_text
from leakgauge.attacks.bag_of_tokens import bag_of_tokens
from leakgauge.attacks.decoder import DecoderInverter, FittedDecoder, fit_decoder, fit_on
from leakgauge.attacks.dlg import dlg
from leakgauge.attacks.feasibility import feasibility, huang
from leakgauge.attacks.feature_matching import feature_matching
from leakgauge.attacks.federated_averaging import federated_averaging
from leakgauge.attacks.fishing import fishing
from leakgauge.attacks.generative_prior import generative_prior
from leakgauge.attacks.generator import fit_generator
from leakgauge.attacks.gradinversion import gradinversion
from leakgauge.attacks.idlg import idlg
from leakgauge.attacks.imprint import imprint
from leakgauge.attacks.inverting_gradients import inverting_gradients
from leakgauge.attacks.linear import linear
from leakgauge.attacks.linear_rows import linear_rows
from leakgauge.attacks.r_gap import r_gap
from leakgauge.attacks.tag import tag
from leakgauge.attacks.tag_read_labels import tag_read_labels
from leakgauge.attacks.token_positions import token_positions
from leakgauge.core import Attack

ATTACKS: dict[str, Callable[..., Attack]] = {
    "dlg": dlg,
    "idlg": idlg,
    "inverting_gradients": inverting_gradients,
    "tag": tag,
    "tag_read_labels": tag_read_labels,
    "linear": linear,
    "r_gap": r_gap,
    "gradinversion": gradinversion,
    "generative_prior": generative_prior,
    "april": april,
    "april_closed_form": april_closed_form,
    "april_from_closed_form": april_from_closed_form,
    "april_text": april_text,
    "bag_of_tokens": bag_of_tokens,
    "token_positions": token_positions,
    "feature_matching": feature_matching,
    "feasibility": feasibility,
    "huang": huang,
    "federated_averaging": federated_averaging,
    "linear_rows": linear_rows,
    "imprint": imprint,
    "fishing": fishing,
}

__all__ = [
    "ATTACKS",
    "DecoderInverter",
    "FittedDecoder",
    "april",
    "april_closed_form",
    "april_from_closed_form",
    "april_text",
    "bag_of_tokens",
    "dlg",
    "feasibility",
    "feature_matching",
    "federated_averaging",
    "fishing",
    "fit_decoder",
    "fit_generator",
    "fit_on",
    "generative_prior",
    "gradinversion",
    "huang",
    "idlg",
    "imprint",
    "inverting_gradients",
    "linear",
    "linear_rows",
    "r_gap",
    "tag",
    "tag_read_labels",
    "token_positions",
]
