"""Attacks of the papers, one file each; ``ATTACKS`` names all that need nothing but options.

A decoder is an attack that has to be trained first: :func:`fit_decoder` makes one from public images.
"""

from collections.abc import Callable

from leakgauge.attacks.april import april
from leakgauge.attacks.april_closed_form import april_closed_form
from leakgauge.attacks.decoder import DecoderInverter, FittedDecoder, fit_decoder, fit_on
from leakgauge.attacks.dlg import dlg
from leakgauge.attacks.idlg import idlg
from leakgauge.attacks.inverting_gradients import inverting_gradients
from leakgauge.attacks.linear import linear
from leakgauge.attacks.tag import tag
from leakgauge.core import Attack

ATTACKS: dict[str, Callable[..., Attack]] = {
    "dlg": dlg,
    "idlg": idlg,
    "inverting_gradients": inverting_gradients,
    "tag": tag,
    "linear": linear,
    "april": april,
    "april_closed_form": april_closed_form,
}

__all__ = [
    "ATTACKS",
    "DecoderInverter",
    "FittedDecoder",
    "april",
    "april_closed_form",
    "dlg",
    "fit_decoder",
    "fit_on",
    "idlg",
    "inverting_gradients",
    "linear",
    "tag",
]
