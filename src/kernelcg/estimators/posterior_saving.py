"""Conditioned processes, of one system or of several outputs, as headers and tensors of model files."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kernelcg.backends import Backend
from kernelcg.estimators.file_soundness import (
    require_bounded_residual,
    require_bounds,
    require_drift,
    require_kernel,
    require_numbers,
    require_report,
    require_residual,
    require_shape,
    require_tolerance,
)
from kernelcg.estimators.record_json import as_planned, packed, unpacked
from kernelcg.estimators.settings import chosen_backend, chosen_precision
from kernelcg.inference.bounds.certificate import Certificate
from kernelcg.inference.bounds.rounding import UNIT_ROUNDOFF, Certified, Rounding
from kernelcg.inference.gaussian.drift import Drift
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.inference.gaussian.posterior import Posterior
from kernelcg.inference.outputs.certificate import OutputsCertificate
from kernelcg.inference.outputs.model import OutputProcesses, Outputs, share_of
from kernelcg.inference.outputs.posterior import OutputsPosterior
from kernelcg.planning import Kept
from kernelcg.planning.growing_factor import Construction
from kernelcg.planning.plan import Storage
from kernelcg.solvers import SolveReport, Stopping

BOUNDS_OF_SOLVES = ("error", "floor", "quadratic_error")
"""Tensors of a `Certified` that are not negative."""

MACHINE = ("mean", "backend", "precision", "pricing", "stored")
"""Fields of a problem that belong to the estimator or to the machine."""


def packed_posterior(
    posterior: Posterior, tensors: dict[str, Tensor], prefix: str = "", leave_out: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return a process without factors and preconditioners as JSON, and put its tensors into ``tensors``.

    Their names begin with the prefix; of the data the fields to ``leave_out`` are stored elsewhere.
    """
    problem = posterior.problem
    tensors[f"{prefix}beta"], tensors[f"{prefix}ordinary"] = posterior.beta, problem.ordinary
    report = packed(posterior.report, tensors, f"{prefix}report", leave_out=("solution", "residual_norms"))
    lean = posterior.lean()
    if lean.pivots is not None:
        tensors[f"{prefix}pivots"] = lean.pivots
    how = None if lean.kept is None or lean.kept.how is None else packed(lean.kept.how)
    return {
        **({} if how is None else {"preconditioner": how}),
        "mean": problem.mean,
        "variance_tolerance": posterior.variance_tolerance,
        "stopping": packed(posterior.stopping),
        "report": report,
        "data": packed(problem, tensors, f"{prefix}data", leave_out=(*MACHINE, *leave_out)),
        "drift": packed(problem.drift, tensors, f"{prefix}drift"),
        "weights": packed(posterior.weights, tensors, f"{prefix}weights"),
        "drift_weights": packed(posterior.drift_weights, tensors, f"{prefix}drift_weights"),
    }


def unpacked_posterior(
    estimator: Any,
    gp: Any,
    header: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    prefix: str = "",
    outputs: int = 1,
) -> Posterior:
    """Return the process that `packed_posterior` was given, one of so many ``outputs``; the plan is known already."""
    if not isinstance(gp, GaussianProcess):
        raise TypeError(f"{type(gp).__name__} is not a Gaussian process")
    _require_sound(tensors, prefix)
    backend = share_of(_backend(estimator, tensors[f"{prefix}data.X"]), outputs)
    problem = as_planned(_problem(estimator, header["mean"], tensors, prefix, backend), estimator.plan_)
    problem = problem.storing(Storage.RECOMPUTED)  # predictions hold no n × n matrix
    A, beta = problem.system(gp), tensors[f"{prefix}beta"]
    rounding, c, b = Rounding.of(A), problem.Y.shape[1], problem.H.shape[1]
    right = problem.Y - problem.H @ beta
    weights = _certified(header["weights"], tensors, f"{prefix}weights", right, rounding)
    drift_weights = _certified(header["drift_weights"], tensors, f"{prefix}drift_weights", problem.H, rounding)
    require_kernel(gp.kernel, problem.X)
    require_drift(problem.mean, problem.H, problem.X.shape[1])
    largest = float(A.kernel_diagonal().sum() + A.diagonal.max())
    rounded = 2 * (1 + b) * UNIT_ROUNDOFF * (problem.Y.abs() + problem.H.abs() @ beta.abs())  # Y − Hβ, here and there
    for solved, B, off in ((weights, right, rounded), (drift_weights, problem.H, torch.zeros_like(problem.H))):
        require_bounded_residual(solved.R, solved.error, largest)
        require_residual(solved, B, off, A)
    solution = torch.cat([weights.X + drift_weights.X @ (beta - problem.ordinary), drift_weights.X], dim=1)
    last = tensors[f"{prefix}report.true_residual_norms"][None]
    report = unpacked(SolveReport, header["report"], tensors, f"{prefix}report", solution=solution, residual_norms=last)
    require_report(report, c + b)
    return Posterior(
        gp,
        problem,
        beta,
        weights,
        drift_weights,
        report,
        None,
        rounding,
        None,
        _construction(header, len(problem)),
        unpacked(Stopping, header["stopping"]),
        require_tolerance(header["variance_tolerance"], "variance_tolerance"),
        _pivots(tensors.get(f"{prefix}pivots"), len(problem)),
    )


def _construction(header: Mapping[str, Any], n: int) -> Kept | None:
    """Return how the preconditioner was built, if the file says so."""
    if "preconditioner" not in header:
        return None
    how = unpacked(Construction, header["preconditioner"])
    if not all(0 <= count <= n for count in (how.rank, how.neighbours)) or min(how.ranks, default=0) < 0:
        raise ValueError("its preconditioner has a rank that its data cannot have")
    return Kept(None, math.inf, 0.0, how=how)


def _pivots(pivots: Tensor | None, n: int) -> Tensor | None:
    """Return the rows of the error bound, if the file has them."""
    if pivots is None:
        return None
    if pivots.dtype != torch.int64 or pivots.ndim != 1 or len(set(pivots.tolist())) < len(pivots):
        raise ValueError("its pivots are not row numbers")
    if len(pivots) and not (int(pivots.min()) >= 0 and int(pivots.max()) < n):
        raise ValueError("its pivots are not rows of its data")
    return pivots


def _certified(
    header: Mapping[str, Any], tensors: Mapping[str, Tensor], prefix: str, B: Tensor, rounding: Rounding
) -> Certified:
    """Return a stored solution of A X = B; version 0.1 did not store its quadratic form, which follows from it."""
    if f"{prefix}.quadratic" in tensors:
        return unpacked(Certified, header, tensors, prefix)
    X, R = tensors[f"{prefix}.X"], tensors[f"{prefix}.R"]
    rounded = rounding.of_products(X.new_zeros(X.shape[1]), X) + rounding.gamma * (B * X).abs().sum(0)
    bounds = (tensors[f"{prefix}.error"], tensors[f"{prefix}.floor"])
    return Certified(X, R, *bounds, (B * X + X * R).sum(0), rounded, rounding.gamma)


def unpacked_certificate(posterior: Posterior, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Certificate:
    """Return the certificate of a process; version 0.1 knew one error for all points, and not the noise beside it."""
    unit = float(tensors["y_scale_"].max()) if "y_scale_" in tensors else 1.0
    spreads = posterior.problem.Y.std(0, correction=0)
    since_then = {
        "error_at_data": header["certificate"]["mean_error"],
        "noise": unit * math.sqrt(float(posterior.problem.system(posterior.gp).diagonal.median())),
        "spread": unit * float(spreads[spreads > 0].min()) if bool((spreads > 0).any()) else 0.0,
    }
    return unpacked(Certificate, {**since_then, **header["certificate"]}, tensors, "certificate")


def packed_outputs(
    posterior: OutputsPosterior, certificate: OutputsCertificate, tensors: dict[str, Tensor]
) -> dict[str, Any]:
    """Return the processes of several outputs as JSON: X once, and of each output the rows at which it is observed."""
    tensors["X"] = posterior.problem.X
    outputs = []
    for j, (one, rows) in enumerate(zip(posterior.each, posterior.problem.rows, strict=True)):
        tensors[f"{j}.rows"] = rows
        header = packed_posterior(one, tensors, f"{j}.", leave_out=("X",))
        header["certificate"] = packed(certificate.each[j], tensors, f"{j}.certificate")
        outputs.append(header)
    return {"outputs": outputs}


def unpacked_outputs(
    estimator: Any, gp: Any, header: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[OutputsPosterior, OutputsCertificate]:
    """Return the processes and the certificates that `packed_outputs` was given."""
    X, described = tensors["X"], header["outputs"]
    if not isinstance(gp, OutputProcesses) or len(gp) != len(described):
        raise TypeError(f"{type(gp).__name__} is not the process of {len(described)} outputs")
    whole = {name: torch.full((len(X), len(described)), torch.nan, dtype=X.dtype, device=X.device) for name in "Yv"}
    each, certificates, here = [], [], dict(tensors)
    for j, one in enumerate(described):
        rows = tensors[f"{j}.rows"]
        ordered = rows.dtype == torch.int64 and rows.ndim == 1 and bool((rows.diff() > 0).all())
        if not ordered or len(rows) == 0 or not 0 <= int(rows[0]) <= int(rows[-1]) < len(X):
            raise ValueError(f"the rows at which output {j} is observed are no rows of the data")
        here[f"{j}.data.X"] = X[rows]
        each.append(unpacked_posterior(estimator, gp.output(j), one, here, f"{j}.", len(described)))
        own = each[-1].problem
        whole["Y"][rows, j] = own.Y[:, 0]
        whole["v"][rows, j] = 0.0 if own.noise_variance is None else own.noise_variance
        certificates.append(unpacked(Certificate, one["certificate"], here, f"{j}.certificate"))
    known = None if all(one.problem.noise_variance is None for one in each) else whole["v"].nan_to_num(nan=0.0)
    first = each[0].problem
    whole_problem = Outputs(X, whole["Y"], known, first.mean, _backend(estimator, X), first.precision)
    problem = as_planned(whole_problem, estimator.plan_).with_each(tuple(one.problem for one in each))
    return OutputsPosterior(gp, problem, tuple(each)), OutputsCertificate(tuple(certificates))


def _problem(estimator: Any, mean: str, tensors: Mapping[str, Tensor], prefix: str, backend: Backend) -> Regression:
    """Return the data with the drift functions that were fitted: on another machine they may have other signs."""
    X, Y = tensors[f"{prefix}data.X"], tensors[f"{prefix}data.Y"]
    known, precision = tensors.get(f"{prefix}data.noise_variance"), chosen_precision(estimator.dtype)
    problem = Regression(X, Y, known, mean, backend, precision)
    drift, ordinary = Drift(tensors[f"{prefix}drift.centre"], tensors[f"{prefix}drift.T"]), tensors[f"{prefix}ordinary"]
    H = drift(problem.X)
    fitted = {"drift": drift, "H": H, "ordinary": ordinary, "centred": problem.Y - H @ ordinary}
    for name, value in fitted.items():
        object.__setattr__(problem, name, value)
    return problem


def _backend(estimator: Any, X: Tensor) -> Backend:
    return chosen_backend(estimator.memory, estimator.n_jobs, X.device)


def _require_sound(tensors: Mapping[str, Tensor], prefix: str) -> None:
    """Raise unless the tensors are finite, of the right type, and of sizes that belong together."""
    X, Y, T = (tensors[f"{prefix}{name}"] for name in ("data.X", "data.Y", "drift.T"))
    if X.ndim != 2 or Y.ndim != 2 or T.ndim != 2 or 0 in (*X.shape, *Y.shape):
        raise ValueError("its data are no matrices with rows")
    (n, d), c, b = X.shape, Y.shape[1], T.shape[1]
    solved = {"weights": c, "drift_weights": b}
    numbers = {
        "data.X": (n, d),
        "data.Y": (n, c),
        "drift.centre": (d,),
        "drift.T": (1 + d, b),
        "beta": (b, c),
        "ordinary": (b, c),
        **{f"{name}.{part}": (n, k) for name, k in solved.items() for part in ("X", "R")},
    }
    if f"{prefix}weights.quadratic" in tensors:  # version 0.1 had no brackets of quadratic forms
        numbers |= {f"{name}.quadratic": (k,) for name, k in solved.items()}
    numbers |= {f"{name}.tail": (n, k) for name, k in solved.items() if f"{prefix}{name}.tail" in tensors}
    require_numbers(tensors, {f"{prefix}{name}": shape for name, shape in numbers.items()})
    bounds: dict[str, tuple[int, ...]] = {
        f"{name}.{part}": (k,)
        for name, k in solved.items()
        for part in BOUNDS_OF_SOLVES
        if part in ("error", "floor") or f"{prefix}weights.quadratic" in tensors
    }
    if f"{prefix}data.noise_variance" in tensors:
        bounds["data.noise_variance"] = (n,)
    require_bounds(tensors, {f"{prefix}{name}": shape for name, shape in bounds.items()})
    for name in ("certificate.relative_residuals", "certificate.weight_errors"):
        require_shape(tensors, f"{prefix}{name}", (c,), torch.float64)
