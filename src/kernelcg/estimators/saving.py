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
from kernelcg.estimators.file_soundness import require_features, require_finite, require_seed
from kernelcg.estimators.gaussian_estimator import GaussianEstimator
from kernelcg.estimators.generalized import GPGeneralizedRegressor
from kernelcg.estimators.kernel_ridge import KernelRidge
from kernelcg.estimators.laplace_estimator import LaplaceEstimator
from kernelcg.estimators.laplace_saving import latent_contents, latent_restored
from kernelcg.estimators.posterior_saving import (
    packed_outputs,
    packed_posterior,
    unpacked_certificate,
    unpacked_outputs,
    unpacked_posterior,
)
from kernelcg.estimators.precomputed import Precomputed
from kernelcg.estimators.record_json import packed, parameters, unpacked, unpacked_plan, usable_device
from kernelcg.estimators.regressor import GPRegressor
from kernelcg.estimators.settings import check_options
from kernelcg.estimators.sklearn_kernels import OneFeature
from kernelcg.inference.learning.learn import Learned
from kernelcg.inference.outputs.certificate import OutputsCertificate
from kernelcg.parameters import Parametric

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
    path : the file
    kernels : class or classes of your own kernels in the model, such as ``[Cauchy]``

    The model is on the device of its parameter ``device`` ("auto" is a GPU if there is one), or where that cannot be
    used on the CPU, which ``device`` then says.

    Raises
    ------
    ModelFileError : if the file is not one of kernelcg, is damaged, comes from a newer version, or needs a class that
        is not in ``kernels``

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import kernelcg
    >>> model = kernelcg.KernelRidge().fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 0.0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(Path(folder) / "model.kcg")
    ...     again = kernelcg.load(Path(folder) / "model.kcg")
    >>> bool((again.predict([[0.5]]) == model.predict([[0.5]])).all())
    True
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
    header = {
        "parameters": parameters(estimator, describe),
        "gp": describe(posterior.gp),
        "y_shape": list(estimator._y_shape),
        "n_features_in": int(estimator.n_features_in_),
        "feature_names_in": [str(name) for name in getattr(estimator, "feature_names_in_", [])],
        "plan": packed(estimator.plan_),
        "learning": packed(estimator.learning_, leave_out=("gp", "plan")),
    }
    if isinstance(estimator.certificate_, OutputsCertificate):
        header.update(packed_outputs(posterior, estimator.certificate_, tensors))
    else:
        header.update(packed_posterior(posterior, tensors))
        header["certificate"] = packed(estimator.certificate_, tensors, "certificate")
    own = {name: torch.from_numpy(np.asarray(getattr(estimator, name))) for name in OWN[type(estimator).__name__]}
    tensors.update(own)
    return header, {name: value.clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}


def _restored(
    estimator: GaussianEstimator, gp: Any, header: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> GaussianEstimator:
    own = OWN[type(estimator).__name__]
    check_options(estimator.get_params(deep=False))
    require_seed(estimator)
    require_features(header, tensors["X" if "outputs" in header else "data.X"])
    device = usable_device(estimator)
    here = {name: value if name in own else value.to(device) for name, value in tensors.items()}
    estimator.plan_ = unpacked_plan(header["plan"], estimator.random_state)
    posterior: Any
    if "outputs" in header:
        posterior, estimator.certificate_ = unpacked_outputs(estimator, gp, header, here)
    else:
        posterior = unpacked_posterior(estimator, gp, header, here)
        estimator.certificate_ = unpacked_certificate(posterior, header, here)
    c, shape = posterior.problem.Y.shape[1], tuple(header["y_shape"])
    if shape not in ((c,), ()) or (shape == () and c != 1):
        raise ValueError("its outputs have another number than it says")
    require_finite(here, dict.fromkeys(own, (c,)))
    if "y_scale_" in own and not bool((here["y_scale_"] > 0).all()):
        raise ValueError("y_scale_ must be positive")
    estimator.posterior_ = posterior
    estimator.report_ = posterior.report
    estimator.learning_ = unpacked(Learned, header["learning"], gp=posterior.gp)
    estimator.n_iter_ = max(len(estimator.learning_.steps), 1)
    estimator._y_shape = shape
    estimator.n_features_in_ = header["n_features_in"]
    if header["feature_names_in"]:
        estimator.feature_names_in_ = np.array(header["feature_names_in"], dtype=object)
    for name in own:
        setattr(estimator, name, here[name].numpy())
    if isinstance(estimator, GPRegressor):
        estimator._name_results()
        estimator.log_marginal_likelihood_value_ = estimator.certificate_.log_marginal_likelihood
    if isinstance(estimator, KernelRidge):
        estimator.kernel_, estimator.alpha_ = posterior.gp.kernel, posterior.gp.noise.variance.item()
        estimator.X_fit_ = posterior.problem.X.cpu().numpy()
        estimator.dual_coef_ = estimator._shaped(posterior.weights.X.cpu().numpy())
    return estimator


ESTIMATORS: Mapping[str, type[ProcessEstimator]] = {
    cls.__name__: cls for cls in (GPRegressor, KernelRidge, GPClassifier, GPGeneralizedRegressor)
}
"""What a file may name."""

OWN: Mapping[str, tuple[str, ...]] = {"GPRegressor": ("y_mean_", "y_scale_"), "KernelRidge": ()}
"""Arrays that belong to one estimator alone."""
