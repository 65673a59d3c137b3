"""Native backend: fused C++ for RBF and Matérn kernels, and for similarities of sets, on the CPU."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

import torch
from torch import Tensor

from kernelcg.backends.base import Backend, KernelMatrix, Points, Rows, on_own_threads, rows_of
from kernelcg.backends.memory import require_memory
from kernelcg.backends.rounding import rounded_columns, rounded_pairs
from kernelcg.backends.sets import SETS, CodedSets, code_of, sets_matrix
from kernelcg.backends.space_order import leaves, rows_back, rows_in, space_order
from kernelcg.kernels import RBF, Kernel, Matern, MinMax, Tanimoto
from kernelcg.kernels.stationary import per_feature
from kernelcg.threads import allowed, working

_native: Any
try:
    from kernelcg import _native  # type: ignore[no-redef]  # absent in a pure Python install
except ImportError as error:
    _native, _import_error = None, str(error)

USUAL_THREADS = 8
"""Threads whose work space decides how columns are divided, on every machine; where it is short, fewer threads work."""

MATERN_PROFILES = {0.5: 1, 1.5: 2, 2.5: 3}


def levels() -> dict[str, str]:
    """Return every instruction set the native code knows and whether it can run here, in words.

    Examples
    --------
    >>> from kernelcg import backends
    >>> set(backends.levels()) <= {"baseline", "avx2", "avx512"}
    True
    """
    return {} if _native is None else {name: "usable" if usable else why for name, usable, why in _native.levels()}


@dataclass(frozen=True, eq=False)
class Native(Backend):
    """C++ products and gradients by symmetric, cache-blocked, vectorised tiles of direct differences.

    RBF and Matérn kernels are computed here, `Tanimoto` of bits and `MinMax` of small counts by counting common bits,
    and with them their multiples and sums.

    Parameters
    ----------
    memory, threads, work : as in `Backend`; the number of threads changes no bit of a result
    level : an instruction set (see `levels`); None means the best that this machine has

    Examples
    --------
    >>> import torch
    >>> from kernelcg import backends
    >>> from kernelcg.kernels import RBF
    >>> if backends.available()["native"].usable:
    ...     print(backends.Native(threads=1).bind(RBF(1.0), torch.zeros(3, 2)).product(torch.ones(3, 1)).T)
    tensor([[3., 3., 3.]])
    """

    level: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.level is not None and levels().get(self.level) != "usable":
            raise ValueError(f"level={self.level!r} cannot be used; this machine and build offer {levels()}")

    @classmethod
    def description(cls) -> str:
        usable = ", ".join(name for name, state in levels().items() if state == "usable")
        return f"compiled C++ for RBF, Matérn and Tanimoto kernels on the CPU; instruction sets: {usable}"

    @classmethod
    def why_not(cls) -> str | None:
        if _native is not None:
            return None
        return f"the compiled module is missing ({_import_error}); reinstall kernelcg where there is a C++ compiler"

    @classmethod
    def preference(cls, device: str) -> int | None:
        return 10 if device == "cpu" else None

    def computes(self, kernel: Kernel, X: Tensor) -> bool:
        return X.device.type == "cpu" and (_is_known(kernel) or type(kernel) in SETS)

    def place(self, X: Tensor, centre: Tensor | None = None) -> Points:
        """Return the data centred, and packed in the order in which the compiled code reads them."""
        points = super().place(X, centre)
        on_cpu = X.device.type == "cpu"
        panels = _native.Panels(points.centred.contiguous(), *self.how()) if on_cpu else None
        return PackedPoints(points.X, self, points.centre, points.centred, panels)

    def matrix(self, kernel: Kernel, points: Points) -> KernelMatrix:
        if isinstance(points, PackedPoints) and isinstance(kernel, Tanimoto | MinMax):
            return sets_matrix(kernel, points, points.sets if type(kernel) is Tanimoto else points.counts, self)
        if not isinstance(points, PackedPoints) or not _is_known(kernel):
            raise TypeError(f"the native backend does not compute {kernel!r} at these data")
        per_feature(kernel.lengthscale, points.X.shape[1], "lengthscale")
        factors = kernel.lengthscale.detach().double().reciprocal().expand(points.X.shape[1]).contiguous()
        profile = 0 if isinstance(kernel, RBF) else MATERN_PROFILES[kernel.nu]
        return NativeMatrix(kernel, points, self, points.panels, factors, kernel.variance.item(), profile)

    def how(self, most: int | None = None) -> tuple[int, int]:
        """Return the threads, at most so many, and the number of the instruction set that the next call uses."""
        threads = self.threads or allowed()
        level = _native.best_level() if self.level is None else list(levels()).index(self.level)
        return threads if most is None else min(threads, most), level

    # the compiled code, for points whose kernel is told by the number of its profile

    def packed(self, rows: Tensor) -> Any:
        """Return rows of numbers, or of words, in the order in which the compiled code reads them."""
        return _native.Panels(rows.contiguous(), *self.how())

    def multiply(self, A: Any, B: Any, V: Tensor, out: Tensor, profile: int, threads: int) -> None:
        """Write K(A, B) V into ``out``, (n, k) in float64, with so many threads; B = None is A."""
        _native.product(A, B, V, out, profile, *self.how(threads))

    def entries(self, A: Tensor, B: Tensor, profile: int) -> Tensor:
        """Return K(A, B) for rows that are not packed."""
        result = A.new_empty(len(A), len(B))
        _native.block(A.contiguous(), B.contiguous(), result, profile, *self.how())
        return result

    def workspace(self, n: int, m: int, d: int, k: int, itemsize: int, threads: int, symmetric: bool) -> int:
        """Return the bytes that `multiply` allocates."""
        return _native.workspace_bytes(n, m, d, k, itemsize, threads, symmetric)

    def slices(self, needed: Callable[[int, int], int], k: int, budget: int, what: str) -> tuple[int, Iterator[slice]]:
        """Return threads, and slices of k columns, for which ``needed(columns, threads)`` bytes fit, or raise."""
        size = max(k, 1)
        while size > 1 and needed(size, USUAL_THREADS) > budget:
            size = (size + 1) // 2
        threads = self.affordable(lambda count: needed(size, count), budget, what)
        return threads, (slice(start, min(start + size, k)) for start in range(0, k, size))

    def affordable(self, needed: Callable[[int], int], budget: int, what: str) -> int:
        """Return as many threads, of those that may be used, as ``needed(threads)`` bytes allow; raise if none is."""
        threads, _ = self.how()
        while threads > 1 and needed(threads) > budget:
            threads -= 1
        require_memory(needed(threads), budget, what)
        return threads


@dataclass(frozen=True, eq=False)
class PackedPoints(Points):
    """Points and their panels, in float64 and without a lengthscale: packed once, scaled for every kernel."""

    panels: Any

    @cached_property
    def sets(self) -> CodedSets | None:
        """Return the rows as sets of the features that are 1, if all of them are 0 or 1."""
        return self._coded(Tanimoto)

    @cached_property
    def counts(self) -> CodedSets | None:
        """Return the rows as sets, if they are counts of moderate size."""
        return self._coded(MinMax)

    def _coded(self, kind: type[Kernel]) -> CodedSets | None:
        code, native = code_of(kind, self.X.detach()), self.backend
        return CodedSets(self.X, code, native) if code is not None and isinstance(native, Native) else None


@dataclass(frozen=True, eq=False, repr=False)
class NativeMatrix(KernelMatrix):
    """σ² profile(|x − y|²) with x and y in units of the lengthscale."""

    native: Native
    panels: Any
    factors: Tensor  # (d,) reciprocals of the lengthscales, float64
    variance: float
    profile: int

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the data and the kernel: the data are packed again where they are unpickled."""
        return type(self.native).matrix, (self.native, self.kernel, self.points)

    # the data in units of the lengthscale, made when they are first asked for

    @cached_property
    def order(self) -> Tensor | None:
        """Return the order in which rows are packed, None for their own.

        Where lengthscales are short it is one in which tiles of negligible values are found and left out: less than
        2⁻⁶⁴ of the variance, which `Rounding` counts as a part of the error of an entry, in float32 2⁻³⁴.
        """
        return space_order(self.points.centred * self.factors, _native.farthest(self.profile, True))

    @cached_property
    def _double(self) -> Any:
        return self._in_order().scaled(self.factors, False)

    @cached_property
    def _single(self) -> Any:
        return self._in_order().scaled(self.factors, True)

    def _in_order(self) -> Any:
        """Return the points in their order, not scaled yet."""
        return self.panels if self.order is None else self.native.packed(self.points.centred[self.order])

    @cached_property
    def scaled(self) -> Tensor:
        """Return (n, d) X − centre in lengthscales, row by row."""
        return (self.points.centred * self.factors).contiguous()

    def _panels(self, dtype: torch.dtype) -> Any:
        return self._single if dtype == torch.float32 else self._double

    def _packed(self, rows: Tensor, dtype: torch.dtype) -> Any:
        """Return panels of some rows that are centred, but not scaled yet."""
        return _native.Panels(rows.contiguous(), *self.native.how()).scaled(self.factors, dtype == torch.float32)

    # products

    def _product(self, V: Tensor, dtype: torch.dtype, points: Tensor | None = None) -> Tensor:
        """Return K V, or K(points, X) V if there are points, a few columns at a time."""
        with working(self.backend.threads):  # no decorator, to keep the walk of a fit short
            n, local, order = len(self) if points is None else len(points), self.order is not None, self.order
            threads, chunks = self._chunks(
                _native.workspace_bytes, n, len(self), V.shape[1], dtype, symmetric=points is None
            )
            A, B = self._panels(dtype), None
            if points is not None:
                rows = points.detach().double() - self.points.centre
                order = leaves(rows * self.factors) if local else None
                A, B = self._packed(rows_in(order, rows), dtype), A
            columns, scale = rounded_columns(V, dtype)
            columns, result = rows_in(self.order, columns), torch.empty(n, V.shape[1], dtype=torch.float64)
            for some in chunks:
                out = torch.empty(n, some.stop - some.start, dtype=torch.float64)
                how = (self.profile, *self.native.how(threads), local)
                _native.product(A, B, columns[:, some].contiguous(), out, *how)
                result[:, some] = out
            return rows_back(order, result.mul_(scale * self.variance)).to(V.dtype)

    def _cross(self, points: Tensor, V: Tensor, dtype: torch.dtype) -> Tensor:
        return self._product(V, dtype, points)

    @on_own_threads
    def _both_ways(self, other: KernelMatrix, V: Tensor, W: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return both products a few columns at a time, where the same number of both is asked for."""
        alike = isinstance(other, NativeMatrix) and torch.equal(self.points.centre, other.points.centre)
        if not alike or V.shape[1] != W.shape[1]:
            return super()._both_ways(other, V, W, dtype)
        A, B = self._panels(dtype), other._panels(dtype)  # type: ignore[attr-defined]
        (v, v_scale), (w, w_scale) = rounded_columns(V, dtype), rounded_columns(W, dtype)
        v, w = rows_in(other.order, v), rows_in(self.order, w)  # type: ignore[attr-defined]
        across, down = (torch.empty(each.rows, V.shape[1], dtype=torch.float64) for each in (A, B))
        threads, chunks = self._chunks(_workspace_both_ways, A.rows, B.rows, V.shape[1], dtype, symmetric=False)
        for some in chunks:
            parts = [each[:, some].contiguous() for each in (v, w, across, down)]
            local = self.order is not None
            _native.product_both_ways(A, B, *parts, self.profile, *self.native.how(threads), local)
            across[:, some], down[:, some] = parts[2:]
        across, down = rows_back(self.order, across), rows_back(other.order, down)  # type: ignore[attr-defined]
        return (across * (v_scale * self.variance)).to(V.dtype), (down * (w_scale * self.variance)).to(W.dtype)

    def _gradient(
        self, left: Tensor, right: Tensor, columns: Rows, weights: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        """Return the gradient in (log l, log σ²); the last entry is also Σ_j left_jᵀ K right_j itself."""
        B = None if columns is None else self._packed(rows_of(self.points.centred, columns), dtype)
        return self._weighted(B, left, right, weights, dtype)

    def _gradient_between(self, other: KernelMatrix, left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
        B = self._packed(other.X.detach().double() - self.points.centre, dtype)
        return self._weighted(B, left, right, None, dtype)

    @on_own_threads
    def _weighted(self, B: Any, left: Tensor, right: Tensor, weights: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Return the gradient of the sum with K between X and the points in the panels B, X itself for None."""
        threads, chunks = self._chunks(
            _native.gradient_workspace_bytes, len(self), len(right), left.shape[1], dtype, symmetric=B is None
        )
        A, how = self._panels(dtype), (*self.native.how(threads), self.order is not None)
        left, right, factor = rounded_pairs(left, right, dtype)
        if weights is not None and self.order is not None:  # which are in the order of X
            A, how = self.panels.scaled(self.factors, dtype == torch.float32), (*self.native.how(threads), False)
        else:
            left, right = rows_in(self.order, left), rows_in(self.order if B is None else None, right)
        per_dimension = self.kernel.lengthscale.numel() > 1  # type: ignore[attr-defined]
        total = torch.zeros(1 + (A.features if per_dimension else 1), dtype=torch.float64)
        C = None if weights is None else weights.to(dtype).contiguous()
        for some in chunks:
            L, R, out = left[:, some].contiguous(), right[:, some].contiguous(), torch.empty_like(total)
            _native.gradient(A, B, L, R, C, 1 / float(factor), out, per_dimension, self.profile, *how)
            total, C = total + out, None  # the weights count once
        return total.roll(-1) * (factor * self.variance)

    def _block(self, rows: Rows, columns: Rows, dtype: torch.dtype) -> Tensor:
        self._require_copies(len(rows_of(self.X, rows)), len(rows_of(self.X, columns)))
        A = self.scaled.to(dtype)
        return self._entries(rows_of(A, rows), rows_of(A, columns))

    def _cross_block(self, points: Tensor, columns: Rows, dtype: torch.dtype) -> Tensor:
        self._require_copies(len(points), len(rows_of(self.X, columns)))
        return self._entries(self._scaled(points, dtype), rows_of(self.scaled.to(dtype), columns))

    @on_own_threads
    def _entries(self, A: Tensor, B: Tensor) -> Tensor:
        return self.native.entries(A, B, self.profile).mul_(self.variance)

    @on_own_threads
    def _local_factors(self, neighbours: Tensor, F: Tensor | None, scale: Tensor | None, diagonal: Tensor) -> Tensor:
        (n, q), m, A = neighbours.shape, 0 if F is None else F.shape[1], self.scaled
        copied = sum(8 * value.numel() for value in (neighbours, F) if value is not None and not value.is_contiguous())
        held = copied + self._copies(n, n, 0) + 16 * n

        def needed(threads: int) -> int:
            return held + int(_native.local_factors_workspace_bytes(n, A.shape[1], q, m, threads))

        threads = self.native.affordable(needed, self.budget(), f"local factors of neighbourhoods of {q + 1} points")
        result = A.new_empty(n, q + 1)
        _native.local_factors(
            A,
            neighbours.contiguous(),
            A.new_empty(n, 0) if F is None else F.detach().contiguous(),
            A.new_ones(n) if scale is None else scale.detach().contiguous(),
            diagonal.detach().contiguous(),
            result,
            self.variance,
            self.profile,
            *self.native.how(threads),
        )
        return result

    def _scaled(self, points: Tensor, dtype: torch.dtype) -> Tensor:
        """Return further points as `scaled` has X, then rounded."""
        return ((points.detach().double() - self.points.centre) * self.factors).to(dtype).contiguous()

    # sizes that fit the budget

    def _copies(self, n: int, m: int, k: int) -> int:
        """Return the bytes of scaled inputs, rounded columns and results that are made on the way, and put in order."""
        inputs, columns = (3, 3) if self.order is None else (4, 5)
        return (n + m) * (inputs * self.X.shape[1] + columns * k) * 8

    def _require_copies(self, n: int, m: int) -> None:
        require_memory(self._copies(n, m, 0), self.budget(), f"a {n} x {m} block of a kernel matrix")

    def _chunks(
        self, workspace: Callable[..., int], n: int, m: int, k: int, dtype: torch.dtype, *, symmetric: bool
    ) -> tuple[int, Iterator[slice]]:
        """Return threads, and slices of the k columns, whose work space fits the budget; raise if there are none."""
        d, kept = self.X.shape[1], (n,) if symmetric else (n, m)
        packed = sum(_native.panels_bytes(rows, d, each) for rows in kept for each in (8, dtype.itemsize))

        def needed(size: int, threads: int) -> int:
            work = workspace(n, m, d, size, dtype.itemsize, threads, symmetric)
            return self._copies(n, m, k) + packed + work

        return self.native.slices(needed, k, self.budget(), f"work with a {n} x {m} kernel matrix")


def _workspace_both_ways(*sizes: int) -> int:
    return int(_native.workspace_bytes(*sizes, both_ways=True))


def _is_known(kernel: Kernel) -> TypeGuard[RBF | Matern]:
    """Say whether the C++ code has this formula: subclasses may have changed it."""
    return type(kernel) in (RBF, Matern)
