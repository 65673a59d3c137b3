"""From the constructor parameters of an estimator to the objects that do the work."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from joblib import effective_n_jobs
from sklearn.utils import check_random_state
from torch import Generator

from kernelcg import backends
from kernelcg.arguments import positive
from kernelcg.backends import Backend
from kernelcg.backends.memory import require_memory
from kernelcg.estimators.data import require_magnitude
from kernelcg.estimators.sklearn_kernels import converted
from kernelcg.inference.bounds.lower_bound import affordable_rank
from kernelcg.inference.gaussian.drift import DRIFTS, central_spread_of, spread_of
from kernelcg.inference.gaussian.model import GaussianProcess, Noise, Regression
from kernelcg.inference.gaussian.objective import FACTORS, METHODS, chosen_method
from kernelcg.inference.learning.learn import OPTIMIZERS
from kernelcg.kernels import Kernel, Matern
from kernelcg.preconditioners import Preconditioner, available
from kernelcg.preconditioners.base import FACTORS_AT_ONCE
from kernelcg.randomness import seeded

logger = logging.getLogger("kernelcg")

STEPS = {"lbfgs": 100, "adagrad": 50, "adam": 100}
"""Steps of each optimiser where ``max_iter`` is None."""

START_NOISE = 0.1
"""Noise variance from which learning starts, relative to the variance of y or that of the kernel, if less."""

PRECISIONS = {"auto": None, None: None, "float32": torch.float32, "float64": torch.float64}

BLOCKS = 40
"""Blocks of n numbers a column that learning holds at once: solutions, directions, residuals and their copies."""


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
    "method": (lambda v: isinstance(v, str) and v in METHODS, f"one of {', '.join(METHODS)}"),
    "optimizer": (
        lambda v: v is None or (isinstance(v, str) and v in OPTIMIZERS),
        f"one of {', '.join(OPTIMIZERS)} or None",
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
    "rtol": (lambda v: _number(v) and 0 <= v < 1, "a number in [0, 1): at 1 the zero vector would pass"),
    "mean": (lambda v: isinstance(v, str) and v in DRIFTS, f"one of {', '.join(DRIFTS)}"),
    "normalize_y": (lambda v: isinstance(v, bool | np.bool_), "True or False"),
    "missing": (lambda v: isinstance(v, str) and v in ("error", "drop"), "'error' or 'drop'"),
    "n_jobs": (lambda v: v is None or (_whole(abs(v), 1) if _number(v) else False), "a whole number but 0, or None"),
    "verbose": (lambda v: isinstance(v, bool | np.bool_) or _whole(v, 0), "0, 1 or 2"),
}
"""What a parameter of a constructor may be, and the same in words."""


@dataclass(frozen=True)
class Plan:
    """What a fit is going to do, and how much memory it may take; made before it starts."""

    rows: int
    features: int
    method: str
    reason: str
    device: str
    expected_bytes: int
    budget_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.rows} rows, {self.features} features on {self.device}: {self.method} ({self.reason}); about "
            f"{self.expected_bytes / 1e6:.3g} MB of {self.budget_bytes / 1e6:.3g} MB"
        )


def planned(problem: Regression, method: str, columns: int) -> Plan:
    """Return the plan for these data; raise `MemoryBudgetExceeded` if not even the leanest way fits the budget."""
    n, d = problem.X.shape
    chosen, reason = chosen_method(problem, method)
    budget = problem.points.budget()
    data = 8 * n * (3 * d + 2 * problem.Y.shape[1])
    if chosen == "direct":
        expected = data + FACTORS * 8 * n * n
    else:
        expected = data + BLOCKS * 8 * n * columns
        rank = affordable_rank(n, max(budget - expected, 0))
        expected += FACTORS_AT_ONCE * 8 * n * rank
    leaner = " (the iterative one stores no matrix)" if chosen == "direct" else ""
    require_memory(expected, budget, f"fitting {n} rows by the {chosen} method{leaner}")
    return Plan(n, d, chosen, reason, problem.X.device.type, expected, budget)


def planned_together(old: Regression, more: Regression, method: str, probes: int) -> Plan:
    """Return the plan for the data of a model and further ones."""
    X, Y = torch.cat([old.X, more.X]), torch.cat([old.Y, more.Y])
    sizes = replace(more, X=X, Y=Y, noise_variance=None, mean="zero")
    return planned(sizes, method, probes + Y.shape[1] + old.H.shape[1])


def require_range(kernel: Kernel, problem: Regression) -> None:
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
    return backends.default(memory, None if n_jobs is None else effective_n_jobs(n_jobs), device.type)


def chosen_precision(dtype: str | None) -> torch.dtype | None:
    """Return the precision of products; None leaves it to the noise level."""
    try:
        return PRECISIONS[dtype if dtype in (None, "auto") else np.dtype(dtype).name]
    except (TypeError, KeyError):
        raise ValueError(f"dtype must be 'auto', 'float32' or 'float64', not {dtype!r}") from None


def generator_from(random_state: Any) -> Generator:
    """Return a generator seeded by an integer, a NumPy RandomState, or None for a seed of its own."""
    try:
        source = check_random_state(random_state)
    except ValueError as error:
        raise ValueError(f"random_state must be an integer, a numpy RandomState or None: {error}") from None
    return seeded(int(source.randint(2**31 - 1)))


def first_kernel(X: torch.Tensor, variance: float) -> Matern:
    """Return Matérn-3/2 with one lengthscale per feature, √d times its spread without outliers."""
    spread = central_spread_of(X).cpu()
    scale = torch.where(spread > 0, spread, 1.0)
    return Matern(scale * X.shape[1] ** 0.5, positive(variance, "variance"))


def first_process(kernel: Any, noise: Any, X: torch.Tensor, Y: torch.Tensor) -> GaussianProcess:
    """Return the process from which learning starts: by default Matérn-3/2, one lengthscale per feature, var Y."""
    power = float(spread_of(Y).square().mean()) or 1.0
    own, white = converted(first_kernel(X, power) if kernel is None else kernel)
    if noise is not None and white is not None:
        raise ValueError(
            f"noise is given twice: noise={noise!r} and a WhiteKernel in the kernel; leave one of them out"
        )
    if noise is None:
        signal = float(own.diagonal(X).detach().mean()) or power
        found = white or Noise(positive(START_NOISE * min(power, signal), "noise"))
    else:
        found = noise if isinstance(noise, Noise) else Noise(_one_variance(noise))
    return GaussianProcess(own, found)


def _one_variance(noise: Any) -> torch.Tensor:
    if np.ndim(noise) > 0:
        raise ValueError(
            "noise must be one variance to start from; known ones of the rows belong to fit(X, y, noise_variance=...)"
        )
    return positive(noise, "noise")


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
