"""Fitted estimators with other likelihoods than Gaussian noise as headers and tensors of model files."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernelcg.estimators.classifier import GPClassifier
from kernelcg.estimators.file_soundness import (
    require_bounds,
    require_drift,
    require_features,
    require_kernel,
    require_mode,
    require_numbers,
    require_report,
    require_seed,
    require_tolerance,
)
from kernelcg.estimators.laplace_estimator import LaplaceEstimator
from kernelcg.estimators.record_json import as_planned, packed, parameters, unpacked, unpacked_plan, usable_device
from kernelcg.estimators.settings import chosen_backend, chosen_precision
from kernelcg.inference.bounds.laplace_certificate import LaplaceCertificate
from kernelcg.inference.gaussian.drift import Drift
from kernelcg.inference.gaussian.likelihood_by_pcg import Numerics
from kernelcg.inference.laplace.calibration import Calibration
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.mode import Mode
from kernelcg.inference.laplace.mode_error import ModeError
from kernelcg.inference.laplace.newton_system import Spent
from kernelcg.inference.laplace.posterior import LaplacePosterior
from kernelcg.inference.learning.learn import Learned
from kernelcg.likelihoods import Softmax
from kernelcg.parameters import Parametric
from kernelcg.solvers import SolveReport

STATIONARY, STATIONARY_FLOOR = 10.0, 1e-7
"""Residual of a stored mode that is put down to another machine, relative to the one it had, and to 1."""

LABELS = "biufUO"
"""Kinds of labels that a file can hold, as NumPy calls them; objects must be words or numbers."""


def latent_contents(
    estimator: LaplaceEstimator, describe: Callable[[Parametric], dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return what a file holds: O(n (d + C)) numbers."""
    tensors: dict[str, Tensor] = {}
    machines = _machines(estimator)
    tensors["X"] = machines[0].posterior_.problem.X
    header = {
        "parameters": parameters(estimator, describe),
        "n_features_in": int(estimator.n_features_in_),
        "feature_names_in": [str(name) for name in getattr(estimator, "feature_names_in_", [])],
        "labels": _labels(estimator.classes_) if isinstance(estimator, GPClassifier) else None,
        "class_weight": estimator.class_weight_.tolist() if isinstance(estimator, GPClassifier) else None,
        "machines": [_machine(machine, describe, tensors, str(i)) for i, machine in enumerate(machines)],
    }
    return header, {name: value.clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}


def latent_restored(
    estimator: LaplaceEstimator,
    header: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    rebuild: Callable[[Any], Parametric],
) -> LaplaceEstimator:
    """Return the estimator as it was fitted."""
    device = usable_device(estimator)
    here = {name: value.to(device) for name, value in tensors.items()}
    estimator._check_options()
    require_seed(estimator)
    require_features(header, here["X"])
    require_numbers(here, {"X": tuple(here["X"].shape)})
    estimator.n_features_in_ = header["n_features_in"]
    if isinstance(estimator, GPClassifier):
        estimator.classes_ = _classes(header["labels"])
        estimator.class_weight_ = _weights(header.get("class_weight"), len(estimator.classes_))
    described = header["machines"]
    if isinstance(estimator, GPClassifier) and len(described) > 1:
        machines = [_one_of(estimator) for _ in described]
        for i, machine in enumerate(machines):
            _restore(machine, described[i], here, str(i), rebuild)
        estimator._keep_machines(machines)
    else:
        _restore(estimator, described[0], here, "0", rebuild)
    if isinstance(estimator, GPClassifier):
        _require_classes(estimator, len(described))
    if header["feature_names_in"]:
        estimator.feature_names_in_ = np.array(header["feature_names_in"], dtype=object)
    return estimator


def _machines(estimator: LaplaceEstimator) -> tuple[LaplaceEstimator, ...]:
    """Return the estimator, or if its classes are told apart one against the rest, those that do it."""
    several = isinstance(estimator, GPClassifier) and estimator._is_one_against_the_rest()
    return estimator.estimators_ if several else (estimator,)


def _one_of(estimator: GPClassifier) -> GPClassifier:
    return estimator._machine()


def _labels(classes: Any) -> dict[str, Any]:
    values = classes.tolist()
    if classes.dtype.kind not in LABELS or not all(isinstance(value, str | int | float) for value in values):
        raise TypeError(f"labels such as {values[0]!r} cannot be kept in a file; use words or numbers, or pickle it")
    return {"dtype": classes.dtype.str, "values": values}


# one conditioned process


def _machine(
    machine: LaplaceEstimator, describe: Callable[[Parametric], dict[str, Any]], tensors: dict[str, Tensor], prefix: str
) -> dict[str, Any]:
    posterior = machine.posterior_
    problem, report = posterior.problem, machine.report_
    parts = ("gp", "problem", "mode", "numerics", "system", "apart", "spent")
    return {
        "gp": describe(posterior.gp),
        "plan": packed(machine.plan_),
        "learning": packed(machine.learning_, leave_out=("gp", "plan")),
        "certificate": packed(machine.certificate_),
        **({"calibration": packed(machine.calibration_)} if isinstance(machine, GPClassifier) else {}),
        "report": None if report is None else packed(report, tensors, f"{prefix}.report"),
        "data": packed(
            problem, tensors, f"{prefix}.data", leave_out=("X", "backend", "precision", "pricing", "stored")
        ),
        "drift": packed(problem.drift, tensors, f"{prefix}.drift"),
        "mode": packed(posterior.mode, tensors, f"{prefix}.mode", leave_out=("expansion",)),
        "numerics": packed(posterior.numerics, leave_out=("preconditioner",)),
        "posterior": packed(posterior, tensors, f"{prefix}.posterior", leave_out=parts),
    }


def _restore(
    machine: LaplaceEstimator,
    header: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    prefix: str,
    rebuild: Callable[[Any], Parametric],
) -> None:
    gp = rebuild(header["gp"])
    if not isinstance(gp, LatentProcess):
        raise TypeError(f"{type(gp).__name__} is not a latent process")
    machine.plan_ = unpacked_plan(header["plan"], machine.random_state)
    machine.learning_ = unpacked(Learned, header["learning"], gp=gp)
    machine.certificate_ = unpacked(LaplaceCertificate, header["certificate"])
    if isinstance(machine, GPClassifier):
        machine.calibration_ = _calibration(header.get("calibration", {}))
    stored = header["report"]
    machine.report_ = None if stored is None else unpacked(SolveReport, stored, tensors, f"{prefix}.report")
    if machine.report_ is not None:
        require_report(machine.report_)
    machine.posterior_ = _posterior(machine, gp, header, tensors, prefix)
    machine.n_iter_ = max(len(machine.learning_.steps), 1)
    machine._name_results()


def _calibration(header: Mapping[str, Any]) -> Calibration:
    """Return the factors of a file; files of version 0.1 have none, which are factors of 1."""
    found = unpacked(Calibration, header)
    if not (0 < found.mean < math.inf and 0 <= found.covariance < math.inf):
        raise ValueError("the factors of its calibration are not positive numbers")
    return found


def _posterior(
    machine: LaplaceEstimator, gp: LatentProcess, header: Mapping[str, Any], tensors: Mapping[str, Tensor], prefix: str
) -> LaplacePosterior:
    """Return the process without factors and preconditioners."""
    problem = as_planned(_problem(machine, header["data"], tensors, prefix), machine.plan_)
    N, b, f = problem.size, problem.H.shape[1], tensors[f"{prefix}.mode.f"]
    sizes = {"mode.a": (N, 1), "mode.f": (N, 1), "mode.beta": (b, 1), "posterior.RH": (N, b)}
    require_numbers(tensors, {f"{prefix}.{name}": shape for name, shape in sizes.items()})
    require_bounds(tensors, {f"{prefix}.data.exposure": (len(problem),)})
    _require_observed(problem, gp)
    require_kernel(gp.kernel, problem.X)
    require_drift(problem.mean, problem.H, problem.X.shape[1])
    drift = problem.H @ tensors[f"{prefix}.mode.beta"]
    by_class = [value.reshape(len(problem), -1) for value in (f, tensors[f"{prefix}.mode.a"], drift)]
    require_mode(by_class[0], by_class[1], problem.matrix(gp.kernel), by_class[2])
    require_tolerance(header["posterior"]["variance_tolerance"], "variance_tolerance")
    mode = unpacked(Mode, header["mode"], tensors, f"{prefix}.mode", expansion=problem.expansion(gp, f))
    _require_stationary(mode)
    return unpacked(
        LaplacePosterior,
        _with_error(header["posterior"]),
        tensors,
        f"{prefix}.posterior",
        gp=gp,
        problem=problem,
        mode=mode,
        numerics=unpacked(Numerics, header["numerics"], preconditioner=machine.preconditioner),
        system=None,
        apart=None,
        spent=Spent(mode.inner, machine.certificate_.products, machine.report_),
    )


def _require_stationary(mode: Mode) -> None:
    """Raise unless a = ∇log p(f) up to the residual that the mode says it has."""
    slope = mode.expansion.gradient
    size = float(slope.norm()) or 1.0  # where it is 0 the residual is relative to 1
    if not float((slope - mode.a).norm()) <= STATIONARY * max(mode.residual, STATIONARY_FLOOR) * size:
        raise ValueError("its mode is none: the slope of the likelihood there is another one")


def _require_observed(problem: Observations, gp: LatentProcess) -> None:
    """Raise unless the observations are such as the likelihood allows."""
    if isinstance(gp.likelihood, Softmax) != (problem.classes > 1):
        raise ValueError("its likelihood is for another number of classes")
    if isinstance(gp.likelihood, Softmax):
        if problem.y.dtype.is_floating_point or not bool(((problem.y >= 0) & (problem.y < problem.classes)).all()):
            raise ValueError("its observations are no numbers of classes")
    else:
        require_numbers({"y": problem.y}, {"y": (len(problem),)})
        gp.likelihood.check(problem.y, problem.exposure)


def _classes(labels: Mapping[str, Any]) -> Any:
    """Return the labels, which must be as many as were stored, different and in order."""
    values = labels["values"]
    classes = np.array(values, dtype=np.dtype(labels["dtype"]))
    if not isinstance(values, list) or classes.dtype.kind not in LABELS or classes.shape != (len(values),):
        raise ValueError("its labels are no list of words or numbers")
    if len(np.unique(classes)) != len(values):
        raise ValueError("its labels are not different from each other")
    return classes


def _weights(stored: Any, count: int) -> Any:
    """Return the weights of the classes; older files have none."""
    weights = np.ones(count) if stored is None else np.array(stored, dtype=np.float64)
    if weights.shape != (count,) or not ((weights > 0) & np.isfinite(weights)).all():
        raise ValueError("its class weights are no positive numbers, one for each class")
    return weights


def _require_classes(estimator: GPClassifier, machines: int) -> None:
    """Raise unless there are as many labels as the likelihood tells apart."""
    C = len(estimator.classes_)
    found = machines if machines > 1 else max(estimator.posterior_.problem.classes, 2)
    if found != C or (machines > 1 and C == 2):
        raise ValueError(f"it has {C} labels for {found} classes")


def _with_error(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is stored of a posterior with the error of its mode as a record: version 0.1 kept one number."""
    if isinstance(header["error"], Mapping):
        if not all(float(value) >= 0 for value in header["error"].values()):
            raise ValueError("the error of its mode is negative or no number")
        return dict(header)
    known = float(header["error"])
    return {**header, "error": packed(ModeError(known, known, 1.0, 0.0, 0.0, 0.0, is_certain=False))}


def _problem(
    machine: LaplaceEstimator, header: Mapping[str, Any], tensors: Mapping[str, Tensor], prefix: str
) -> Observations:
    """Return the data with the drift functions that were fitted: on another machine they may have other signs."""
    problem = Observations(
        tensors["X"],
        tensors[f"{prefix}.data.y"],
        tensors[f"{prefix}.data.exposure"],
        header["mean"],
        _count(header["classes"]),
        chosen_backend(machine.memory, machine.n_jobs, tensors["X"].device),
        chosen_precision(machine.dtype),
    )
    d, T = problem.X.shape[1], tensors[f"{prefix}.drift.T"]
    require_numbers(tensors, {f"{prefix}.drift.centre": (d,), f"{prefix}.drift.T": (1 + d, *T.shape[1:2])})
    drift = Drift(tensors[f"{prefix}.drift.centre"], T)
    fitted = {"drift": drift, "H": drift(problem.X) if problem.classes == 1 else problem.H}
    for name, value in fitted.items():
        object.__setattr__(problem, name, value)
    return problem


def _count(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{value!r:.40} is no number of classes")
    return value
