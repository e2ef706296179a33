"""The command ``leakgauge monitor``: trains something under the monitor's eyes and shows what it sees."""
