"""Attention leaks data: APRIL (Lu et al. 2022)."""
