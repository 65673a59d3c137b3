"""Numbers as people write them are read as what they mean, or stay words."""

import numpy as np
import pandas as pd
import pytest

from kernelcg.tables import read_table
from kernelcg.tables.notation import with_numbers
from kernelcg.tables.readable import readable


@pytest.mark.parametrize(
    ("cells", "decimal", "expected", "words"),
    [
        (["1,200", "12,500.50", "7"], ".", [1200, 12500.5, 7], "thousands separators"),
        (["1.200,50", "7,25", "-3"], ".", [1200.5, 7.25, -3], "decimal comma, thousands separators"),
        (["1.234", "2.345.678"], ",", [1234, 2345678], "thousands separators"),
        (["1.5", "2.25"], ",", [1.5, 2.25], "decimal point"),
        (["$1,200", "-$7"], ".", [1200, -7], "thousands separators, without the sign $"),
        (["12 %", "7%"], ".", [12, 7], "without the sign %"),
        (["1 200 €", "3\u202f400 €"], ".", [1200, 3400], "thousands separators, without the sign €"),
        (["1'200.5", "900"], ".", [1200.5, 900], "thousands separators"),
        (["\u22125,5", "3,0"], ".", [-5.5, 3], "decimal comma"),
    ],
)
def test_numbers_are_read_as_people_mean_them(cells, decimal, expected, words):
    found, how = with_numbers(pd.Series([*cells, None]), decimal)
    np.testing.assert_array_equal(found, [*expected, np.nan])
    assert how == words


@pytest.mark.parametrize(
    "cells",
    [
        ["2024-05-31", "2024-06-01"],
        ["31.05.2024", "01.06.2024"],
        ["$5", "€7"],  # different currencies are no numbers to compare
        ["1,23,4", "5,67,8"],
        ["A12", "A13"],
        ["1.5", "2.5", "x"],  # plain numbers and a mistake, which stays to be named
        ["007", "x1"],
    ],
)
def test_what_is_no_number_stays_as_it_is(cells):
    column = pd.Series(cells)
    found, how = with_numbers(column)
    assert how == ""
    assert found.tolist() == cells


def test_long_columns_are_judged_by_some_of_their_cells_and_read_whole():
    found, how = with_numbers(pd.Series([f"{i + 1000:,}" for i in range(5000)]))
    assert found.tolist() == [i + 1000.0 for i in range(5000)]
    assert how == "thousands separators"
    words = pd.Series(["flat", "house"] * 2500)
    found, how = with_numbers(words)
    assert (found is words, how) == (True, "")


def test_a_mistake_among_numbers_stays_to_be_named():
    found, _ = with_numbers(pd.Series(["1,200", "3,400", "n/k"]))
    assert found.tolist() == [1200.0, 3400.0, "n/k"]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", "a;b\n1.234;1,5\n2.345;2,5\n", [1234, 2345]),  # between decimal commas points divide thousands
        ("a.csv", "a;b\n1,234;x\n2,345;y\n", [1.234, 2.345]),  # between semicolons commas are decimal signs
        ("a.tsv", "a\tb\n1,234\t1.5\n12,345\t2.5\n", [1234, 12345]),  # beside decimal points commas divide thousands
        ("a.tsv", "a\tb\n1,234\tx\n12,345\ty\n", [1234, 12345]),
        ("a.csv", 'a,b\n"1,234",x\n"12,345",y\n', [1234, 12345]),
        ("a.csv", 'a,b\n"1,5",x\n"12,345",y\n', [1.5, 12.345]),
    ],
)
def test_signs_are_understood_by_the_rest_of_the_file(tmp_path, name, content, expected):
    (tmp_path / name).write_text(content)
    found = read_table(tmp_path / name)
    assert found.frame["a"].tolist() == expected


def test_numbers_are_written_as_people_write_them():
    given = [0.01234, 15.17, 8374.2, 1234567.0, 2.5e9, -1500.0]
    assert [readable(one) for one in given] == ["0.0123", "15.2", "8,370", "1,230,000", "2.5e+09", "-1,500"]
    assert readable(12284.0, 4) == "12,280"


def test_what_was_decided_is_said(tmp_path):
    (tmp_path / "a.csv").write_text('price,y\n"$1,200",1\n"$3,400",2\n')
    notes = read_table(tmp_path / "a.csv").notes
    assert notes == ("'price' is read as numbers: thousands separators, without the sign $",)
