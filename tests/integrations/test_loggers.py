import csv
import json

import pytest

from leakgauge.integrations.loggers import csv_log, jsonl_log, mlflow_log, tensorboard_log, wandb_log

FIRST, SECOND = {"privacy/alarm": 0.0}, {"privacy/alarm": 1.0, "privacy/layer/fc.weight": 0.25}


def test_csv_has_a_row_per_number(tmp_path):
    (tmp_path / "monitor.csv").touch()  # as made beforehand, by tempfile or touch
    log = csv_log(tmp_path / "monitor.csv")
    log(FIRST, 50)
    log(SECOND, 100)
    with (tmp_path / "monitor.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(int(r["step"]), r["name"], float(r["value"])) for r in rows] == [
        (50, "privacy/alarm", 0.0),
        (100, "privacy/alarm", 1.0),
        (100, "privacy/layer/fc.weight", 0.25),
    ]


def test_jsonl_has_a_line_per_report(tmp_path):
    log = jsonl_log(tmp_path / "monitor.jsonl")
    log(FIRST, 50)
    log(SECOND, 100)
    lines = [json.loads(line) for line in (tmp_path / "monitor.jsonl").read_text().splitlines()]
    assert lines == [{"step": 50, **FIRST}, {"step": 100, **SECOND}]


def test_tensorboard_reads_it_back(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = tensorboard_log(tmp_path)
    log(FIRST, 50)
    log(SECOND, 100)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("privacy/alarm")] == [(50, 0.0), (100, 1.0)]
    assert [(e.step, e.value) for e in events.Scalars("privacy/layer/fc.weight")] == [(100, 0.25)]


def test_mlflow_reads_it_back(tmp_path, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        log = mlflow_log()
        log(FIRST, 50)
        log(SECOND, 100)
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "privacy/alarm")
    assert [(m.step, m.value) for m in history] == [(50, 0.0), (100, 1.0)]


def test_wandb_gets_the_names_and_the_step():
    class Run:
        def __init__(self):
            self.rows = []

        def log(self, row):
            self.rows.append(row)

    run = Run()
    wandb_log(run)(SECOND, 100)
    assert run.rows == [{**SECOND, "privacy/step": 100}]


def test_wandb_writes_offline(tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(mode="offline", dir=str(tmp_path), settings=wandb.Settings(_disable_stats=True))
    try:
        wandb_log(run)(FIRST, 50)
        assert run.summary["privacy/step"] == 50
    finally:
        run.finish()
    assert list(tmp_path.rglob("*.wandb"))


@pytest.mark.parametrize("make", [csv_log, jsonl_log], ids=lambda f: f.__name__)
def test_a_folder_that_is_missing_is_an_error_of_the_logger(make, tmp_path):
    with pytest.raises(FileNotFoundError):
        make(tmp_path / "nowhere" / "file")(FIRST, 1)
