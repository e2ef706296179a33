"""Run a Flower simulation, capture what the clients send with a mod, and attack the captured files.

    python examples/flower_simulation.py [--quick] [--out FOLDER]    needs: pip install 'leakgauge[flower,ray]'

A real round of Flower's own engine, which runs on Ray: the server sends the weights of the embedded network, two clients take
one step on one image each (in eval mode: fine-tuning with frozen batch norm), FedAvg averages. ``capture`` is a client mod; it
saves update = reply - request as it leaves. The second client adds noise by Flower's LocalDpMod. Then each file is attacked by
what ``leakgauge attack --update`` calls. Look at the mismatch (1 - cosine of the reconstruction's own update and the captured
one; all that an adversary sees) and at the pictures. About 28 s, quick 15 to 19 s, on one core.
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
from safetensors.torch import save_file
from torch import Tensor

from leakgauge import Pixels
from leakgauge.audit import Case
from leakgauge.audit.run import attack_captured
from leakgauge.audit.scoring import score_images
from leakgauge.data import MEAN, STD, fashion
from leakgauge.errors import MissingExtra
from leakgauge.integrations.captured import captured_observation, captured_victim
from leakgauge.models.pretrained import pretrained

SPACE = Pixels((1, 28, 28), mean=MEAN, std=STD)
CLIENTS, LR = ("plain", "with LocalDpMod"), 0.01


def weights_of(message: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in message.content["arrays"].to_torch_state_dict().items()}


def simulate(folder: Path) -> None:
    """One round of federated averaging. Clients run in processes of Ray, so the mod leaves files."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.clientapp.mod import LocalDpMod
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    def number(context: Context) -> int:
        return int(context.node_config["partition-id"])

    def capture(message: Message, context: Context, call_next: Any) -> Message:
        """The outermost mod: it sees the request as it comes and the reply as it leaves."""
        before, reply = weights_of(message), call_next(message, context)
        update = {name: value - before[name] for name, value in weights_of(reply).items()}
        save_file(update, folder / f"update-{number(context)}.safetensors")
        return reply

    def noise(message: Message, context: Context, call_next: Any) -> Message:
        if CLIENTS[number(context)] == "plain":
            return call_next(message, context)
        return LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=5.0, delta=1e-5)(message, context, call_next)

    client_app, server_app = ClientApp(mods=[capture, noise]), ServerApp()

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        model, (images, labels) = pretrained("cnn"), fashion("test")
        model.load_state_dict(weights_of(message))
        mine = slice(number(context), number(context) + 1)  # the client's private image
        torch.nn.functional.cross_entropy(model(SPACE.encode(images[mine])), labels[mine]).backward()
        with torch.no_grad():  # one step of SGD by hand: torch.optim imports torch's compiler, which takes 1.5 s
            for weight in model.parameters():
                weight -= LR * cast(Tensor, weight.grad)
        sent = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 1})}
        return Message(content=RecordDict(sent), reply_to=message)

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        start = pretrained("cnn").state_dict()
        save_file(start, folder / "weights.safetensors")
        FedAvg(fraction_evaluate=0.0).start(grid=grid, initial_arrays=ArrayRecord(start), num_rounds=1)

    logging.getLogger("flwr").setLevel(logging.ERROR)
    resources = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": 1, "log_to_driver": False, "include_dashboard": False},
    }
    run_simulation(server_app, client_app, num_supernodes=len(CLIENTS), backend_config=resources)


def attacked(folder: Path, client: int, *, steps: int) -> float:
    """Attacks a captured file as ``leakgauge attack --update`` does; returns the PSNR, for we alone have the truth."""
    case = Case(model="cnn", mode="eval", local_lr=LR, options={"steps": steps, "tv": 0.01})
    victim = captured_victim(case, folder / "weights.safetensors")
    seen = captured_observation(victim, folder / f"update-{client}.safetensors", case)
    (made := folder / f"client-{client}").mkdir(exist_ok=True)
    found = attack_captured(case, victim, seen, folder=made)
    print(f"client {client}, {CLIENTS[client]}: mismatch {found.mismatch:.2f}, null run {found.null_mismatch:.2f}")
    images = torch.from_numpy(np.load(made / "reconstruction.npz")["images"])
    return score_images(images, fashion("test")[0][client : client + 1]).psnr[0]


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
    psnr = [attacked(folder, client, steps=150 if options.quick else 1000) for client in range(len(CLIENTS))]
    said = ", ".join(f"{name} {value:.1f} dB" for name, value in zip(CLIENTS, psnr, strict=True))
    print(f"pictures: {folder}/client-*/pictures")
    print(f"Finding: what the captured update of each client gives back of its image: {said}.")


if __name__ == "__main__":
    main()
