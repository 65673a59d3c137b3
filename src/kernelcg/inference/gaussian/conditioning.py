"""Conditioning a process on data: one solve for y and the drift, by the method of choice, and its certificates."""

import math
import time
from dataclasses import dataclass, replace

import torch
from numpy.linalg import LinAlgError
from torch import Generator, Tensor

from kernelcg import planning
from kernelcg.errors import SolveFailed
from kernelcg.events import Listener
from kernelcg.inference.bounds.lower_bound import Exact, LowerBound
from kernelcg.inference.bounds.rounding import UNIT_ROUNDOFF, Certified, EnergyBound, Rounding, certified
from kernelcg.inference.gaussian.likelihood_by_pcg import FATAL
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.inference.gaussian.posterior import Posterior
from kernelcg.inference.gaussian.refinement import LARGEST_ERROR, Fitted, refined, says_little
from kernelcg.inference.learning.criterion_value import generalised_least_squares
from kernelcg.operators import Invertible, KernelPlusDiagonal
from kernelcg.planning import Kept
from kernelcg.planning.plan import Method, Storage, definite_method
from kernelcg.preconditioners import Preconditioner, Prepared, recipe
from kernelcg.randomness import child
from kernelcg.solvers import Approach, Attempt, CholeskyFactor, SolveReport, Status, Stopping, solve

REFINEMENTS = 3

FACTORISED_ROWS = 1500
"""Rows up to which A is factorised where iterations or probes leave too large an error: a second of one core, 54 MB."""

EIGENVALUE_ROWS = 2500
"""Rows up to which all eigenvalues are computed where nothing else helps: they cost as much as 25 factorisations."""

NEARLY = (Status.PRECISION_EXHAUSTED, Status.STAGNATED)
"""Ends of a solve after which refinement with more digits may still meet the tolerance."""

SATURATED = 1e-13
"""Residual relative to Y below which no refinement is tried."""


def condition(
    problem: Regression,
    gp: GaussianProcess,
    *,
    method: str = Method.ITERATIVE,
    stopping: Stopping = Stopping(),
    preconditioner: str | Preconditioner | None = "auto",
    variance_tolerance: float = 1e-2,
    start: Tensor | None = None,
    prepared: Prepared | None = None,
    generator: Generator,
    callback: Listener | None = None,
) -> Posterior:
    """Condition the process on the data, by Cholesky factorisation ("direct") or preconditioned CG ("iterative").

    Parameters
    ----------
    problem : the data
    gp : the process with its hyperparameters
    method : "direct" or "iterative"
    preconditioner : "auto", the name of a recipe, a recipe, or None for plain CG
    generator : source of randomness: the same state gives the same numbers
    stopping : tolerance of the weights a and of covariances
    variance_tolerance : certified relative error of predictive variances, noise included
    start : (n, c + b) first guess for A⁻¹[Y, H], Y without the drift of ordinary least squares
    prepared : a preconditioner for this kernel and these data to begin with; more is done if it does not suffice
    callback : told of the iterations of all solves

    Returns
    -------
    Posterior : the process given the data

    Examples
    --------
    >>> import torch
    >>> from kernelcg.inference import GaussianProcess, Regression, condition
    >>> from kernelcg.kernels import RBF
    >>> X = torch.linspace(0, 6, 30).double()[:, None]
    >>> seed = torch.Generator().manual_seed(0)
    >>> posterior = condition(Regression(X, torch.sin(X)), GaussianProcess(RBF(1.0), 0.01), generator=seed)
    >>> bool((posterior.predict(X).mean - torch.sin(X)).abs().max() < 0.1)
    True
    """
    exact, B = problem.system(gp), torch.cat([problem.centred, problem.H], dim=1)
    source = child(generator, "P")
    if definite_method(method) is Method.DIRECT:
        solved = _directly(problem, exact, B, stopping, source, callback)
    else:
        A = problem.fast_system(gp)
        solved = _iteratively(problem, A, B, stopping, preconditioner, prepared, start, source, callback)
    if not bool(solved.report.solution.isfinite().all()):
        raise SolveFailed(f"conditioning on {len(problem)} observations failed: {solved.report}")
    found = _conditioned(problem, gp, exact, B, solved, stopping, variance_tolerance, generator, callback)
    if isinstance(found.bound, Exact) or not few_rows(problem) or not _falls_short(found):
        return found
    direct = _directly(problem, exact, B, stopping, source, callback)
    if direct.bound is None:
        return found
    direct = replace(direct, report=_instead(solved.report, direct.report))
    return _conditioned(problem, gp, exact, B, direct, stopping, variance_tolerance, generator, callback)


def few_rows(problem: Regression) -> bool:
    """Whether A may be factorised wherever that is better than iterating."""
    return len(problem) <= FACTORISED_ROWS and _matrices_fit(problem)


def _matrices_fit(problem: Regression) -> bool:
    """Whether three n × n matrices fit half of the memory, beside everything that is there already."""
    return 2 * 24 * len(problem) ** 2 <= problem.points.budget()


def _falls_short(posterior: Posterior) -> bool:
    """Whether rounding ended the solve before its tolerance, or the error that is left may be seen somewhere.

    That is an error of the mean beyond a hundredth of the noise's standard deviation and rtol times that of Y.
    """
    status, A, problem = posterior.report.status, posterior.A, posterior.problem
    noise = problem.amplitudes(A) * math.sqrt(float(posterior.gp.noise.variance.min()))  # that of new points
    allowed = torch.maximum(posterior.stopping.rtol * problem.Y.std(0, correction=0), LARGEST_ERROR * noise)
    seen = bool((float(A.kernel_diagonal().max()) ** 0.5 * posterior.weights.error > allowed).any())
    ended_well = status is Status.CONVERGED and not seen and not says_little(problem, A, posterior.weights)
    return status in (Status.CONVERGED, *NEARLY, *FATAL) and not ended_well


def _instead(first: SolveReport, direct: SolveReport) -> SolveReport:
    """Return the report of a factorisation that took the place of iterations, with the costs of both."""
    what, why, seconds = "Cholesky factorisation", "iterations left too large an error", direct.seconds
    attempt = Attempt(what, why, math.nan, math.nan, seconds, 0, 0.0, direct.status, Approach.DIRECT)
    both = _joined(first, direct, f"{why} ({first.status.name.lower()}): A was factorised instead")
    return replace(
        direct,
        products=both.products,
        columns=both.columns,
        seconds=both.seconds,
        tried=both.tried,
        attempts=(*first.attempts, attempt),
    )


def _conditioned(
    problem: Regression,
    gp: GaussianProcess,
    exact: KernelPlusDiagonal,
    B: Tensor,
    solved: "_Solved",
    stopping: Stopping,
    variance_tolerance: float,
    generator: Generator,
    callback: Listener | None,
) -> Posterior:
    """Return the process with weights from a solve for B = [Y, H], refined as far as that helps."""
    if solved.report.status in FATAL:
        few = len(problem) <= EIGENVALUE_ROWS and _matrices_fit(problem)
        solved = replace(solved, report=_least_residual(exact, B, solved.report, eigenvalues=few))
    bound = solved.bound or LowerBound.of(exact, child(generator, "bound"), sizes=problem.pricing.sizes)
    rounding = Rounding.of(exact)
    fitted, report = _fitted(problem, exact, solved, bound, rounding, stopping, callback)
    return Posterior(
        gp,
        problem.storing(Storage.RECOMPUTED),  # predictions hold no n × n matrix
        problem.ordinary + fitted.beta,
        fitted.weights,
        fitted.drift_weights,
        report,
        bound,
        rounding,
        solved.P,
        solved.kept,
        stopping,
        variance_tolerance,
        seed=generator.initial_seed(),
    )


@dataclass(frozen=True, eq=False)
class _Solved:
    """A solve, and what it leaves for further ones."""

    report: SolveReport
    P: Invertible | None = None
    kept: Kept | None = None
    bound: Exact | None = None


def _fitted(
    problem: Regression,
    exact: KernelPlusDiagonal,
    solved: _Solved,
    bound: EnergyBound,
    rounding: Rounding,
    stopping: Stopping,
    callback: Listener | None,
) -> tuple[Fitted, SolveReport]:
    """Return the coefficients and weights that follow from a solve for Y and H, refined as far as they need it."""
    c = problem.Y.shape[1]
    first, G = solved.report.solution[:, :c], solved.report.solution[:, c:]
    drift_weights = certified(exact, problem.H, G, bound, rounding)
    beta, weights, report = _weights(problem, exact, solved, first, G, bound, rounding, stopping, callback)
    fitted = Fitted(beta, weights, drift_weights)
    if report.status in FATAL:
        return fitted, report
    better = refined(problem, exact, fitted, bound, rounding, solved.P)
    b = problem.centred - problem.H @ better.beta
    if better is not fitted and report.status in NEARLY and _is_solved(problem, b, better.weights, stopping):
        note = "further refinement, with the residual in more digits, met the tolerance"
        report = replace(report, status=Status.CONVERGED, tried=(*report.tried, note))
    return better, report


def _weights(
    problem: Regression,
    exact: KernelPlusDiagonal,
    solved: _Solved,
    solved_Y: Tensor,
    G: Tensor,
    bound: EnergyBound,
    rounding: Rounding,
    stopping: Stopping,
    callback: Listener | None,
) -> tuple[Tensor, Certified, SolveReport]:
    """Return β and a with A a = Y − Hβ to tolerance: that of Y and H apart need not be enough where they cancel."""
    report, beta = solved.report, problem.ordinary.new_zeros(problem.ordinary.shape)
    for attempt in range(REFINEMENTS + 1):
        if report.status in FATAL:  # A⁻¹H is as wrong as A⁻¹Y: the drift stays that of ordinary least squares
            change, a = torch.zeros_like(beta), solved_Y
        else:
            change, a = generalised_least_squares(problem.H, solved_Y, G)
        beta = beta + change
        b = problem.centred - problem.H @ beta
        weights = certified(exact, b, a, bound, rounding)
        if _is_solved(problem, b, weights, stopping) or report.status is not Status.CONVERGED:
            return beta, weights, report
        if attempt < REFINEMENTS:
            again = solve(exact, b, preconditioner=solved.P, start=a, stopping=stopping, callback=callback)
            note = "the weights were refined after the drift was taken out"
            report, solved_Y = _joined(report, again, note), again.solution
    return beta, weights, replace(report, status=Status.PRECISION_EXHAUSTED)


def _is_solved(problem: Regression, b: Tensor, weights: Certified, stopping: Stopping) -> bool:
    """Whether b − Aa met the tolerance for every column, as far as b is more than rounding."""
    smallest = SATURATED * problem.Y.norm(dim=0)  # where the drift explains all, b is rounding
    allowed = torch.maximum((stopping.rtol * b.norm(dim=0)).clamp_min(stopping.atol), smallest)
    return bool((weights.R.norm(dim=0) <= allowed).all())


def _joined(first: SolveReport, second: SolveReport, note: str) -> SolveReport:
    """Return the first report with the outcome of the second and the costs of both."""
    return replace(
        first,
        status=second.status,
        products=first.products + second.products,
        columns=first.columns + second.columns,
        seconds=first.seconds + second.seconds,
        tried=(*first.tried, note, *second.tried),
        attempts=(*first.attempts, *second.attempts),
    )


def _directly(
    problem: Regression,
    A: KernelPlusDiagonal,
    B: Tensor,
    stopping: Stopping,
    generator: Generator,
    callback: Listener | None,
) -> _Solved:
    """Factorise A; where rounding makes that impossible, solve by iterations, whose report says so."""
    began = time.perf_counter()
    try:
        factor = CholeskyFactor(A.dense())
    except LinAlgError:
        pricing = problem.pricing
        return _Solved(planning.solve_automatically(A, B, None, stopping, callback, generator, pricing=pricing)[0])
    report = solve(A, B, preconditioner=factor, start=factor.solve(B), stopping=stopping, callback=callback)
    report = replace(report, method=Method.DIRECT, seconds=time.perf_counter() - began)
    return _Solved(report, factor, None, Exact(A, factor))


def _least_residual(A: KernelPlusDiagonal, B: Tensor, report: SolveReport, *, eigenvalues: bool) -> SolveReport:
    """Return the report of a solve that broke down with the least residual of each column: its own, 0, or a rival's.

    The rival is the pseudo-inverse, without those ``eigenvalues`` that are below n u times the largest.
    """
    found = {"": report.solution, "zero weights are closer than what was found": torch.zeros_like(B)}
    if eigenvalues:
        values, V = torch.linalg.eigh(A.dense())
        kept = values > len(A) * UNIT_ROUNDOFF * values[-1]
        solved = V[:, kept] @ (V[:, kept].T @ B / values[kept, None])
        found["eigenvalues of A that are nothing but rounding were left out"] = solved
    norms = torch.stack([(B - A @ X).norm(dim=0) for X in found.values()])  # (candidates, k)
    best = norms.nan_to_num(nan=math.inf).argmin(0)
    notes = [note for i, note in enumerate(found) if note and bool((best == i).any())]
    chosen = torch.stack(list(found.values()))[best, :, torch.arange(B.shape[1], device=B.device)].T
    return replace(report, solution=chosen.contiguous(), tried=(*report.tried, *notes))


def _iteratively(
    problem: Regression,
    A: KernelPlusDiagonal,
    B: Tensor,
    stopping: Stopping,
    preconditioner: str | Preconditioner | None,
    prepared: Prepared | None,
    start: Tensor | None,
    generator: Generator,
    callback: Listener | None,
) -> _Solved:
    """Solve with a preconditioner that is given, named or chosen; where that fails, with one that is chosen."""
    failed = None
    if preconditioner is None or (prepared is None and preconditioner != "auto"):
        P = _built(A, preconditioner, generator)
        report = solve(A, B, preconditioner=P, start=start, stopping=stopping, callback=callback)
        if report.status is Status.CONVERGED:
            return _Solved(report, P)
        failed, start = report, report.solution
    first = None if prepared is None else Kept(prepared, math.inf, 0.0)
    report, kept = planning.solve_reusing(
        A, B, first, start=start, stopping=stopping, callback=callback, generator=generator, pricing=problem.pricing
    )
    if failed is not None:
        name = "no preconditioner" if preconditioner is None else f"{preconditioner!r}"
        joined = _joined(
            failed, report, f"{name} did not suffice ({failed.status.name.lower()}): one was chosen instead"
        )
        report = replace(
            report, products=joined.products, columns=joined.columns, seconds=joined.seconds, tried=joined.tried
        )
    if any(attempt.approach is Approach.DIRECT for attempt in report.attempts):
        exact = A.with_precision(torch.float64)
        direct = _directly(problem, exact, B, stopping, generator, callback)  # the factor serves all that follows
        return replace(direct, report=report) if direct.P is not None else _Solved(report)
    P = None if kept.prepared is None else kept.prepared.factor(A.scale, A.diagonal)
    return _Solved(report, P, kept)


def _built(A: KernelPlusDiagonal, choice: str | Preconditioner | None, generator: Generator) -> Invertible | None:
    if choice is None:
        return None
    chosen = recipe(choice) if isinstance(choice, str) else choice
    return chosen.prepare(A.K, generator).factor(A.scale, A.diagonal)
