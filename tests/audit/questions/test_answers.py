"""Which questions are asked, and what became of them."""

from __future__ import annotations

import pytest

from leakgauge.audit.questions import ON_REQUEST, QUESTIONS, USUAL, answers, chosen
from leakgauge.audit.questions.answers import Answer
from leakgauge.errors import BadInput


def test_all_of_them_in_their_order():
    assert chosen() == USUAL == ("updates", "training", "split", "defenses")
    assert chosen(only=["properties", "updates"]) == ("updates", "properties")  # only where it is named
    assert set(QUESTIONS) == {*USUAL, *ON_REQUEST}
    assert chosen(only=["defenses", "updates"]) == ("updates", "defenses")
    assert chosen(skip=["split"]) == ("updates", "training", "defenses")


@pytest.mark.parametrize(
    ("only", "skip", "sentence"),
    [
        (
            ["update"],
            [],
            "--only takes a question, one of updates, training, split, defenses, properties; got 'update'",
        ),
        ([], ["all"], "--skip takes a question"),
        (["split"], ["training"], "either --only or --skip"),
        ([], list(QUESTIONS), "nothing is left to do"),
    ],
)
def test_what_is_no_choice(only, skip, sentence):
    with pytest.raises(BadInput, match=sentence):
        chosen(only, skip)


def test_answers_come_back_in_the_order_of_the_questions_and_the_later_counts(tmp_path):
    assert answers.read(tmp_path) == {}
    answers.append(tmp_path, Answer("split", "failed", "out of memory", 2.345))
    answers.append(tmp_path, Answer("updates", "answered"))
    kept = answers.append(tmp_path, Answer("split", "refused", "too few images", 1.0))
    with (tmp_path / answers.FILE).open("ab") as file:
        file.write(b'{"question": "tr')  # killed in the middle of a line
    found = answers.read(tmp_path)
    assert list(found) == ["updates", "split"]
    assert found["split"] == kept
    assert (kept.status, kept.reason) == ("refused", "too few images")
    assert kept.finished.endswith("+00:00")


@pytest.mark.parametrize(
    "line",
    [b"{}", b"[1]", b"x", b'{"question": "why", "status": "answered"}', b'{"question": "split", "status": "fine"}'],
)
def test_a_damaged_line_is_named(line, tmp_path):
    (tmp_path / answers.FILE).write_bytes(line + b"\n")
    with pytest.raises(BadInput, match="line 1 of"):
        answers.read(tmp_path)
