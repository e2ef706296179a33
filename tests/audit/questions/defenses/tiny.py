"""The case that stands for the tiny victim."""

from leakgauge.audit.case import Case

CASE = Case(model="tiny", data="made", attack="inverting_gradients", options={"tv": 0.01})
