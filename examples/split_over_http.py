"""Run the two halves of a network as two processes that talk over HTTP, and attack what went over the wire.

    python examples/split_over_http.py [--quick] [--cut NAME ...] [--out FOLDER]

The edge (this process) keeps the images and sends features; the cloud (its child) holds the second half as a file, answers with
class scores, and keeps what it was sent. A curious cloud that has the first half too, and images of the same kind, then fits a
ridge regression from features to images. Look at ``pictures/``: originals above, what the cloud made of them below. Only the
standard library and torch carry the tensors. Quick: one cut. Full: also a deeper one. About 16 s, quick 10 s, on one core.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import torch
from torch import Tensor

from leakgauge import Pixels, Victim
from leakgauge.audit.files import save_strip
from leakgauge.data import MEAN, STD, fashion
from leakgauge.measures.image import psnr
from leakgauge.models.pretrained import pretrained
from leakgauge.split import RidgeInverter, export_halves

SENT = "sent.pt"
"""What the cloud received, as it came."""


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
            body = self.rfile.read(int(self.headers["Content-Length"]))
            (folder / SENT).write_bytes(body)  # nobody would notice
            with torch.no_grad():
                reply = packed([model(*unpacked(body))])
            self.send_response(200)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is written beside the port."""

    server = HTTPServer(("127.0.0.1", 0), Answer)
    print(server.server_port, flush=True)
    server.serve_forever()


def served(folder: Path, x: Tensor) -> Tensor:
    """Class scores of the private images, from the cloud; their features are all that leaves this process."""
    edge = torch.export.load(folder / "edge.pt2").module()
    with subprocess.Popen(
        [sys.executable, __file__, "--cloud", str(folder)], stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            with torch.no_grad():
                body = packed(list(edge(x)))
            with urllib.request.urlopen(
                f"http://127.0.0.1:{int(child.stdout.readline())}/", data=body, timeout=60
            ) as reply:
                return unpacked(reply.read())[0]
        finally:
            child.terminate()


def inverted(folder: Path, space: Pixels, *, count: int) -> Tensor:
    """The cloud's attack: it runs the first half on images of its own and learns the way back."""
    edge, own = torch.export.load(folder / "edge.pt2").module(), fashion("train")[0][:count]
    with torch.no_grad():
        (features,) = edge(space.encode(own))
    (sent,) = unpacked((folder / SENT).read_bytes())
    return RidgeInverter()(features, own)(sent).float()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one cut, and fewer images for the attack")
    parser.add_argument("--cut", action="append", help="where to cut, repeatable; leakgauge.split.cuts lists them")
    parser.add_argument("--out", type=Path, default=Path("leakgauge-runs/example-split_over_http"), help="run folder")
    parser.add_argument("--cloud", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cloud is not None:
        return cloud(options.cloud)

    space = Pixels((1, 28, 28), mean=MEAN, std=STD)
    victim, images = Victim(pretrained("vgg"), space, name="vgg"), fashion("test")[0][:8]
    x, said = space.encode(images), []
    for cut in options.cut or (["features.pool1"] if options.quick else ["features.pool1", "features.pool3"]):
        folder = options.out / cut
        export_halves(victim, cut, folder, formats=["pt2"])
        scores = served(folder, x)
        with torch.no_grad():
            off = float((scores - victim(x)).abs().max())
        found = inverted(folder, space, count=500 if options.quick else 1000)
        save_strip(folder, "originals-and-reconstructions", torch.cat([images, found], dim=2))
        said.append(f"{cut} {float(psnr(found, images).mean()):.1f} dB")
        print(f"{cut}: the cloud says {scores.argmax(1).tolist()}, the whole model differs by {off:.1e}; "
              f"{(folder / SENT).stat().st_size} bytes were sent; reconstructed: {said[-1]}")  # fmt: skip
    print(f"pictures: {options.out}/*/pictures")
    blind = float(psnr(fashion("train")[0].mean(0).expand_as(images), images).mean())  # guessed without any feature
    print(f"Finding: from what it was sent a curious cloud gets {len(images)} private images back by plain ridge regression: "
          f"{', '.join(said)}; the mean image alone gives {blind:.1f} dB.")  # fmt: skip
    return None


if __name__ == "__main__":
    main()
