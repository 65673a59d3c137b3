"""A Gaussian process prior with noise, its drift, and the data it is conditioned on."""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from kernelcg import backends
from kernelcg.arguments import matrix, same_rows, vector
from kernelcg.backends import Backend
from kernelcg.kernels import Kernel
from kernelcg.operators import KernelPlusDiagonal
from kernelcg.parameters import Parametric
from kernelcg.planning import product_dtype

DRIFTS = ("zero", "constant", "linear")

CONSTANT = 1e-12
"""Standard deviation of a column, relative to its largest entry, that is rounding."""

CENTRAL = 2.563
"""Width of the central four fifths of a normal distribution, in standard deviations."""

SINGULAR = 1e-10
"""Singular value of the standardised inputs, relative to the largest, below which a direction is constant."""


class Noise(Parametric):
    """Gaussian noise of unknown variance, the same for all observations."""

    SCALARS: ClassVar[tuple[str, ...]] = ("variance",)

    variance: Tensor


class GaussianProcess(Parametric):
    """y = h(x)ᵀβ + f(x) + ε with f ~ GP(0, kernel) and ε ~ N(0, noise); the drift h belongs to the data."""

    kernel: Kernel
    noise: Noise

    def __post_init__(self) -> None:
        if not isinstance(self.kernel, Kernel):
            raise TypeError(f"kernel must be a kernelcg kernel, not {self.kernel!r}")
        if not isinstance(self.noise, Noise):
            object.__setattr__(self, "noise", Noise(self.noise))


@dataclass(frozen=True, eq=False)
class Drift:
    """The functions h(x) = [1, x − centre] T whose coefficients β are fitted by generalised least squares."""

    centre: Tensor  # (d,)
    T: Tensor  # (1 + d, b)

    def __call__(self, X: Tensor) -> Tensor:
        """Return h(x_i) as an (n, b) tensor."""
        if self.T.shape[1] == 0:
            return X.new_zeros(len(X), 0)
        return torch.cat([X.new_ones(len(X), 1), X - self.centre], dim=1) @ self.T


def spread_of(X: Tensor) -> Tensor:
    """Return (d,) the standard deviation of each column, at whatever scale; 0 where it is nothing but rounding."""
    largest = X.abs().amax(0)
    unit = torch.where(largest > 0, largest, 1.0)
    spread = (X / unit).std(0, correction=0)
    return torch.where(spread > CONSTANT, spread * unit, 0.0)


def central_spread_of(X: Tensor) -> Tensor:
    """Return (d,) the same without the outer fifth of each column, if that is less and not 0."""
    ordered, cut, spread = X.sort(0).values, len(X) // 10, spread_of(X)
    central = (ordered[len(X) - 1 - cut] - ordered[cut]) / CENTRAL
    return torch.where(central > 0, torch.minimum(central, spread), spread)


def drift(kind: str, X: Tensor) -> Drift:
    """Return the drift "zero", "constant" or "linear" for these inputs; its columns are independent on them."""
    if kind not in DRIFTS:
        raise ValueError(f"mean must be one of {', '.join(DRIFTS)}, not {kind!r}")
    d, centre = X.shape[1], X.mean(0)
    T = X.new_zeros(1 + d, 1)
    T[0] = 1.0
    if kind == "zero":
        return Drift(centre, T[:, :0])
    if kind == "linear":
        spread = spread_of(X)
        scale = torch.where(spread > 0, 1 / spread, 0.0)
        _, S, V = torch.linalg.svd((X - centre) * scale, full_matrices=False)
        kept = SINGULAR * S.max().clamp_min(1e-300) < S
        slopes = scale[:, None] * V[kept].T / S[kept] * len(X) ** 0.5
        T = torch.cat([T, torch.cat([slopes.new_zeros(1, slopes.shape[1]), slopes])], dim=1)
    return Drift(centre, T)


@dataclass(frozen=True, eq=False)
class Regression:
    """Observations Y (n, c) at X (n, d): the columns share kernel, noise and drift functions.

    Parameters
    ----------
    noise_variance : (n,) known part of the noise variance of each observation, beside the one that is learned
    mean : "zero", "constant" or "linear" drift
    precision : of the products in iterative work; None means float32 where its rounding stays below the noise
    """

    X: Tensor
    Y: Tensor
    noise_variance: Tensor | None = None
    mean: str = "zero"
    backend: Backend = field(default_factory=backends.default)
    precision: torch.dtype | None = None
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
        functions = drift(self.mean, X)
        H = functions(X)
        ordinary = torch.linalg.lstsq(H, Y).solution if H.shape[1] else H.new_zeros(0, Y.shape[1])
        derived = {
            "X": X,
            "Y": Y,
            "noise_variance": known,
            "drift": functions,
            "H": H,
            "ordinary": ordinary,
            "centred": Y - H @ ordinary,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.X)

    def system(self, gp: GaussianProcess) -> KernelPlusDiagonal:
        """Return A = K + D for these hyperparameters, with products in float64."""
        noise = gp.noise.variance.detach().to(self.X).expand(len(self))
        D = noise if self.noise_variance is None else noise + self.noise_variance
        return KernelPlusDiagonal(gp.kernel.detached(), self.X, D, backend=self.backend)

    def fast_system(self, gp: GaussianProcess) -> KernelPlusDiagonal:
        """Return A with products in the precision that was asked for, or that is safe."""
        A = self.system(gp)
        return A.with_precision(self.precision or product_dtype(A))

    def subset(self, rows: Tensor) -> Self:
        """Return the problem on some of the rows."""
        known = None if self.noise_variance is None else self.noise_variance[rows]
        return replace(self, X=self.X[rows], Y=self.Y[rows], noise_variance=known)
