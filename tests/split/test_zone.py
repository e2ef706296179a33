"""Zone search against exhaustive training on curves whose answer is known, and questions to a scan."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.errors import BadInput
from leakgauge.inversion import progress
from leakgauge.split import Attacker, RidgeInverter, cuts, scan
from leakgauge.split.query import Constraints, Offer, choose, offers, pareto, parse_constraints
from leakgauge.split.zone import Attempt, bisect, crossing, exhaustive, expected_crossing, find_zone

NAMES = [f"cut{i:02}" for i in range(20)]


def attack_on(final: list[float], speed: float = 1.0):
    """A decoder whose FVU falls towards ``final`` as it is trained."""

    def attacked(name: str, epochs: int) -> Attempt:
        value = final[NAMES.index(name)]
        return Attempt(name, epochs, value + (1 - value) / (1 + speed * epochs))

    return attacked


def stopping(attacked, threshold):
    """The same decoder, which stops after the first epoch that brings it below the threshold."""

    def stopped(name: str, epochs: int) -> Attempt:
        tries = [attacked(name, epoch) for epoch in range(1, epochs + 1)]
        return dataclasses.replace(next((one for one in tries if one.fvu < threshold), tries[-1]), stops=True)

    return stopped


RAMP = [i / 20 for i in range(20)]


def test_finds_what_exhaustive_training_finds_with_less():
    attacked = attack_on(RAMP)
    ridge = [min(1.0, value + 0.15) for value in RAMP]
    zone, reference = (
        find_zone(NAMES, ridge, attacked, threshold=0.7),
        exhaustive(NAMES, attacked, threshold=0.7, epochs=50),
    )
    assert zone.recommended == reference.recommended
    assert zone.bracket == reference.bracket
    assert zone.exhaustive == reference.spent == 1000
    assert zone.spent <= 200
    assert bisect(NAMES, attacked, threshold=0.7, epochs=50).recommended == zone.recommended
    assert zone.sentence().startswith(f"Recommended cut: {zone.recommended} (FVU 0.7")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.01, 0.99), min_size=20, max_size=20),
    st.floats(0.05, 0.95),
    st.floats(0.1, 5),
    st.floats(0, 0.3),
    st.integers(1, 50),
    st.booleans(),
)
def test_on_any_rising_curve(final, threshold, speed, weaker, scout, stops):
    attacked = attack_on(sorted(final), speed)
    ridge = [attacked(name, 50).fvu + weaker for name in NAMES]  # an attack that is no better than the decoder
    asked = stopping(attacked, threshold) if stops else attacked
    zone = find_zone(NAMES, ridge, asked, threshold=threshold, scout=scout)
    reference = exhaustive(NAMES, attacked, threshold=threshold, epochs=50)
    assert zone.recommended == reference.recommended
    assert zone.bracket[1] == reference.bracket[1]
    assert zone.spent <= (50 + scout) * 20


def test_a_decoder_behind_that_breaks_takes_the_cut_along():
    dip = [*RAMP]
    dip[16] = 0.5  # better trained than the ones before it
    attacked, ridge = attack_on(dip, speed=100.0), RAMP
    reference = exhaustive(NAMES, attacked, threshold=0.69, epochs=50)
    assert reference.recommended == "cut17"
    assert find_zone(NAMES, ridge, attacked, threshold=0.69).recommended == "cut14"
    found = find_zone(NAMES, ridge, attacked, threshold=0.69, confirm=2)
    assert (found.recommended, found.bracket) == (reference.recommended, ("cut16", "cut17"))
    assert "FVU 0.85" in found.sentence()


@settings(max_examples=200, deadline=None)
@given(final=st.lists(st.floats(0, 1), min_size=20, max_size=20), threshold=st.floats(0.05, 0.95), stops=st.booleans())
def test_confirmed_by_all_cuts_it_is_what_exhaustive_training_finds(final, threshold, stops):
    attacked = attack_on(final, speed=5.0)
    ridge = [min(1.0, attacked(name, 50).fvu + 0.1) for name in NAMES]
    search = stopping(attacked, threshold) if stops else attacked
    found = find_zone(NAMES, ridge, search, threshold=threshold, confirm=len(NAMES))
    assert found.recommended == exhaustive(NAMES, attacked, threshold=threshold, epochs=50).recommended
    full = [attempt.cut for attempt in found.attempts if attempt.epochs == 50]
    assert len(full) == len(set(full))  # no cut gets the full effort twice


def test_the_first_decoder_goes_where_the_threshold_is_expected():
    """By hand: 0.65 ** 1.25 = 0.58 and 0.7 ** 1.25 = 0.64, so 0.6 is expected at cut14; it holds, so does cut13, cut12 breaks."""
    attacked = stopping(attack_on([value - 0.01 for value in RAMP], speed=10), 0.6)
    zone = find_zone(NAMES, [*RAMP[:19], 0.99], attacked, threshold=0.6, epochs=100)
    assert [(attempt.cut, attempt.epochs) for attempt in zone.attempts] == [
        ("cut14", 100),
        ("cut13", 100),
        ("cut12", 5),
    ]
    assert zone.recommended == "cut13"
    assert zone.spent == 205


@pytest.mark.parametrize(
    ("cheap", "first", "threshold", "expected"),
    [
        ([0.1, 0.5, 0.6, 0.7, 0.9], 1, 0.5, 2),  # 0.6 ** 1.25 = 0.53
        ([0.1, 0.5, 0.5, 0.5, 0.9], 1, 0.5, 1),  # nothing tells them apart
        ([0.1, 0.5, 0.52, 0.53, 0.9], 1, 0.5, 3),  # the output comes last
        ([0.1, 0.2, 0.2, 0.2, 0.9], 4, 0.5, 4),  # unless it is all that is left
        ([0.1, 0.5, float("nan"), 0.7, 0.9], 1, 0.5, 2),  # a failed attack: bounded by the cut behind it
    ],
)
def test_where_a_decoder_is_expected_to_cross(cheap, first, threshold, expected):
    assert expected_crossing(cheap, first, threshold=threshold) == expected


def test_decoders_that_stop_tell_how_far_to_go():
    """By hand: cut08 breaks at once, so a scout goes 4 cuts on; cut12 does too; cut16 holds, and half-way back cut14."""
    attacked = stopping(attack_on(RAMP, speed=10), 0.66)
    ridge = [0.1] * 8 + [0.9] * 12
    zone = find_zone(NAMES, ridge, attacked, threshold=0.66, epochs=100, scout=25)
    assert [(attempt.cut, attempt.epochs) for attempt in zone.attempts] == [
        ("cut08", 1),
        ("cut12", 1),
        ("cut16", 25),
        ("cut14", 25),
        ("cut13", 4),
        ("cut14", 100),
    ]
    assert zone.recommended == "cut14"
    assert zone.bracket == ("cut13", "cut14")
    assert zone.spent == 156
    assert zone.exhaustive == 2000


def test_scouts_that_miss_cost_effort_and_no_answer():
    """A decoder that reads nothing until its last epochs: every scout is wrong, and the answer is still right."""

    def late(name: str, epochs: int) -> Attempt:
        return Attempt(name, epochs, RAMP[NAMES.index(name)] if epochs == 50 else 1.0)

    zone = find_zone(NAMES, [0.1] * 8 + [0.9] * 12, late, threshold=0.66, scout=12)
    assert zone.recommended == exhaustive(NAMES, late, threshold=0.66).recommended == "cut14"
    assert sum(attempt.epochs == 50 for attempt in zone.attempts) == 7
    assert len({(attempt.cut, attempt.epochs) for attempt in zone.attempts}) == len(
        zone.attempts
    )  # none is trained twice


def test_no_cut_holds():
    zone = find_zone(NAMES, RAMP, attack_on([0.1] * 20), threshold=0.7)
    assert zone.recommended is None
    assert zone.bracket[1] is None
    assert zone.sentence().startswith("No cut keeps an FVU of 0.7")
    assert find_zone(NAMES, [0.1] * 20, attack_on(RAMP), threshold=0.7).attempts == ()
    assert bisect(NAMES, attack_on([0.1] * 20), threshold=0.7).recommended is None


def test_the_first_cut_holds_already():
    zone = find_zone(NAMES, [0.9] * 20, attack_on([0.9] * 20), threshold=0.7)
    assert zone.recommended == "cut00"
    assert zone.bracket == (None, "cut00")


def test_a_training_that_refuses_proves_nothing():
    plain = attack_on(RAMP)

    def attacked(name: str, epochs: int) -> Attempt:
        return Attempt(name, epochs, float("nan")) if name == "cut14" else plain(name, epochs)

    assert find_zone(NAMES, RAMP, attacked, threshold=0.69).recommended == "cut15"
    assert bisect(NAMES, attacked, threshold=0.69).recommended == "cut15"


def test_crossing_goes_by_the_envelope():
    assert crossing("abcd", [0.2, 0.8, 0.5, 0.9], threshold=0.7) == 3
    assert crossing("ab", [0.1, 0.2], threshold=0.7) == 2
    with pytest.raises(BadInput, match="one FVU per cut"):
        crossing("abc", [0.1], threshold=0.7)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"epochs": 0}, "at least 1 epoch"),
        ({"scout": 0}, "at least 1 epoch"),
        ({"threshold": 0.0}, "positive"),
        ({"confirm": -1}, "to confirm with"),
    ],
)
def test_bad_search(options, why):
    with pytest.raises(BadInput, match=why):
        find_zone(NAMES, RAMP, attack_on(RAMP), **options)


def test_a_search_with_real_attacks(victim, some, tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Growing:
        """Ridge on more images the more effort is allowed."""

        def __call__(self, features, images, /, *, epochs, seed):
            return RidgeInverter(most=20 * epochs)(features, images, epochs=epochs, seed=seed)

    names = [cut.name for cut in cuts(victim) if cut.operation in ("relu", "max_pool2d", "linear")]
    auxiliary, test = some(160), some(40, seed=1)
    cheap = [row.fvu for row in scan(victim, auxiliary, test, names, inverter=Growing(), epochs=2).rows]
    attacker = Attacker(victim, auxiliary, test, Growing(), folder=tmp_path)
    zone = find_zone(names, cheap, attacker, threshold=0.1, epochs=8, scout=2)
    reference = exhaustive(names, Attacker(victim, auxiliary, test, Growing()), threshold=0.1, epochs=8)
    assert zone.recommended == reference.recommended is not None
    assert zone.spent < reference.spent
    assert list(attacker.rows) == [(attempt.cut, attempt.epochs) for attempt in zone.attempts]
    assert len(list(tmp_path.iterdir())) == 2 * len(
        {attempt.cut for attempt in zone.attempts}
    )  # auxiliary and test, once


@dataclasses.dataclass(frozen=True)
class Slow:
    """Ridge that reports ten epochs, or four if it is told to stop; it then sees a quarter of the images."""

    stops: bool = False

    def until(self, fvu, /):
        return Slow(stops=True)

    def __call__(self, features, images, /, *, epochs, seed):
        for epoch in range(1, (4 if self.stops else epochs) + 1):
            progress.report(epoch, epochs)
        most = 40 if self.stops else 160
        return RidgeInverter(most=most)(features, images, epochs=epochs, seed=seed)


def test_an_attacker_that_may_stop(victim, some):
    watched = []
    parts = (victim, some(160), some(40, seed=1))
    whole = Attacker(*parts, Slow())("features.pool1", 10)
    early = Attacker(*parts, Slow(True))("features.pool1", 10)
    assert (whole.epochs, early.epochs) == (10, 4)
    assert whole.fvu < early.fvu
    with progress.watching(lambda done, total: watched.append(done)):
        shown = Attacker(*parts, Slow(), enough=2 * early.fvu)("features.pool1", 10)
    assert shown == dataclasses.replace(early, stops=True)
    assert watched == [1, 2, 3, 4]
    between = Attacker(*parts, Slow(), enough=(whole.fvu + early.fvu) / 2)("features.pool1", 10)
    # what it had seen of its own images did not hold on the attacked ones
    assert between == Attempt("features.pool1", 4 + 10, whole.fvu, stops=True)
    never = Attacker(*parts, RidgeInverter(most=160), enough=0.5)
    assert never("features.pool1", 10) == Attempt("features.pool1", 10, whole.fvu)


def test_what_an_interrupted_search_left_is_not_trained_again(victim, some):
    parts, told = (victim, some(160), some(40, seed=1)), []
    first = Attacker(*parts, Slow(), on_row=lambda allowed, row, made: told.append((allowed, row, made)))
    attempt = first("features.pool1", 10)
    ((allowed, row, made),) = told
    assert (allowed, row.epochs, row.fvu) == (10, 10, attempt.fvu)
    assert made.shape == parts[2].images.shape
    again = Attacker(*parts, Slow(), rows={("features.pool1", 10): row}, on_row=lambda *_: told.append(()))
    assert again("features.pool1", 10) == attempt
    assert len(told) == 1


SHOP = (
    Offer("a", 0.1, 4000, 10, 0.1),
    Offer("b", 0.5, 8000, 20, 0.2),
    Offer("c", 0.7, 2000, 50, 0.5),
    Offer("d", 0.7, 2000, 90, 0.9),
)


def test_questions():
    assert choose(SHOP, Constraints(fvu=0.4)) == SHOP[1]
    assert choose(SHOP, Constraints(fvu=0.4, bytes=5000)) == SHOP[2]
    assert choose(SHOP, Constraints(fvu=0.4, flops=30, bytes=5000)) is None
    assert choose(SHOP, parse_constraints("FVU >= 0.6, <= 50 % of the parameters")) == SHOP[2]
    assert pareto(SHOP) == SHOP[:3]


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("FVU >= 0.7, <= 64 KiB, <= 1 GFLOP on the edge", Constraints(0.7, 65536, 1e9)),
        ("fvu≥0.5", Constraints(0.5)),
        ("<= 2.5 MB per sample,<= 300 MFLOPs", Constraints(None, 2.5e6, 3e8)),
        ("<= 12.5 %", Constraints(share=0.125)),
    ],
)
def test_constraints_as_people_write_them(text, meaning):
    assert parse_constraints(text) == meaning


@pytest.mark.parametrize("text", ["", "FVU <= 0.7", "<= 3", "<= 3 parsecs", "FVU >= 0.1, FVU >= 0.2"])
def test_constraints_that_are_none(text):
    with pytest.raises(BadInput):
        parse_constraints(text)


def test_offers_of_real_cuts(victim):
    listed = cuts(victim)
    found = offers(listed, {"head": 0.9, "features.pool1": float("inf")}, numbers="int8")
    assert found == (Offer("head", 0.9, 4, listed[-1].edge_flops, 1.0),)


@pytest.mark.parametrize("name", ["zone_cpu", "zone_cpu_seed1"])
def test_the_search_still_trains_the_decoders_that_were_measured(name):
    """Replays ``benchmarks/zone.py``: the same decoders in the same order, so what docs/split.md says of their cost holds."""
    file = Path(__file__).parents[2] / "benchmarks" / "results" / f"{name}.jsonl"
    about, *lines = map(json.loads, file.read_text("utf-8").splitlines())
    ridge = {line["cut"]: line["ridge"] for line in lines if "ridge" in line}
    measured = [line for line in lines if "find_zone" in line]
    assert len(measured) == 6
    for line in measured:
        rows, asked = line["find_zone"]["decoders"], []
        known = {
            (cut, allowed): Attempt(cut, trained, min(fvu, ridge[cut]), stops=True)
            for cut, allowed, trained, fvu, _ in rows
        }

        def attacked(cut, epochs, known=known, asked=asked):
            asked.append([cut, epochs])
            return known[cut, epochs]

        zone = find_zone([*ridge], [*ridge.values()], attacked, threshold=line["threshold"], epochs=about["epochs"])
        assert asked == [row[:2] for row in rows]
        assert (zone.recommended, zone.spent) == (line["find_zone"]["cut"], line["find_zone"]["epochs"])
