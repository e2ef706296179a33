"""Training scripts as users write them, and a recording to run them under."""

from __future__ import annotations

import pytest

from leakgauge.audit.questions.training import Recording, Settings

SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x, y = torch.randn(200, 12), torch.randint(0, 3, (200,))
model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
with torch.no_grad():
    nn.Linear(12, 2)(x)                      # something that is not trained
for epoch in range(int(sys.argv[1]) if len(sys.argv) > 1 else 2):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=10, shuffle=True):
        optimizer.zero_grad()
        criterion(model(a), b).backward()
        optimizer.step()
    # end of epoch
print("weights", float(sum(p.detach().double().sum() for p in model.parameters())))
"""


@pytest.fixture
def write(tmp_path):
    """Writes the script, with parts of it replaced, and gives its path."""

    def make(name: str = "train.py", **changes: str):
        text = SCRIPT
        for old, new in changes.items():
            marked = {"optimizer": "torch.optim.SGD(model.parameters(), lr=0.1)", "step": "optimizer.step()",
                      "end": "# end of epoch", "loss": "nn.CrossEntropyLoss()"}[old]  # fmt: skip
            assert marked in text
            text = text.replace(marked, new)
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return make


@pytest.fixture
def recording(tmp_path):
    """A recording that keeps what it is told to show."""

    def make(*, every: int = 10):
        seen: list = []
        (tmp_path / "run").mkdir(exist_ok=True)
        settings = Settings(every=every, view="released", seed=0, command="leakgauge monitor", about={"training": "t"})
        return Recording(tmp_path / "run", settings, shows=(seen.append,)), seen

    return make
