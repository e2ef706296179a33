"""Table 1 without a search: images of the standard architecture from the gradients of patch embedding and positions.

    python -m reproductions.april.without_search --data FOLDER [--images 500]      (minutes on a CPU)

The paper has a closed form for architecture A and searches for images of architecture B. Here B's images, those of Table 1 and the
embedded photographs through ViT-Base, come from the linear system of :func:`~leakgauge.attacks.patch_positions`. Models are untrained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean, median

from torch import nn

from leakgauge.attacks import patch_positions
from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Size, Victim, share
from leakgauge.measures.image import ssim
from reproductions.april import study
from reproductions.april.study import Images, Options
from reproductions.common.runner import Part, Row, Rows, rounded


@dataclass(frozen=True)
class Case:
    images: Callable[[Options, int], Images]
    model: Callable[..., nn.Module]
    count: int


CASES = {
    "MNIST": Case(study.digits, study.small_model, 500),
    "CIFAR-10": Case(study.objects, study.small_model, 500),
    "photographs": Case(study.large, study.base_model, 8),
}


def run(options: Options, results: Rows) -> None:
    for name, case in CASES.items():
        if results.has(name):
            continue
        images = case.images(options, min(case.count, options.count(case.count)))
        model = case.model(images, architecture="B", quick=options.quick).to(options.device)
        victim = Victim(model.eval(), Pixels(images.shape), name=name)
        mse: list[float] = []
        like: list[float] = []
        certified, seconds = 0, 0.0
        for x, y in zip(images.x.split(1), images.y.split(1), strict=True):
            own = victim.space.encode(x).to(options.device)
            seen = share(victim, Gradient(), own, y.to(options.device), reveal=[Size()])
            found = patch_positions()(victim, seen, seed=options.seed)
            shown = victim.space.decode(found.x).cpu()
            mse.append(float((shown - x).square().mean()))
            like.append(float(ssim(shown, x)))
            certified += 0 if found.certified is None else int(found.certified.sum())
            seconds += found.seconds
        row: Row = {
            "data": images.name,
            "images": len(mse),
            "certified": certified,
            "seconds_each": rounded([seconds / len(mse)])[0],
        }
        row |= {"mse": mean(mse), "mse_median": median(mse), "mse_worst": max(mse), "ssim_least": min(like)}
        results.add(name, row)


if __name__ == "__main__":
    study.main(Part("without_search", run), __doc__)
