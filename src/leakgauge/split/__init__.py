"""Split inference: where a model can be cut between edge and cloud, and how much leaks there."""
