"""Fitted estimators as model files: O(n (d + c)) numbers and no code."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from kernelcg.errors import ModelFileError
from kernelcg.estimators.base import ProcessEstimator
from kernelcg.estimators.classifier import GPClassifier
from kernelcg.estimators.file_soundness import (
    require_bounded_residual,
    require_bounds,
    require_drift,
    require_features,
    require_kernel,
    require_numbers,
    require_report,
    require_seed,
    require_shape,
    require_tolerance,
)
from kernelcg.estimators.gaussian_estimator import GaussianEstimator
from kernelcg.estimators.generalized import GPGeneralizedRegressor
from kernelcg.estimators.kernel_ridge import KernelRidge
from kernelcg.estimators.laplace_estimator import LaplaceEstimator
from kernelcg.estimators.laplace_saving import latent_contents, latent_restored
from kernelcg.estimators.precomputed import Precomputed
from kernelcg.estimators.record_json import as_planned, packed, parameters, unpacked, unpacked_plan, usable_device
from kernelcg.estimators.regressor import GPRegressor
from kernelcg.estimators.settings import check_options, chosen_backend, chosen_precision
from kernelcg.estimators.sklearn_kernels import OneFeature
from kernelcg.inference.bounds.certificate import Certificate
from kernelcg.inference.bounds.rounding import Certified, Rounding
from kernelcg.inference.gaussian.drift import Drift
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.inference.gaussian.posterior import Posterior
from kernelcg.inference.learning.learn import Learned
from kernelcg.parameters import Parametric
from kernelcg.solvers import SolveReport, Stopping

DAMAGE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What wrong contents of a file may raise when objects are made of them."""


def save(
    estimator: ProcessEstimator, path: str | os.PathLike[str], *, attached: Mapping[str, Any] | None = None
) -> None:
    """Write a fitted estimator to a file that `load` reads, with further plain values ``attached`` to its header.

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
        raise TypeError(f"only {', '.join(ESTIMATORS)} can be saved, not {kind}; pickle it instead")
    check_is_fitted(estimator)
    if isinstance(estimator.kernel_, Precomputed):
        raise TypeError("a model of a precomputed kernel cannot be saved: a file holds no matrix; pickle it instead")
    if isinstance(estimator, LaplaceEstimator):
        header, tensors = latent_contents(estimator, model_files.describe)
    elif isinstance(estimator, GaussianEstimator):
        header, tensors = _contents(estimator, model_files.describe)
    extra = {} if attached is None else {"attached": dict(attached)}
    model_files.write(path, kind, header | extra, tensors)


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
    model_files.by_name(classes)  # what is wrong with them is not the fault of the file
    model = model_files.read(path)
    if model.kind not in ESTIMATORS:
        raise ModelFileError(f"{os.fspath(path)} holds a {model.kind!r:.60}, which is not known here; upgrade kernelcg")

    def rebuild(description: Any) -> Parametric:
        return model_files.rebuild(description, classes)

    try:
        values = {
            name: rebuild(value) if isinstance(value, dict) else value
            for name, value in model.header["parameters"].items()
        }
        estimator = ESTIMATORS[model.kind](**values)
        if isinstance(estimator, LaplaceEstimator):
            return latent_restored(estimator, model.header, model.tensors, rebuild)
        return _restored(estimator, rebuild(model.header.get("gp")), model.header, model.tensors)
    except (ModelFileError, torch.cuda.OutOfMemoryError):
        raise
    except DAMAGE as error:
        raise ModelFileError(
            f"{os.fspath(path)} is malformed: no {model.kind} can be made of it ({error!r})"
        ) from error


def _contents(
    estimator: GaussianEstimator, describe: Callable[[Parametric], dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    posterior, tensors = estimator.posterior_, dict[str, Tensor]()
    problem = posterior.problem
    header = {
        "parameters": parameters(estimator, describe),
        "gp": describe(posterior.gp),
        "mean": problem.mean,
        "y_shape": list(estimator._y_shape),
        "n_features_in": int(estimator.n_features_in_),
        "feature_names_in": [str(name) for name in getattr(estimator, "feature_names_in_", [])],
        "variance_tolerance": posterior.variance_tolerance,
        "stopping": packed(posterior.stopping),
        "plan": packed(estimator.plan_),
        "learning": packed(estimator.learning_, leave_out=("gp",)),
        "certificate": packed(estimator.certificate_, tensors, "certificate"),
        "report": packed(posterior.report, tensors, "report", leave_out=("solution", "residual_norms")),
        "data": packed(problem, tensors, "data", leave_out=("mean", "backend", "precision", "pricing", "stored")),
        "drift": packed(problem.drift, tensors, "drift"),
        "weights": packed(posterior.weights, tensors, "weights"),
        "drift_weights": packed(posterior.drift_weights, tensors, "drift_weights"),
    }
    own = {name: torch.from_numpy(np.asarray(getattr(estimator, name))) for name in OWN[type(estimator).__name__]}
    tensors.update(beta=posterior.beta, ordinary=problem.ordinary, **own)
    return header, {name: value.clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}


def _restored(
    estimator: GaussianEstimator, gp: Any, header: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> GaussianEstimator:
    own = OWN[type(estimator).__name__]
    check_options(estimator.get_params(deep=False))
    require_seed(estimator)
    _require_sound(header, tensors, own)
    device = usable_device(estimator)
    here = {name: value if name in own else value.to(device) for name, value in tensors.items()}
    estimator.plan_ = unpacked_plan(header["plan"], estimator.random_state)
    posterior = _posterior(estimator, gp, header, here)
    estimator.posterior_ = posterior
    estimator.report_ = posterior.report
    estimator.learning_ = unpacked(Learned, header["learning"], gp=posterior.gp)
    estimator.certificate_ = unpacked(Certificate, header["certificate"], here, "certificate")
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


ESTIMATORS: Mapping[str, type[ProcessEstimator]] = {
    cls.__name__: cls for cls in (GPRegressor, KernelRidge, GPClassifier, GPGeneralizedRegressor)
}
"""What a file may name."""

OWN: Mapping[str, tuple[str, ...]] = {"GPRegressor": ("y_mean_", "y_scale_"), "KernelRidge": ()}
"""Arrays that belong to one estimator alone."""


BOUNDS_OF_SOLVES = ("error", "floor", "quadratic_error")
"""Tensors of a `Certified` that are not negative."""


# the conditioned process


def _posterior(estimator: Any, gp: Any, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Posterior:
    """Return the process without factors and preconditioners."""
    if not isinstance(gp, GaussianProcess):
        raise TypeError(f"{type(gp).__name__} is not a Gaussian process")
    problem = as_planned(_problem(estimator, header["mean"], tensors), estimator.plan_)
    weights = unpacked(Certified, header["weights"], tensors, "weights")
    drift_weights = unpacked(Certified, header["drift_weights"], tensors, "drift_weights")
    beta = tensors["beta"]
    c, b = problem.Y.shape[1], problem.H.shape[1]
    if beta.shape != (b, c):
        raise ValueError("its parts have different sizes")
    require_kernel(gp.kernel, problem.X)
    require_drift(problem.mean, problem.H, problem.X.shape[1])
    A = problem.system(gp)
    largest = float(A.kernel_diagonal().sum() + A.diagonal.max())
    for solved in (weights, drift_weights):
        require_bounded_residual(solved.R, solved.error, largest)
    solution = torch.cat([weights.X + drift_weights.X @ (beta - problem.ordinary), drift_weights.X], dim=1)
    last = tensors["report.true_residual_norms"][None]
    report = unpacked(SolveReport, header["report"], tensors, "report", solution=solution, residual_norms=last)
    require_report(report, c + b)
    return Posterior(
        gp,
        problem,
        beta,
        weights,
        drift_weights,
        report,
        None,
        Rounding.of(problem.system(gp)),
        None,
        None,
        unpacked(Stopping, header["stopping"]),
        require_tolerance(header["variance_tolerance"], "variance_tolerance"),
    )


def _problem(estimator: Any, mean: str, tensors: Mapping[str, Tensor]) -> Regression:
    """Return the data with the drift functions that were fitted: on another machine they may have other signs."""
    problem = Regression(
        tensors["data.X"],
        tensors["data.Y"],
        tensors.get("data.noise_variance"),
        mean,
        chosen_backend(estimator.memory, estimator.n_jobs, tensors["data.X"].device),
        chosen_precision(estimator.dtype),
    )
    drift, ordinary = Drift(tensors["drift.centre"], tensors["drift.T"]), tensors["ordinary"]
    H = drift(problem.X)
    fitted = {"drift": drift, "H": H, "ordinary": ordinary, "centred": problem.Y - H @ ordinary}
    for name, value in fitted.items():
        object.__setattr__(problem, name, value)
    return problem


def _require_sound(header: Mapping[str, Any], tensors: Mapping[str, Tensor], own: tuple[str, ...]) -> None:
    """Raise unless the tensors are finite, of the right type, and of sizes that belong together."""
    X, Y, T = (tensors[name] for name in ("data.X", "data.Y", "drift.T"))
    require_features(header, X)
    if Y.ndim != 2 or T.ndim != 2 or 0 in (*X.shape, *Y.shape):
        raise ValueError("its data are no matrices with rows")
    (n, d), c, b = X.shape, Y.shape[1], T.shape[1]
    if tuple(header["y_shape"]) not in ((c,), ()) or (header["y_shape"] == [] and c != 1):
        raise ValueError("its outputs have another number than it says")
    solved = {"weights": c, "drift_weights": b}
    require_numbers(
        tensors,
        {
            "data.X": (n, d),
            "data.Y": (n, c),
            "drift.centre": (d,),
            "drift.T": (1 + d, b),
            "beta": (b, c),
            "ordinary": (b, c),
            **{f"{name}.{part}": (n, k) for name, k in solved.items() for part in ("X", "R")},
            **{f"{name}.quadratic": (k,) for name, k in solved.items()},
            **dict.fromkeys(own, (c,)),
        },
    )
    require_bounds(
        tensors,
        {
            **{f"{name}.{part}": (k,) for name, k in solved.items() for part in BOUNDS_OF_SOLVES},
            **({"data.noise_variance": (n,)} if "data.noise_variance" in tensors else {}),
        },
    )
    for name in ("certificate.relative_residuals", "certificate.weight_errors"):
        require_shape(tensors, name, (c,), torch.float64)
    if "y_scale_" in own and not bool((tensors["y_scale_"] > 0).all()):
        raise ValueError("y_scale_ must be positive")
