"""Tables from CSV files, data frames and columns."""

from __future__ import annotations

import pytest
import torch

from leakgauge.core import Category, Number
from leakgauge.data import read_table
from leakgauge.errors import BadInput

CSV = "age, ward, beds, weight, ill\n30, a, 1, 60.5, no\n41, b, 2, 80, yes\n52, a, 1, ?, no\n63, c, 2, 70.25, yes\n25, c, 1, 90, no\n"


def written(tmp_path, text):
    path = tmp_path / "table.csv"
    path.write_text(text)
    return path


def test_a_csv_file(tmp_path):
    data = read_table(written(tmp_path, CSV), label="ill", numbers=["age"])
    age, ward, beds, weight = data.space.columns
    assert isinstance(age, Number)
    assert (age.low, age.high, age.whole) == (25, 63, True)
    assert age.mean == pytest.approx((30 + 41 + 63 + 25) / 4)  # without the row that was dropped
    assert isinstance(ward, Category)
    assert ward.values == ("a", "b", "c")
    assert ward.mean == pytest.approx((0.25, 0.25, 0.5))
    assert isinstance(beds, Category)  # few whole numbers
    assert isinstance(weight, Number)
    assert not weight.whole
    assert data.dropped == 1
    assert data.classes == ("no", "yes")
    assert data.labels.tolist() == [0, 1, 1, 0]
    assert data.rows[2].tolist() == [63, 2, 1, 70.25]
    torch.testing.assert_close(data.x.mean(0), torch.zeros(data.x.shape[1]), atol=1e-5, rtol=0)


def test_columns_can_be_named_as_one_or_the_other(tmp_path):
    data = read_table(written(tmp_path, CSV), label="ill", numbers=["beds"], categories=["age"])
    age, _, beds, _ = data.space.columns
    assert isinstance(age, Category)
    assert isinstance(beds, Number)


def test_a_file_without_header_and_a_data_frame_are_read_alike(tmp_path):
    class Frame:  # all that is used of pandas
        columns = ("age", "ward", "ill")

        def __getitem__(self, name):
            return {"age": [30.5, 41, 52], "ward": ["a", "b", "b"], "ill": [0, 1, 0]}[name]

    path = written(tmp_path, "30.5,a,0\n41,b,1\n52,b,0\n")
    from_file = read_table(path, label="ill", header=["age", "ward", "ill"])
    from_frame = read_table(Frame(), label="ill")
    assert from_file.space == from_frame.space
    assert torch.equal(from_file.rows, from_frame.rows)


def test_a_column_with_one_value_is_left_out():
    data = read_table({"a": [1.5, 2.5, 3.5], "same": ["x", "x", "x"], "y": [0, 1, 1]}, label="y")
    assert [column.name for column in data.space.columns] == ["a"]


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (CSV, {"label": "sick"}, "no column 'sick'"),
        (CSV, {"label": "ill", "numbers": ["ward"]}, "holds 'a'"),
        (CSV, {"label": "ill", "numbers": ["age"], "categories": ["age"]}, "choose one"),
        ("a,b\n1,2,3\n", {"label": "a"}, "row 1 of .* has 3 cells"),
        ("a,a\n1,2\n", {"label": "a"}, "different names"),
        ("a,b\n?,2\n1,?\n", {"label": "a"}, "at least 2 rows"),
        ("a,b\n1,2\n0,2\n", {"label": "a"}, "no column with more than one value"),
        ("", {"label": "a"}, "no column 'a'"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, text, options, said):
    with pytest.raises(BadInput, match=said):
        read_table(written(tmp_path, text), **options)


def test_other_sources_are_refused(tmp_path):
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00a")
    for source, said in [
        (tmp_path / "none.csv", "is no file"),
        (tmp_path / "binary.csv", "no CSV file"),
        (3, "got int"),
        ({"a": [1], "b": [1, 2]}, "equally long"),
    ]:
        with pytest.raises(BadInput, match=said):
            read_table(source, label="a")
