"""Sentences of a text file, with and without labels."""

import pytest

from leakgauge.data.sentences import Sentences, read_sentences
from leakgauge.errors import BadInput


def test_one_a_line_without_empty_ones(tmp_path):
    (tmp_path / "a.txt").write_bytes("Öne.\r\n\n  two\t2 \n".encode())
    assert read_sentences(tmp_path / "a.txt") == Sentences(("Öne.", "two\t2"))


def test_labels_come_before_a_tab_in_every_line(tmp_path):
    (tmp_path / "a.tsv").write_text("1\tgood\n0\tbad\tfilm\n")
    assert read_sentences(tmp_path / "a.tsv") == Sentences(("good", "bad\tfilm"), (1, 0))


def test_a_byte_order_mark_hides_no_label(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"\xef\xbb\xbf1\tgood\n0\tbad\n")
    assert read_sentences(tmp_path / "a.tsv") == Sentences(("good", "bad"), (1, 0))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\n \n", "holds no sentence"),
        (b"\xff\xfe\x00", "no text in UTF-8"),
        (b"1\tgood\n9223372036854775808\tbad\n", "label of 19 digits"),
    ],
)
def test_refused(tmp_path, content, said):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(BadInput, match=said):
        read_sentences(tmp_path / "a.txt")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BadInput, match=r"no text file .*none\.txt"):
        read_sentences(tmp_path / "none.txt")
