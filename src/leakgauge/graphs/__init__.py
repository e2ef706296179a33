"""A model's computation as a graph, and the two halves on either side of any point in it."""

from leakgauge.graphs.points import Cost, Point, TensorSpec, Traced
from leakgauge.graphs.trace import example_of, find, same_draws, trace, trace_of

__all__ = ["Cost", "Point", "TensorSpec", "Traced", "example_of", "find", "same_draws", "trace", "trace_of"]
