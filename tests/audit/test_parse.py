"""What is written on the command line becomes options; what cannot be read is refused with a hint."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.attacks import ATTACKS
from leakgauge.audit.specs import made_from, option_of, value_of
from leakgauge.channels import CHANNELS, Features
from leakgauge.defenses import DEFENSES, Clip, GaussianNoise, LaplacianNoise, Prune, Quantize, Withhold
from leakgauge.errors import BadInput


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("prune:0.9", Prune(0.9)),
        ("prune:fraction=0.9", Prune(0.9)),
        ("clip:2", Clip(2)),
        ("quantize: 8", Quantize(8)),
        ("gaussian_noise:relative=1e-3", GaussianNoise(relative=1e-3)),
        ("laplacian_noise:std=0.5", LaplacianNoise(std=0.5)),
        ("withhold:head", Withhold(("head",))),
        ("withhold:head+norms", Withhold(("head", "norms"))),
        ("withhold:roles=head", Withhold(("head",))),
        ("withhold", Withhold()),
    ],
)
def test_defenses(spec, expected):
    assert made_from(spec, DEFENSES, kind="defense") == expected


@pytest.mark.parametrize(("spec", "cut"), [("features:1", "1"), ("features:cut=2.5", "2.5"), ("features:a+b", "a+b")])
def test_what_is_a_name_stays_text(spec, cut):
    """Modules of a torch.nn.Sequential are called 0, 1, 2; a sum is called a+b."""
    assert made_from(spec, CHANNELS, kind="channel") == Features(cut)


def test_a_whole_number_may_be_written_as_a_float():
    assert repr(made_from("quantize:8.0", DEFENSES, kind="defense")) == "Quantize(bits=8)"
    assert made_from("dlg:steps=1e1", ATTACKS, kind="attack") == ATTACKS["dlg"](steps=10)


@pytest.mark.parametrize(
    ("written", "meant"),
    [("false", False), ("False", False), ("0", False), ("true", True), ("True", True), ("1", True)],
)
def test_a_switch_may_be_written_in_small_letters(written, meant):
    """As a word, false would be true."""
    made = made_from(f"april_closed_form:force={written}", ATTACKS, kind="attack")
    assert made == ATTACKS["april_closed_form"](force=meant)


def test_options_of_an_attack():
    made = made_from("dlg:lr=0.5", ATTACKS, kind="attack", extra={"steps": 7})
    assert made == ATTACKS["dlg"](lr=0.5, steps=7)


@pytest.mark.parametrize(
    ("spec", "registry", "message"),
    [
        ("prunne:0.9", DEFENSES, "unknown thing 'prunne'; did you mean prune"),
        ("inverting_gradient", ATTACKS, "did you mean inverting_gradients"),
        ("zzzzzz", ATTACKS, "known: strongest, dlg"),
        ("prune:rate=0.9", DEFENSES, "no option 'rate'; it takes fraction"),
        ("linear:3", ATTACKS, "takes no options"),
        ("linear:steps=3", ATTACKS, "no option 'steps'; it takes none"),
        ("clip", DEFENSES, "does not fit.*it takes norm"),
        ("prune:much", DEFENSES, "prune takes a number as fraction, got 'much'"),
        ("prune:1.5", DEFENSES, "between 0 and 1"),
        ("withhold:3", DEFENSES, "needs roles as a sequence of text or text, got 3"),
        ("mask_channels:0.5,seed=1.5", DEFENSES, "takes a whole number as seed, got 1.5"),
        ("dpsgd:seed=0.5", CHANNELS, "takes a whole number as seed, got 0.5"),
        ("shuffled_fedavg:epochs=1.5", CHANNELS, "takes a whole number as epochs, got 1.5"),
        ("prune:0.9,0.8", DEFENSES, "fraction twice"),
        ("gaussian_noise:std=1,std=2", DEFENSES, "std twice"),
        ("dlg:steps=many", ATTACKS, "takes a number as steps, got 'many'"),
        ("dlg:lr=-1", ATTACKS, "positive learning rate"),
        ("inverting_gradients:tv=big", ATTACKS, "takes a number as tv, got 'big'"),
        ("april_closed_form:force=maybe", ATTACKS, "takes true or false as force, got 'maybe'"),
        ("april_closed_form:force=2", ATTACKS, "takes true or false as force, got 2"),
        ("", ATTACKS, "unknown thing ''"),
    ],
)
def test_refusals(spec, registry, message):
    with pytest.raises(BadInput, match=message):
        made_from(spec, registry, kind="thing")


@settings(max_examples=50, deadline=None)
@given(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_values_come_back_as_they_are_printed(value):
    assert value_of(str(value)) == value
    assert option_of(f"name={value}") == ("name", value)


def test_words_stay_words():
    assert value_of("head") == "head"
    assert value_of("a+b") == ("a", "b")
    assert option_of(" steps = 300 ") == ("steps", 300)


@pytest.mark.parametrize("text", ["steps", "=3", ""])
def test_an_option_needs_a_name_and_a_value(text):
    with pytest.raises(BadInput, match="NAME=VALUE"):
        option_of(text)
