"""Columns become numbers, the same way for every table."""

import json

import numpy as np
import pandas as pd
import pytest

from kernelcg.tables import Encoding, TableError

FRAME = pd.DataFrame(
    {
        "number": [1.0, np.nan, 3.0, 4.0],
        "word": ["b", "a", "b", "c"],
        "flag": [True, False, True, True],
        "day": ["2024-01-01", "2024-01-03", "2024-01-02", None],
        "same": [7, 7, 7, 7],
        "copy": [1.0, np.nan, 3.0, 4.0],
        "empty": [np.nan] * 4,
    }
)


def encoded(frame=FRAME, **options):
    return Encoding.of(frame, **({"season": False} | options))


def test_every_kind_of_column_becomes_its_numbers():
    encoding = encoded()
    days = 19723.0  # of 2024-01-01 since 1970
    expected = {
        "number": [1, 3, 3, 4],  # the median of 1, 3 and 4 for the missing one
        "number is missing": [0, 1, 0, 0],
        "word = a": [0, 1, 0, 0],
        "word = b": [1, 0, 1, 0],
        "word = c": [0, 0, 0, 1],
        "flag = True": [1, 0, 1, 1],
        "day": [days, days + 2, days + 1, days + 1],
        "day is missing": [0, 0, 0, 1],
    }
    assert encoding.feature_names() == list(expected)
    np.testing.assert_allclose(encoding.features(FRAME), np.array(list(expected.values()), dtype=float).T)


def test_columns_that_say_nothing_are_left_out_with_the_reason():
    notes = {column.name: column.note for column in encoded().columns if column.note}
    assert notes == {"same": "it is constant", "copy": "it repeats 'number'", "empty": "it is empty"}


def test_season_is_periodic_in_the_year():
    frame = pd.DataFrame({"day": pd.date_range("2023-06-01", periods=3, freq="YS").astype(str), "x": [1, 2, 3]})
    features = encoded(frame, season=True).features(frame)
    np.testing.assert_allclose(features[0, 1:3], features[1, 1:3], atol=0.02)
    np.testing.assert_allclose((features[:, 1:3] ** 2).sum(1), 1)


def test_numbers_may_be_names():
    frame = pd.DataFrame({"zone": [1, 2, 3, 1]})
    assert encoded(frame, categorical=("zone",)).feature_names() == ["zone = 1", "zone = 2", "zone = 3"]


def test_a_word_among_numbers_is_named_with_its_row():
    with pytest.raises(TableError, match=r"column 'x' holds numbers, but 'oops' in row 3"):
        encoded(pd.DataFrame({"x": ["1", "2", "oops", "4"]}))


def test_infinite_and_huge_numbers():
    with pytest.raises(TableError, match="infinite in row 2"):
        encoded(pd.DataFrame({"x": [1.0, np.inf, 2.0]}))
    frame = pd.DataFrame({"x": [10**30, 2, 3]}, dtype=object)
    np.testing.assert_allclose(encoded(frame).features(frame)[:, 0], [1e30, 2, 3])


def test_an_identifier_is_left_out():
    frame = pd.DataFrame({"name": [f"row {i}" for i in range(60)], "x": range(60)})
    assert encoded(frame).feature_names() == ["x"]


def test_nothing_to_learn_from_is_an_error():
    with pytest.raises(TableError, match="no column can be used"):
        encoded(pd.DataFrame({"same": [1, 1]}))


def test_another_table_is_encoded_alike():
    encoding = Encoding.from_json(json.loads(json.dumps(encoded().to_json())))
    other = pd.DataFrame({"word": ["new", "a"], "flag": [False, True], "number": [np.nan, 9.0], "day": [None, None]})
    features = dict(zip(encoding.feature_names(), encoding.features(other).T, strict=True))
    np.testing.assert_array_equal(features["word = b"], [0, 0])
    np.testing.assert_array_equal(features["number"], [3, 9])
    assert encoding.unseen(other) == {"word": ["new"]}


def test_missing_columns_are_named():
    with pytest.raises(TableError, match="no column 'word', 'flag'"):
        encoded().features(FRAME[["number", "day"]])


def test_whole_numbers_name_the_same_categories_where_one_is_missing():
    encoding = encoded(pd.DataFrame({"zone": [1, 2, 3, 1]}), categorical=("zone",))
    with_a_gap = pd.DataFrame({"zone": [3, None, 2]})  # read as floats
    np.testing.assert_array_equal(encoding.features(with_a_gap), [[0, 0, 1], [0, 0, 0], [0, 1, 0]])
    assert encoding.unseen(with_a_gap) == {"zone": ["(missing)"]}


def test_what_is_no_date_is_refused_in_a_column_of_dates():
    encoding = encoded(FRAME)
    with pytest.raises(TableError, match=r"'day' must hold dates.*'31\.12\.2024' in row 2"):
        encoding.features(FRAME.assign(day=["2024-01-01", "31.12.2024", None, None]))


def test_values_missing_where_none_was_are_counted():
    encoding = encoded(pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [1.0, np.nan, 2.0]}))
    assert encoding.newly_missing(pd.DataFrame({"a": [np.nan, 1.0], "b": [np.nan, 1.0]})) == {"a": 1}
