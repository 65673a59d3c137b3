"""A latent Gaussian process seen through a likelihood, and the data it is conditioned on."""

import copy
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from kernelcg import backends
from kernelcg.arguments import matrix, same_rows, vector
from kernelcg.backends import Backend, KernelMatrix, Points
from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.inference.gaussian.drift import Drift, MeanKind, drift
from kernelcg.inference.laplace.expansion import ClassExpansion, Expansion, ScalarExpansion
from kernelcg.kernels import Kernel
from kernelcg.likelihoods import ONE, Likelihood, Softmax
from kernelcg.parameters import Parametric
from kernelcg.planning import Pricing
from kernelcg.planning.plan import Family, Storage
from kernelcg.planning.planner import Workload


class LatentProcess(Parametric):
    """y ~ p(y | h(x)ᵀβ + f(x)) with f ~ GP(0, kernel); one f for each class if the likelihood is Softmax.

    Parameters
    ----------
    kernel : covariance function of f
    likelihood : p(y | f)
    """

    kernel: Kernel
    likelihood: Likelihood | Softmax

    def __post_init__(self) -> None:
        if not isinstance(self.kernel, Kernel):
            raise TypeError(f"kernel must be a kernelcg kernel, not {self.kernel!r}")
        if not isinstance(self.likelihood, Likelihood | Softmax):
            raise TypeError(f"likelihood must be one of kernelcg.likelihoods, not {self.likelihood!r}")

    @property
    def is_log_concave(self) -> bool:
        """Whether p(f | y) has one mode, and nothing else that is stationary."""
        return isinstance(self.likelihood, Softmax) or self.likelihood.log_concave


@dataclass(frozen=True, eq=False)
class Observations:
    """Observations y (n,) at X (n, d) of a latent process.

    Vectors of latent values have N = nC rows, the C classes of a point one after the other; C = 1 but for softmax.

    Parameters
    ----------
    X : (n, d) inputs
    backend : where products run
    y : numbers, or class numbers 0, …, C − 1 if there are ``classes``
    exposure : (n,) time or area behind a count, trials of a binomial
    mean : "zero", "constant" or "linear" drift of the latent process; "zero" for classes
    classes : C, for the softmax likelihood
    precision : of the products in iterative work; None means float32 where its rounding stays below the noise
    pricing : what choices by cost go by
    stored : whether K is stored for products

    Attributes
    ----------
    drift : the drift functions h
    """

    X: Tensor
    y: Tensor
    exposure: Tensor = ONE
    mean: str = "zero"
    classes: int = 1
    backend: Backend = field(default_factory=backends.default)
    precision: torch.dtype | None = None
    pricing: Pricing = Pricing()
    stored: bool = False
    points: Points = field(init=False)
    """X where the products run."""
    bound: KernelMatrix | None = field(init=False, default=None)
    """K of the kernel that `with_kernel` has set; None before."""
    drift: Drift = field(init=False)
    H: Tensor = field(init=False)
    """(N, b) the drift functions at X."""

    def __post_init__(self) -> None:
        X = matrix(self.X, "X").detach().double()
        y = torch.as_tensor(self.y).detach().to(X.device)
        if y.ndim != 1:
            raise ValueError(f"y must be one column of numbers, not of shape {tuple(y.shape)}")
        y = y.long() if self.classes > 1 else y.double()
        same_rows(X, "X", y[:, None], "y")
        if self.classes > 1 and self.mean != MeanKind.ZERO:
            raise ValueError("classes take mean='zero': the latent functions share no drift")
        exposure = vector(self.exposure, "exposure", len(X), like=X)
        functions = drift(self.mean, X)
        H = functions(X) if self.classes == 1 else X.new_zeros(len(X) * self.classes, 0)
        derived = {"X": X, "points": self.backend.place(X), "y": y, "exposure": exposure, "drift": functions, "H": H}
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.X)

    def __repr__(self) -> str:
        kind = f"{self.classes} classes" if self.classes > 1 else f"{self.mean} drift"
        return f"<Observations of {len(self)} rows, {self.X.shape[1]} features, {kind}>"

    @property
    def size(self) -> int:
        """Return N, the number of latent values."""
        return len(self) * self.classes

    def subset(self, rows: Tensor) -> Self:
        """Return the problem on some of the rows."""
        return replace(self, X=self.X[rows], y=self.y[rows], exposure=self.exposure[rows])

    def joined(self, more: "Observations") -> Self:
        """Return the problem with further observations after those that it has; the drift is fitted anew."""
        X, y = torch.cat([self.X, more.X]), torch.cat([self.y, more.y])
        return replace(self, X=X, y=y, exposure=torch.cat([self.exposure, more.exposure]))

    def at_price(self, pricing: Pricing) -> Self:
        """Return the problem with other prices, by which the work chooses between preconditioners."""
        changed = copy.copy(self)  # the drift stays as it was fitted
        object.__setattr__(changed, "pricing", pricing)
        return changed

    def workload(self, *, parameters: int | None = None, in_stages: bool = True) -> Workload:
        """Return the size of the problem for a plan; without ``parameters`` the usual number of them is learned."""
        n, d = self.X.shape
        learned = d + 1 if parameters is None else parameters
        return Workload(n, d, max(self.H.shape[1], 1), self.classes, Family.LAPLACE, learned, in_stages)

    def storing(self, storage: Storage) -> Self:
        """Return the problem with K stored for products, or not."""
        changed = copy.copy(self)  # the drift stays as it was fitted
        object.__setattr__(changed, "stored", storage is Storage.STORED)
        return changed

    def with_kernel(self, kernel: Kernel | None) -> Self:
        """Return the problem with K of this kernel bound, and stored if that was said; None unbinds."""
        bound = None if kernel is None else self.points.bind(kernel)
        if bound is not None and self.stored:
            with suppress(MemoryBudgetExceeded):  # where the plan was made there was more memory
                bound = bound.stored(torch.float64)
        changed = copy.copy(self)  # the drift stays as it was fitted
        object.__setattr__(changed, "bound", bound)
        return changed

    def matrix(self, kernel: Kernel) -> KernelMatrix:
        """Return K: the one that is bound if it is of this kernel."""
        return self.bound if self.bound is not None and self.bound.kernel is kernel else self.points.bind(kernel)

    def product(self, kernel: Kernel, V: Tensor) -> Tensor:
        """Return (K ⊗ I) V for V (N, k), in float64."""
        wide = V.reshape(len(self), -1).contiguous()
        return self.matrix(kernel).product(wide, precision=torch.float64).reshape(V.shape)

    def gradient(self, kernel: Kernel, left: Tensor, right: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return ∂/∂θ of Σ_j left_jᵀ (K ⊗ I) right_j + Σ_ij weights_ij K_ij, on the CPU."""
        n = len(self)
        wide_left, wide_right = left.reshape(n, -1).contiguous(), right.reshape(n, -1).contiguous()
        K = self.matrix(kernel)
        return K.gradient(wide_left, wide_right, weights=weights, precision=torch.float64).cpu()

    def diagonal_gradient(self, kernel: Kernel, weights: Tensor) -> Tensor:
        """Return ∂/∂θ of Σ_i weights_i k(x_i, x_i), on the CPU."""
        with torch.enable_grad():
            theta = kernel.log_parameters().detach().requires_grad_()
            total = (weights * kernel.with_log_parameters(theta).diagonal(self.X)).sum()
            if not total.requires_grad:
                return torch.zeros_like(theta)
            (gradient,) = torch.autograd.grad(total, theta, allow_unused=True, materialize_grads=True)
        return gradient.cpu()

    def expansion(self, gp: LatentProcess, f: Tensor) -> Expansion:
        """Return log p(y | f) to third order around f (N, 1)."""
        if isinstance(gp.likelihood, Softmax):
            return ClassExpansion.at(gp.likelihood, self.y, f, self.classes)
        return ScalarExpansion.at(gp.likelihood, self.y, f, self.exposure)

    def log_density(self, gp: LatentProcess, f: Tensor) -> float:
        """Return log p(y | f)."""
        if isinstance(gp.likelihood, Softmax):
            return float(gp.likelihood.log_density(self.y, f.reshape(len(self), -1)).sum())
        return float(gp.likelihood.log_density(self.y, f[:, 0], self.exposure).sum())
