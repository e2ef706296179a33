"""Why an error differs from the paper's, by rules over what was measured; nothing is said that no number shows.

Two errors *agree* within 10 %, or where the paper's lies within the range of our seeds. Otherwise, in this order, all that apply:

1. the error is at least 97 % of that of the class-mean oracle: the decoder reads the class and nothing more; above that of the mean image
   it has learned nothing;
2. a training of the paper's 100 epochs was done at the same cut: if it closes at least half of the gap, the epochs explain it, else
   they do not;
3. the errors on the adversary's own images, which the paper prints too, tell a decoder that fits less from one that overfits more;
4. the error is too high and the best epoch is among the last tenth: more epochs would probably lower it;
5. the attacked network's accuracy is more than 3 points away from the paper's: it is another network.
"""

from __future__ import annotations

from statistics import mean

from reproductions.golden_partition_zone.leaks import Row
from reproductions.golden_partition_zone.lookup import PAPERS_DECODER, at_hundred_epochs
from reproductions.golden_partition_zone.published import ACCURACY, Error

AGREES, ONLY_THE_CLASS, POINTS = 0.10, 0.97, 0.03
UNKNOWN = "not found out"
PLAIN = (PAPERS_DECODER, "baseline")
"""The paper's decoder without any enhancement, as curves and tables name it."""


def agrees(paper: float, ours: list[float]) -> bool:
    """Within 10 %, or within the range of several seeds."""
    return abs(mean(ours) / paper - 1) <= AGREES or (len(ours) > 1 and min(ours) <= paper <= max(ours))


def why(paper: Error | float, own: list[Row], rows: list[Row]) -> str:
    """The sentences that apply to the measurements ``own`` of one line; ``rows`` are all results."""
    expected = paper.test if isinstance(paper, Error) else paper
    ours = mean(row["test_mse_paper"] for row in own)
    said = [
        *_only_the_class(own),
        *_epochs(expected, ours, own, rows),
        *(_fit(paper, ours, own) if isinstance(paper, Error) else ()),
        *_still_falling(expected, ours, own),
        *another_network(own),
    ]
    return "; ".join(said) or UNKNOWN


def only_the_class(fvu: float, oracle: float) -> bool:
    """Whether a decoder does as well as the mean picture of the right class, and not worse than that of all images."""
    return ONLY_THE_CLASS * oracle <= fvu <= 1


def _only_the_class(own: list[Row]) -> list[str]:
    unit = mean(row["mean_image_mse"] * row["test_mse_paper"] / row["test_mse"] for row in own)
    oracle = mean(row["class_mean_fvu"] for row in own)
    if all(row["fvu"] > 1 for row in own):
        return [f"it has learned nothing: always answering with the mean image has {unit:.4f}"]
    if all(only_the_class(row["fvu"], row["class_mean_fvu"]) for row in own):
        return [f"it reads the class and nothing more: the mean picture of the right class has {oracle * unit:.4f}"]
    return []


def _epochs(expected: float, ours: float, own: list[Row], rows: list[Row]) -> list[str]:
    if any(row.get("labels") != "one-hot" or row["decoder"] not in PLAIN for row in own) or own[0]["epochs"] >= 100:
        return []
    longer = at_hundred_epochs(rows, own[0]["network"], own[0]["block"])
    if longer is None:
        return []
    if abs(longer - expected) <= abs(ours - expected) / 2:
        return [f"{own[0]['epochs']} epochs in place of 100, which give {longer:.4g} here"]
    return [f"not the number of epochs: 100 give {longer:.4g} here"]


def _fit(paper: Error, ours: float, own: list[Row]) -> list[str]:
    known = mean(row["auxiliary_mse_paper"] for row in own)
    if abs(known / paper.auxiliary - 1) <= AGREES:
        return []
    higher, worse = known > paper.auxiliary, ours > paper.test
    words = {(True, True): "it fits less", (False, True): "it overfits more",
             (True, False): "it overfits less", (False, False): "it fits better"}[higher, worse]  # fmt: skip
    return [f"{words}: {known:.4g} on the adversary's own images, there {paper.auxiliary:.4g}"]


def _still_falling(expected: float, ours: float, own: list[Row]) -> list[str]:
    if ours > expected and all(row["best_epoch"] > 0.9 * row["epochs"] for row in own):
        return [f"probably too few epochs: the best was among the last of {own[0]['epochs']}"]
    return []


def another_network(own: list[Row]) -> list[str]:
    """A sentence where the accuracy of the attacked networks is not the paper's."""
    expected = ACCURACY.get((own[0].get("network", ""), own[0].get("labels", "")))
    if expected is None or own[0].get("part") in ("auxiliary", "faces", "classes") or "accuracy" not in own[0]:
        return []
    accuracy = mean(row["accuracy"] for row in own)
    if abs(accuracy - expected) <= POINTS:
        return []
    return [f"another network: {accuracy:.1%} accurate, there {expected:.1%}"]
