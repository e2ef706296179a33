"""Run a Flower simulation, capture what the clients send with one mod, and attack the captured files.

    python examples/flower_simulation.py [--quick] [--out FOLDER]    needs: pip install 'leakgauge[flower,ray]'

A real round of Flower's own engine, which runs on Ray: the server sends the weights of the embedded network, two clients take
one step on one image each (in eval mode: fine-tuning with frozen batch norm), FedAvg averages. ``capture`` saves what leaves each
client; the second one adds noise by Flower's LocalDpMod. Then each file is attacked as ``leakgauge attack --update`` does, and
compared with the client's own image. Look at the pages. About 28 s, quick 15 to 19 s, on one core.
"""

from __future__ import annotations

import argparse
import logging
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from leakgauge import Pixels
from leakgauge.audit import Case
from leakgauge.data import MEAN, STD, fashion
from leakgauge.errors import MissingExtra
from leakgauge.integrations.captured import attack_file
from leakgauge.integrations.flower import capture
from leakgauge.models.pretrained import pretrained
from leakgauge.report import page

SPACE = Pixels((1, 28, 28), mean=MEAN, std=STD)
CLIENTS = ("plain", "with LocalDpMod")


def simulate(folder: Path) -> None:
    """One round of federated averaging. Clients run in processes of Ray."""
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.clientapp.mod import LocalDpMod
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    def noise(message: Message, context: Context, call_next: Any) -> Message:
        if CLIENTS[int(context.node_config["partition-id"])] == "plain":
            return call_next(message, context)
        return LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=5.0, delta=1e-5)(message, context, call_next)

    client_app, server_app = ClientApp(mods=[capture(folder, local_steps=1), noise]), ServerApp()

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        model, (images, labels) = pretrained("cnn"), fashion("test")
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        first, lr = (
            int(context.node_config["partition-id"]),
            cast(float, message.content.config_records["config"]["lr"]),
        )
        x, y = images[first : first + 1], labels[first : first + 1]  # the client's private image
        np.savez(folder / f"truth-{first}.npz", images=x.numpy(), labels=y.numpy())
        torch.nn.functional.cross_entropy(model(SPACE.encode(x)), y).backward()
        with torch.no_grad():  # one step of SGD by hand: torch.optim imports torch's compiler, which takes 1.5 s
            for weight in model.parameters():
                weight -= lr * cast(Tensor, weight.grad)
        sent = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 1})}
        return Message(content=RecordDict(sent), reply_to=message)

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        start, config = ArrayRecord(pretrained("cnn").state_dict()), ConfigRecord({"lr": 0.01})
        FedAvg(fraction_evaluate=0.0).start(grid=grid, initial_arrays=start, num_rounds=1, train_config=config)

    logging.getLogger("flwr").setLevel(logging.ERROR)
    resources = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": 1, "log_to_driver": False, "include_dashboard": False},
    }
    run_simulation(server_app, client_app, num_supernodes=len(CLIENTS), backend_config=resources)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps of the attack")
    parser.add_argument("--out", type=Path, default=Path("leakgauge-runs/example-flower_simulation"), help="run folder")
    options = parser.parse_args()
    for package, extra in (("flwr", "flower"), ("ray", "ray")):
        if find_spec(package) is None:
            parser.exit(2, f"{MissingExtra(package, extra)}\n")
    folder = options.out.resolve()  # Ray's processes have a working directory of their own
    folder.mkdir(parents=True, exist_ok=True)
    os.environ |= {"FLWR_HOME": str(folder / "flwr"), "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    os.environ |= {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}  # keeps a warning of Ray's away
    simulate(folder)
    settings = {"steps": 150 if options.quick else 1000, "tv": 0.01}
    case, said = Case(model="cnn", attack="inverting_gradients", options=settings), []
    for client, name in enumerate(CLIENTS):
        update, truth = folder / f"round-1-client-{client}/update.safetensors", folder / f"truth-{client}.npz"
        found = attack_file(case, update, folder=update.parent, truth=truth)
        assert found.scores is not None
        said.append(f"{name} {found.scores.psnr[0]:.1f} dB")
        print(f"client {client}, {name}: {page.write(update.parent)}")
    print(f"Finding: what the captured update of each client gives back of its image: {', '.join(said)}.")


if __name__ == "__main__":
    main()
