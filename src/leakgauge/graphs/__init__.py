"""A model's computation as a graph, and the two halves on either side of any point of it."""

from leakgauge.graphs.points import EdgeCost, Point, TensorSpec, Traced
from leakgauge.graphs.trace import example_of, find_point, fixed_draws, trace, trace_of

__all__ = ["EdgeCost", "Point", "TensorSpec", "Traced", "example_of", "find_point", "fixed_draws", "trace", "trace_of"]
