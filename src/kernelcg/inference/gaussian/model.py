"""A Gaussian process prior with noise, its drift, and the data it is conditioned on."""

import copy
import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from kernelcg import backends
from kernelcg.arguments import matrix, same_rows, vector
from kernelcg.backends import Backend, Points
from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.inference.gaussian.drift import Drift, drift
from kernelcg.kernels import Kernel
from kernelcg.operators import KernelPlusDiagonal
from kernelcg.parameters import Parametric
from kernelcg.planning import Pricing, product_dtype
from kernelcg.planning.plan import Storage
from kernelcg.planning.planner import Workload
from kernelcg.solvers.least_squares import least_squares


class Noise(Parametric):
    """Gaussian noise of unknown variance, the same for all observations.

    Parameters
    ----------
    variance : in squared units of y
    """

    SCALARS: ClassVar[tuple[str, ...]] = ("variance",)

    variance: Tensor


class GaussianProcess(Parametric):
    """y = h(x)ᵀβ + f(x) + ε with f ~ GP(0, kernel) and ε ~ N(0, noise); the drift h belongs to the data.

    Parameters
    ----------
    kernel : covariance function of f
    noise : of the observations: a `Noise`, or its variance in squared units of y
    """

    kernel: Kernel
    noise: Noise

    def __post_init__(self) -> None:
        if not isinstance(self.kernel, Kernel):
            raise TypeError(f"kernel must be a kernelcg kernel, not {self.kernel!r}")
        if not isinstance(self.noise, Noise):
            object.__setattr__(self, "noise", Noise(self.noise))


@dataclass(frozen=True, eq=False)
class Regression:
    """Observations Y (n, c) at X (n, d): the columns share kernel, noise and drift functions.

    Parameters
    ----------
    X : (n, d) inputs
    Y : (n, c) observations
    backend : where products run
    noise_variance : (n,) known part of the noise variance of each observation, beside the one that is learned
    mean : "zero", "constant" or "linear" drift
    precision : of the products in iterative work; None means float32 where its rounding stays below the noise
    pricing : what choices by cost go by
    stored : whether K is stored for the products of iterative work
    relative : whether Y has no units in common with the kernel, as in kernel ridge: errors then count beside Y alone

    Attributes
    ----------
    drift : the drift functions h
    """

    X: Tensor
    Y: Tensor
    noise_variance: Tensor | None = None
    mean: str = "zero"
    backend: Backend = field(default_factory=backends.default)
    precision: torch.dtype | None = None
    pricing: Pricing = Pricing()
    stored: bool = False
    relative: bool = False
    points: Points = field(init=False)
    """X where the products run."""
    drift: Drift = field(init=False)
    H: Tensor = field(init=False)
    """(n, b) the drift functions at X."""
    ordinary: Tensor = field(init=False)
    """(b, c) coefficients of the drift by ordinary least squares."""
    centred: Tensor = field(init=False)
    """(n, c) Y without that drift: the right-hand sides of all solves, so that tolerances are not relative to it."""

    def __post_init__(self) -> None:
        X, Y = matrix(self.X, "X").detach().double(), matrix(self.Y, "Y").detach().double()
        same_rows(X, "X", Y, "Y")
        known = self.noise_variance
        if known is not None:
            known = vector(known, "noise_variance", len(X), like=X)
            if not bool((known >= 0).all()):
                raise ValueError(f"noise_variance must not be negative, but its smallest entry is {known.min():.3g}")
        derived = {"X": X, "Y": Y, "noise_variance": known, "points": self.backend.place(X)}
        for name, value in derived.items():
            object.__setattr__(self, name, value)
        self._fit_drift(drift(self.mean, X))

    def _fit_drift(self, functions: Drift) -> None:
        H = functions(self.X)
        ordinary = least_squares(H, self.Y) if H.shape[1] else H.new_zeros(0, self.Y.shape[1])
        derived = {"drift": functions, "H": H, "ordinary": ordinary, "centred": self.Y - H @ ordinary}
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.X)

    def __repr__(self) -> str:
        (n, d), c = self.X.shape, self.Y.shape[1]
        return f"<Regression of {n} rows, {d} features, {c} column{'s' * (c > 1)} of Y, {self.mean} drift>"

    def system(self, gp: GaussianProcess) -> KernelPlusDiagonal:
        """Return A = K + D for these hyperparameters, with products in float64."""
        noise = gp.noise.variance.detach().to(self.X).expand(len(self))
        D = noise if self.noise_variance is None else noise + self.noise_variance
        return KernelPlusDiagonal(self.points.bind(gp.kernel.detached()), D)

    def fast_system(self, gp: GaussianProcess) -> KernelPlusDiagonal:
        """Return A with products in the precision asked for, or a safe one, and with K stored if `stored` says so."""
        A = self.system(gp)
        A = A.with_precision(self.precision or product_dtype(A))
        if self.stored:
            with suppress(MemoryBudgetExceeded):  # where the plan was made there was more memory
                return A.stored()
        return A

    def amplitudes(self, A: KernelPlusDiagonal) -> Tensor:
        """Return (c,) s for which s²A is the covariance of each column of Y: 1, or where Y is `relative`, by its size.

        Multiples of Y then have multiples of everything. The size is the root mean square of Y beside that of √k(x, x).
        """
        ones = self.Y.new_ones(self.Y.shape[1])
        if not self.relative:
            return ones
        signal = math.sqrt(float(A.kernel_diagonal().mean()))
        sizes = root_mean_squares(self.Y)
        return torch.where(sizes > 0, sizes / signal, ones) if signal > 0 else ones

    def at_price(self, pricing: Pricing) -> Self:
        """Return the problem with other prices, by which the work chooses between preconditioners."""
        changed = copy.copy(self)  # the drift stays as it was fitted
        object.__setattr__(changed, "pricing", pricing)
        return changed

    def with_drift(self, functions: Drift) -> Self:
        """Return the problem with these functions in place of those that its inputs suggest."""
        changed = copy.copy(self)
        changed._fit_drift(functions)
        return changed

    def storing(self, storage: Storage) -> Self:
        """Return the problem with K stored for products of iterative work, or not."""
        changed = copy.copy(self)
        object.__setattr__(changed, "stored", storage is Storage.STORED)
        return changed

    def workload(
        self,
        *,
        parameters: int | None = None,
        in_stages: bool = True,
        exact_only: bool = False,
        needs_inverse: bool = False,
    ) -> Workload:
        """Return the size of the problem for a plan; without ``parameters`` the usual number of them is learned."""
        n, d = self.X.shape
        columns = self.Y.shape[1] + self.H.shape[1]
        learned = d + 2 if parameters is None else parameters
        return Workload(
            n,
            d,
            columns,
            parameters=learned,
            in_stages=in_stages,
            exact_only=exact_only,
            needs_inverse=exact_only or needs_inverse,
        )

    def subset(self, rows: Tensor) -> Self:
        """Return the problem on some of the rows."""
        known = None if self.noise_variance is None else self.noise_variance[rows]
        return replace(self, X=self.X[rows], Y=self.Y[rows], noise_variance=known)


def root_mean_squares(Y: Tensor) -> Tensor:
    """Return (c,) the root mean square of each column, also where squares would overflow."""
    largest = Y.abs().amax(0).clamp_min(1e-300)
    return largest * (Y / largest).square().mean(0).sqrt()
