"""The command line: one file per command, the options they share, and what they show."""

from leakgauge.cli.app import app, main

__all__ = ["app", "main"]
