"""What a person should know of a table and of predictions is said, and nothing when all is well."""

import numpy as np
import pandas as pd
import pytest

from kernelcg.tables import Table, TableError, Task, advice
from kernelcg.tables.fitting import prepare
from kernelcg.tables.scores import HeldOut

rng = np.random.default_rng(0)


def frame(**columns):
    x = rng.normal(size=40)
    return pd.DataFrame({"x": x, "y": 3 * x + rng.normal(size=40), **columns})


def notes(made, target="y"):
    return " ".join(prepare(Table(made, "t"), target).notes)


def test_nothing_is_said_of_a_good_table():
    assert notes(frame(z=rng.exponential(size=40))) == ""


def test_a_column_that_is_the_target_in_other_units_is_named():
    made = frame()
    assert "'cents' gives 'y' away" in notes(made.assign(cents=100 * made.y))
    classes = pd.DataFrame({"x": rng.normal(size=40), "code": 20 * [4, 9], "y": 20 * ["a", "b"]})
    assert "'code' gives 'y' away" in notes(classes)
    assert notes(classes.drop(columns="code")) == ""


def test_a_column_that_numbers_the_rows_is_named():
    made = frame()
    assert "'id' numbers the rows" in notes(made.assign(id=np.arange(40) + 10**18))
    assert notes(made[["y"]].assign(day=np.arange(40))) == ""  # the only column


def test_an_unnamed_column_that_numbers_the_rows_is_left_out():
    made = frame(**{"column 1": np.arange(40)})
    columns = prepare(Table(made, "t"), "y").encoding.columns
    assert [one.note for one in columns if one.name == "column 1"] == ["it has no name and numbers the rows"]


def test_a_value_far_from_all_others_is_named_with_its_row():
    made = frame()
    made.loc[7, "x"] = 1e12
    made.loc[2, "y"] = np.nan  # the row number is that of the table
    assert "'x' holds 1e+12 in row 8" in notes(made)


def test_categories_that_may_be_the_same_are_named():
    made = frame(happy=10 * ["Yes", "no", "yes ", "No"])
    assert "'happy' has categories that may be the same: 'No' and 'no', 'Yes' and 'yes'" in notes(made)


def test_a_constant_target_and_values_beyond_float64_are_refused():
    with pytest.raises(TableError, match=r"'y' is 2 in every row"):
        notes(frame().assign(y=2.0))
    made = frame()
    made.loc[1, "y"] = np.nan
    made.loc[5, "x"] = 1e308
    with pytest.raises(TableError, match=r"column 'x' holds 1e\+308, too large to compute with, in row 6"):
        notes(made)
    with pytest.raises(TableError, match=r"target 'y' holds 1e\+308 in row 1"):
        notes(frame().assign(y=np.r_[1e308, rng.normal(size=39)]))


def held(observed, predicted, std=None, certainty=None):
    task = Task.CLASSIFICATION if std is None else Task.REGRESSION
    return HeldOut(task, np.asarray(observed), np.asarray(predicted), std, np.zeros(len(observed)), certainty)


def test_intervals_that_are_too_narrow_are_named():
    z = rng.normal(size=100)
    assert advice.of_predictions(held(10 + 3 * z, np.full(100, 10.0) + 2.9 * z, np.ones(100))) == []
    (words,) = advice.of_predictions(held(10 + 3 * z, 10 + 3 * z + 2.5 * rng.normal(size=100), np.ones(100)))
    assert words.startswith("the intervals are too narrow")


def test_predictions_that_say_nothing_are_named():
    y = rng.normal(size=50)
    (words,) = advice.of_predictions(held(y, np.full(50, y.mean() + 0.1), np.full(50, 1.2)))
    assert "the mean of the target would have" in words
    (words,) = advice.of_predictions(held(30 * ["a"] + 20 * ["b"], 50 * ["a"]))
    assert "most frequent class" in words
    assert advice.of_predictions(held(30 * ["a"] + 20 * ["b"], 29 * ["a"] + 21 * ["b"])) == []
