"""Split inference: where a model can be cut between edge and cloud, how much leaks there, and what each cut costs."""

from leakgauge.split.attacker import Attacker
from leakgauge.split.cache import cache_features
from leakgauge.split.cuts import Cut, cuts
from leakgauge.split.export import ExportedHalves, export_halves
from leakgauge.split.halves import Halves, halves
from leakgauge.split.inverters import Inverter, RidgeInverter
from leakgauge.split.query import choose, offers, pareto, parse_constraints
from leakgauge.split.scan import CutRisk, Images, Scan, scan
from leakgauge.split.zone import Zone, find_zone

__all__ = [
    "Attacker",
    "Cut",
    "CutRisk",
    "ExportedHalves",
    "Halves",
    "Images",
    "Inverter",
    "RidgeInverter",
    "Scan",
    "Zone",
    "cache_features",
    "choose",
    "cuts",
    "export_halves",
    "find_zone",
    "halves",
    "offers",
    "pareto",
    "parse_constraints",
    "scan",
]
