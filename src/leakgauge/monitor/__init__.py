"""Measuring leakage while a model trains."""
