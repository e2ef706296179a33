"""The command line: one file per command, the options they share, and what they show."""

from leakgauge.cli.app import app, main, program

__all__ = ["app", "main", "program"]
