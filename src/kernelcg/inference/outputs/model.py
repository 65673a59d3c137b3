"""Several outputs: a process for each, which may share the kernel, and data of which each output has its own part."""

import copy
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from kernelcg import backends
from kernelcg.arguments import matrix, require_finite, same_rows
from kernelcg.backends import Backend
from kernelcg.inference.gaussian.model import GaussianProcess, Noise, Regression
from kernelcg.kernels import Kernel
from kernelcg.parameters import Parametric
from kernelcg.planning import Pricing
from kernelcg.planning.plan import Storage
from kernelcg.planning.planner import Workload

EXPLAINED = 1e-12
"""Norm of what the drift leaves of an output, relative to the output, that is nothing but rounding."""


class OutputProcesses(Parametric):
    """Independent processes y_j = h(x)ᵀβ_j + f_j(x) + ε_j with a noise each, and one kernel for all or one each."""

    kernel: Kernel | tuple[Kernel, ...]
    noise: tuple[Noise, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise", tuple(self.noise))
        if not (self.noise and all(isinstance(one, Noise) for one in self.noise)):
            raise TypeError(f"noise must be one Noise for each output, not {self.noise!r}")
        for one in self._kernels():
            if not isinstance(one, Kernel):
                raise TypeError(f"kernel must be a kernelcg kernel, or one for each output, not {one!r}")
        if self.has_kernel_each and len(self._kernels()) != len(self.noise):
            raise ValueError(
                f"there are {len(self._kernels())} kernels for {len(self.noise)} outputs; give one for each"
            )

    def __len__(self) -> int:
        return len(self.noise)

    @property
    def has_kernel_each(self) -> bool:
        """Whether every output has a kernel of its own."""
        return not isinstance(self.kernel, Kernel)

    @classmethod
    def of(cls, processes: list[GaussianProcess]) -> Self:
        """Return these processes together, each with its kernel and its noise."""
        return cls(tuple(one.kernel for one in processes), tuple(one.noise for one in processes))

    def output(self, j: int) -> GaussianProcess:
        """Return the process of one output."""
        kernels = self._kernels()
        return GaussianProcess(kernels[j if self.has_kernel_each else 0], self.noise[j])

    def positions(self, j: int) -> Tensor:
        """Return where the log hyperparameters of output j, those of its kernel and its noise, are among all."""
        sizes = [len(one.log_parameters()) for one in self._kernels()]
        own = j if self.has_kernel_each else 0
        first = sum(sizes[:own])
        return torch.tensor([*range(first, first + sizes[own]), sum(sizes) + j])

    def _kernels(self) -> tuple[Kernel, ...]:
        return (self.kernel,) if isinstance(self.kernel, Kernel) else tuple(self.kernel)


@dataclass(frozen=True, eq=False)
class Outputs:
    """Observations Y (n, c) at X (n, d), NaN where there is none: one problem of regression for each column.

    Parameters
    ----------
    noise_variance : (n, c) known part of the noise variance of each observation, beside the one that is learned
    mean, precision, pricing, stored : as in `Regression`
    """

    X: Tensor
    Y: Tensor
    noise_variance: Tensor | None = None
    mean: str = "zero"
    backend: Backend = field(default_factory=backends.default)
    precision: torch.dtype | None = None
    pricing: Pricing = Pricing()
    stored: bool = False
    rows: tuple[Tensor, ...] = field(init=False)
    """The rows at which each output is observed."""
    each: tuple[Regression | None, ...] = field(init=False)
    """The problem of each output; None for an output without observations."""

    def __post_init__(self) -> None:
        X, Y = matrix(self.X, "X").detach().double(), matrix(self.Y, "Y", finite=False).detach().double()
        same_rows(X, "X", Y, "Y")
        require_finite(Y.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf), "Y")
        known = self.noise_variance
        if known is not None and known.shape != Y.shape:
            raise ValueError(f"noise_variance must have the shape {tuple(Y.shape)} of Y, not {tuple(known.shape)}")
        rows = tuple((~column.isnan()).nonzero()[:, 0] for column in Y.T)
        derived = {"X": X, "Y": Y, "rows": rows}
        for name, value in derived.items():
            object.__setattr__(self, name, value)
        share = share_of(self.backend, Y.shape[1])
        object.__setattr__(self, "each", tuple(self._one(j, share) for j in range(Y.shape[1])))

    def _one(self, j: int, backend: Backend) -> Regression | None:
        rows, known = self.rows[j], self.noise_variance
        if len(rows) == 0:
            return None
        own = None if known is None else known[rows, j].contiguous()
        X = self.X if len(rows) == len(self.X) else self.X[rows]
        Y = self.Y[rows, j][:, None]
        return Regression(X, Y, own, self.mean, backend, self.precision, self.pricing, self.stored)

    def __len__(self) -> int:
        return len(self.X)

    def __repr__(self) -> str:
        return f"<Outputs: {len(self)} rows, {self.X.shape[1]} features, {self.Y.shape[1]} outputs, {self.mean} drift>"

    def output(self, j: int) -> Regression:
        """Return the problem of one output, which must have observations."""
        found = self.each[j]
        if found is None:
            raise ValueError(f"output {j} has no observation")
        return found

    def with_each(self, each: tuple[Regression | None, ...]) -> Self:
        """Return the problem with those of the outputs replaced, which must be of the same data."""
        changed = copy.copy(self)
        object.__setattr__(changed, "each", each)
        return changed

    def at_price(self, pricing: Pricing) -> Self:
        """Return the problem with what its choices by cost go by."""
        changed = self.with_each(tuple(None if one is None else one.at_price(pricing) for one in self.each))
        object.__setattr__(changed, "pricing", pricing)
        return changed

    def storing(self, storage: Storage) -> Self:
        """Return the problem with K stored for products of iterative work, or not."""
        changed = self.with_each(tuple(None if one is None else one.storing(storage) for one in self.each))
        object.__setattr__(changed, "stored", storage is Storage.STORED)
        return changed

    def subset(self, rows: Tensor) -> Self:
        """Return the problem on some of the rows."""
        known = None if self.noise_variance is None else self.noise_variance[rows]
        return replace(self, X=self.X[rows], Y=self.Y[rows], noise_variance=known)

    def informative(self) -> Self:
        """Return the problem without the outputs that their drift explains: their likelihood rises as A shrinks."""
        Y = self.Y.clone()
        for j, one in enumerate(self.each):
            if one is not None and is_explained(one):
                Y[:, j] = torch.nan
        return self if bool((Y.isnan() == self.Y.isnan()).all()) else replace(self, Y=Y)

    def workload(self, *, parameters: int | None = None, in_stages: bool = True) -> Workload:
        """Return what a plan has to know of it; None learned ``parameters`` stand for the usual number."""
        (n, d), c = self.X.shape, self.Y.shape[1]
        columns = 1 + max(0 if one is None else one.H.shape[1] for one in self.each)
        learned = d + 1 + c if parameters is None else parameters
        return Workload(n, d, columns, parameters=learned, in_stages=in_stages, systems=c)


def share_of(backend: Backend, outputs: int) -> Backend:
    """Return the backend with the memory that one output may take: the posteriors of all exist at the same time."""
    return replace(backend, memory=max(backend.budget() // outputs, 1))


def is_explained(problem: Regression) -> bool:
    """Say whether the drift explains all of Y."""
    return bool((problem.centred.norm(dim=0) <= EXPLAINED * problem.Y.norm(dim=0)).all())


def labelled(j: int, words: str) -> str:
    """Return a sentence about one output."""
    return f"output {j}: {words}"


def first_failure(statuses: list[Any], good: Any) -> Any:
    """Return the first status that is not the good one, if there is one."""
    return next((status for status in statuses if status is not good), good)
