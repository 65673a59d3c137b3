"""Regression problems that try to break error bounds, and solutions of every quality, all from one number each."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from inference import extended
from inference.extended import real

from kernelcg import backends
from kernelcg.inference.bounds.lower_bound import LowerBound
from kernelcg.inference.bounds.rounding import certified
from kernelcg.inference.gaussian.conditioning import condition
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.inference.learning.criterion_value import generalised_least_squares
from kernelcg.kernels import RBF, Matern
from kernelcg.randomness import seeded
from kernelcg.solvers import Stopping

POINTS = ("scattered", "grid", "in pairs", "one point", "near pairs", "clusters", "distant clusters", "off the origin")

CONVERGED = ("direct", "converged", "preconditioned", "automatic", "float32")

PREMATURE = ("few steps", "perturbed", "nearly nothing")
"""Stopped after one to five steps, the solution with noise, a small multiple of it."""

SOLUTIONS = CONVERGED + PREMATURE

MOST_STEPS = 40


@dataclass(frozen=True, eq=False)
class Case:
    """A problem, its hyperparameters and test points."""

    number: int
    problem: Regression
    gp: GaussianProcess
    X_new: torch.Tensor
    kind: str | float
    points: str

    @property
    def rng(self):
        return np.random.default_rng([self.number, 1])

    def exact(self):
        """Return the exact posterior, and the exact drift functions at the test points."""
        problem, gp = self.problem, self.gp
        known = 0.0 if problem.noise_variance is None else real(problem.noise_variance)
        truth = extended.Posterior(
            self.kind,
            np.broadcast_to(real(gp.kernel.lengthscale), problem.X.shape[1]),
            real(gp.kernel.variance)[()],
            real(problem.X),
            real(problem.Y),
            np.broadcast_to(real(gp.noise.variance) + known, len(problem)),
            self.drift(problem.X),
        )
        return truth, self.drift(self.X_new)

    def drift(self, X):
        """Return [1, x − centre] T without rounding."""
        centre, T = real(self.problem.drift.centre), real(self.problem.drift.T)
        return np.concatenate([np.ones((len(X), 1)), real(X) - centre], axis=1) @ T

    def __repr__(self):
        problem, kernel = self.problem, self.gp.kernel
        return (
            f"case {self.number}: {self.points}, n={len(problem)}, {kernel}, noise={self.gp.noise.variance:.3g}, "
            f"known={problem.noise_variance is not None}, {problem.mean}, c={problem.Y.shape[1]}"
        )


def case(number, *, largest=60, noises=(-13.0, 0.5), means=("zero", "zero", "constant", "linear")):
    """Return the case of this number; ``noises`` are decimal exponents relative to the variance of the kernel.

    At 1e-13 and n = 60, n σ² / λ is still 20 times below the reciprocal of float64's rounding, and the reference has
    2,048 times more.
    """
    rng = np.random.default_rng([number, 0])
    n = int(rng.choice([1, 2, 3, rng.integers(4, 20), rng.integers(10, largest + 1)], p=[0.03, 0.03, 0.04, 0.3, 0.6]))
    d = int(rng.integers(1, 4))
    points = str(rng.choice(POINTS))
    X, length = _inputs(rng, points, n, d)
    lengthscale = length * 10 ** rng.uniform(-0.5, 0.5, d) if rng.random() < 0.4 else length
    variance, relative_noise = 10 ** rng.uniform(-3, 3), 10 ** rng.uniform(*noises)
    kind = [0.5, 1.5, 2.5, "rbf"][rng.choice(4, p=[0.15, 0.2, 0.2, 0.45])]
    kernel = RBF(lengthscale, variance) if kind == "rbf" else Matern(lengthscale, variance, nu=kind)
    known = variance * relative_noise * 10 ** rng.uniform(-2, 3, n) if rng.random() < 0.25 else None
    c = int(rng.choice([1, 2, 3], p=[0.7, 0.2, 0.1]))
    Y = _outputs(rng, X, length, c, np.sqrt(relative_noise))
    noise = None if known is None else torch.from_numpy(known)
    data = torch.from_numpy(X), torch.from_numpy(Y), noise
    problem = Regression(*data, str(rng.choice(means)), backends.default(memory="1GB"))
    if problem.mean == "linear" and np.linalg.cond(problem.H.T @ problem.H) > 1e12:
        problem = replace(problem, mean="constant")  # two drift functions that are one: nothing could be promised
    gp = GaussianProcess(kernel, variance * relative_noise)
    return Case(number, problem, gp, torch.from_numpy(_new_points(rng, X, length)), kind, points)


def _inputs(rng, points, n, d):
    """Return X and a lengthscale: for most, 0.01 to 100 times the range of the data."""
    scale = 10 ** rng.uniform(-4, 4)
    X = rng.standard_normal((n, d))
    length = scale * 10 ** rng.uniform(-2, 2)
    if points == "grid":
        X = np.round(2 * X)
    elif points == "in pairs":
        X = X[np.arange(n) // 2]
    elif points == "one point":
        X = np.repeat(X[:1], n, axis=0)
    elif points == "near pairs":
        X = X[np.arange(n) // 2] + 10 ** rng.uniform(-12, -4) * X
    elif points == "clusters":
        X = X[np.arange(n) % 3] + 10 ** rng.uniform(-6, -1) * X
    elif points == "distant clusters":  # a lengthscale wide, up to a million lengthscales apart
        X = 10 ** rng.uniform(1, 6) * X[np.arange(n) % 3] + X
        length = scale * 10 ** rng.uniform(-0.5, 1)
    elif points == "off the origin":
        X = X + 10 ** rng.uniform(2, 8)
    return scale * X, length


def _outputs(rng, X, length, c, noise):
    """Return c columns: a wave with noise, pure noise, one number, or a wave on a steep plane; of scale 1e-6 to 1e6."""
    n, d = X.shape
    Z = (X - X.mean(0)) / length
    wave = np.sin(Z @ rng.standard_normal((d, c))) + noise * rng.standard_normal((n, c))
    plane = 1 + Z @ rng.standard_normal((d, c)) / (np.abs(Z).max() + 1e-300)
    columns = {
        "wave": wave,
        "noise": rng.standard_normal((n, c)),
        "one number": np.full((n, c), rng.standard_normal()),
        "steep": wave + 10 ** rng.uniform(0, 6) * plane,
        "first is zero": wave * (np.arange(c) > 0),
    }
    kind = str(rng.choice(list(columns), p=[0.44, 0.14, 0.14, 0.14, 0.14]))
    return columns[kind] * 10 ** rng.uniform(-6, 6)


def _new_points(rng, X, length):
    """Return test points: on data, next to it, around it, outside, a few lengthscales away, very far."""
    n, d = X.shape
    some = X[rng.integers(0, n, 7)]
    steps = np.array([0, 1e-9, 1e-3, 0.3, 3.0, 30.0, 0])[:, None] * length
    steps[6] = 10 ** rng.uniform(0, 6) * (np.ptp(X, axis=0).max() + length)
    return some + steps * rng.standard_normal((7, d))


def solution(case, kind):
    """Return a posterior whose weights come from this kind of solver, and a bound of some rank to go with it."""
    rng, problem = case.rng, case.problem
    tolerant = Stopping(rtol=10 ** rng.uniform(-10, -1), max_iterations=MOST_STEPS)
    options = {
        "direct": {"method": "direct"},
        "preconditioned": {"preconditioner": "rp_cholesky", "stopping": tolerant},
        "automatic": {"preconditioner": "auto", "stopping": tolerant},
        "few steps": {"preconditioner": None, "stopping": Stopping(rtol=0.0, max_iterations=int(rng.integers(1, 6)))},
    }.get(kind, {"preconditioner": None, "stopping": tolerant})
    if kind == "float32":
        problem = replace(problem, precision=torch.float32)
    posterior = condition(problem, case.gp, generator=seeded(case.number), **options)
    if kind == "perturbed":
        posterior = moved(posterior, 1.0, 10 ** rng.uniform(-12, 1), rng)
    elif kind == "nearly nothing":
        posterior = moved(posterior, 10 ** rng.uniform(-12, 0), 0.0, rng)
    return posterior if rng.random() < 0.4 else with_rank(posterior, rng)


def with_rank(posterior, rng):
    """Return the posterior judged by a low-rank bound of rank 1, a few, or all rows."""
    n = len(posterior.problem)
    rank = int(rng.choice([1, min(5, n), n]))
    bound = LowerBound.of(posterior.problem.system(posterior.gp), seeded(int(rng.integers(1000))), rank)
    return certified_again(posterior, posterior.beta, posterior.weights.X, posterior.drift_weights.X, bound)


def moved(posterior, factor, size, rng):
    """Return the posterior with A⁻¹[Y, H] scaled and perturbed, and β fitted to that."""

    def perturbed(X):
        noise = torch.from_numpy(rng.standard_normal(tuple(X.shape)))
        return factor * X + size * X.abs().amax(0) * noise * torch.from_numpy(10.0 ** rng.uniform(-3, 0, (len(X), 1)))

    problem, G = posterior.problem, perturbed(posterior.drift_weights.X)
    solved = perturbed(posterior.weights.X + posterior.drift_weights.X @ (posterior.beta - problem.ordinary))
    beta, a = generalised_least_squares(problem.H, solved, G)
    return certified_again(posterior, problem.ordinary + beta, a, G, posterior.bound)


def certified_again(posterior, beta, a, G, bound):
    """Return the posterior with other coefficients, weights and bound."""
    problem = posterior.problem
    A = problem.system(posterior.gp)
    return replace(
        posterior,
        beta=beta,
        bound=bound,
        weights=certified(A, problem.Y - problem.H @ beta, a, bound, posterior.rounding),
        drift_weights=certified(A, problem.H, G, bound, posterior.rounding),
    )
