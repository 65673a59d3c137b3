"""The latent process given the data, in Laplace's approximation: mean and covariance at new points, with bounds."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernelcg.arguments import matrix
from kernelcg.backends.memory import require_memory
from kernelcg.events import Listener
from kernelcg.inference.bounds.product_rounding import ProductRounding
from kernelcg.inference.bounds.rounding import UNIT_ROUNDOFF, error_of_drift
from kernelcg.inference.gaussian.likelihood_by_pcg import Numerics
from kernelcg.inference.laplace.certified_covariances import certified
from kernelcg.inference.laplace.explained import Task, differences
from kernelcg.inference.laplace.indefinite_points import IndefinitePoints
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.local_covariances import estimated
from kernelcg.inference.laplace.mode import Mode, find_mode, newton_step
from kernelcg.inference.laplace.mode_error import NOWHERE, ModeError, drift_condition, mode_error, solved_for_drift
from kernelcg.inference.laplace.newton_methods import systems_for
from kernelcg.inference.laplace.newton_system import NewtonSystem, Spent
from kernelcg.likelihoods import Likelihood
from kernelcg.planning.plan import Method, definite_method
from kernelcg.solvers import Status

GROUPS, BLOCKS_AT_ONCE = 2, 16
"""How many times the columns that a plan allows at once are solved for together, and the blocks of N numbers a column
that a solve and its check hold at once."""

ENOUGH = 1e-3
"""Error of the latent mean, in standard deviations, below which the mode is not computed any better."""

DRIFT_RTOL = 1e-8
"""Residual of the solves for the drift, of which there are few: their errors grow with the condition number of HᵀRH."""

CLOSER = (1e-2, 1e-4, 1e-6, 1e-8)
"""Factors by which the tolerance of the mode is made smaller, one after the other, where the mean is not known well
enough."""

STRONG_CONCAVITY = "the strong concavity of log p(f | y)"
NEWTON = "one more Newton step"


@dataclass(frozen=True, eq=False)
class LatentPrediction:
    """What is known about the latent values at new points.

    Attributes
    ----------
    mean : (t, C)
    mean_bound : (t,) upper bound of its numerical error; see `LaplacePosterior.rests_on`
    covariance : (t, C, C) between the latent values of a point, or None
    covariance_error : (t,) how far the variances may be off at this mode: the solves for k(X, x) leave them too large,
        rounding may do either
    relative_error : by this much of themselves all variances may be off besides, because the mode is
    status : of the linear solves
    """

    mean: Tensor
    mean_bound: Tensor
    covariance: Tensor | None = None
    covariance_error: Tensor | None = None
    relative_error: float = 0.0
    status: Status = Status.CONVERGED

    def known_covariance(self) -> Tensor:
        """Return the covariance; `ValueError` where it was not asked for."""
        if self.covariance is None:
            raise ValueError("this prediction was made without covariances: ask for them")
        return self.covariance

    @property
    def variances(self) -> Tensor:
        """Return (t, C) the variances, where covariances were asked for."""
        return self.known_covariance().diagonal(dim1=1, dim2=2)

    @property
    def least_variance(self) -> Tensor:
        """Return (t,) the least variance that matters: of f itself, or of a class minus the mean over the classes."""
        if self.covariance is None or self.covariance.shape[1] == 1:
            return self.variances.amin(1)
        return differences(self.covariance).amin(1)

    @property
    def variance_error(self) -> Tensor:
        """Return (t,) how far they may be off, for every reason."""
        return self.solve_error + self.relative_error * (self.variances.amax(1) + self.solve_error)

    @property
    def solve_error(self) -> Tensor:
        """Return (t,) how far they may be off at this mode."""
        if self.covariance_error is None:
            raise ValueError("this prediction was made without covariances: ask for them")
        return self.covariance_error


@dataclass(frozen=True, eq=False)
class LaplacePosterior:
    """p(f | y) ≈ N(f̂, (K⁻¹ + W)⁻¹): the mode, what solves further systems, and how far the mode may be off.

    Attributes
    ----------
    gp : the latent process with its hyperparameters
    problem : the data
    mode : f̂ and what belongs to it
    method : "direct" or "iterative"
    numerics : how iterative solves work
    error : how far the mode may be off
    system : what solves with I + W^½KW^½; None where it was left out of a file
    apart : the points at which W is negative; None where it was left out of a file
    RH : (N, b) R H for the drift functions H and R = W(I + KW)⁻¹
    variance_tolerance : relative error of predictive latent variances that is aimed at
    """

    gp: LatentProcess
    problem: Observations
    mode: Mode
    method: Method
    numerics: Numerics
    error: ModeError
    system: NewtonSystem | None
    apart: IndefinitePoints | None
    RH: Tensor  # (N, b)
    variance_tolerance: float
    spent: Spent
    """What the solves of conditioning took."""

    def __repr__(self) -> str:
        return f"<LaplacePosterior of {len(self.problem)} rows by the {self.method} method: {self.gp}>"

    @property
    def rests_on(self) -> str:
        """Say what the bound of the mean rests on."""
        return STRONG_CONCAVITY if self.error.is_certain else NEWTON

    # without its factors

    @property
    def is_lean(self) -> bool:
        """Whether it holds nothing but O(n d) numbers: the mean is at hand, everything else needs `restored`."""
        return self.system is None

    def lean(self) -> "LaplacePosterior":
        """Return it without factors and preconditioners, to be stored."""
        return replace(self, problem=self.problem.with_kernel(None), system=None, apart=None)

    def restored(self) -> "LaplacePosterior":
        """Return it with what solves for covariances need; itself if it has all of that.

        One that was just conditioned may lack some preparation, too, that pays for many points only. Without it
        `predict` is as exact, but does that preparation in every call.
        """
        if self.system is not None:
            sharp = self.system.sharpened()
            return self if sharp is self.system else replace(self, system=sharp)
        problem = self.problem.with_kernel(self.gp.kernel)
        system = systems_for(problem, self.gp, self.method, self.numerics).sharpened().at(self.mode.expansion)
        apart = IndefinitePoints.of(problem, self.gp, system, self._rtol())
        return replace(self, problem=problem, system=system, apart=apart)

    def _rtol(self) -> float:
        return 1e-2 * self.variance_tolerance

    # prediction

    def mean(self, X: Tensor) -> Tensor:
        """Return (t, C) the means: one product."""
        X, problem = self.checked_inputs(X), self.problem
        a = self.mode.a.reshape(len(problem), -1).contiguous()
        product = problem.matrix(self.gp.kernel).cross(X, a, precision=torch.float64)
        return product + problem.drift(X) @ self.mode.beta if problem.H.shape[1] else product

    def mean_bound(self, X: Tensor, variance: Tensor | None = None) -> Tensor:
        """Return (t,) bounds of the numerical error of the mean of every latent value, rounding included.

        The mode being off by a known number of standard deviations, or by ‖f − f̂‖ in the norm of K⁻¹ (`ModeError`),
        the mean at x is off by √v(x) times the one and √k(x, x) times the other. v is the latent ``variance`` (t,)
        where it is known; it is no more than k(x, x) and what the drift adds.
        """
        X, problem, error = self.checked_inputs(X), self.problem, self.error
        prior = self.gp.kernel.diagonal(X).detach().clamp_min(0)
        a = self.mode.a.reshape(len(problem), -1)
        rounding = self.rounding().of_cross(X, a).amax(1)
        if problem.H.shape[1]:
            rounding = rounding + (error_of_drift(problem.drift, X) @ self.mode.beta.abs())[:, 0]
        if variance is None:
            variance = prior + (1 + self._drift_error()) * self._drift_variance(X)
        own = (prior.sqrt() * error.energy).minimum(variance.sqrt() * error.deviations)
        return own * (1 if error.is_certain else 2) + rounding

    def rounding(self) -> ProductRounding:
        """Return how far products with K may be off."""
        return ProductRounding.of(self.problem.matrix(self.gp.kernel))

    def _drift_variance(self, X: Tensor) -> Tensor:
        """Return (t,) what the drift adds to the variances: uᵀ(h − HᵀRk), u = (HᵀRH)⁻¹(h − HᵀRk)."""
        if self.problem.H.shape[1] == 0:
            return X.new_zeros(len(X))
        left, u = self._drift_left(X)
        return (left * u).sum(0).clamp_min(0.0)

    def _drift_left(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return (b, t) h − HᵀRk, what is left of the drift at X given the data, and u."""
        problem = self.problem
        cross = problem.matrix(self.gp.kernel).cross(X, self.RH, precision=torch.float64)
        left = (problem.drift(X) - cross).T
        return left, solved_for_drift(problem.H.T @ self.RH, left)

    def _drift_rounding(self, X: Tensor, form: Tensor) -> Tensor:
        """Return (t,) how far what the drift adds may be off because h and H are rounded; ``form`` is kᵀRk.

        To first order by 2 |u|ᵀ(|δh| + |δH|ᵀ|w|), w = R(k + Hu) the weights of the data. With the squared length
        q² = wᵀR⁻¹w = kᵀRk + uᵀ(h + HᵀRk), which R ⪯ W makes no less than Σ w²/W, no |w| is more than q √W.
        """
        problem = self.problem
        if problem.H.shape[1] == 0:
            return X.new_zeros(len(X))
        left, u = self._drift_left(X)
        q = (form + (u * (2 * problem.drift(X).T - left)).sum(0)).clamp_min(0.0).sqrt()
        of_data = self.mode.expansion.trace().sqrt() @ error_of_drift(problem.drift, problem.X)  # (b,)
        own = error_of_drift(problem.drift, X).T
        return 2 * (u.abs() * (own + of_data[:, None] * q)).sum(0)

    def _drift_error(self) -> float:
        """Return an estimate of the relative error of `_drift_variance`: that of RH times a condition number."""
        H, own = self.problem.H, 8 * UNIT_ROUNDOFF + (0 if self.method is Method.DIRECT else DRIFT_RTOL)
        return 8 * own * drift_condition(self.problem, self.mode, H.T @ self.RH) if H.shape[1] else 0.0

    def predict(
        self,
        X: Tensor,
        *,
        covariance: bool = False,
        bound: bool = False,
        beside: float = 0.0,
        callback: Listener | None = None,
    ) -> LatentPrediction:
        """Return the means with their bounds, and if asked for the covariance of the latent values of each point.

        Variances are known to a tolerance relative to themselves plus ``beside``. In the iterative method they are
        estimates, with estimates of their errors; with ``bound`` they come with rigorous bounds instead, for which more
        work is done. A callback is told of every chunk of covariances and of the iterations of its solves.
        """
        X = self.checked_inputs(X)
        mean = self.mean(X)
        if not covariance:
            return LatentPrediction(mean, self.mean_bound(X))
        found, error, status = self._covariance(X, bound, beside, callback)
        mean_bound = self.mean_bound(X, found.diagonal(dim1=1, dim2=2).amax(1) + error)
        return LatentPrediction(mean, mean_bound, found, error, self.error.widening - 1, status)

    def _covariance(
        self, X: Tensor, bound: bool, beside: float, callback: Listener | None
    ) -> tuple[Tensor, Tensor, Status]:
        r"""Return (t, C, C) covariances, (t,) how far variances may be off, and the status.

        :math:`k_{**} I - k_*^\top R k_*`, R = S A⁻¹ Sᵀ + N B Nᵀ. The drift adds (h − HᵀRk)ᵀ(HᵀRH)⁻¹(h − HᵀRk).
        """
        problem, C, t = self.problem, self.problem.classes, len(X)
        system, apart = self.at_hand()
        if not apart.exists:
            return X.new_full((t, C, C), math.nan), X.new_full((t,), math.inf), Status.INDEFINITE_OPERATOR
        prior = self.gp.kernel.diagonal(X).detach().clamp_min(0)
        system = system.sharpened().telling(callback)
        task = Task(self, X, prior, system, beside, self._points_at_once(), callback)
        P = None if bound else system.near()
        found = certified(task) if P is None else estimated(task, P)
        by_apart = torch.zeros_like(prior)
        if len(apart.B):
            columns = problem.matrix(self.gp.kernel).cross(X, apart.N, precision=torch.float64)
            by_apart = (columns * (columns @ apart.B)).sum(1)
        drift = self._drift_variance(X)
        eye = torch.eye(C, dtype=X.dtype, device=X.device)
        covariance = prior[:, None, None] * eye - found.form + (drift - by_apart)[:, None, None]
        covariance.diagonal(dim1=1, dim2=2).clamp_min_(0.0)
        error = found.error + self._drift_error() * drift + self._apart_error() * by_apart.abs()
        error = error + self._drift_rounding(X, found.form.diagonal(dim1=1, dim2=2).amax(1))
        return covariance, error * (1 if self.error.is_certain else 2), found.status

    def _apart_error(self) -> float:
        """Return an estimate of the relative error of what the points apart explain: their solves' and rounding."""
        return 64 * UNIT_ROUNDOFF * len(self.problem) if self.method is Method.DIRECT else 10 * self._rtol()

    def at_hand(self) -> tuple[NewtonSystem, IndefinitePoints]:
        """Return the factors, or raise if it was stored without them."""
        if self.system is None or self.apart is None:
            raise ValueError("this posterior was stored without its factors: call restored() first")
        return self.system, self.apart

    def _points_at_once(self) -> int:
        sizes, C = self.problem.pricing.sizes, self.problem.classes
        budget, each = int(sizes.for_columns * self.problem.points.budget()), 8 * self.problem.size * C * BLOCKS_AT_ONCE
        require_memory(each, budget, f"solving for the {C} latent values of one more point")
        return max(1, int(min(budget // each, GROUPS * sizes.columns // C)))

    def checked_inputs(self, X: Tensor) -> Tensor:
        """Return X as a float64 tensor beside the data, or raise."""
        X = matrix(X, "X").detach().double().to(self.problem.X.device)
        if X.shape[1] != self.problem.X.shape[1]:
            raise ValueError(f"X has {X.shape[1]} features but the model was fitted to {self.problem.X.shape[1]}")
        return X


def condition_laplace(
    problem: Observations,
    gp: LatentProcess,
    *,
    method: str = Method.ITERATIVE,
    rtol: float = 1e-6,
    numerics: Numerics = Numerics(),
    variance_tolerance: float = 1e-2,
    start: Tensor | None = None,
    callback: Listener | None = None,
) -> LaplacePosterior:
    """Condition the latent process on the data: the mode to ``rtol``, and what predictions need.

    Parameters
    ----------
    problem : the data
    gp : the latent process with its hyperparameters
    method : "direct" (Cholesky) or "iterative" (preconditioned CG)
    numerics : how iterative solves work
    rtol : of the mode: ‖∇log p(f̂) − a‖ relative to ‖∇log p(f̂)‖
    variance_tolerance : certified relative error of predictive latent variances
    start : f of a mode nearby
    callback : told of the iterations of all solves

    Returns
    -------
    LaplacePosterior : the latent process given the data

    Examples
    --------
    >>> import torch
    >>> from kernelcg.inference import LatentProcess, Observations, condition_laplace
    >>> from kernelcg.kernels import RBF
    >>> from kernelcg.likelihoods import Poisson
    >>> X = torch.linspace(0, 6, 30).double()[:, None]
    >>> counts = torch.round(torch.exp(1 + torch.sin(X[:, 0])))
    >>> posterior = condition_laplace(Observations(X, counts, mean="constant"), LatentProcess(RBF(1.0), Poisson()))
    >>> bool((posterior.mean(X)[:, 0].exp() - counts).abs().max() < 2)
    True
    """
    gp = gp.with_log_parameters(gp.log_parameters().detach())
    problem = problem.with_kernel(gp.kernel)
    systems = systems_for(problem, gp, method, numerics, callback=callback)
    search = find_mode(problem, gp, systems, rtol=rtol, start=start)
    _require_finite(problem, gp, search.mode)
    spent = search.spent
    for closer in CLOSER:
        mode, system = search.mode, search.systems.at(search.mode.expansion)
        apart = IndefinitePoints.of(problem, gp, system, 1e-2 * variance_tolerance)
        r = mode.expansion.gradient - mode.a
        step = newton_step(problem, system, mode.a, r, 1e-2, apart if apart.exists else None)
        RH, spent = step.RH, spent + apart.spent + step.spent
        if problem.H.shape[1]:
            unbent = system.unbent(mode.a, DRIFT_RTOL, problem.H)
            RH, spent = unbent.RH + apart.N @ (apart.B @ (apart.N.T @ problem.H)), spent + unbent.spent
        error = mode_error(problem, gp, mode, replace(step, RH=RH))
        if error.deviations <= ENOUGH or mode.status is not Status.CONVERGED or not apart.exists:
            break
        search = find_mode(problem, gp, search.systems, rtol=closer * rtol, start=mode.f)
        spent = spent + search.spent
        if search.mode.residual <= rtol:  # that much was asked for; what comes closer is a gift
            search = replace(search, mode=replace(search.mode, status=Status.CONVERGED))
    return LaplacePosterior(
        gp,
        problem,
        mode,
        definite_method(method),
        numerics,
        error=error if apart.exists else NOWHERE,
        system=system.telling(None),  # who was told of this work is not told of later work
        apart=apart,
        RH=RH,
        variance_tolerance=variance_tolerance,
        spent=spent,
    )


def _require_finite(problem: Observations, gp: LatentProcess, mode: Mode) -> None:
    """Raise where log p(y | f) or a derivative that Newton's method needs is not finite, naming the first such row."""
    if not isinstance(gp.likelihood, Likelihood):
        return
    found = gp.likelihood.derivatives(problem.y, mode.f[:, 0], problem.exposure)
    wrong = ~(found.log_density.isfinite() & found.gradient.isfinite() & found.curvature.isfinite())
    if bool(wrong.any()):
        i = int(wrong.nonzero()[0])
        raise ValueError(
            f"log p(y | f) of {gp.likelihood!r} or one of its first two derivatives in f is NaN or infinite at row "
            f"{i}, where y is {float(problem.y[i]):g} and f {float(mode.f[i]):g}: give the kernel a smaller variance "
            "or, for a likelihood of your own, write log_density so that autograd keeps its derivatives finite "
            "(logsigmoid does, logaddexp does not), or write the method derivatives"
        )
