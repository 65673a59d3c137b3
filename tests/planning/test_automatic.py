"""The automatic choice: right answers in every regime, an honest record, limits kept, mistakes repaired."""

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from bound import bound_system

from kernelcg import planning
from kernelcg.backends import Tiles, default
from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.kernels import RBF, Linear, Matern
from kernelcg.operators import DenseMatrix
from kernelcg.planning import automatic as module
from kernelcg.planning.growing_factor import GrowingFactor
from kernelcg.planning.pilot import Pilot, Trial, pilot
from kernelcg.planning.ranks import Sizes
from kernelcg.preconditioners import recipe
from kernelcg.randomness import seeded
from kernelcg.solvers import Status, Stopping, solve

N = 900
NO_DIRECT = 6_000_000
"""Bytes in which the N × N matrix does not fit: the direct solve is out of reach."""


@pytest.fixture(autouse=True)
def steady_machine(monkeypatch):
    """A machine on which products are dear enough for preconditioners to pay at so few rows."""
    costs = lambda self, n, d, k, precision, stored=False: module.Costs(n, k, 0.002, 1e11, 1e9)  # noqa: E731
    monkeypatch.setattr(planning.Pricing, "costs", costs)
    usual = planning.Pricing(sizes=Sizes(for_preconditioner=1.0))  # budgets here are those of the preconditioner alone
    monkeypatch.setattr(sys.modules["kernelcg.planning.solve"], "pricing_of", lambda *_: usual)


def normal(rows, columns, seed=0):
    return torch.randn(rows, columns, generator=seeded(seed), dtype=torch.float64)


def system(lengthscale=0.5, noise=1e-3, n=N, d=2, *, memory=None, kernel=None, scale=None):
    kernel = kernel or RBF(lengthscale, 1.0)
    return bound_system(kernel, normal(n, d), noise, scale, backend=default(memory))


def dense(A):
    """Return A as an array, whatever budget it was given."""
    return replace(A, K=Tiles().bind(A.kernel, A.X)).dense().numpy()


def dense_solution(A, B):
    return np.linalg.solve(dense(A), B.numpy())


REGIMES = {
    "nearly diagonal": (0.001, 1e-2),
    "short": (0.03, 1e-3),
    "middle": (0.3, 1e-4),
    "long": (3.0, 1e-4),
    "very long, small noise": (30.0, 1e-6),
}


@pytest.mark.parametrize("memory", [None, NO_DIRECT], ids=["direct allowed", "iterative only"])
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("columns", [1, 4])
def test_answers_meet_the_tolerance(regime, memory, columns):
    A, B = system(*REGIMES[regime], memory=memory), normal(N, columns, 1)
    report = planning.solve(A, B, stopping=Stopping(rtol=1e-6, max_iterations=3000))
    assert report.status is Status.CONVERGED
    residual = B.numpy() - dense(A) @ report.solution.numpy()
    assert (np.linalg.norm(residual, axis=0) <= 1.001e-6 * np.linalg.norm(B.numpy(), axis=0)).all()
    if memory is not None:
        assert all(attempt.what != "direct" for attempt in report.attempts)


@pytest.mark.parametrize("kernel", [Matern([0.2, 1.0], nu=1.5), RBF(0.5) + Linear(1.0), 2.0 * Matern(0.3, nu=0.5)])
def test_other_kernels_and_scales(kernel):
    scale = torch.rand(N, generator=seeded(3), dtype=torch.float64)
    A, B = system(kernel=kernel, scale=scale, noise=1.0, memory=NO_DIRECT), normal(N, 3, 1)
    report = planning.solve(A, B, stopping=Stopping(rtol=1e-8))
    assert report.status is Status.CONVERGED
    assert np.allclose(report.solution.numpy(), dense_solution(A, B), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 3, 40])
def test_few_rows(n):
    A, B = system(n=n), normal(n, 2, 1)
    report = planning.solve(A, B, stopping=Stopping(rtol=1e-10))
    assert np.allclose(report.solution.numpy(), dense_solution(A, B), rtol=1e-6)


def test_duplicated_rows():
    X = normal(200, 2)[torch.arange(N) % 200]
    A, B = bound_system(RBF(0.1), X, 1e-4, backend=Tiles(NO_DIRECT)), normal(N, 1, 1)
    report = planning.solve(A, B, stopping=Stopping(rtol=1e-6))
    assert report.status is Status.CONVERGED


def test_the_record_adds_up():
    A, B = system(0.3, 1e-4, memory=NO_DIRECT), normal(N, 2, 1)
    report = planning.solve(A, B, stopping=Stopping(rtol=1e-6))
    assert report.attempts[-1].status is Status.CONVERGED
    assert report.attempts[-1].what.startswith("low rank")
    assert int(report.iterations.max()) <= sum(attempt.iterations for attempt in report.attempts)
    assert report.products > sum(attempt.iterations for attempt in report.attempts)
    spent = sum(attempt.build_seconds + attempt.solve_seconds for attempt in report.attempts)
    assert spent <= 1.01 * report.seconds
    assert report.attempts[-1].what in str(report)
    assert "expected" in str(report)


def test_few_iterations_where_plain_cg_needs_many():
    A, B = system(0.3, 1e-4, memory=NO_DIRECT), normal(N, 1, 1)
    chosen = planning.solve(A, B, stopping=Stopping(rtol=1e-6))
    allowed = 10 * int(chosen.iterations.max())
    plain = planning.solve(A, B, preconditioner=None, stopping=Stopping(rtol=1e-6, max_iterations=allowed))
    assert plain.status is Status.MAX_ITERATIONS
    assert allowed <= 500


def test_limits_are_kept():
    A, B = system(0.3, 1e-6, memory=NO_DIRECT), normal(N, 1, 1)
    report = planning.solve(A, B, stopping=Stopping(rtol=1e-10, max_iterations=7))
    assert report.status is Status.MAX_ITERATIONS
    assert int(report.iterations.max()) <= 7
    assert sum(attempt.iterations for attempt in report.attempts) <= 7


def test_a_preconditioner_holds_no_more_than_it_may():
    A, B = system(0.3, 1e-4, memory=NO_DIRECT), normal(N, 1, 1)
    numbers = 400 * N
    report, kept = planning.solve_automatically(
        A, B, stopping=Stopping(rtol=1e-4, max_iterations=2000), memory=8 * numbers
    )
    assert report.status is Status.CONVERGED
    F = kept.prepared.F
    assert F.numel() + kept.prepared.factor(A.scale, A.diagonal).numbers <= numbers


def test_a_wrong_choice_is_repaired(monkeypatch):
    """A pilot that promises wonders of a useless preconditioner must cost time, not the answer."""
    monkeypatch.setattr(module.Search, "_choose", lambda self, remaining: self._priced(1, 0, 2, 0.0, "a lie"))
    monkeypatch.setattr(module.Forecast, "remaining_seconds", lambda self: 1.0 * self.remaining())
    A, B = system(0.3, 1e-4, memory=NO_DIRECT), normal(N, 1, 1)
    report = planning.solve(A, B, stopping=Stopping(rtol=1e-6, max_iterations=5000))
    assert report.status is Status.CONVERGED
    assert len(report.attempts) >= 2
    assert "too slow" in report.attempts[-1].why
    lied, last = (report.attempts[i] for i in (-2, -1))
    assert lied.status is Status.STOPPED
    assert last.what != lied.what


def test_same_seed_same_numbers(monkeypatch):
    monkeypatch.setattr(module.Search, "_trial", lambda self: (None, N))
    A, B = system(0.3, 1e-4, memory=NO_DIRECT), normal(N, 1, 1)
    first, second = (planning.solve(A, B, stopping=Stopping(rtol=1e-6), generator=seeded(5)) for _ in range(2))
    assert torch.equal(first.solution, second.solution)


def test_a_callback_sees_one_sequence_and_may_stop():
    seen = []
    A, B = system(0.3, 1e-4, memory=NO_DIRECT), normal(N, 1, 1)

    def callback(event):
        seen.append(event.payload.iteration)
        return len(seen) > 6

    report = planning.solve(A, B, stopping=Stopping(rtol=1e-6), callback=callback)
    assert report.status is Status.STOPPED
    assert seen == sorted(seen)
    assert len(seen) == 7


def test_broken_right_hand_sides_are_told():
    A, B = system(n=50), normal(50, 2, 1)
    B[3, 0] = math.nan
    assert planning.solve(A, B).column_status[0] is Status.NOT_FINITE


def test_other_choices():
    A, B = system(0.3, 1e-2, n=300), normal(300, 1, 1)
    stopping = Stopping(rtol=1e-8)
    truth = dense_solution(A, B)
    P = recipe("nystrom").build(A, seeded(0))
    for choice in ("nystrom", recipe("vecchia", neighbours=10), P, None):
        report = planning.solve(A, B, preconditioner=choice, stopping=stopping)
        assert np.allclose(report.solution.numpy(), truth, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="there is no preconditioner 'nystroem'"):
        planning.solve(A, B, preconditioner="nystroem")
    with pytest.raises(TypeError, match="KernelPlusDiagonal"):
        planning.solve(DenseMatrix(torch.eye(3)), torch.ones(3, 1))


def test_reuse_while_it_pays():
    B, stopping = normal(N, 2, 1), Stopping(rtol=1e-6)
    A = system(0.3, 1e-3, memory=NO_DIRECT)
    report, kept = planning.solve_reusing(A, B, None, stopping=stopping)
    assert kept.pays
    near = replace(A, K=A.K.with_kernel(RBF(0.31)), diagonal=torch.tensor(1.1e-3))
    again, still = planning.solve_reusing(near, B, kept, stopping=stopping)
    assert [attempt.what for attempt in again.attempts] == ["the preconditioner kept"]
    assert still.prepared is kept.prepared
    assert np.allclose(again.solution.numpy(), dense_solution(near, B), rtol=1e-2, atol=1e-2)
    worn = replace(still, excess_seconds=2 * still.build_seconds)
    fresh, rebuilt = planning.solve_reusing(near, B, worn, stopping=stopping)
    assert all(attempt.what != "the preconditioner kept" for attempt in fresh.attempts)
    assert rebuilt.prepared is not kept.prepared
    assert report.status is again.status is fresh.status is Status.CONVERGED


def test_iterations_above_the_first_are_charged():
    kept = planning.Kept(prepared=object(), build_seconds=1.0, per_iteration=0.5)
    A, B = system(0.3, 1e-2, n=200), normal(200, 1, 1)
    report = planning.solve(A, B, preconditioner=None, stopping=Stopping(rtol=1e-8))
    steps = int(report.iterations.max())
    first = kept.after(replace(report, iterations=torch.tensor([10])))
    assert first.excess_seconds == 0
    worn = first.after(report)
    assert worn.excess_seconds == 0.5 * (steps - 10)
    assert worn.pays is (0.5 * (steps - 10) < 1.0)


@pytest.mark.parametrize(("noise", "dtype"), [(1e-2, torch.float32), (1e-8, torch.float64)])
def test_float32_only_where_its_rounding_is_below_the_noise(noise, dtype):
    assert planning.product_dtype(system(noise=noise)) is dtype


@pytest.mark.parametrize("a_row", [3, 50, 100, 200, 400])
def test_small_allowances_are_kept(a_row):
    A, B = system(0.1, 1e-4, memory=NO_DIRECT), normal(N, 1, 1)
    report, kept = planning.solve_automatically(
        A, B, stopping=Stopping(rtol=1e-4, max_iterations=3000), memory=8 * a_row * N
    )
    assert report.status is Status.CONVERGED
    if kept.prepared is not None:
        held = kept.prepared.F.numel() + kept.prepared.factor(A.scale, A.diagonal).numbers
        assert held <= a_row * N


@pytest.mark.parametrize("budget", [400_000, 1_000_000, 3_000_000])
def test_what_does_not_fit_is_not_chosen(budget):
    A, B = system(0.1, 1e-4, memory=budget), normal(N, 2, 1)
    report = planning.solve(A, B, stopping=Stopping(rtol=1e-4, max_iterations=3000))
    assert report.status is Status.CONVERGED


def test_a_kernel_that_is_zero():
    diagonal = torch.linspace(1, 100, 500, dtype=torch.float64)
    A = bound_system(Linear(1.0), torch.zeros(500, 2, dtype=torch.float64), diagonal)
    B = normal(500, 1, 1)
    assert torch.allclose(planning.solve(A, B).solution, B / diagonal[:, None], rtol=1e-5)


def test_a_broken_column_does_not_spoil_the_choice_for_the_others():
    A, B = system(0.3, 1e-4, memory=NO_DIRECT), normal(N, 3, 1)
    B[0, 0], B[:, 1] = math.nan, 0.0
    report = planning.solve(A, B, stopping=Stopping(rtol=1e-6, max_iterations=3000))
    assert report.column_status[1:] == (Status.CONVERGED, Status.CONVERGED)
    assert int(report.iterations.max()) < 100


def test_time_is_limited():
    A, B = system(0.3, 1e-6, memory=NO_DIRECT), normal(N, 1, 1)
    report = planning.solve(A, B, stopping=Stopping(rtol=1e-12, max_iterations=100_000, max_seconds=1e-4))
    assert report.status is Status.TIME_LIMIT


def test_what_was_given_up_is_not_kept(monkeypatch):
    monkeypatch.setattr(module.Search, "_choose", lambda self, remaining: self._priced(1, 0, 2, 0.0, "a lie"))
    monkeypatch.setattr(module.Search, "_rank_limit", lambda self, neighbours=0: 1)
    A, B = system(0.3, 1e-4), normal(N, 1, 1)
    report, kept = planning.solve_automatically(A, B, stopping=Stopping(rtol=1e-6, max_iterations=5000))
    assert report.attempts[-1].what == "direct"
    assert kept.prepared is None
    assert not kept.pays


def test_a_stop_is_a_stop_with_a_kept_preconditioner_too():
    A, B, seen = system(0.3, 1e-3, memory=NO_DIRECT), normal(N, 1, 1), []
    _, kept = planning.solve_reusing(A, B, None, stopping=Stopping(rtol=1e-6))

    def callback(event):
        seen.append(event.payload.iteration)
        return len(seen) == 2

    report, _ = planning.solve_reusing(A, B, kept, stopping=Stopping(rtol=1e-10), callback=callback)
    assert report.status is Status.STOPPED
    assert seen == [0, 1]


def test_named_recipes_report_their_set_up():
    A, B = system(0.3, 1e-2, n=200), normal(200, 1, 1)
    report = planning.solve(A, B, preconditioner=recipe("randomized_svd", rank=10, oversampling=5))
    assert report.columns >= 30
    assert report.attempts[0].what == "randomized_svd"
    twice = recipe("nystrom", points=(0, 0, 1), jitter=0.0)
    assert "jitter" in planning.solve(A, B, preconditioner=twice).tried[0]


def test_a_direct_solve_that_comes_too_late_keeps_what_was_there(monkeypatch):
    lie = lambda self, remaining: module.Option("direct", 0, 0, 1, 0.0, "a lie")  # noqa: E731
    monkeypatch.setattr(module.Search, "_choose", lie)
    A, B = system(0.3, 1e-4), normal(N, 1, 1)
    report = planning.solve(A, B, stopping=Stopping(rtol=1e-10, max_seconds=0.02))
    assert report.status in (Status.TIME_LIMIT, Status.CONVERGED)
    assert float(report.solution.norm()) > 0


def test_giving_up_is_not_called_a_stop():
    A, B = system(0.3, 1e-6, memory=NO_DIRECT), normal(N, 1, 1)
    report = planning.solve(A, B, stopping=Stopping(rtol=1e-10, max_iterations=3))
    assert report.status is Status.MAX_ITERATIONS


def test_memory_that_shrinks_on_the_way_costs_the_preconditioner_only(monkeypatch):
    def refuse(self, rank):
        raise MemoryBudgetExceeded("no more")

    monkeypatch.setattr(GrowingFactor, "grow", refuse)
    A, B = system(0.1, 1e-2, memory=NO_DIRECT), normal(N, 1, 1)
    report = planning.solve(A, B, stopping=Stopping(rtol=1e-6, max_iterations=3000))
    assert report.status is Status.CONVERGED
    assert any("no more" in note for note in report.tried)


def test_first_rank_and_neighbours_are_those_of_the_plan():
    A, B = system(memory=NO_DIRECT), normal(N, 1, 1)
    _, usual = planning.solve_automatically(A, B, stopping=Stopping(1e-8))
    sizes = Sizes(first_rank=24, neighbours=(0,), for_preconditioner=1.0)
    report, kept = planning.solve_automatically(A, B, stopping=Stopping(1e-8), pricing=planning.Pricing(sizes=sizes))
    assert usual.how.ranks[0] == 64
    assert kept.how.ranks[0] == 24
    assert kept.how.neighbours == 0
    assert report.status is Status.CONVERGED


# rank or neighbours


def chosen(A, B, product=0.02, memory=math.inf):
    """Return the option that is chosen on a machine with dear products and no factorisation of A, and the search."""
    costs = module.Costs(len(A), B.shape[1], product, 1e11, 1e9, A.precision == torch.float32)
    search = module.Search(
        A,
        B,
        start=None,
        stopping=Stopping(1e-3, max_iterations=500),
        callback=None,
        generator=seeded(1),
        numbers=memory,
        costs=costs,
        sizes=Sizes(),
    )
    return search._choose(math.inf), search


def dense_noisy(n, memory=None):
    """Return data so dense, and so noisy, that many more than sixty neighbours matter to a point."""
    A = bound_system(Matern(2.0, 1.0, nu=1.5), normal(n, 8), 0.05, backend=default(memory))
    return replace(A, product_dtype=torch.float32), normal(n, 6, 1)


def test_iterations_of_rank_alone_are_foreseen():
    A, B = dense_noisy(2500)
    factor, found = GrowingFactor(A, seeded(1)), []
    for rank in (30, 120, 480):
        factor.grow(rank)
        expected = pilot(A, 1e-3, seeded(2)).rank_alone(factor.F)
        report = solve(
            A, B, preconditioner=factor.beside(rank, 0, seeded(3)).factor(None, A.diagonal), stopping=Stopping(1e-3)
        )
        found.append(expected / int(report.iterations.max()))
    assert all(1 / 1.5 < ratio < 1.5 for ratio in found), found


def test_where_neighbours_say_little_rank_is_chosen_by_its_trend(monkeypatch):
    """Iterations as they were measured on 250,000 dense and noisy points: neighbours double them."""
    monkeypatch.setattr(Pilot, "rank_alone", lambda self, F: 84 * (2048 / F.shape[1]) ** 0.6)
    monkeypatch.setattr(Pilot, "trial", lambda self, F, q: Trial(191 if q else 20, 0.0))
    option, search = chosen(*dense_noisy(2500, 100_000_000), product=0.2)
    assert option.neighbours == 0
    assert search.alone.slope == pytest.approx(0.6, rel=0.02)
    assert option.iterations == pytest.approx(84 * (2048 / option.rank) ** 0.6, rel=0.02)
    costs = search.costs
    limit = search._rank_limit()
    best = min(costs.low_rank(r) + 84 * (2048 / r) ** 0.6 * costs.iteration(r, 0) for r in range(64, limit, 8))
    assert option.seconds < 1.3 * best
    assert "of everywhere" in option.why
    assert search.low_rank.F.dtype == torch.float32


def test_short_lengthscales_get_neighbours():
    A = bound_system(RBF(0.1, 1.0), normal(2500, 2), 1e-3, backend=default(40_000_000))
    option, search = chosen(replace(A, product_dtype=torch.float32), normal(2500, 6, 1))
    assert option.neighbours > 0
    assert search._ready(option).P.Q.dtype == torch.float64, "beside neighbours the factor is in float64"


def test_a_solve_that_neighbours_slow_down_goes_on_with_rank_alone():
    A, B = dense_noisy(2500, 100_000_000)
    _, search = chosen(A, B, product=0.2)
    slow = module.Option("low rank", 64, 60, 10, 1.0, "a lie")
    forecast = search._forecast(64, 60)
    forecast.distances = [5.0 - 0.01 * i for i in range(40)]
    stronger = search._escalation(slow, forecast)
    assert (stronger.neighbours, stronger.rank > 64) == (0, True)


def test_the_rank_keeps_to_what_is_given():
    A, B = dense_noisy(1000)
    _, search = chosen(A, B, memory=100 * 1000)
    assert 50 < search._rank_limit() <= 200
    search.sizes = Sizes(most_rank=17)
    assert search._rank_limit() == 17
