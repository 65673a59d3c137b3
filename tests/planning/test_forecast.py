"""Forecasts and costs: the arithmetic behind the automatic choice."""

import math

import pytest
import torch

from kernelcg.planning.costs import Pricing
from kernelcg.planning.forecast import Forecast
from kernelcg.planning.pilot import pilot
from kernelcg.randomness import seeded
from kernelcg.solvers import Progress


def forecast_of(residuals, threshold=1e-6):
    forecast = Forecast(torch.tensor([threshold]), patience=3, per_iteration=0.5)
    for i, residual in enumerate(residuals):
        forecast.add(Progress(i, torch.tensor([residual]), 0.5 * i))
    return forecast


def test_geometric_decay_is_extrapolated():
    forecast = forecast_of([10.0**-k for k in range(5)])
    assert forecast.remaining() == pytest.approx(2.0)
    assert forecast.remaining_seconds() == pytest.approx(1.0)


def test_nothing_is_said_too_early():
    assert forecast_of([1.0, 0.9]).remaining() == 0.0


def test_no_progress_means_for_ever():
    assert forecast_of([1.0, 2.0, 3.0, 4.0]).remaining() == math.inf


def test_a_converged_column_needs_nothing():
    assert forecast_of([1.0, 1e-3, 1e-5, 1e-7]).remaining() == 0.0


def test_the_slowest_column_counts():
    forecast = Forecast(torch.tensor([1e-6, 1e-6]), patience=3, per_iteration=0.5)
    for k in range(5):
        forecast.add(Progress(k, torch.tensor([10.0 ** -(2 * k), 10.0**-k]), float(k)))
    assert forecast.remaining() == pytest.approx(2.0)


def test_costs_grow_with_everything():
    costs = Pricing().costs(5000, 8, 4, torch.float64)
    assert 0 < costs.low_rank(10) < costs.low_rank(100) < costs.low_rank(1000)
    assert costs.product <= costs.iteration(0, 0) < costs.iteration(100, 0) < costs.iteration(100, 30)
    assert 0 < costs.local(0, 10) < costs.local(100, 10) < costs.local(100, 60)
    assert costs.direct() > 2 * costs.product


def test_a_pilot_is_a_ball_around_its_first_point():
    from planning.test_automatic import system

    A = system(n=1000)
    rows = pilot(A, 1e-6, seeded(0)).rows
    distances = (A.X - A.X[rows[0]]).norm(dim=1)
    outside = torch.ones(1000, dtype=torch.bool)
    outside[rows] = False
    assert distances[rows].max() <= distances[outside].min()
    assert torch.equal(distances[rows], distances[rows].sort().values)


def test_a_pilot_knows_what_neighbours_are_worth():
    """Short lengthscale: neighbours solve at once what the diagonal does not."""
    from planning.test_automatic import system

    A = system(0.1, 1e-3, n=1000)
    tried, nothing = pilot(A, 1e-6, seeded(0)), torch.zeros(1000, 0, dtype=torch.float64)
    assert 3 * tried.trial(nothing, 30).expected(2.0) < tried.trial(nothing, 0).expected(2.0)
