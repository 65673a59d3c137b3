"""Dates are read as people write them, in fits and in predictions alike."""

import numpy as np
import pandas as pd
import pytest

from kernelcg.tables import Encoding, TableError
from kernelcg.tables.columns import Kind

DAYS = pd.date_range("2024-03-01 06:00", periods=40, freq="31h")
TRUE = ((DAYS - pd.Timestamp("1970-01-01")) / pd.Timedelta("1D")).to_numpy()


def encoded(values, name="when"):
    frame = pd.DataFrame({name: values})
    encoding = Encoding.of(frame, season=False)
    return encoding, encoding.features(frame)[:, 0]


@pytest.mark.parametrize(
    "way",
    ["%d.%m.%Y %H:%M", "%m/%d/%Y %I:%M %p", "%d/%m/%Y %H:%M:%S", "%d %b %Y %H:%M", "%Y/%m/%d %H:%M", "%Y-%m-%dT%H:%M"],
)
def test_dates_are_days_however_they_are_written(way):
    encoding, found = encoded(DAYS.strftime(way))
    assert encoding.columns[0].kind is Kind.DATE
    np.testing.assert_allclose(found, TRUE, rtol=0, atol=1e-9)
    again = Encoding.from_json(encoding.to_json())
    new = pd.DataFrame({"when": ["2024-05-04", pd.Timestamp("2024-05-04").strftime(way)]})
    assert again.features(new)[:, 0].tolist() == [19847.0, 19847.0]  # ISO's notation always works


def test_months_are_dates():
    _, found = encoded(["2024-01", "2024-02", "2024-03"])
    assert found.tolist() == [19723.0, 19754.0, 19783.0]


def test_days_and_months_that_cannot_be_told_apart_are_not_guessed():
    frame = pd.DataFrame({"when": ["01/02/2024", "03/04/2024", "05/06/2024"], "x": [1.0, 2.0, 4.0]})
    (column, _) = Encoding.of(frame, season=False).columns
    assert column.kind is Kind.LEFT_OUT
    assert "the day or with the month" in column.note


def test_may_is_the_same_short_and_long():
    _, found = encoded(["1 May 2024", "2 May 2024", "5 May 2024"])
    assert found.tolist() == [19844.0, 19845.0, 19848.0]


def test_time_zones_may_differ():
    _, found = encoded(["2024-03-30T12:00:00+01:00", "2024-03-31T12:00:00+02:00", "2024-04-01T12:00:00Z"])
    np.testing.assert_allclose(24 * (found - 19812), [11, 34, 60])


def test_a_mistake_among_dates_is_named_with_its_row():
    with pytest.raises(TableError, match=r"dates such as 31\.05\.2024, but has 'yesterday' in row 3"):
        encoded(["01.02.2024", "14.02.2024", "yesterday", "17.02.2024"])


def test_words_are_no_dates():
    encoding, _ = encoded(["May", "June", "May", "12"])
    assert encoding.columns[0].kind is Kind.CATEGORY
