"""Privacy tokens: leakage measured during training."""
