"""``python -m leakgauge`` is ``leakgauge``: for an environment whose programs are not on the path."""

from leakgauge.cli import program

if __name__ == "__main__":
    program()
