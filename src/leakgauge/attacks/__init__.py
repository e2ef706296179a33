"""Attacks from the papers, one file each; ``ATTACKS`` lists those that need only options.

A decoder is an attack that must be trained first: :func:`fit_decoder` makes one from public images.
"""

from collections.abc import Callable

from leakgauge.attacks.april import april as april
from leakgauge.attacks.april.closed_form import april_closed_form as april_closed_form
from leakgauge.attacks.april.from_closed_form import april_from_closed_form as april_from_closed_form
from leakgauge.attacks.april.text import april_text as april_text
from leakgauge.attacks.bag_of_tokens import bag_of_tokens as bag_of_tokens
from leakgauge.attacks.decoder import DecoderInverter as DecoderInverter
from leakgauge.attacks.decoder import FittedDecoder as FittedDecoder
from leakgauge.attacks.decoder import fit_decoder as fit_decoder
from leakgauge.attacks.decoder import fit_on as fit_on
from leakgauge.attacks.denoised import denoised as denoised
from leakgauge.attacks.diffusion import diffusion as diffusion
from leakgauge.attacks.diffusion_guided import diffusion_guided as diffusion_guided
from leakgauge.attacks.dlg import dlg as dlg
from leakgauge.attacks.falling_variation import falling_variation as falling_variation
from leakgauge.attacks.feasibility import feasibility as feasibility
from leakgauge.attacks.feasibility import huang as huang
from leakgauge.attacks.feature_matching import feature_matching as feature_matching
from leakgauge.attacks.federated_averaging import federated_averaging as federated_averaging
from leakgauge.attacks.fishing import fishing as fishing
from leakgauge.attacks.generative_prior import generative_prior as generative_prior
from leakgauge.attacks.gradinversion import gradinversion as gradinversion
from leakgauge.attacks.idlg import idlg as idlg
from leakgauge.attacks.imprint import imprint as imprint
from leakgauge.attacks.inverting_gradients import inverting_gradients as inverting_gradients
from leakgauge.attacks.learned_inversion import learned_inversion as learned_inversion
from leakgauge.attacks.linear import linear as linear
from leakgauge.attacks.linear_rows import linear_rows as linear_rows
from leakgauge.attacks.patch_positions import patch_positions as patch_positions
from leakgauge.attacks.r_gap import r_gap as r_gap
from leakgauge.attacks.relu_batches import relu_batches as relu_batches
from leakgauge.attacks.sentences import sentences as sentences
from leakgauge.attacks.small_batches import small_batches as small_batches
from leakgauge.attacks.smooth_series import smooth_series as smooth_series
from leakgauge.attacks.strongest import Strongest as Strongest
from leakgauge.attacks.strongest import strongest as strongest
from leakgauge.attacks.tableak import tableak as tableak
from leakgauge.attacks.tables import tables as tables
from leakgauge.attacks.tag import tag as tag
from leakgauge.attacks.tag_read_labels import tag_read_labels as tag_read_labels
from leakgauge.attacks.token_positions import token_positions as token_positions
from leakgauge.attacks.token_spans import SpanLimit as SpanLimit
from leakgauge.attacks.token_spans import span_limits as span_limits
from leakgauge.attacks.token_spans import token_spans as token_spans
from leakgauge.core import Attack
from leakgauge.priors import fit_diffusion as fit_diffusion
from leakgauge.priors import fit_generator as fit_generator

ATTACKS: dict[str, Callable[..., Attack]] = {
    "strongest": strongest,
    "dlg": dlg,
    "idlg": idlg,
    "inverting_gradients": inverting_gradients,
    "falling_variation": falling_variation,
    "tag": tag,
    "tag_read_labels": tag_read_labels,
    "linear": linear,
    "r_gap": r_gap,
    "gradinversion": gradinversion,
    "generative_prior": generative_prior,
    "diffusion": diffusion,
    "diffusion_guided": diffusion_guided,
    "learned_inversion": learned_inversion,
    "april": april,
    "april_closed_form": april_closed_form,
    "patch_positions": patch_positions,
    "april_from_closed_form": april_from_closed_form,
    "april_text": april_text,
    "sentences": sentences,
    "bag_of_tokens": bag_of_tokens,
    "token_positions": token_positions,
    "token_spans": token_spans,
    "smooth_series": smooth_series,
    "tableak": tableak,
    "tables": tables,
    "feature_matching": feature_matching,
    "feasibility": feasibility,
    "huang": huang,
    "federated_averaging": federated_averaging,
    "linear_rows": linear_rows,
    "relu_batches": relu_batches,
    "small_batches": small_batches,
    "imprint": imprint,
    "fishing": fishing,
}
