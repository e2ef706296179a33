"""Speed and quality, measured: `python -m benchmarks.engine` from the root of the repository."""
