"""One self-contained HTML page, made from the records of a run folder and from nothing else."""
