"""From the constructor parameters of an estimator to the objects that do the work."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from joblib import effective_n_jobs
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from torch import Generator

from kernelcg import backends
from kernelcg.arguments import positive
from kernelcg.backends import Backend
from kernelcg.estimators.cluster_connection import CLUSTERS, is_cluster
from kernelcg.estimators.data import LARGEST_VARIANCE, require_magnitude
from kernelcg.estimators.kernel_check import require_covariance
from kernelcg.estimators.sklearn_kernels import converted
from kernelcg.inference.gaussian.drift import DRIFTS, central_spread_of, spread_of
from kernelcg.inference.gaussian.model import GaussianProcess, Noise, Regression
from kernelcg.inference.gaussian.preview import previewed_noise
from kernelcg.inference.laplace.latent_model import Observations
from kernelcg.inference.learning.default_priors import default_priors
from kernelcg.inference.learning.optimizer import Optimizer
from kernelcg.inference.outputs.model import OutputProcesses, Outputs
from kernelcg.kernels import RBF, Kernel, Laplacian, Linear, Matern, RationalQuadratic
from kernelcg.parameters import Parametric
from kernelcg.planning.plan import Method, Plan, Precision, method_named
from kernelcg.planning.planner import Options, Resources, Workload, planned
from kernelcg.preconditioners import Preconditioner, available
from kernelcg.randomness import seeded
from kernelcg.threads import taking

logger = logging.getLogger("kernelcg")

STEPS: dict[str, int] = {Optimizer.LBFGS: 100, Optimizer.ADAGRAD: 50, Optimizer.ADAM: 100}
"""Steps of each optimiser where ``max_iter`` is None."""

START_NOISE = 0.1
"""Noise variance from which learning starts, relative to the variance of y or that of the kernel, if less."""


def most_steps(optimizer: Any) -> int:
    """Return the steps of an optimizer where ``max_iter`` is None; a function of the user decides on its own."""
    return STEPS.get(optimizer, 0) if isinstance(optimizer, str) else 0


LOG_DENSITY = "log_predictive_density"
"""Name of the score that is the mean log density of new observations."""

PRECISIONS = {"auto": None, "float32": torch.float32, "float64": torch.float64}


def check_options(options: Mapping[str, Any]) -> None:
    """Raise unless the parameters of a constructor mean something, also those that this fit would not look at."""
    for name, value in options.items():
        if name in OPTIONS and not OPTIONS[name][0](value):
            raise ValueError(f"{name} must be {OPTIONS[name][1]}, not {value!r}")
    recipes = ("auto", *available())
    given = options.get("preconditioner")
    if not (isinstance(given, Preconditioner) or given is None or (isinstance(given, str) and given in recipes)):
        raise ValueError(f"preconditioner must be 'auto', a recipe, or one of {', '.join(available())}, not {given!r}")


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def _number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


OPTIONS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "method": (lambda v: isinstance(v, str) and v in tuple(Method), f"one of {', '.join(Method)}"),
    "optimizer": (
        lambda v: v is None or callable(v) or (isinstance(v, str) and v in tuple(Optimizer)),
        f"one of {', '.join(Optimizer)}, None, or a function (obj_func, initial_theta, bounds) as in scikit-learn",
    ),
    "max_iter": (lambda v: v is None or _whole(v, 0), "a whole number of steps, not negative, or None"),
    "max_seconds": (
        lambda v: v is None or (_number(v) and 0 < v < float("inf")),
        "a positive number of seconds or None",
    ),
    "step_size": (lambda v: v is None or (_number(v) and 0 < v < float("inf")), "a positive number or None"),
    "probes": (lambda v: _whole(v, 1), "a whole number, at least 1"),
    "n_samples": (lambda v: _whole(v, 1), "a whole number, at least 1"),
    "n_restarts": (lambda v: _whole(v, 0), "a whole number, not negative"),
    "priors": (lambda v: v is None or v == "weak", "'weak' or None"),
    "rtol": (lambda v: _number(v) and 0 <= v < 1, "a number in [0, 1): at 1 the zero vector would pass"),
    "mean": (lambda v: isinstance(v, str) and v in DRIFTS, f"one of {', '.join(DRIFTS)}"),
    "kernel_per_output": (lambda v: isinstance(v, bool | np.bool_), "True or False"),
    "normalize_y": (lambda v: isinstance(v, bool | np.bool_), "True or False"),
    "missing": (lambda v: isinstance(v, str) and v in ("error", "drop"), "'error' or 'drop'"),
    "cluster": (is_cluster, CLUSTERS),
    "n_jobs": (lambda v: v is None or (_whole(abs(v), 1) if _number(v) else False), "a whole number but 0, or None"),
    "verbose": (lambda v: isinstance(v, bool | np.bool_) or _whole(v, 0), "0, 1 or 2"),
}
"""What a parameter of a constructor may be, and the same in words."""


def planned_fit(
    estimator: Any,
    problem: Regression | Outputs | Observations,
    work: Workload,
    probes: int,
    seed: int,
    method: Method | None = None,
) -> Plan:
    """Return the plan of a fit; raise `MemoryBudgetExceeded` if nothing that is allowed fits the memory."""
    recipe = estimator.preconditioner
    options = Options(
        method or method_named(estimator.method),
        Precision(name_of_precision(estimator.dtype)),
        "none" if recipe is None else recipe if isinstance(recipe, str) else recipe.name(),
        probes,
        seed,
    )
    return planned(work, options, Resources.of(problem.backend, problem.X.device, problem.pricing))


def with_noise_shown(
    work: Workload, problem: Regression | Outputs, gp: Parametric, priors: str | None, earlier: Plan | None
) -> Workload:
    """Return the work with the noise that a few rows show, or that they showed to an earlier fit.

    Several outputs, and learning that does not begin with a part of the rows, are planned without.
    """
    if earlier is not None:
        return replace(work, noise=earlier.noise)
    if not (work.parameters and work.in_stages and isinstance(problem, Regression) and isinstance(gp, GaussianProcess)):
        return work
    supposed = None if priors is None else default_priors(gp, problem)
    return replace(work, noise=previewed_noise(problem, gp, supposed))


def require_same_work(plan: Plan, work: Workload, seed: int) -> None:
    """Raise unless a plan was made for data of this size, this kind of fit and this seed."""
    compared = {
        "rows": (plan.rows, work.rows),
        "features": (plan.features, work.features),
        "right-hand sides": (plan.columns, work.columns),
        "latent values a row": (plan.values, work.values),
        "number of outputs with noise of their own": (plan.systems, work.systems),
        "family": (plan.family, work.family),
        "learning": (bool(plan.stages), work.parameters > 0),
        "seed": (plan.seed, seed),
    }
    for name, (there, here) in compared.items():
        if there != here:
            raise ValueError(f"the plan was made for another fit: its {name} is {there}, not {here}; make a new one")


def require_same_plan(given: Plan, own: Plan) -> None:
    """Raise where a plan says other than the options of the estimator, which are what is carried out.

    Methods, storage, memory and threads are taken from the plan, which may have been edited.
    """
    theirs, ours = ((one.probes, one.preconditioner, one.conditioning.precision) for one in (given, own))
    for name, there, here in zip(("probes", "preconditioner", "dtype"), theirs, ours, strict=True):
        if there != here:
            raise ValueError(f"the plan was made with other options: {name} was {there}, not {here}")


def quantile_levels(quantiles: Any) -> NDArray[np.float64]:
    """Return probabilities as an array of at most one dimension."""
    levels = np.asarray(quantiles, dtype=np.float64)
    if levels.ndim > 1 or not ((levels > 0) & (levels < 1)).all():
        raise ValueError(f"quantiles must be one probability between 0 and 1 or a list of them, not {quantiles!r}")
    return levels


def mean_log_density(densities: NDArray[np.float64], sample_weight: Any) -> float:
    """Return the mean of log densities, weighted by rows if weights are given: a proper score, larger is better."""
    by_row = densities.reshape(len(densities), -1).sum(axis=1)
    return float(np.average(by_row, weights=sample_weight))


def require_scoring(scoring: str, usual: str) -> None:
    """Raise unless a score is the usual one or the proper one."""
    if scoring not in (usual, LOG_DENSITY):
        raise ValueError(f"scoring must be {usual!r} or {LOG_DENSITY!r}, not {scoring!r}")


def learned_count(gp: Parametric, learns: bool) -> int:
    """Return how many hyperparameters are learned."""
    return sum(not one.fixed for one in gp.restrictions()) if learns else 0


def require_range(kernel: Kernel, problem: Regression | Outputs) -> None:
    """Raise if the kernel reaches numbers at these data that float64 cannot work with."""
    require_magnitude(
        kernel.diagonal(problem.X).detach().cpu().numpy(),
        "the kernel at X",
        "scale the features, for example by sklearn.preprocessing.StandardScaler, or lower its variance",
    )


def chosen_device(device: str | None) -> torch.device:
    """Return the device that was asked for; "auto" is a GPU if there is one."""
    if device in (None, "auto"):
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(f"device={device!r} cannot be used here: {error}") from error


def chosen_backend(memory: int | str | None, n_jobs: int | None, device: torch.device) -> Backend:
    """Return the best backend for this device within the memory and threads that were asked for."""
    return backends.default(memory, threads_of(n_jobs), device.type)


def threads_of(n_jobs: int | None) -> int | None:
    """Return the number of threads that was asked for, None for all; negative numbers count from all cores."""
    if n_jobs == 0:
        raise ValueError("n_jobs=0 is no number of threads; give 1 or more, or None or -1 for all")
    return None if n_jobs is None else effective_n_jobs(n_jobs)


on_own_threads = taking(lambda estimator: threads_of(estimator.n_jobs))
"""Decorates methods of an estimator that take as many threads as its ``n_jobs`` says."""


def name_of_precision(dtype: Any) -> str:
    """Return "auto", "float32" or "float64" for whatever NumPy takes for a type; None means "auto"."""
    try:
        name = "auto" if dtype in (None, "auto") else str(np.dtype(dtype).name)
    except TypeError:
        name = ""
    if name not in PRECISIONS:
        raise ValueError(f"dtype must be 'auto', 'float32' or 'float64', not {dtype!r}")
    return name


def chosen_precision(dtype: Any) -> torch.dtype | None:
    """Return the precision of products; None leaves it to the noise level."""
    return PRECISIONS[name_of_precision(dtype)]


def seed_of(random_state: Any, earlier: Plan | None = None) -> int:
    """Return the one seed of a fit: that of an integer, else that of an earlier plan, else one that is drawn now."""
    if earlier is not None and not isinstance(random_state, Integral):
        return earlier.seed
    return generator_from(random_state).initial_seed()


def generator_from(random_state: Any) -> Generator:
    """Return a generator seeded by an integer, or by one draw from a NumPy RandomState or, for None, from NumPy's."""
    try:
        source = check_random_state(random_state)
    except ValueError as error:
        raise ValueError(f"random_state must be an integer, a numpy RandomState or None: {error}") from None
    return seeded(int(source.randint(2**31 - 1)))


KERNELS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], Kernel]] = {
    "rbf": RBF,
    "matern": Matern,
    "matern12": lambda lengthscale, variance: Matern(lengthscale, variance, nu=0.5),
    "matern32": Matern,
    "matern52": lambda lengthscale, variance: Matern(lengthscale, variance, nu=2.5),
    "rational_quadratic": RationalQuadratic,
    "laplacian": Laplacian,
    "linear": lambda lengthscale, variance: Linear(variance / lengthscale.square()),
}
"""Kernels by name, of a scale for each feature and the variance of a function."""


def first_kernel(X: torch.Tensor, variance: float, name: str = "matern32") -> Kernel:
    """Return a named kernel with one lengthscale per feature, √d times its spread without outliers."""
    if name not in KERNELS:
        raise ValueError(f"kernel must be a kernel object or one of {', '.join(KERNELS)}, not {name!r}")
    spread = central_spread_of(X).cpu()
    scale = torch.where(spread > 0, spread, 1.0)
    return KERNELS[name](scale * X.shape[1] ** 0.5, positive(variance, "variance"))


def first_process(
    kernel: Any, noise: Any, X: torch.Tensor, Y: torch.Tensor, *, learned: bool = True
) -> GaussianProcess:
    """Return the process from which learning starts: by default Matérn-3/2, one lengthscale per feature, var Y.

    A kernel that a user wrote is tried on a few rows, and its derivatives if it is to be ``learned``.
    """
    power = float(spread_of(Y).square().mean()) or 1.0
    own, white = _kernel_and_white(kernel, X, power, learned=learned)
    return GaussianProcess(own, first_noise(noise, white, own, X, power))


def first_processes(
    kernel: Any, noise: Any, problem: Outputs, *, kernel_each: bool, learned: bool = True
) -> OutputProcesses:
    """Return the same for several outputs: one kernel, by default with the mean of their variances, or one for each.

    ``noise`` is that of every output, or a list with one for each.
    """
    data = [problem.output(j) for j in range(len(problem.each))]
    noises = noise if isinstance(noise, list | tuple) or np.ndim(noise) > 0 else [noise] * len(data)
    if len(noises) != len(data):
        raise ValueError(f"noise must be one variance, or one for each of the {len(data)} outputs, not {len(noises)}")
    if kernel_each:
        each = zip(noises, data, strict=True)
        return OutputProcesses.of([first_process(kernel, one, its.X, its.Y, learned=learned) for one, its in each])
    powers = [float(spread_of(its.Y).square()) or 1.0 for its in data]
    own, white = _kernel_and_white(kernel, problem.X, float(np.mean(powers)), learned=learned)
    starts = (first_noise(one, white, own, problem.X, power) for one, power in zip(noises, powers, strict=True))
    return OutputProcesses(own, tuple(starts))


def _kernel_and_white(kernel: Any, X: torch.Tensor, power: float, *, learned: bool) -> tuple[Kernel, Noise | None]:
    """Return the kernel from which learning starts, and the noise that is part of a scikit-learn kernel."""
    name = "matern32" if kernel is None else kernel
    own, white = converted(first_kernel(X, power, name) if isinstance(name, str) else name)
    require_covariance(own, X, learned=learned)
    return own, white


def first_noise(noise: Any, white: Noise | None, kernel: Kernel, X: torch.Tensor, power: float) -> Noise:
    """Return the noise from which learning starts; ``power`` is the variance of y."""
    if noise is not None and white is not None:
        raise ValueError(
            f"noise is given twice: noise={noise!r} and a WhiteKernel in the kernel; leave one of them out"
        )
    if noise is None:
        signal = float(kernel.diagonal(X).detach().mean()) or power
        return white or Noise(positive(START_NOISE * min(power, signal), "noise"))
    return noise if isinstance(noise, Noise) else Noise(_one_variance(noise))


def _one_variance(noise: Any) -> torch.Tensor:
    if np.ndim(noise) > 0:
        raise ValueError(
            "noise must be one variance to start from; known ones of the rows belong to fit(X, y, noise_variance=...)"
        )
    variance = positive(noise, "noise")
    remedy = "give it in units of the variance of y if normalize_y, else of y²"
    require_magnitude(variance.numpy(), "noise", remedy, least=1 / LARGEST_VARIANCE, most=LARGEST_VARIANCE)
    return variance


@contextmanager
def narrated(verbose: int | bool) -> Iterator[None]:
    """Show the log on the terminal while this lasts."""
    if not verbose:
        yield
        return
    handler, level = logging.StreamHandler(), logger.level
    handler.setFormatter(logging.Formatter("[kernelcg] %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if int(verbose) > 1 else logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
