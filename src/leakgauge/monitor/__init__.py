"""Measures, while a model trains, what its gradients reveal about the batches they were computed on.

monitor = watch(model, optimizer, loss=criterion)
...                                              # the training loop, unchanged
print(monitor.report()); monitor.close()
"""

from leakgauge.measures.sketch import SignBucket
from leakgauge.monitor.guard import MonitorWarning
from leakgauge.monitor.leakage import Controls, Leakage, View
from leakgauge.monitor.monitor import Log, Monitor
from leakgauge.monitor.watch import watch
from leakgauge.monitor.whitebox import Protection, WhiteBox

__all__ = [  # noqa: RUF022 - in the order a reader meets them
    "watch", "Monitor", "Leakage", "Controls", "WhiteBox", "Protection", "View", "Log", "SignBucket", "MonitorWarning",
]  # fmt: skip
