"""What is to be predicted is told from the target, and can be said otherwise."""

import numpy as np
import pandas as pd
import pytest

from kernelcg.tables import TableError, Task
from kernelcg.tables.task import target_of


@pytest.mark.parametrize(
    ("values", "task"),
    [
        ([1.5, 2.5, 3.0, 7.25], Task.REGRESSION),
        ([3, 5, 9, 120], Task.REGRESSION),
        (["a", "b", "a", "c"], Task.CLASSIFICATION),
        ([True, False, True, True], Task.CLASSIFICATION),
        ([0, 1, 1, 0], Task.CLASSIFICATION),
        ([1, 2, 2, 1], Task.CLASSIFICATION),
        ([0, 1, 2] * 20, Task.CLASSIFICATION),
        ([0] * 40 + [1] * 30 + [2] * 15 + [3] * 4 + [4], Task.COUNTS),
        ([0, 4, 17, 3, 8, 2], Task.COUNTS),
        ([0, 90_000, 120_000, 85_500], Task.REGRESSION),
        ([0, 4, 17, 1e100, 8, 2], Task.REGRESSION),
    ],
)
def test_the_task_is_told_from_the_values(values, task):
    assert target_of(pd.DataFrame({"y": values}), "y").task is task


def test_rows_without_a_target_are_known():
    target = target_of(pd.DataFrame({"y": [1.5, np.nan, 2.5, 3.5]}), "y")
    np.testing.assert_array_equal(target.present, [True, False, True, True])
    np.testing.assert_array_equal(target.values, [1.5, 2.5, 3.5])


@pytest.mark.parametrize(
    ("values", "task", "words"),
    [
        ([np.nan, np.nan], None, "is empty"),
        (["a", "a"], None, "one class only"),
        ([1.0, np.inf, 2.0], None, "not a finite number"),
        (["a", "b"], Task.REGRESSION, "'a' in row 1, which is not a finite number"),
        ([1.5, 2.0, 3.0], Task.COUNTS, "does not hold counts"),
        ([0, 3, 1e100], Task.COUNTS, r"holds 1e\+100 in row 3, too large for a count"),
    ],
)
def test_targets_that_cannot_be_learned_are_refused(values, task, words):
    with pytest.raises(TableError, match=words):
        target_of(pd.DataFrame({"y": values}), "y", task)


def test_a_missing_target_names_the_columns():
    with pytest.raises(TableError, match=r"no column 'z'; the columns are 'y'"):
        target_of(pd.DataFrame({"y": [1]}), "z")


def test_classes_of_whole_numbers_have_their_names_where_one_is_missing():
    found = target_of(pd.DataFrame({"y": [1, 2, None, 2]}), "y", Task.CLASSIFICATION)
    assert list(found.values) == ["1", "2", "2"]
