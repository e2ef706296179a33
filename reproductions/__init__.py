"""Reproductions of papers. Each script runs as a module from the root of the repository: `python -m reproductions.april.table1`."""
