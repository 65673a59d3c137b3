"""Every certificate holds, in float64 as it is, on more than a thousand problems made to break it.

The truth is `extended.py`: long double, from the formulas. Nothing is tolerated on top of what a certificate says.
"""

import numpy as np
import pytest
import torch
from inference import extended
from inference.extended import IS_EXTENDED, REAL, real
from inference.hard_cases import CONVERGED, MOST_STEPS, POINTS, SOLUTIONS, case, solution

from kernelcg.inference.bounds.log_evidence import determinant_of_factor, quadratic_bracket
from kernelcg.inference.bounds.lower_bound import Exact, LowerBound
from kernelcg.inference.bounds.recomputed import in_full
from kernelcg.inference.bounds.rounding import UNIT_ROUNDOFF, Rounding, error_of_drift
from kernelcg.inference.gaussian.likelihood_by_pcg import Numerics, Trail, iterative_estimate
from kernelcg.inference.learning.criterion_value import generalised_least_squares
from kernelcg.randomness import child, seeded
from kernelcg.solvers import Stopping

pytestmark = pytest.mark.skipif(not IS_EXTENDED, reason="long double is float64 on this platform")

CHUNKS, PER_CHUNK = 22, 50
EVIDENCE_CHUNKS, EVIDENCE_PER_CHUNK = 6, 25


def assert_below(lower, upper, what, one, kind):
    """Raise unless lower ≤ upper everywhere; NaN fails."""
    lower, upper = np.broadcast_arrays(np.asarray(lower, dtype=REAL), np.asarray(upper, dtype=REAL))
    bad = ~(lower <= upper)
    assert not bad.any(), f"{what}: {lower[bad][0]:.17g} > {upper[bad][0]:.17g} in {one}, {kind}"


def check_solutions(one, kind, posterior, truth):
    """‖a − A⁻¹b‖_A and ‖G − A⁻¹H‖_A are below their bounds; the least bᵀA⁻¹b and log|A| lie in their brackets."""
    weights, drift = posterior.weights, posterior.drift_bounds()
    b, a = truth.Y - truth.H @ real(posterior.beta), in_full(weights.X, weights.tail)
    error = real(weights.error) + real(drift.right)  # b itself was rounded
    assert_below(truth.error_norm(b, a), error, "error of the weights", one, kind)
    G = in_full(posterior.drift_weights.X, posterior.drift_weights.tail)
    assert_below(truth.error_norm(truth.H, G), real(drift.error), "error of G", one, kind)
    least, estimate, most = quadratic_bracket(posterior)
    q = truth.least_quadratic_forms().sum()
    assert_below(least, estimate, "estimate of the quadratic form", one, kind)
    assert_below(estimate, most, "estimate of the quadratic form", one, kind)
    assert_below(least, q, "lower end of the quadratic form", one, kind)
    assert_below(q, most, "upper end of the quadratic form", one, kind)
    if isinstance(posterior.bound, Exact):
        determinant, off = determinant_of_factor(posterior.bound.A, posterior.bound.P.L.diagonal())
        assert_below(abs(determinant - truth.log_determinant()), off, "log determinant", one, kind)


def check_predictions(one, kind, posterior, truth, h):
    """Mean and variance are within their bounds of the exact ones, whether or not the variance was asked for."""
    mean, variance = truth.predict(real(one.X_new), h)
    for with_variance in (False, True):
        found = posterior.predict(one.X_new, bound=True, variance=with_variance)
        off = np.abs(real(found.mean) - mean)
        assert_below(off, found.mean_bound, f"mean, variance={with_variance}", one, kind)
    assert_below(found.variance_lower, variance, "lower end of the variance", one, kind)
    assert_below(variance, found.variance_upper, "upper end of the variance", one, kind)
    assert_below(0.0, found.variance_lower, "a negative variance", one, kind)
    assert_below(found.variance_lower, found.variance, "variance below its bracket", one, kind)
    assert_below(found.variance, found.variance_upper, "variance above its bracket", one, kind)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_certificates_hold(chunk):
    checked = 0
    for number in range(chunk * PER_CHUNK, (chunk + 1) * PER_CHUNK):
        one, kind = case(number), SOLUTIONS[number % len(SOLUTIONS)]
        posterior, (truth, h) = solution(one, kind), one.exact()
        check_solutions(one, kind, posterior, truth)
        check_predictions(one, kind, posterior, truth, h)
        checked += 1
    assert checked == PER_CHUNK


def test_there_are_a_thousand_cases_of_every_sort():
    assert CHUNKS * PER_CHUNK >= 1000
    some = [case(number) for number in range(CHUNKS * PER_CHUNK)]
    assert {one.points for one in some} == set(POINTS)
    assert {one.kind for one in some} == {"rbf", 0.5, 1.5, 2.5}
    assert {one.problem.mean for one in some} == {"zero", "constant", "linear"}
    assert {one.problem.Y.shape[1] for one in some} == {1, 2, 3}
    assert {one.gp.kernel.lengthscale.ndim for one in some} == {0, 1}
    assert {one.problem.noise_variance is None for one in some} == {True, False}
    assert min(len(one.problem) for one in some) == 1


# the log marginal likelihood


def evidence(number):
    """Return a case, its iterative estimate from few or many steps, the P ⪯ A of low or full rank it used, the seed.

    The noise is at least 1e-6 of the variance: below, Lanczos in float64 loses eigenvalues near 1 beside those of
    1e8 that a low rank leaves, and brackets cannot hold.
    """
    one = case(number, largest=25, noises=(-6.0, 0.5))
    rng, A, probes = one.rng, one.problem.system(one.gp), 16
    stopping = Stopping(rtol=10 ** rng.uniform(-10, -1), max_iterations=int(rng.choice([2, 5, MOST_STEPS])))
    bound = LowerBound.of(A, seeded(number), int(rng.choice([1, min(5, len(A)), len(A)])))
    columns = one.problem.Y.shape[1] + one.problem.H.shape[1] + probes
    trail = Trail(torch.zeros(len(A), columns, dtype=torch.float64), None, bound.pivots, one.gp.log_parameters())
    numerics = Numerics(probes, stopping, None, seed=number)
    estimate, after = iterative_estimate(one.problem, one.gp, numerics, trail)
    return one, estimate, after.solutions, LowerBound.at(A, bound.pivots), numerics


def exact_quadrature(truth, bound, numerics):
    """Return what the probes w give for log|A| with exact quadrature, and the largest eigenvalue of M.

    log|P| + n uᵀ log(M) u, M = L⁻¹AL⁻ᵀ, u = L⁻¹w / ‖L⁻¹w‖, by the eigenvalues of M.
    """
    W = real(bound.P.sample(child(seeded(numerics.seed), "log determinant"), numerics.probes))
    L = extended.cholesky(real(bound.F) @ real(bound.F).T + np.diag(truth.D))
    M = extended.forward(L, extended.forward(L, truth.A).T)
    values, vectors = extended.eigen((M + M.T) / 2)
    U = extended.forward(L, W)
    weights = (vectors.T @ (U / np.sqrt((U * U).sum(0)))) ** 2
    return 2 * np.log(np.diag(L)).sum() + len(L) * (weights * np.log(values)[:, None]).sum(0).mean(), values.max()


def rounding_of_evidence(one, solutions, bound, largest):
    """Return how much float64 may move either end of the bracket: the estimate promises nothing about that.

    The quadratic form bᵀa + aᵀr as in `Certified`, with the rounding of b; 32 n c u ‖M‖ tr K / λ for the eigenvalues
    of the tridiagonals, whose entries are as large as ‖M‖ and P⁻¹ within them is as good as u tr K / λ.
    """
    problem, A = one.problem, bound.A
    (n, c), rounding = problem.Y.shape, Rounding.of(A)
    change, a = generalised_least_squares(problem.H, solutions[:, :c], solutions[:, c : c + problem.H.shape[1]])
    b = problem.centred - problem.H @ change
    sizes = problem.ordinary.abs() + change.abs()
    of_b = UNIT_ROUNDOFF * problem.Y.abs() + error_of_drift(problem.drift, problem.X) @ sizes
    floor, width = rounding.norm_of_residual_error(a) + rounding.norm(of_b), bound.energy(b - A @ a).sqrt()
    quadratic = rounding.of_products(a.new_zeros(c), a) + ((2 * of_b + rounding.gamma * b.abs()) * a.abs()).sum(0)
    quadratic = float((quadratic + 2 * width * floor + floor.square()).sum())
    condition = 1 + float(A.kernel_diagonal().sum()) / A.spectrum_floor()
    return quadratic + 32 * n * c * UNIT_ROUNDOFF * largest * condition


@pytest.mark.parametrize("chunk", range(EVIDENCE_CHUNKS))
def test_bracket_of_the_log_marginal_likelihood(chunk):
    """With the same probes and exact solves the value lies in the bracket; the truth is within five standard errors."""
    for number in range(chunk * EVIDENCE_PER_CHUNK, (chunk + 1) * EVIDENCE_PER_CHUNK):
        one, estimate, solutions, bound, numerics = evidence(number)
        truth, _ = one.exact()
        n, c = one.problem.Y.shape
        determinant, largest = exact_quadrature(truth, bound, numerics)
        rounding = 0.5 * rounding_of_evidence(one, solutions, bound, float(largest))
        quadratic, constant = truth.least_quadratic_forms().sum(), n * c * np.log(2 * REAL(np.pi))
        with_probes = -(quadratic + c * determinant + constant) / 2
        assert_below(estimate.lower - rounding, with_probes, "lower end of the evidence", one, numerics)
        assert_below(with_probes, estimate.upper + rounding, "upper end of the evidence", one, numerics)
        assert_below(estimate.lower - rounding, estimate.value, "evidence below its bracket", one, numerics)
        assert_below(estimate.value, estimate.upper + rounding, "evidence above its bracket", one, numerics)
        exact = -(quadratic + c * truth.log_determinant() + constant) / 2
        off = 5 * estimate.value_error + (estimate.value - estimate.lower) + rounding
        assert_below(abs(estimate.value - exact), off, "evidence", one, numerics)


# how good they are


RATIO, OF_NOISE = 10, 1e-3
"""A bound is useful if it is at most ten times the error, or 1e-3 of the noise's standard deviation."""


def usefulness(numbers, noises, kinds, **asked):
    """Return for each case whether the bound of the mean is useful, at new points within a lengthscale or so."""
    useful = []
    for number in numbers:
        one = case(number, noises=noises)
        posterior, (truth, h) = solution(one, kinds[number % len(kinds)]), one.exact()
        mean, _ = truth.predict(real(one.X_new), h)
        found = posterior.predict(one.X_new, bound=True, **asked)
        bound, off = (np.max(part[:4]) for part in (real(found.mean_bound), np.abs(real(found.mean) - mean)))
        useful.append(bool(bound <= RATIO * off or bound <= OF_NOISE * np.sqrt(real(one.gp.noise.variance))))
    return np.mean(useful)


@pytest.mark.parametrize(
    ("noises", "asked", "least"),
    [((-8.0, 0.5), {}, 0.75), ((-13.0, 0.5), {}, 0.6), ((-13.0, 0.5), {"variance": True}, 0.65)],
)
def test_most_bounds_are_useful(noises, asked, least):
    """That the median is useful is what matters; the limits are a little below what was measured."""
    assert usefulness(range(160), noises, CONVERGED, **asked) >= least


def test_bounds_of_good_solutions_are_tight():
    """Bound over truth of weights whose error is above rounding: two in the median."""
    ratios = []
    for number in range(80):
        one = case(number, noises=(-6.0, 0.5), means=("zero",))
        posterior, (truth, _) = solution(one, "converged"), one.exact()
        errors = truth.error_norm(truth.Y, real(posterior.weights.X))
        above = errors > real(posterior.weights.floor)
        ratios.extend((real(posterior.weights.error)[above] / errors[above]).tolist())
    assert len(ratios) > 20
    assert np.median(ratios) <= 2


# the truth


@pytest.mark.parametrize("chunk", range(4))
def test_the_reference_is_good_enough(chunk):
    """Against 60 digits, on the smallest noises: what long double gets wrong is below a tenth of every allowance."""
    mpmath = pytest.importorskip("mpmath")
    for number in range(3 * chunk, 3 * chunk + 3):
        one = case(number, largest=14, noises=(-13.0, -11.0))
        posterior, (truth, h) = solution(one, "direct"), one.exact()
        found = posterior.predict(one.X_new, bound=True, variance=True)
        mean, variance = truth.predict(real(one.X_new), h)
        with mpmath.workdps(60):
            exact_mean, exact_variance = in_sixty_digits(mpmath, one)
        allowed = found.mean_bound.numpy(), (found.variance_upper - found.variance_lower).numpy()
        assert np.all(np.abs(exact_mean - mean) <= 0.1 * allowed[0]), one
        assert np.all(np.abs(exact_variance - variance) <= 0.1 * allowed[1]), one


def in_sixty_digits(mp, one):
    """Return mean and latent variance from the textbook formulas, rounded to long double at the end."""
    problem, lengths = one.problem, np.broadcast_to(one.gp.kernel.lengthscale.numpy(), one.problem.X.shape[1])

    def k(x, y):
        s = sum(((mp.mpf(a) - mp.mpf(b)) / mp.mpf(c)) ** 2 for a, b, c in zip(x, y, lengths, strict=True))
        q = mp.sqrt(2 * one.kind * s) if one.kind != "rbf" else None
        profile = {0.5: lambda: 1, 1.5: lambda: 1 + q, 2.5: lambda: 1 + q + q**2 / 3}
        return mp.mpf(one.gp.kernel.variance.item()) * (
            mp.exp(-s / 2) if one.kind == "rbf" else profile[one.kind]() * mp.exp(-q)
        )

    def drift(points):
        centre, T = problem.drift.centre.tolist(), mp.matrix(problem.drift.T.tolist())
        rows = [[1, *(mp.mpf(a) - mp.mpf(b) for a, b in zip(x, centre, strict=True))] for x in points]
        return mp.matrix(rows) * T if T.cols else mp.matrix(len(rows), 0)

    X, X_new = problem.X.tolist(), one.X_new.tolist()
    known = [0.0] * len(X) if problem.noise_variance is None else problem.noise_variance.tolist()
    A = mp.matrix([[k(x, y) for y in X] for x in X])
    for i, extra in enumerate(known):
        A[i, i] += mp.mpf(one.gp.noise.variance.item()) + mp.mpf(extra)
    K, Y, H, h = mp.matrix([[k(x, y) for y in X_new] for x in X]), mp.matrix(problem.Y.tolist()), drift(X), drift(X_new)
    inverse = A**-1
    mean, covariance = K.T * inverse * Y, K.T * inverse * K
    variance = [mp.mpf(one.gp.kernel.variance.item()) - covariance[i, i] for i in range(len(X_new))]
    if H.cols:
        rho, S = h - K.T * inverse * H, (H.T * inverse * H) ** -1
        mean += rho * S * (H.T * inverse * Y)
        more = rho * S * rho.T
        variance = [v + more[i, i] for i, v in enumerate(variance)]

    def rounded(value):
        return REAL(mp.nstr(value, 25)) if abs(value) > mp.mpf("1e-4000") else REAL(0)

    means = [[rounded(mean[i, j]) for j in range(mean.cols)] for i in range(mean.rows)]
    return np.array(means), np.array([rounded(value) for value in variance])
