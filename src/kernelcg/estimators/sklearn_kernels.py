"""scikit-learn's kernels, objects and names, as kernels of this library."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Generator, Tensor

from kernelcg.arguments import positive
from kernelcg.inference.gaussian.model import Noise
from kernelcg.kernels import (
    RBF,
    Constant,
    Cosine,
    Kernel,
    Laplacian,
    Linear,
    Matern,
    Periodic,
    Polynomial,
    Power,
    Product,
    RationalQuadratic,
    Sum,
)
from kernelcg.parameters import Parametric

P = TypeVar("P", bound=Parametric)

ACCEPTED = (
    "RBF, Matern, RationalQuadratic, ExpSineSquared, ConstantKernel, DotProduct, WhiteKernel, and their sums, "
    "products and whole powers"
)


def converted(kernel: object) -> tuple[Kernel, Noise | None]:
    """Return a scikit-learn kernel as one of this library, and the noise of its white summands.

    The same model with the same hyperparameters: those scikit-learn does not have, such as the variance of an RBF
    outside a product with a constant, are fixed at 1; "fixed" stays fixed and bounds stay bounds. Three rewritings
    keep the model but not the form. Constant factors become one, and the variance of an RBF, Matérn, rational
    quadratic or periodic factor where there is one. White summands become one noise. DotProduct, σ₀² + xᵀy, becomes
    a constant with variance σ₀² plus a linear kernel, and the linear kernel alone if σ₀ = 0, which learning on a log
    scale cannot leave.

    A kernel of this library is returned as it is, without noise.

    Raises
    ------
    TypeError
        if it is no kernel, or one of a kind that is not known here
    ValueError
        if noise is multiplied by a kernel, if there is nothing but noise, if bounds differ between features, or if a
        smoothness or a power is not supported
    """
    if isinstance(kernel, Kernel):
        return kernel, None
    if not isinstance(kernel, sk.Kernel):
        given = repr(kernel)
        if isinstance(kernel, type) and issubclass(kernel, Kernel | sk.Kernel):
            given = f"the class {kernel.__name__}; write {kernel.__name__}(...)"
        raise TypeError(f"kernel must be a kernelcg kernel or one of scikit-learn's ({ACCEPTED}), not {given}")
    if isinstance(kernel, sk.CompoundKernel):
        raise ValueError("kernel cannot be a CompoundKernel, which is several; give one of them")  # noqa: TRY004
    terms = [_flattened(term, sk.Product) for term in _flattened(kernel, sk.Sum)]
    levels = [_noise_level(factors) for factors in terms if _has_white(factors)]
    parts = [_product(factors) for factors in terms if not _has_white(factors)]
    if not parts:
        raise ValueError(f"{kernel} is noise alone; add a kernel to it, such as RBF()")
    return reduce(Sum, parts), _noise(levels)


@dataclass(frozen=True)
class Level:
    """A variance, and the interval it is learned in: a single point if it is fixed."""

    value: Tensor
    lower: float
    upper: float

    def __add__(self, other: Level) -> Level:
        return Level(self.value + other.value, self.lower + other.lower, self.upper + other.upper)

    def __mul__(self, other: Level) -> Level:
        return Level(self.value * other.value, self.lower * other.lower, self.upper * other.upper)


ONE = Level(torch.ones((), dtype=torch.float64), 1.0, 1.0)


class OneFeature(Kernel):
    """A kernel for data with a single feature, where scikit-learn's formula is no covariance of more."""

    kernel: Kernel

    @property
    def is_stationary(self) -> bool:
        return self.kernel.is_stationary

    @property
    def rounds_well(self) -> bool:
        return self.kernel.rounds_well

    def covariance(self, X: Tensor, Y: Tensor) -> Tensor:
        _require_one_feature(X.shape[1])
        return self.kernel.covariance(X, Y)

    def diagonal(self, X: Tensor) -> Tensor:
        _require_one_feature(X.shape[1])
        return self.kernel.diagonal(X)

    def coordinates(self, X: Tensor) -> Tensor:
        _require_one_feature(X.shape[1])
        return self.kernel.coordinates(X)

    def rounding_lengths(self, X: Tensor) -> Tensor:
        return self.kernel.rounding_lengths(X)

    def sample_frequencies(self, d: int, count: int, generator: Generator) -> Tensor:
        _require_one_feature(d)
        return self.kernel.sample_frequencies(d, count, generator)


def _require_one_feature(d: int) -> None:
    if d != 1:
        raise ValueError(
            f"X has {d} features, but scikit-learn's ExpSineSquared, periodic in the Euclidean distance, is a "
            "covariance for one feature only; use kernelcg.kernels.Periodic, which is periodic in every feature"
        )


# sums and products


def _flattened(kernel: Any, operator: Any) -> list[Any]:
    """Return the operands of nested sums, or of nested products, from left to right."""
    if type(kernel) is not operator:
        return [kernel]
    return _flattened(kernel.k1, operator) + _flattened(kernel.k2, operator)


def _has_white(factors: list[Any]) -> bool:
    return any(type(factor) is sk.WhiteKernel for factor in factors)


def _noise(levels: list[Level]) -> Noise | None:
    if not levels:
        return None
    level = reduce(Level.__add__, levels)
    return _learned(Noise(level.value), level)


def _noise_level(factors: list[Any]) -> Level:
    """Return the variance of a product of white kernels and constants."""
    others = [factor for factor in factors if type(factor) not in (sk.WhiteKernel, sk.ConstantKernel)]
    if others:
        raise ValueError(
            f"a WhiteKernel is multiplied by {others[0]}; only a constant may multiply it, since noise has the "
            "same variance everywhere: write kernel + WhiteKernel(...)"
        )
    return reduce(Level.__mul__, map(_level, factors))


def _kernel(kernel: Any) -> Kernel:
    """Return a kernel without white summands."""
    terms = [_flattened(term, sk.Product) for term in _flattened(kernel, sk.Sum)]
    if any(_has_white(factors) for factors in terms):
        raise ValueError(
            f"{kernel} is multiplied by a kernel or raised to a power and holds a WhiteKernel; noise must be a "
            "summand of the whole kernel: write kernel + WhiteKernel(...), with constants multiplied out"
        )
    return reduce(Sum, map(_product, terms))


def _product(factors: list[Any]) -> Kernel:
    """Return the product of these kernels; the constants go into the first factor that has a variance."""
    constants = [_level(factor) for factor in factors if type(factor) is sk.ConstantKernel]
    others = [factor for factor in factors if type(factor) is not sk.ConstantKernel]
    level = reduce(Level.__mul__, constants, ONE)
    host = next((i for i, factor in enumerate(others) if type(factor) in SCALED), None)
    parts = [_factor(factor, level if i == host else ONE) for i, factor in enumerate(others)]
    if host is None and constants:
        parts.insert(0, _learned(Constant(level.value), level))
    return reduce(Product, parts)


# one kernel


def _factor(kernel: Any, level: Level) -> Kernel:
    """Return one factor of a product, times ``level`` if it has a variance."""
    if type(kernel) in SCALED:
        return SCALED[type(kernel)](kernel, level)
    if type(kernel) is sk.Sum:
        return _kernel(kernel)
    if type(kernel) is sk.DotProduct:
        return _dot_product(kernel)
    if type(kernel) is sk.Exponentiation:
        return Power(_kernel(kernel.kernel), kernel.exponent)
    raise TypeError(
        f"{kernel} is a {type(kernel).__name__}, which kernelcg does not know; of scikit-learn's kernels it knows "
        f"{ACCEPTED}. Write a subclass of kernelcg.kernels.Kernel with the formula instead"
    )


def _rbf(kernel: Any, level: Level) -> Kernel:
    return _learned(RBF(_lengthscale(kernel), level.value), level, kernel, lengthscale="length_scale")


def _matern(kernel: Any, level: Level) -> Kernel:
    if kernel.nu == math.inf:
        return _rbf(kernel, level)
    if kernel.nu not in (0.5, 1.5, 2.5):
        raise ValueError(f"Matern with nu={kernel.nu!r} is not supported; choose 0.5, 1.5, 2.5 or inf")
    result = Matern(_lengthscale(kernel), level.value, nu=float(kernel.nu))
    return _learned(result, level, kernel, lengthscale="length_scale")


def _rational_quadratic(kernel: Any, level: Level) -> Kernel:
    result = RationalQuadratic(_lengthscale(kernel), level.value, kernel.alpha)
    return _learned(result, level, kernel, lengthscale="length_scale", alpha="alpha")


def _periodic(kernel: Any, level: Level) -> Kernel:
    result = Periodic(_lengthscale(kernel), kernel.periodicity, level.value)
    return OneFeature(_learned(result, level, kernel, lengthscale="length_scale", period="periodicity"))


SCALED: dict[type, Callable[[Any, Level], Kernel]] = {
    sk.RBF: _rbf,
    sk.Matern: _matern,
    sk.RationalQuadratic: _rational_quadratic,
    sk.ExpSineSquared: _periodic,
}
"""Kernels that are 1 at equal points in scikit-learn and have a variance here. A subclass may have another formula."""


def _dot_product(kernel: Any) -> Kernel:
    linear = Linear(ONE.value).fixed("variance")
    if kernel.sigma_0 == 0:
        return linear
    sigma_0 = _level(kernel)
    square = sigma_0 * sigma_0
    return Sum(_learned(Constant(square.value), square), linear)


def _lengthscale(kernel: Any) -> Any:
    return np.squeeze(kernel.length_scale)


# what is learned

LEVELS = {sk.ConstantKernel: "constant_value", sk.WhiteKernel: "noise_level", sk.DotProduct: "sigma_0"}


def _level(kernel: Any) -> Level:
    """Return the only hyperparameter of a kernel."""
    name = LEVELS[type(kernel)]
    value, bounds = positive(getattr(kernel, name), f"{type(kernel).__name__}.{name}"), _bounds(kernel, name)
    return Level(value, *(bounds or (value.item(), value.item())))


def _bounds(kernel: Any, name: str) -> tuple[float, float] | None:
    """Return the interval in which scikit-learn learns a hyperparameter, or None if it is fixed."""
    parameter = getattr(kernel, f"hyperparameter_{name}")
    if parameter.fixed:
        return None
    (lower, upper), *others = np.asarray(parameter.bounds, dtype=float).tolist()
    if any(other != [lower, upper] for other in others):
        raise ValueError(
            f"{name}_bounds of {kernel} differ between features, {parameter.bounds.tolist()}; give one pair for all"
        )
    if not lower < upper:
        raise ValueError(f"{name}_bounds of {kernel} must increase, not {lower:g}, {upper:g}; to keep it write 'fixed'")
    return lower, upper


def _learned(record: P, level: Level, kernel: Any = None, **names: str) -> P:
    """Return a record that is learned as ``level`` says, and in the hyperparameters in ``names`` as ``kernel`` does."""
    intervals = {name: _bounds(kernel, theirs) for name, theirs in names.items()}
    intervals["variance"] = None if level.lower == level.upper else (level.lower, level.upper)
    fixed = [name for name, interval in intervals.items() if interval is None]
    record = record.fixed(*fixed) if fixed else record
    return record.bounded(**{name: interval for name, interval in intervals.items() if interval is not None})


# names


def sklearn_pairwise(name: str, gamma: float | None, degree: int, coef0: float, d: int) -> Kernel:
    """Return the kernel that ``sklearn.metrics.pairwise.pairwise_kernels`` means by a name, for d features.

    With γ = ``gamma``, 1 / d by default: "linear" xᵀy; "poly" or "polynomial" (γ xᵀy + coef0)^degree; "rbf"
    exp(−γ |x − y|²), lengthscale 1 / √(2γ); "laplacian" exp(−γ Σ_r |x_r − y_r|), lengthscale 1 / γ; "cosine"
    xᵀy / (|x| |y|). Their variance is fixed at 1.
    """
    rate = positive(1.0 / d if gamma is None else gamma, "gamma")
    if name == "linear":
        return Linear(ONE.value).fixed("variance")
    if name in ("poly", "polynomial"):
        return Polynomial(rate, coef0, degree)
    if name == "rbf":
        return RBF((2 * rate).rsqrt()).fixed("variance")
    if name == "laplacian":
        return Laplacian(1 / rate).fixed("variance")
    if name == "cosine":
        return Cosine().fixed("variance")
    if name in REFUSED:
        raise ValueError(f"kernel={name!r} is not supported: {REFUSED[name]}")
    raise ValueError(f"kernel must be one of {', '.join(PAIRWISE)} or a kernel object, not {name!r}")


PAIRWISE = ("linear", "poly", "polynomial", "rbf", "laplacian", "cosine")

REFUSED = {
    "sigmoid": "its matrix is not positive semidefinite, which conjugate gradients need; use 'rbf' or 'poly'",
    "additive_chi2": "its matrix is not positive semidefinite, which conjugate gradients need; transform the data by "
    "sklearn.kernel_approximation.AdditiveChi2Sampler and use 'linear'",
    "chi2": "it is defined for histograms only; transform the data by "
    "sklearn.kernel_approximation.AdditiveChi2Sampler and use 'rbf'",
}
