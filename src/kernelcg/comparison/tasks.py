"""Regression and classification as a comparison sees them: what is learned from, conditioned and scored."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Generator, Tensor

from kernelcg import backends
from kernelcg.backends import Backend
from kernelcg.comparison.sparse import SparseObjective, SparsePosterior
from kernelcg.comparison.sparse_laplace import SparseLaplaceObjective, SparseLaplacePosterior
from kernelcg.comparison.sparse_prior import SparseApproximation, SparseKind, inducing_points
from kernelcg.errors import SolveFailed
from kernelcg.estimators.laplace_estimator import affordable_probes
from kernelcg.inference import Noise, condition
from kernelcg.inference.gaussian.likelihood_by_pcg import Numerics
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.inference.gaussian.objective import Objective
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.objective import LaplaceObjective
from kernelcg.inference.laplace.posterior import condition_laplace
from kernelcg.inference.learning.criterion import Criterion
from kernelcg.kernels import RBF, Kernel
from kernelcg.likelihoods import BernoulliProbit, Likelihood, Softmax
from kernelcg.parameters import Parametric
from kernelcg.planning import Plan
from kernelcg.randomness import child
from kernelcg.solvers import Status, Stopping

START_NOISE = 0.1
KERNELS = ("iso", "ARD")


class Scores(NamedTuple):
    """How good predictions are: RMSE or share of wrong labels, and the mean of −log p(y) over the test rows."""

    error: float
    nll: float


def first_rbf(kernel: str, d: int) -> RBF:
    """Return the RBF from which the paper's latest code starts: "iso", l = √d, or "ARD", every l = 1; variance 1."""
    if kernel not in KERNELS:
        raise ValueError(f"kernel must be one of {', '.join(KERNELS)}, not {kernel!r}")
    one = torch.ones((), dtype=torch.float64)
    return RBF(math.sqrt(d) * one if kernel == "iso" else one.repeat(d), one)


class Task(ABC):
    """Training data, the process from which every method starts, and how all of them are judged."""

    problem: Any
    start: Parametric

    @property
    @abstractmethod
    def probes(self) -> int:
        """Return how many probes the estimators take by default."""

    @abstractmethod
    def plan(self, solver: str, numerics: Numerics = Numerics()) -> Plan:
        """Return the plan of a fit to these data by "auto", "direct" or "iterative"."""

    @abstractmethod
    def criterion(self, solver: str, numerics: Numerics, growing: bool) -> Criterion:
        """Return the log marginal likelihood by "auto", "direct" or "iterative", in stages if ``growing``."""

    @abstractmethod
    def approximation(self, kind: str, generator: Generator) -> SparseObjective | SparseLaplaceObjective:
        """Return the log marginal likelihood of "fitc", "pitc" or "var", n^⅔ inducing inputs drawn from the rows."""

    @abstractmethod
    def resolved(self, rms: float) -> Stopping:
        """Return the rule that ends solves for learning once the residual has this root mean square."""

    @abstractmethod
    def condition(self, gp: Any, solver: str, numerics: Numerics, rtol: float, generator: Generator) -> Any:
        """Return the process conditioned on all training rows, its weights to ``rtol``."""

    @abstractmethod
    def scores(self, posterior: Any, X: Tensor, y: Tensor) -> Scores:
        """Judge the predictions at X."""

    @abstractmethod
    def on(self, rows: Tensor) -> Self:
        """Return the task on some of the rows."""

    @property
    def products(self) -> float:
        """Return the columns that were multiplied with K so far."""
        backend: Backend = self.problem.backend
        return math.nan if backend.work is None else backend.work.columns


@dataclass(frozen=True, eq=False)
class RegressionTask(Task):
    """Zero mean and Gaussian noise; y is standardised already.

    Attributes
    ----------
    problem : the training rows
    start : the process from which learning starts
    """

    problem: Regression
    start: GaussianProcess

    @classmethod
    def of(cls, X: Tensor, y: Tensor, kernel: Kernel, noise: float = START_NOISE) -> Self:
        """Return the task on these rows."""
        backend = backends.default(device=X.device.type).counting(len(X))
        return cls(
            Regression(X, y[:, None], backend=backend),
            GaussianProcess(kernel, Noise(torch.tensor(noise, dtype=torch.float64))),
        )

    def on(self, rows: Tensor) -> Self:
        return replace(self, problem=self.problem.subset(rows))

    @property
    def probes(self) -> int:
        return Numerics().probes

    def plan(self, solver: str, numerics: Numerics = Numerics()) -> Plan:
        return Objective(self.problem, method=solver, numerics=numerics).plan

    def criterion(self, solver: str, numerics: Numerics, growing: bool) -> Objective:
        return Objective(self.problem, method=solver, numerics=numerics, learns_in_stages=growing)

    def approximation(self, kind: str, generator: Generator) -> SparseObjective:
        U = inducing_points(self.problem.X, generator=generator)
        return SparseObjective(self.problem, SparseApproximation(SparseKind(kind), U))

    def resolved(self, rms: float) -> Stopping:
        n = len(self.problem)
        return Stopping(rtol=0.0, atol=rms * math.sqrt(n), max_iterations=n, patience=n)

    def condition(self, gp: GaussianProcess, solver: str, numerics: Numerics, rtol: float, generator: Generator) -> Any:
        stopping = Stopping(rtol=rtol, max_iterations=max(len(self.problem), Stopping().max_iterations))
        source, plan = child(generator, "posterior"), self.plan(solver, numerics)
        return condition(
            self.problem.storing(plan.conditioning.storage),
            gp,
            method=plan.method,
            stopping=stopping,
            preconditioner=numerics.preconditioner,
            generator=source,
        )

    def scores(self, posterior: Any, X: Tensor, y: Tensor) -> Scores:
        if isinstance(posterior, SparsePosterior):
            mean, variance = posterior.predict(X)
        else:
            found = posterior.predict(X, variance=True)
            mean, variance = found.mean, found.variance + posterior.gp.noise.variance.item()
        errors = y - mean[:, 0]
        density = 0.5 * (errors.square() / variance + (2 * math.pi * variance).log())
        return Scores(float(errors.square().mean().sqrt()), float(density.mean()))


@dataclass(frozen=True, eq=False)
class ClassificationTask(Task):
    """Labels 0, …, C − 1 through the probit, or for C > 2 the softmax, in Laplace's approximation.

    Attributes
    ----------
    problem : the training rows
    start : the process from which learning starts
    """

    problem: Observations
    start: LatentProcess

    @classmethod
    def of(cls, X: Tensor, y: Tensor, kernel: Kernel, classes: int = 2, backend: Backend | None = None) -> Self:
        """Return the task on these rows."""
        backend = (backend or backends.default(device=X.device.type)).counting(len(X))
        likelihood = BernoulliProbit() if classes == 2 else Softmax()
        problem = Observations(X, y, classes=1 if classes == 2 else classes, backend=backend)
        return cls(problem, LatentProcess(kernel, likelihood))

    def on(self, rows: Tensor) -> Self:
        return replace(self, problem=self.problem.subset(rows))

    @property
    def probes(self) -> int:
        return affordable_probes(self.problem)

    def plan(self, solver: str, numerics: Numerics = Numerics()) -> Plan:
        return LaplaceObjective(self.problem, solver, numerics).plan

    def criterion(self, solver: str, numerics: Numerics, growing: bool) -> LaplaceObjective:
        return LaplaceObjective(self.problem, solver, numerics, growing)

    def approximation(self, kind: str, generator: Generator) -> SparseLaplaceObjective:
        U = inducing_points(self.problem.X, generator=generator)
        return SparseLaplaceObjective(self.problem, SparseApproximation(SparseKind(kind), U))

    def resolved(self, rms: float) -> Stopping:
        return Stopping(rtol=rms, max_iterations=self.problem.size, patience=self.problem.size)

    def condition(self, gp: LatentProcess, solver: str, numerics: Numerics, rtol: float, generator: Generator) -> Any:
        plan = self.plan(solver, numerics)
        problem = self.problem.storing(plan.conditioning.storage)
        found = condition_laplace(problem, gp, method=plan.method, rtol=rtol, numerics=numerics)
        if found.mode.status is not Status.CONVERGED:
            raise SolveFailed(f"the mode was not found: {found.mode.status.value}")
        return found

    def scores(self, posterior: Any, X: Tensor, y: Tensor) -> Scores:
        if isinstance(posterior, SparseLaplacePosterior):
            return _of_two(*posterior.predict(X), posterior.likelihood, y)
        found, likelihood = posterior.predict(X, covariance=True), posterior.gp.likelihood
        if isinstance(likelihood, Softmax):
            values, vectors = torch.linalg.eigh(found.covariance)
            root = vectors * values.clamp_min(0).sqrt()[:, None, :]
            generator = torch.Generator().manual_seed(0)
            probabilities, _ = likelihood.predictive_probabilities(found.mean, root, generator)
            probabilities, y = probabilities.cpu(), y.cpu()
            own = probabilities.gather(1, y.long()[:, None]).clamp_min(1e-300)
            wrong = probabilities.argmax(1) != y
            return Scores(float(wrong.double().mean()), float(-own.log().mean()))
        return _of_two(found.mean[:, 0], found.covariance[:, 0, 0], likelihood, y)


def _of_two(mean: Tensor, variance: Tensor, likelihood: Likelihood, y: Tensor) -> Scores:
    """Judge predictions of two classes from the moments of their latent values."""
    mean, variance, y = mean.cpu(), variance.cpu(), y.cpu()
    density = likelihood.log_predictive(y, mean, variance)
    return Scores(float(((mean > 0) != (y > 0)).double().mean()), -float(density.mean()))
