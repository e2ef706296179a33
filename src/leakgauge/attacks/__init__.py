"""Attacks of the papers, one file each; ``ATTACKS`` names them all."""

from collections.abc import Callable

from leakgauge.attacks.april import april
from leakgauge.attacks.april_closed_form import april_closed_form
from leakgauge.attacks.dlg import dlg
from leakgauge.attacks.feasibility import feasibility, huang
from leakgauge.attacks.federated_averaging import federated_averaging
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
    "feasibility": feasibility,
    "huang": huang,
    "federated_averaging": federated_averaging,
}

__all__ = [
    "ATTACKS",
    "april",
    "april_closed_form",
    "dlg",
    "feasibility",
    "federated_averaging",
    "huang",
    "idlg",
    "inverting_gradients",
    "linear",
    "tag",
]
