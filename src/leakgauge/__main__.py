"""``python -m leakgauge`` is ``leakgauge``: for an environment whose programs are not on the path."""

from leakgauge.cli import main

if __name__ == "__main__":
    main()
