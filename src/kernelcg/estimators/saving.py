"""Fitted estimators as model files: O(n (d + c)) numbers and no code."""

import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, get_args, get_origin

import numpy as np
import torch
from sklearn.gaussian_process.kernels import Kernel as SklearnKernel
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from kernelcg.errors import ModelFileError
from kernelcg.estimators.kernel_ridge import KernelRidge
from kernelcg.estimators.machine import KernelMachine
from kernelcg.estimators.regressor import GPRegressor
from kernelcg.estimators.settings import PRECISIONS, Plan, chosen_backend, chosen_device, chosen_precision, logger
from kernelcg.estimators.sklearn_kernels import OneFeature, converted
from kernelcg.inference.bounds import Certified, Rounding
from kernelcg.inference.certificate import Certificate
from kernelcg.inference.learning import Learned
from kernelcg.inference.model import Drift, GaussianProcess, Regression
from kernelcg.inference.posterior import Posterior
from kernelcg.parameters import Parametric
from kernelcg.solvers import SolveReport, Status, Stopping

R = TypeVar("R")

DAMAGE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What wrong contents of a file may raise when objects are made of them."""


def save(estimator: KernelMachine, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator to a file that `load` reads.

    The file holds the training data, the weights with their residuals and error bounds, the hyperparameters with
    their restrictions, the parameters of the constructor, the plan, the certificate, the steps of learning and the
    report of the solve without the residuals on the way: O(n (d + c)) numbers. Factors and preconditioners are made
    again where they are needed.

    Parameters of the constructor that are numbers, words, None, or kernels of this library are kept. A kernel of
    scikit-learn is kept as the kernel of this library that it was turned into, its white part as the noise. All
    else, such as a `RandomState` or a preconditioner given as an object, comes back as the constructor's default.

    Raises
    ------
    NotFittedError : if there is nothing to save yet
    TypeError : if it is not an estimator of the library, or its kernel has a field that a file cannot hold
    """
    from kernelcg.estimators import model_files

    kind = type(estimator).__name__
    if ESTIMATORS.get(kind) is not type(estimator):
        raise TypeError(f"only {' and '.join(ESTIMATORS)} can be saved, not {kind}; pickle it instead")
    check_is_fitted(estimator)
    header, tensors = _contents(estimator, model_files.describe)
    model_files.write(path, kind, header, tensors)


def load(path: str | os.PathLike[str], kernels: type[Parametric] | Iterable[type[Parametric]] = ()) -> Any:
    """Return the estimator in a file that its method ``save`` has written. Nothing in the file is run.

    It predicts the same mean bit for bit, at once. The first standard deviation, covariance, sample, leave-one-out or
    update makes the factor or the bound again that the file leaves out.

    Parameters
    ----------
    kernels : class or classes of your own kernels in the model, such as ``[Cauchy]``

    The model is on the device of its parameter ``device`` ("auto" is a GPU if there is one), or where that cannot be
    used on the CPU, which ``device`` then says.

    Raises
    ------
    ModelFileError : if the file is not one of kernelcg, is damaged, comes from a newer version, or needs a class that
        is not in ``kernels``
    """
    from kernelcg.estimators import model_files

    given = (kernels,) if isinstance(kernels, type) else tuple(kernels)
    classes: tuple[type[Parametric], ...] = (*given, OneFeature)
    model = model_files.read(path)
    if model.kind not in ESTIMATORS:
        raise ModelFileError(f"{os.fspath(path)} holds a {model.kind!r:.60}, which is not known here; upgrade kernelcg")
    gp = model_files.rebuild(model.header.get("gp"), classes)
    try:
        values = {
            name: model_files.rebuild(value, classes) if isinstance(value, dict) else value
            for name, value in model.header["parameters"].items()
        }
        return _restored(ESTIMATORS[model.kind](**values), gp, model.header, model.tensors)
    except (ModelFileError, torch.cuda.OutOfMemoryError):
        raise
    except DAMAGE as error:
        raise ModelFileError(
            f"{os.fspath(path)} is malformed: no {model.kind} can be made of it ({error!r})"
        ) from error


def _contents(
    estimator: KernelMachine, describe: Callable[[Parametric], dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    posterior, tensors = estimator.posterior_, dict[str, Tensor]()
    problem = posterior.problem
    header = {
        "parameters": _parameters(estimator, describe),
        "gp": describe(posterior.gp),
        "mean": problem.mean,
        "y_shape": list(estimator._y_shape),
        "n_features_in": int(estimator.n_features_in_),
        "feature_names_in": [str(name) for name in getattr(estimator, "feature_names_in_", [])],
        "variance_tolerance": posterior.variance_tolerance,
        "stopping": _packed(posterior.stopping),
        "plan": _packed(estimator.plan_),
        "learning": _packed(estimator.learning_, leave_out=("gp",)),
        "certificate": _packed(estimator.certificate_, tensors, "certificate"),
        "report": _packed(posterior.report, tensors, "report", leave_out=("solution", "residual_norms")),
        "data": _packed(problem, tensors, "data", leave_out=("mean", "backend", "precision")),
        "drift": _packed(problem.drift, tensors, "drift"),
        "weights": _packed(posterior.weights, tensors, "weights"),
        "drift_weights": _packed(posterior.drift_weights, tensors, "drift_weights"),
    }
    own = {name: torch.from_numpy(np.asarray(getattr(estimator, name))) for name in OWN[type(estimator).__name__]}
    tensors.update(beta=posterior.beta, ordinary=problem.ordinary, **own)
    return header, {name: value.clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}


def _restored(
    estimator: KernelMachine, gp: Any, header: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> KernelMachine:
    own = OWN[type(estimator).__name__]
    device = _usable_device(estimator)
    here = {name: value if name in own else value.to(device) for name, value in tensors.items()}
    posterior = _posterior(estimator, gp, header, here)
    estimator.posterior_ = posterior
    estimator.report_ = posterior.report
    estimator.plan_ = _unpacked(Plan, header["plan"])
    estimator.learning_ = _unpacked(Learned, header["learning"], gp=posterior.gp)
    estimator.certificate_ = _unpacked(Certificate, header["certificate"], here, "certificate")
    estimator.n_iter_ = max(len(estimator.learning_.steps), 1)
    estimator.kernel_ = posterior.gp.kernel
    estimator._y_shape = tuple(header["y_shape"])
    estimator.n_features_in_ = header["n_features_in"]
    if header["feature_names_in"]:
        estimator.feature_names_in_ = np.array(header["feature_names_in"], dtype=object)
    for name in own:
        setattr(estimator, name, here[name].numpy())
    if isinstance(estimator, GPRegressor):
        estimator.noise_ = posterior.gp.noise.variance.item()
        estimator.log_marginal_likelihood_value_ = estimator.certificate_.log_marginal_likelihood
    if isinstance(estimator, KernelRidge):
        estimator.alpha_ = posterior.gp.noise.variance.item()
        estimator.X_fit_ = posterior.problem.X.cpu().numpy()
        estimator.dual_coef_ = estimator._shaped(posterior.weights.X.cpu().numpy())
    return estimator


ESTIMATORS: Mapping[str, type[KernelMachine]] = {cls.__name__: cls for cls in (GPRegressor, KernelRidge)}
"""What a file may name."""

OWN: Mapping[str, tuple[str, ...]] = {"GPRegressor": ("y_mean_", "y_scale_"), "KernelRidge": ()}
"""Arrays that belong to one estimator alone."""


# the conditioned process


def _posterior(estimator: Any, gp: Any, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Posterior:
    """Return the process without factors and preconditioners."""
    if not isinstance(gp, GaussianProcess):
        raise TypeError(f"{type(gp).__name__} is not a Gaussian process")
    problem = _problem(estimator, header["mean"], tensors)
    weights = _unpacked(Certified, header["weights"], tensors, "weights")
    drift_weights = _unpacked(Certified, header["drift_weights"], tensors, "drift_weights")
    beta = tensors["beta"]
    c, b = problem.Y.shape[1], problem.H.shape[1]
    _require_shapes(weights, problem.Y.shape)
    _require_shapes(drift_weights, problem.H.shape)
    if (
        beta.shape != (b, c)
        or tuple(header["y_shape"]) not in ((c,), ())
        or header["n_features_in"] != problem.X.shape[1]
    ):
        raise ValueError("its parts have different sizes")
    solution = torch.cat([weights.X + drift_weights.X @ (beta - problem.ordinary), drift_weights.X], dim=1)
    last = tensors["report.true_residual_norms"][None]
    return Posterior(
        gp,
        problem,
        beta,
        weights,
        drift_weights,
        _unpacked(SolveReport, header["report"], tensors, "report", solution=solution, residual_norms=last),
        None,
        Rounding.of(problem.system(gp)),
        None,
        None,
        _unpacked(Stopping, header["stopping"]),
        float(header["variance_tolerance"]),
    )


def _problem(estimator: Any, mean: str, tensors: Mapping[str, Tensor]) -> Regression:
    """Return the data with the drift functions that were fitted: on another machine they may have other signs."""
    problem = Regression(
        tensors["data.X"],
        tensors["data.Y"],
        tensors.get("data.noise_variance"),
        mean,
        chosen_backend(estimator.memory, estimator.n_jobs),
        chosen_precision(estimator.dtype),
    )
    drift, ordinary = Drift(tensors["drift.centre"], tensors["drift.T"]), tensors["ordinary"]
    H = drift(problem.X)
    fitted = {"drift": drift, "H": H, "ordinary": ordinary, "centred": problem.Y - H @ ordinary}
    for name, value in fitted.items():
        object.__setattr__(problem, name, value)
    return problem


def _require_shapes(solved: Certified, shape: torch.Size) -> None:
    n, k = shape
    if [part.shape for part in (solved.X, solved.R, solved.error, solved.floor)] != [(n, k), (n, k), (k,), (k,)]:
        raise ValueError("its weights do not fit its data")


def _usable_device(estimator: Any) -> torch.device:
    """Return the device of the estimator, or else the CPU, which the estimator then says."""
    try:
        return chosen_device(estimator.device)
    except ValueError as error:
        logger.warning("the model is loaded on the CPU: %s", error)
        estimator.device = "cpu"
        return torch.device("cpu")


# parameters of the constructor


def _parameters(estimator: KernelMachine, describe: Callable[[Parametric], dict[str, Any]]) -> dict[str, Any]:
    """Return the parameters of the constructor as JSON, without those that a file cannot hold."""
    values = dict(estimator.get_params(deep=False))
    if isinstance(values["kernel"], SklearnKernel):
        values["kernel"], white = converted(values["kernel"])
        values.update(_with_white(values, white))
    plain = {name: _plain(value, describe) for name, value in values.items()}
    defaults = inspect.signature(type(estimator)).parameters
    return {name: defaults[name].default if value is LOST else value for name, value in plain.items()}


def _with_white(values: Mapping[str, Any], white: Any) -> dict[str, Any]:
    """Return the parameter that takes the white part of a scikit-learn kernel."""
    if white is None:
        return {}
    if "alpha" in values:
        return {"alpha": np.asarray(values["alpha"], dtype=np.float64) + white.variance.item()}
    return {"noise": white}


LOST = object()
"""Stands for a value that a file cannot hold."""


def _plain(value: Any, describe: Callable[[Parametric], dict[str, Any]]) -> Any:
    if isinstance(value, Parametric):
        return describe(value)
    if isinstance(value, np.generic | np.ndarray | Tensor):
        value = value.item() if math.prod(value.shape) == 1 else LOST
    if isinstance(value, type | np.dtype):
        return np.dtype(value).name
    if isinstance(value, torch.device):
        return str(value)
    finite = not isinstance(value, float) or math.isfinite(value)
    return value if value is None or (isinstance(value, str | int | float) and finite) else LOST


# records


def _packed(
    record: Any, tensors: dict[str, Tensor] | None = None, prefix: str = "", leave_out: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the fields of a record as JSON; put those that are tensors into ``tensors``."""
    header = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if not field.init or field.name in leave_out:
            continue
        if isinstance(value, Tensor) and tensors is not None:
            tensors[f"{prefix}.{field.name}"] = value
        elif value is not None:
            header[field.name] = _json(value)
    return header


def _unpacked(
    cls: type[R],
    header: Mapping[str, Any],
    tensors: Mapping[str, Tensor] | None = None,
    prefix: str = "",
    **given: Any,
) -> R:
    """Return the record that `_packed` was given; ``given`` fills in what was left out."""
    known = dict(given)
    for field in fields(cls):  # type: ignore[arg-type]  # a dataclass
        stored = f"{prefix}.{field.name}"
        if tensors is not None and stored in tensors:
            known[field.name] = tensors[stored]
        elif field.name in header:
            known[field.name] = _parsed(field.type, header[field.name])
    return cls(**known)


def _json(value: Any) -> Any:
    if isinstance(value, Status):
        return value.name
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, tuple):
        return [_json(item) for item in value]
    if is_dataclass(value):
        return _packed(value)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _parsed(kind: Any, value: Any) -> Any:
    """Return the value of a field that is annotated as ``kind``."""
    if kind is Status:
        return Status[value]
    if kind is torch.dtype:
        return PRECISIONS[value]
    if get_origin(kind) is tuple:
        return tuple(_parsed(get_args(kind)[0], item) for item in value)
    if is_dataclass(kind):
        return _unpacked(kind, value)  # type: ignore[arg-type]
    return kind(value)
