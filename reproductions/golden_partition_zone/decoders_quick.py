"""Which decoder leaks most at three cuts of the embedded VGG? A small study for a laptop: about three minutes on one core.

    python -m reproductions.golden_partition_zone.decoders_quick [--quick]

The adversary owns 1500 of the embedded training images of Fashion-MNIST (the victim was trained on them too); FVU is
measured on 500 embedded test images, which neither has seen: the squared error as a share of that of the mean public image.
Deconvolution with PReLU is also trained six times as long, which takes about as much time as the residual decoder. Rows that
are in the file already are not measured again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from torch import Tensor, nn

from leakgauge.attacks.decoder import Decoder, Deconvolution, fit_on, public_features
from leakgauge.core import Pixels, Targets, Victim
from leakgauge.data import MEAN, STD, fashion
from leakgauge.models import VGG, pretrained
from reproductions.common import runner
from reproductions.common.decoders import Residual
from reproductions.common.runner import Part, Rows, run_part

RESULTS = Path(__file__).parent / "results"
CUTS = ("relu1_1", "pool2", "pool3")
DECODERS: dict[str, tuple[Decoder, int]] = {
    "deconvolution, tanh": (Deconvolution("tanh"), 1),
    "deconvolution, prelu": (Deconvolution("prelu"), 1),
    "deconvolution, mixed": (Deconvolution("mixed"), 1),
    "residual": (Residual(), 1),
    "deconvolution, prelu, six times as long": (Deconvolution("prelu"), 6),
    "deconvolution, prelu, calm": (Deconvolution("prelu", start="calm"), 1),
    "deconvolution, prelu, calm, six times as long": (Deconvolution("prelu", start="calm"), 6),
}
"""Each decoder and by how much its number of epochs is multiplied."""


@dataclass(frozen=True)
class UpTo:
    """Sends the output of one named layer of a VGG's features."""

    layer: str

    def __call__(self, victim: Victim, x: Tensor, y: Targets, /) -> dict[str, Tensor]:
        assert isinstance(victim.model, VGG)
        names = [name for name, _ in victim.model.features.named_children()]
        return {self.layer: victim.model.features[: names.index(self.layer) + 1](x)}


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@dataclass(frozen=True, kw_only=True)
class Options(runner.Options):
    seeds: int = 2
    epochs: int = 4


def run(options: Options, results: Rows) -> None:
    torch.set_num_threads(1)
    count, seeds, epochs = (64, 1, 1) if options.quick else (1500, options.seeds, options.epochs)
    victim = Victim(pretrained("vgg"), Pixels((1, 28, 28), mean=MEAN, std=STD))
    public, private = fashion("train")[0][:count], fashion("test")[0][: count // 3]
    baseline = float((private - public.mean(0)).square().mean())
    for cut in CUTS:
        (known, _), (sent, _) = (public_features(victim, UpTo(cut), images) for images in (public, private))
        for (name, (decoder, longer)), seed in product(DECODERS.items(), range(seeds)):
            unit = f"{cut}, {name}, seed {seed}"
            if results.has(unit):
                continue
            began = time.process_time()
            fitted = fit_on(known, public, decoder=decoder, epochs=longer * epochs, seed=seed)
            seconds = time.process_time() - began
            mse = float((fitted.decode(sent) - private).square().mean())
            results.add(
                unit,
                cut=cut,
                feature=fitted.feature,
                decoder=name,
                parameters=parameters(fitted.network()),
                epochs=longer * epochs,
                public_images=count,
                seed=seed,
                mse=mse,
                fvu=mse / baseline,
                held_out_fvu=fitted.history.held_out_fvu,
                cpu_seconds=round(seconds, 1),
            )


def main() -> None:
    parser = runner.parser(__doc__, out=RESULTS)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=4)
    given = parser.parse_args()
    run_part(Part("decoders_quick", run), Options.of(given, seeds=given.seeds, epochs=given.epochs))


if __name__ == "__main__":
    main()
