"""Whether the contents of a model file belong together: a file with a valid checksum may still be crafted or broken."""

from collections.abc import Mapping
from typing import Any

import torch
from sklearn.utils import check_random_state
from torch import Tensor

from kernelcg.backends import KernelMatrix
from kernelcg.estimators.data import LARGEST
from kernelcg.inference.bounds.product_rounding import ProductRounding
from kernelcg.inference.bounds.rounding import Certified
from kernelcg.inference.gaussian.drift import MeanKind
from kernelcg.kernels import Kernel
from kernelcg.operators import KernelPlusDiagonal
from kernelcg.planning import Plan
from kernelcg.planning.profile import Profile
from kernelcg.solvers import SolveReport

Shape = tuple[int, ...]

TRIED_ROWS = 32
"""Rows of the data at which a stored kernel is tried."""

CHECKED_ROWS, CLOSE = 4, 1e-6
"""Rows at which latent values are computed again, and how far they may be off, relative to the sizes of the terms."""

INDEPENDENT = 1e-8
"""Least singular value of the drift functions at the data, relative to the largest; a fit makes them orthogonal."""


def require_numbers(tensors: Mapping[str, Tensor], shapes: Mapping[str, Shape]) -> None:
    """Raise unless these tensors have these shapes and hold finite float64 numbers whose squares can be summed."""
    for name, shape in shapes.items():
        value = require_shape(tensors, name, shape, torch.float64)
        if not bool((value.abs() <= LARGEST).all()):
            raise ValueError(f"{name} holds NaN, infinite or too large numbers")


def require_finite(tensors: Mapping[str, Tensor], shapes: Mapping[str, Shape]) -> None:
    """Raise unless these tensors have these shapes and hold finite float64 numbers, as large as units of y may be."""
    for name, shape in shapes.items():
        if not bool(require_shape(tensors, name, shape, torch.float64).isfinite().all()):
            raise ValueError(f"{name} holds NaN or infinite numbers")


def require_bounds(tensors: Mapping[str, Tensor], shapes: Mapping[str, Shape]) -> None:
    """Raise unless these tensors are such numbers and not negative, as error bounds and variances are."""
    require_numbers(tensors, shapes)
    for name in shapes:
        if not bool((tensors[name] >= 0).all()):
            raise ValueError(f"{name} holds negative numbers")


def require_bounded_residual(R: Tensor, error: Tensor, largest: float) -> None:
    r"""Raise unless ``error`` can bound :math:`\sqrt{r^\top A^{-1} r} \ge \|r\| / \sqrt{\lambda_{\max}(A)}`."""
    if not bool((R.norm(dim=0) <= (1 + CLOSE) * error * largest**0.5).all()):
        raise ValueError("its weights have larger residuals than their error bounds allow")


def require_residual(solved: Certified, B: Tensor, rounded: Tensor, A: KernelPlusDiagonal) -> None:
    """Raise unless R = B − A X at the first rows, as far as rounding lets that be known; B by up to ``rounded``."""
    some, X = slice(CHECKED_ROWS), solved.X
    product = A.K.cross(A.X[some], X) + A.diagonal[some, None] * X[some]
    root = A.kernel_diagonal().clamp_min(0).sqrt()
    size = B[some].abs() + root[some, None] * (root @ X.abs()) + A.diagonal[some, None] * X[some].abs()
    allowed = CLOSE * size + rounded[some] + ProductRounding.of(A.K).of_cross(A.X[some], X)
    if not bool(((B[some] - product - solved.R[some]).abs() <= allowed).all()):
        raise ValueError("its weights have other residuals than it says")


def require_shape(tensors: Mapping[str, Tensor], name: str, shape: Shape, dtype: torch.dtype) -> Tensor:
    """Return a tensor, which must have this shape and dtype."""
    value = tensors[name]
    if tuple(value.shape) != shape or value.dtype != dtype:
        found = f"{value.dtype} of shape {tuple(value.shape)}"
        raise ValueError(f"{name} is {found}, where the others need {dtype} of shape {shape}")
    return value


def require_report(report: SolveReport, columns: int | None = None) -> None:
    """Raise unless the parts of a report, which users print, tell of the same number of columns."""
    k = len(report.column_status) if columns is None else columns
    parts = (report.iterations, report.true_residual_norms, report.right_hand_norms, report.thresholds)
    if k == 0 or len(report.column_status) != k or any(tuple(part.shape) != (k,) for part in parts):
        raise ValueError("its report of the solve has columns of different numbers")


def require_kernel(kernel: Kernel, X: Tensor) -> None:
    """Raise unless a kernel can be evaluated at the data, to finite numbers and a positive diagonal."""
    some = X[:TRIED_ROWS]
    K, diagonal = kernel(some, some).detach(), kernel.diagonal(X).detach()
    if not (bool(K.isfinite().all()) and bool(((diagonal >= 0) & (diagonal <= LARGEST)).all())):
        raise ValueError(f"{kernel!r:.80} gives no usable numbers at its data")


def require_mode(f: Tensor, a: Tensor, K: KernelMatrix, drift: Tensor) -> None:
    """Raise unless f = K a + Hβ at the first rows, as far as rounding lets that be known.

    f, a and Hβ are (n, C) matrices with a column for each class.
    """
    some, root = slice(CHECKED_ROWS), K.diagonal().clamp_min(0).sqrt()
    expected = K.cross(K.X[some], a, precision=torch.float64) + drift[some]
    size = root[some, None] * (root @ a.abs()) + drift[some].abs()
    allowed = CLOSE * size + ProductRounding.of(K).of_cross(K.X[some], a)
    if not bool(((f[some] - expected).abs() <= allowed).all()):
        raise ValueError("its mode is not the one of its weights")


def require_drift(mean: str, H: Tensor, d: int) -> None:
    """Raise unless there are as many drift functions as such a drift has, independent of each other at the data."""
    b = H.shape[1]
    most = {MeanKind.ZERO: 0, MeanKind.CONSTANT: 1, MeanKind.LINEAR: 1 + d}[MeanKind(mean)]
    if b > most or (b == 0) != (most == 0):
        raise ValueError(f"a {mean} drift has other functions than the {b} that are stored")
    if b:
        sizes = torch.linalg.svdvals(H)
        if not bool(sizes[-1] > INDEPENDENT * sizes[0]):
            raise ValueError("its drift functions depend on each other")


def require_plan(plan: Plan) -> None:
    """Raise unless the plan has what work after loading goes by: memory, a seed, and the rates of a machine."""
    if plan.memory < 1 or plan.probes < 0 or not 0 <= plan.seed < 2**63:
        raise ValueError("its plan has no memory, probes or seed that could be")
    Profile.from_json(plan.pricing.profile.to_json())  # raises unless its rates are positive


def require_features(header: Mapping[str, Any], X: Tensor) -> None:
    """Raise unless the number and the names of the features are those of the data."""
    d, names = header["n_features_in"], header["feature_names_in"]
    if type(d) is not int or X.ndim != 2 or X.shape[1] != d:
        raise ValueError("its data have another number of features than it says")
    if not isinstance(names, list) or len(names) not in (0, d) or not all(isinstance(name, str) for name in names):
        raise ValueError("the names of its features are not as many words as it has features")


def require_tolerance(value: Any, name: str) -> float:
    """Return a relative tolerance, which must be between 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise ValueError(f"{name} must be between 0 and 1, not {value!r:.40}")
    return float(value)


def require_seed(estimator: Any) -> None:
    """Raise unless the parameter ``random_state`` is one."""
    check_random_state(estimator.random_state)
