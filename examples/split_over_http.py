"""Run the two halves of a network as two processes that talk over HTTP, and see what the second one could look at.

python examples/split_over_http.py [--quick] [--cut features.pool1]

The edge (this process) keeps the images and sends features; the cloud (its child) holds the second half as a file and answers
with class scores. Only the standard library and torch carry the tensors.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tempfile
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import torch
from torch import Tensor

from leakgauge import Pixels, Victim, share
from leakgauge.attacks import feature_matching
from leakgauge.audit import score
from leakgauge.channels import Features
from leakgauge.data import MEAN, STD, fashion
from leakgauge.models.pretrained import pretrained
from leakgauge.split import export_halves


def packed(tensors: list[Tensor]) -> bytes:
    file = io.BytesIO()
    torch.save(tensors, file)
    return file.getvalue()


def unpacked(data: bytes) -> list[Tensor]:
    return torch.load(io.BytesIO(data), weights_only=True)  # tensors and nothing that runs


def cloud(folder: Path) -> None:
    """Serves the second half on a free port, which it prints."""
    model = torch.export.load(folder / "cloud.pt2").module()

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = unpacked(self.rfile.read(int(self.headers["Content-Length"])))
            with torch.no_grad():
                reply = packed([model(*sent)])
            self.send_response(200)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is written beside the port."""

    server = HTTPServer(("127.0.0.1", 0), Answer)
    print(server.server_port, flush=True)
    server.serve_forever()


def edge(folder: Path, images: Tensor, port: int) -> tuple[Tensor, int]:
    """Scores of the images from the cloud, and the number of bytes that were sent."""
    first = torch.export.load(folder / "edge.pt2").module()
    with torch.no_grad():
        body = packed(list(first(images)))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", data=body, timeout=60) as reply:
        return unpacked(reply.read())[0], len(body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps of the attack, to see that it runs")
    parser.add_argument("--cut", default="features.pool1", help="where to cut; leakgauge.split.cuts lists them")
    parser.add_argument("--cloud", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cloud is not None:
        cloud(options.cloud)
        return

    victim = Victim(pretrained("vgg"), Pixels((1, 28, 28), mean=MEAN, std=STD), name="vgg")
    images, labels = (part[:4] for part in fashion("test"))
    x = victim.space.encode(images)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export_halves(victim, options.cut, folder, formats=["pt2"])
        command = [sys.executable, __file__, "--cloud", str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            try:
                assert child.stdout is not None
                scores, sent = edge(folder, x, int(child.stdout.readline()))
            finally:
                child.terminate()
    with torch.no_grad():
        off = float((scores - victim(x)).abs().max())
    print(f"the cloud says {scores.argmax(1).tolist()}, the whole model differs by {off:.1e}; {sent} bytes were sent")

    seen = share(victim, Features(options.cut), x, labels)
    attack = feature_matching(steps=30 if options.quick else 500)
    found = score(attack(victim, seen), x, labels, space=victim.space)
    print(f"what the cloud can reconstruct of the images at {options.cut}: PSNR {sum(found.psnr) / 4:.1f} dB")


if __name__ == "__main__":
    main()
