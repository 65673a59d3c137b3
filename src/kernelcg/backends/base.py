"""A kernel matrix bound to data, and the backends that make one: the operations whose cost grows with n²."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from kernelcg.arguments import memory_bytes
from kernelcg.backends.checks import (
    check_binding,
    check_columns,
    check_local_factors,
    check_pairs,
    check_points,
    chosen_precision,
)
from kernelcg.backends.memory import default_budget, require_memory
from kernelcg.backends.neighbours import earlier_neighbours
from kernelcg.backends.rounding import centre_of
from kernelcg.backends.work import Work
from kernelcg.kernels import Kernel
from kernelcg.threads import taking

Answer = TypeVar("Answer")

Rows = Tensor | slice | None
"""Some of the rows of X: int64 numbers, a slice, or None for all."""

COPIES = 3
"""Copies of X that binding may make: centred, in units of the lengthscale, in single precision."""

on_own_threads = taking(lambda K: K.backend.threads)
"""Decorates methods of a matrix that share their work among threads of the library, beside which those of torch, which
spin between operations, would take the processor from them."""


@dataclass(frozen=True, eq=False)
class KernelMatrix(ABC):
    """K(X, X) of one kernel at one X: entries are computed when they are needed, and kept only if `stored`.

    Arguments are checked here; a backend implements the methods that begin with an underscore, whose ``dtype`` is
    the precision to compute in.

    Parameters
    ----------
    kernel : the formula
    points : X on a backend

    Examples
    --------
    >>> import torch
    >>> from kernelcg import backends
    >>> from kernelcg.kernels import RBF
    >>> K = backends.bind(RBF(1.0), torch.zeros(3, 1))
    >>> K.product(torch.ones(3, 1)).T, K.cross(torch.zeros(1, 1), torch.ones(3, 1))
    (tensor([[3., 3., 3.]]), tensor([[3.]]))
    """

    kernel: Kernel
    points: "Points"

    def __len__(self) -> int:
        return len(self.X)

    def __repr__(self) -> str:
        where = f"by {self.backend.name()} on {self.device}{', stored' if self.is_stored else ''}"
        return f"<{type(self).__name__} of {len(self)} rows and {self.X.shape[1]} features: {self.kernel}, {where}>"

    @property
    def X(self) -> Tensor:
        """Return the data, (n, d)."""
        return self.points.X

    @property
    def device(self) -> torch.device:
        """Return where the data are."""
        return self.X.device

    @property
    def backend(self) -> "Backend":
        """Return where the work is done, and in which memory."""
        return self.points.backend

    def budget(self) -> int:
        """Return the bytes an operation may allocate where the data are."""
        return self.points.budget()

    @property
    def is_stored(self) -> bool:
        """Whether products come from stored entries."""
        return False

    # what can be asked of K

    def product(self, V: Tensor, *, precision: torch.dtype | None = None) -> Tensor:
        """Return K V with the dtype of V, computed in ``precision`` (by default that of X): O(n² (d + k)) time."""
        check_columns(self.X, V)
        return self._product(V, chosen_precision(self.X, precision))

    def cross(self, points: Tensor, V: Tensor, *, precision: torch.dtype | None = None) -> Tensor:
        """Return K(points, X) V. The entries of a row do not depend on which other points are asked for with it."""
        check_points(self.X, points)
        check_columns(self.X, V)
        return self._cross(points, V, chosen_precision(self.X, precision))

    def product_of_columns(self, columns: Tensor, V: Tensor, *, precision: torch.dtype | None = None) -> Tensor:
        """Return K[:, columns] V for (m,) numbers of rows of X and (m, k) V: O(n m (d + k)) time."""
        check_columns(self.X[columns], V)
        return self._product_of_columns(columns, V, chosen_precision(self.X, precision))

    def block(self, rows: Rows = None, columns: Rows = None, *, precision: torch.dtype | None = None) -> Tensor:
        """Return the entries K[rows, columns] in ``precision``."""
        return self._block(rows, columns, chosen_precision(self.X, precision))

    def cross_block(self, points: Tensor, columns: Rows = None, *, precision: torch.dtype | None = None) -> Tensor:
        """Return the entries K(points, X[columns]) in ``precision``."""
        check_points(self.X, points)
        return self._cross_block(points, columns, chosen_precision(self.X, precision))

    def gradient(
        self,
        left: Tensor,
        right: Tensor,
        *,
        columns: Rows = None,
        weights: Tensor | None = None,
        precision: torch.dtype | None = None,
    ) -> Tensor:
        """Return ∂/∂θ Σ_j left_jᵀ K[:, columns] right_j for the log hyperparameters θ of the kernel, in float64.

        A symmetric (n, n) tensor ``weights``, for all columns only, adds Σ_ij weights_ij K_ij to the sum.
        """
        check_pairs(self.X, left, right, rows_of(self.X, columns), weights)
        return self._gradient(left, right, columns, weights, chosen_precision(self.X, precision))

    def local_factors(self, neighbours: Tensor, F: Tensor | None, scale: Tensor | None, diagonal: Tensor) -> Tensor:
        """Return the (n, q + 1) rows g_i = R_JJ⁻¹ e_i / √(e_iᵀ R_JJ⁻¹ e_i), J = N(i) ∪ {i}, of R = S (K − F Fᵀ) S + D.

        N(i) are the distinct rows of X that row i of the int64 ``neighbours`` names, −1 where there are fewer than
        q. Columns follow ``neighbours``, 0 where there is none; the last is the point's own and positive. F (n, m)
        must leave K − F Fᵀ positive semidefinite; F = None is 0, scale = None is S = I. Everything is float64 and
        finite, however small D: bounds that hold in exact arithmetic (squared pivots of a Cholesky factor of R_JJ
        are at least D) are imposed where rounding breaks them. Costs O(n q² (m + d + q)) time.

        References
        ----------
        Vecchia (1988), JRSS B 50; Kolotilina & Yeremin (1993), SIAM J. Matrix Anal. Appl. 14.
        """
        check_local_factors(self.X, neighbours, F, scale, diagonal)
        return self._local_factors(neighbours, F, scale, diagonal)

    def neighbours(self, order: Tensor, count: int) -> Tensor:
        """Return (n, count) numbers of the rows nearest to each row among those before it in ``order``, −1 for none.

        Near means strongly correlated: distances are those of `Kernel.coordinates`.
        """
        return self._neighbours(order, count)

    def diagonal(self) -> Tensor:
        """Return the diagonal of K in float64."""
        return self.kernel.diagonal(self.X.double()).detach()

    # kernel matrices made from this one

    def with_kernel(self, kernel: Kernel) -> "KernelMatrix":
        """Return K of other hyperparameters at the same X, which is not checked, centred or sent again."""
        return self.points.bind(kernel)

    def at(self, rows: Tensor | slice) -> "KernelMatrix":
        """Return K of some of the rows."""
        return self.backend.bind(self.kernel, self.X[rows])

    def joined(self, points: Tensor) -> "KernelMatrix":
        """Return K of X and of further points after it."""
        return self.backend.bind(self.kernel, torch.cat([self.X, points]))

    def stored(self, precision: torch.dtype | None = None) -> "KernelMatrix":
        """Return K with its entries kept for products in ``precision``, if n² numbers fit the budget."""
        from kernelcg.backends.stored import StoredMatrix

        n, dtype = len(self), chosen_precision(self.X, precision)
        require_memory(dtype.itemsize * n**2, self.budget(), f"storing the {n} x {n} kernel matrix")
        return StoredMatrix(self.kernel, self.points, self, self._block(None, None, dtype))

    # the same kernel between these points and other ones, of which a backend may compute each pair once

    def _both_ways(self, other: "KernelMatrix", V: Tensor, W: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return K(X, Y) V and K(Y, X) W, where Y are the points of the ``other`` matrix of this kernel."""
        return other._cross(self.X, V, dtype), self._cross(other.X, W, dtype)

    def _gradient_between(self, other: "KernelMatrix", left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
        """Return ∂/∂θ Σ_j left_jᵀ K(X, Y) right_j, where Y are the points of the ``other`` matrix of this kernel."""
        padded = torch.cat([left, left.new_zeros(len(other), left.shape[1])])
        return self.joined(other.X)._gradient(padded, right, slice(len(self), None), None, dtype)

    # what a backend computes

    def _product_of_columns(self, columns: Tensor, V: Tensor, dtype: torch.dtype) -> Tensor:
        """Return K[:, columns] V."""
        from kernelcg.backends.binding import matrix_of

        few = self.backend.place(self.X[columns], self.points.centre)
        return matrix_of(self.kernel, few)._cross(self.X, V, dtype)

    def _neighbours(self, order: Tensor, count: int) -> Tensor:
        """Return the rows that `neighbours` describes."""
        return earlier_neighbours(self.kernel.coordinates(self.X.double()), order, count, self.budget())

    @abstractmethod
    def _product(self, V: Tensor, dtype: torch.dtype) -> Tensor:
        """Return K V."""

    @abstractmethod
    def _cross(self, points: Tensor, V: Tensor, dtype: torch.dtype) -> Tensor:
        """Return K(points, X) V."""

    @abstractmethod
    def _block(self, rows: Rows, columns: Rows, dtype: torch.dtype) -> Tensor:
        """Return K[rows, columns]."""

    @abstractmethod
    def _cross_block(self, points: Tensor, columns: Rows, dtype: torch.dtype) -> Tensor:
        """Return K(points, X[columns])."""

    @abstractmethod
    def _gradient(
        self, left: Tensor, right: Tensor, columns: Rows, weights: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        """Return ∂/∂θ (Σ_j left_jᵀ K[:, columns] right_j + Σ_ij weights_ij K_ij)."""

    @abstractmethod
    def _local_factors(self, neighbours: Tensor, F: Tensor | None, scale: Tensor | None, diagonal: Tensor) -> Tensor:
        """Return the rows that `local_factors` describes."""


@dataclass(frozen=True, eq=False)
class Points:
    """Data on a backend, checked and centred once: every kernel matrix at them shares these.

    Attributes
    ----------
    X : (n, d) the data as they were given
    backend : where products run
    centre : (d,) the median of every feature, float64
    centred : (n, d) X − centre, float64
    """

    X: Tensor  # (n, d)
    backend: "Backend"
    centre: Tensor  # (d,) the median of every feature, float64
    centred: Tensor  # (n, d) X − centre, float64

    def budget(self) -> int:
        """Return the bytes that work with them may allocate."""
        return self.backend.room(self.X.device)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the data and their centre: they are placed again where they are unpickled."""
        return type(self.backend).place, (self.backend, self.X, self.centre)

    def bind(self, kernel: Kernel) -> KernelMatrix:
        """Return K of a kernel at these points."""
        from kernelcg.backends.binding import matrix_of
        from kernelcg.backends.counted import CountedMatrix

        K = matrix_of(kernel, self)
        return K if self.backend.work is None else CountedMatrix(kernel, self, K, self.backend.work)


@dataclass(frozen=True, eq=False)
class Backend(ABC):
    """Makes kernel matrices, and knows the memory and the threads their work may take.

    A backend is one file in this folder: a frozen dataclass with `computes`, `matrix`, `why_not` and `preference`. The
    first line of its docstring describes it in lists, and its name in lower case is the one users type.

    Parameters
    ----------
    memory : bytes, or words such as "2GB", that an operation may allocate beyond its inputs and its result; None means
        half of what the machine or container has (see `budget`)
    threads : None means as many as torch uses
    work : where the work done is counted, if it is
    """

    memory: int | str | None = None
    threads: int | None = None
    work: Work | None = field(default=None, kw_only=True)
    half: int = field(init=False, repr=False)
    """Half of the memory of the machine when the backend was made."""

    def __post_init__(self) -> None:
        reason = self.why_not()
        if reason is not None:
            raise RuntimeError(f"the {self.name()} backend cannot be used: {reason}")
        if self.threads is not None and (type(self.threads) is not int or self.threads < 1):
            raise ValueError(f"threads must be a positive integer or None, not {self.threads!r}")
        object.__setattr__(self, "memory", memory_bytes(self.memory))
        object.__setattr__(self, "half", default_budget())

    # what it is

    @classmethod
    def name(cls) -> str:
        """Return the name users type."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()

    @classmethod
    def description(cls) -> str:
        """Return one line that says what it is."""
        return (cls.__doc__ or cls.__name__).strip().splitlines()[0]

    @classmethod
    @abstractmethod
    def why_not(cls) -> str | None:
        """Return the reason why it cannot be used on this machine, or None if it can."""

    @classmethod
    @abstractmethod
    def preference(cls, device: str) -> int | None:
        """Return a number that is larger the better it suits data on this type of device, or None if it does not."""

    @abstractmethod
    def computes(self, kernel: Kernel, X: Tensor) -> bool:
        """Say whether it has code of its own for this kernel at these data; others are split or done by tiles."""

    @abstractmethod
    def matrix(self, kernel: Kernel, points: Points) -> KernelMatrix:
        """Return K of a kernel that it computes."""

    # what it does

    def bind(self, kernel: Kernel, X: Tensor) -> KernelMatrix:
        """Return K(X, X), from which all products, entries and gradients are to be had."""
        check_binding(kernel, X)
        require_memory(8 * COPIES * X.numel(), self.room(X.device), f"a kernel matrix of {len(X)} rows")
        return self.place(X).bind(kernel)

    def place(self, X: Tensor, centre: Tensor | None = None) -> Points:
        """Return the data as kernel matrices need them, for kernels that are still to come.

        The ``centre`` is by default the median of these data; parts of larger data are given one of them all.
        """
        with torch.inference_mode(False), torch.no_grad():  # autograd takes no tensors made in inference mode
            centre = centre_of(X) if centre is None else centre
            return Points(X, self, centre, X.detach().double() - centre)

    @property
    def here(self) -> "Backend":
        """Return the backend that works in this process: this one, unless the work is done on other machines."""
        return self

    @property
    def copies(self) -> int:
        """Return how many copies of X binding may make in the memory of this process."""
        return COPIES

    def each_worker(self, ask: Callable[[], Answer]) -> list[tuple[int, Answer]] | None:
        """Return the threads and the answer of every worker of a cluster; None where this process does the work."""
        return None

    def memory_of_all_workers(self) -> int:
        """Return the bytes that the workers of a cluster may use together."""
        return 0

    def memory_of_workers(self) -> int:
        """Return the bytes of entries of K that they may keep."""
        return 0

    def counting(self, rows: int) -> Self:
        """Return the same backend, which counts its work in columns times the matrix of so many rows."""
        return replace(self, work=Work(rows))

    def budget(self) -> int:
        """Return the bytes an operation may allocate: as given, or half of the machine; the same at any time."""
        return self.memory if isinstance(self.memory, int) else self.half

    def room(self, device: torch.device) -> int:
        """Return the bytes that may be allocated where data are: on a GPU at most half of all its memory."""
        if device.type != "cuda":
            return self.budget()
        half = torch.cuda.get_device_properties(device).total_memory // 2
        return min(self.memory, half) if isinstance(self.memory, int) else half


def rows_of(M: Tensor, rows: Rows) -> Tensor:
    """Return some rows of M, M itself for None."""
    return M if rows is None else M[rows]
