"""Native backend: fused C++ for RBF and Matérn kernels on the CPU, torch tiles for everything else."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor

from kernelcg.arguments import require_finite
from kernelcg.backends.base import (
    Backend,
    check_gradient,
    check_inputs,
    check_local_factors,
    check_product,
    require_memory,
    rounded_columns,
    rounded_pairs,
)
from kernelcg.backends.tiles import Tiles
from kernelcg.kernels import RBF, Constant, Kernel, Matern, Product, Stationary, Sum
from kernelcg.kernels.stationary import per_feature

_native: Any
try:
    from kernelcg import _native  # type: ignore[no-redef]  # absent in a pure Python install
except ImportError as error:
    _native, _import_error = None, str(error)

MATERN_PROFILES = {0.5: 1, 1.5: 2, 2.5: 3}


def why_not() -> str | None:
    """Return the reason why this backend cannot be used, or None if it can."""
    if _native is not None:
        return None
    return f"the compiled module is missing ({_import_error}); reinstall kernelcg where there is a C++ compiler"


def levels() -> dict[str, str]:
    """Return every instruction set the native code knows and whether it can run here, in words."""
    return {} if _native is None else {name: "usable" if usable else why for name, usable, why in _native.levels()}


@dataclass(frozen=True, eq=False)
class Native(Backend):
    """C++ products and gradients by symmetric, cache-blocked, vectorised tiles of direct differences.

    RBF and Matérn kernels, their multiples and their sums are fused; other kernels, other parts of a sum and
    tensors on other devices go to `Tiles`, within the same memory bound. ``threads`` None means as many as
    torch uses; ``level`` names an instruction set (see `levels`), None means the best this machine has.
    """

    threads: int | None = None
    level: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if _native is None:
            raise RuntimeError(f"the native backend cannot be used: {why_not()}")
        if self.threads is not None and (type(self.threads) is not int or self.threads < 1):
            raise ValueError(f"threads must be a positive integer or None, not {self.threads!r}")
        if self.level is not None and levels().get(self.level) != "usable":
            raise ValueError(f"level={self.level!r} cannot be used; this machine and build offer {levels()}")

    def matmul(
        self, kernel: Kernel, X: Tensor, Y: Tensor, V: Tensor, *, precision: torch.dtype | None = None
    ) -> Tensor:
        dtype = check_product(X, Y, V, precision)
        if type(kernel) is Sum:
            parts = (self.matmul(part, X, Y, V, precision=dtype) for part in (kernel.left, kernel.right))
            return next(parts) + next(parts)
        if type(kernel) is Product and (found := _constant_factor(kernel)):
            constant, part = found
            return constant.variance.item() * self.matmul(part, X, Y, V, precision=dtype)
        if not _fuses(kernel, X):
            return Tiles(self.memory).matmul(kernel, X, Y, V, precision=dtype)
        chunks = self._chunks(_native.workspace_bytes, X, Y, V.shape[1], dtype)
        A, B = self._packed_inputs(kernel, X, Y, dtype)
        columns, scale = rounded_columns(V, dtype)
        result = torch.empty(len(X), V.shape[1], dtype=torch.float64)
        for some in chunks:
            out = torch.empty(len(X), some.stop - some.start, dtype=torch.float64)
            _native.product(A, B, columns[:, some].contiguous(), out, _profile(kernel), self._threads(), self._level())
            result[:, some] = out
        return result.mul_(scale * kernel.variance.item()).to(V.dtype)

    def gradient(
        self,
        kernel: Kernel,
        X: Tensor,
        Y: Tensor,
        left: Tensor,
        right: Tensor,
        *,
        weights: Tensor | None = None,
        precision: torch.dtype | None = None,
    ) -> Tensor:
        dtype = check_gradient(X, Y, left, right, weights, precision)
        if type(kernel) is Sum:
            parts = (kernel.left, kernel.right)
            return torch.cat([self.gradient(p, X, Y, left, right, weights=weights, precision=dtype) for p in parts])
        if type(kernel) is Product and (found := _constant_factor(kernel)) and _fuses(part := found[1], X):
            constant = found[0]
            inner = constant.variance.item() * self._fused_gradient(part, X, Y, left, right, weights, dtype)
            return torch.cat([inner[-1:], inner] if constant is kernel.left else [inner, inner[-1:]])
        if _fuses(kernel, X):
            return self._fused_gradient(kernel, X, Y, left, right, weights, dtype)
        return Tiles(self.memory).gradient(kernel, X, Y, left, right, weights=weights, precision=dtype)

    def block(self, kernel: Kernel, X: Tensor, Y: Tensor, *, precision: torch.dtype | None = None) -> Tensor:
        dtype = check_inputs(X, Y, precision)
        if not _fuses(kernel, X):
            return Tiles(self.memory).block(kernel, X, Y, precision=dtype)
        require_memory(_copies(X, Y, 0), self.budget(), f"a {len(X)} x {len(Y)} block of a kernel matrix")
        A, B = _scaled_inputs(kernel, X, Y, dtype)
        result = A.new_empty(len(X), len(Y))
        _native.block(A, A if B is None else B, result, _profile(kernel), self._threads(), self._level())
        return result.mul_(kernel.variance.item())

    def local_factors(
        self,
        kernel: Kernel,
        X: Tensor,
        neighbours: Tensor,
        F: Tensor | None,
        scale: Tensor | None,
        diagonal: Tensor,
    ) -> Tensor:
        check_local_factors(X, neighbours, F, scale, diagonal)
        multiple, part = _multiple_of(kernel)
        if not _fuses(part, X):
            return Tiles(self.memory).local_factors(kernel, X, neighbours, F, scale, diagonal)
        (n, q), m = neighbours.shape, 0 if F is None else F.shape[1]
        work = _native.local_factors_workspace_bytes(n, X.shape[1], q, m, self._threads())
        copied = sum(8 * value.numel() for value in (neighbours, F) if value is not None and not value.is_contiguous())
        needed = work + copied + _copies(X, X, 0) + 16 * n
        require_memory(needed, self.budget(), f"local factors of neighbourhoods of {q + 1} points")
        A, _ = _scaled_inputs(part, X, X, torch.float64)
        result = A.new_empty(n, q + 1)
        _native.local_factors(
            A,
            neighbours.contiguous(),
            A.new_empty(n, 0) if F is None else F.detach().contiguous(),
            A.new_ones(n) if scale is None else scale.detach().contiguous(),
            diagonal.detach().contiguous(),
            result,
            multiple * part.variance.item(),
            _profile(part),
            self._threads(),
            self._level(),
        )
        return result

    def _fused_gradient(
        self,
        kernel: RBF | Matern,
        X: Tensor,
        Y: Tensor,
        left: Tensor,
        right: Tensor,
        weights: Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor:
        """Return the gradient in (log l, log σ²); the last entry is also Σ_j left_jᵀ K right_j itself."""
        chunks = self._chunks(_native.gradient_workspace_bytes, X, Y, left.shape[1], dtype)
        A, B = self._packed_inputs(kernel, X, Y, dtype)
        left, right, factor = rounded_pairs(left, right, dtype)
        per_dimension = kernel.lengthscale.numel() > 1
        total = torch.zeros(1 + (X.shape[1] if per_dimension else 1), dtype=torch.float64)
        C = None if weights is None else weights.to(dtype).contiguous()
        for some in chunks:
            L, R, out = left[:, some].contiguous(), right[:, some].contiguous(), torch.empty_like(total)
            how = per_dimension, _profile(kernel), self._threads(), self._level()
            _native.gradient(A, B, L, R, C, 1 / float(factor), out, *how)
            total, C = total + out, None  # the weights count once
        return total.roll(-1) * (factor * kernel.variance.item())

    def _chunks(
        self, workspace: Callable[..., int], X: Tensor, Y: Tensor, k: int, dtype: torch.dtype
    ) -> Iterator[slice]:
        """Yield slices of the k columns whose work space fits the budget; raise at once if not even one does."""
        size = max(k, 1)
        packed = sum(
            _native.panels_bytes(len(Z), Z.shape[1], itemsize)
            for Z in ((X,) if Y is X else (X, Y))
            for itemsize in (8, dtype.itemsize)
        )

        def needed() -> int:
            work = workspace(len(X), len(Y), X.shape[1], size, dtype.itemsize, self._threads(), Y is X)
            return _copies(X, Y, k) + packed + work

        while size > 1 and needed() > self.budget():
            size = (size + 1) // 2
        require_memory(needed(), self.budget(), f"work with a {len(X)} x {len(Y)} kernel matrix")
        return (slice(start, min(start + size, k)) for start in range(0, k, size))

    def _packed_inputs(self, kernel: Stationary, X: Tensor, Y: Tensor, dtype: torch.dtype) -> tuple[Any, Any]:
        """Return Panels of X and Y, centred, in units of the lengthscale and rounded; None for Y means that it is X."""
        centred, factors = _centred_inputs(kernel, X, Y)

        def packed(Z: Tensor | None) -> Any:
            if Z is None:
                return None
            panels = _native.Panels(Z.contiguous(), self._threads(), self._level())
            return panels.scaled(factors, dtype == torch.float32)

        return packed(centred[0]), packed(centred[1])

    def _threads(self) -> int:
        return self.threads or torch.get_num_threads()

    def _level(self) -> int:
        return _native.best_level() if self.level is None else list(levels()).index(self.level)


def _fuses(kernel: Kernel, X: Tensor) -> TypeGuard[RBF | Matern]:
    """Say whether the C++ code has this formula: subclasses may have changed it."""
    return type(kernel) in (RBF, Matern) and X.device.type == "cpu"


def _constant_factor(kernel: Product) -> tuple[Constant, Kernel] | None:
    """Return the constant and the other factor of a product, if one of them is a constant."""
    for one, other in ((kernel.left, kernel.right), (kernel.right, kernel.left)):
        if type(one) is Constant:
            return one, other
    return None


def _multiple_of(kernel: Kernel) -> tuple[float, Kernel]:
    """Return c and k with kernel = c k, all constant factors in c."""
    multiple = 1.0
    while type(kernel) is Product and (found := _constant_factor(kernel)):
        multiple, kernel = multiple * found[0].variance.item(), found[1]
    return multiple, kernel


def _copies(X: Tensor, Y: Tensor, k: int) -> int:
    """Return the bytes of scaled inputs, rounded columns and results that are made on the way."""
    return (len(X) + len(Y)) * (3 * X.shape[1] + 3 * k) * 8


def _profile(kernel: RBF | Matern) -> int:
    return 0 if isinstance(kernel, RBF) else MATERN_PROFILES[kernel.nu]


def _centred_inputs(kernel: Stationary, X: Tensor, Y: Tensor) -> tuple[tuple[Tensor, Tensor | None], Tensor]:
    """Return X and Y less the mean of X, None for Y meaning that it is X, and the inverse lengthscale of each feature.

    The compiled code takes finite numbers for granted, so others are refused here.
    """
    require_finite(X, "X")
    require_finite(Y, "Y")
    per_feature(kernel.lengthscale, X.shape[1], "lengthscale")
    centre = X.detach().double().mean(0)
    factors = kernel.lengthscale.detach().double().reciprocal().expand(X.shape[1]).contiguous()
    return (X.detach().double() - centre, None if Y is X else Y.detach().double() - centre), factors


def _scaled_inputs(kernel: Stationary, X: Tensor, Y: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Return X and Y centred and in units of the lengthscale, then rounded; None for Y means that it is X."""
    (A, B), factors = _centred_inputs(kernel, X, Y)
    return (A * factors).to(dtype).contiguous(), None if B is None else (B * factors).to(dtype).contiguous()
