"""Expected costs of predictions: with given rates they follow from counts; a plan shows them."""

from dataclasses import replace

import pytest

from kernelcg.planning.costs import KernelPrice, Pricing
from kernelcg.planning.predicting import expected_prediction
from kernelcg.planning.profile import TYPICAL, PairSeconds


def pricing():
    pair = PairSeconds(1e-9, 0.0, 0.0)
    rates = {"multiply": 1e10, "factorise": 1e10, "step": 0.0, "double": pair, "single": pair}
    return Pricing(replace(TYPICAL, **rates), KernelPrice())


def expected(points=1000, rows=2000, *, direct=True, std=True, budget=10**10):
    return expected_prediction(pricing(), rows, 3, 1, budget, points, direct=direct, std=std)


def test_a_mean_is_one_product():
    assert expected(std=False).seconds == pytest.approx(2 * 1000 * 2000 * 1e-9)


def test_a_variance_by_a_factor_is_a_triangular_solve():
    """n²/2 multiply-adds a point beside the entries, 2 ns each, and the mean."""
    assert expected().seconds == pytest.approx(0.004 + 1000 * 2000 * (2e-9 + 1000 / 1e10))


def test_costs_grow_with_the_points_and_less_than_squared_with_the_rows_when_iterating():
    one, twice = expected(direct=False), expected(2000, direct=False)
    assert twice.seconds == pytest.approx(2 * one.seconds, rel=1e-6)
    more = expected(rows=20_000, direct=False)
    assert 7 * one.seconds < more.seconds < 12 * one.seconds


def test_memory_is_that_of_a_chunk_and_never_more_than_the_budget():
    assert expected(10, direct=False).bytes < 8 * 2000 * 2049
    assert expected(10, direct=False, budget=10**6).bytes < 1.1e6
    assert expected(10, std=False).bytes < 10**5


@pytest.mark.parametrize("direct", [False, True])
def test_covariances_of_classes_take_the_square_of_their_number(direct):
    """A column of C numbers a row for each of C classes, beside entries that all classes share."""

    def seconds(classes):
        return [
            expected_prediction(pricing(), 4000, 3, 1, 10**9, 100, direct=direct, std=std, classes=classes).seconds
            for std in (False, True)
        ]

    (mean, both), (mean_of_twice, both_of_twice) = seconds(4), seconds(8)
    assert (both_of_twice - mean_of_twice) / (both - mean) == pytest.approx(4, rel=1e-3)
