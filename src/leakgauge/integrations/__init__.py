"""Adapters to other frameworks: where models come from, what the monitor is attached to, where cases run."""
