"""What a backend does: the few operations whose cost grows with n², and where they run."""

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kernelcg.arguments import FLOATS, memory_bytes, require_finite, same_rows
from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.kernels import Kernel


@dataclass(frozen=True, eq=False)
class Backend(ABC):
    """Evaluates parts of a kernel matrix and consumes them at once; nothing n × n is kept.

    ``memory`` bounds, in bytes or words such as "2GB", what an operation may allocate beyond its inputs and
    its result; None means half of what the machine has free. A backend has no other state and pickles.
    """

    memory: int | str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory", memory_bytes(self.memory))

    @abstractmethod
    def matmul(
        self, kernel: Kernel, X: Tensor, Y: Tensor, V: Tensor, *, precision: torch.dtype | None = None
    ) -> Tensor:
        """Return K(X, Y) V with the dtype of V, computed in ``precision`` (by default that of X).

        Passing the same tensor as X and Y lets the backend use the symmetry of K. Costs O(n m (d + k)) time.
        """

    @abstractmethod
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
        """Return ∂/∂θ Σ_j left_jᵀ K(X, Y) right_j for the log hyperparameters θ of the kernel, in float64.

        A symmetric (n, n) tensor ``weights``, for Y = X only, adds Σ_ij weights_ij K_ij to the sum.
        """

    @abstractmethod
    def block(self, kernel: Kernel, X: Tensor, Y: Tensor, *, precision: torch.dtype | None = None) -> Tensor:
        """Return K(X, Y) itself, an (n, m) tensor in ``precision``: kernel columns, small blocks."""

    @abstractmethod
    def local_factors(
        self,
        kernel: Kernel,
        X: Tensor,
        neighbours: Tensor,
        F: Tensor | None,
        scale: Tensor | None,
        diagonal: Tensor,
    ) -> Tensor:
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

    def stored_product(self, K: Tensor, V: Tensor) -> Tensor:
        """Return K V for a symmetric K that is stored: one GEMM, skinny products the faster way round."""
        return (V.T.contiguous() @ K).T

    def budget(self) -> int:
        """Return the bytes an operation may allocate."""
        return self.memory if isinstance(self.memory, int) else available_memory() // 2


def room(backend: Backend, device: torch.device) -> int:
    """Return the bytes that may be allocated where data are: the budget, and on a GPU no more than half of its memory.

    Of all its memory, not of what is free, so that the same data are always treated the same.
    """
    if device.type != "cuda":
        return backend.budget()
    return min(backend.budget(), torch.cuda.get_device_properties(device).total_memory // 2)


FULL_RATE = ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0))
"""Compute capabilities of GPUs with float64 at half the speed of float32; that of others is a 32nd and less."""


def factorises_fast(device: torch.device) -> bool:
    """Say whether it is a GPU on which n³ operations in float64 are cheap beside n² evaluations of a kernel."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) in FULL_RATE


def require_memory(needed: int, budget: int, what: str) -> None:
    """Raise `MemoryBudgetExceeded` before anything is allocated that would not fit."""
    if needed > budget:
        raise MemoryBudgetExceeded(
            f"{what} needs {needed / 1e9:.3g} GB but the budget is {budget / 1e9:.3g} GB; raise the memory "
            "argument or use fewer rows or columns"
        )


def available_memory() -> int:
    """Return the bytes this process can still allocate, as far as the system says."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
        limit = Path("/sys/fs/cgroup/memory.max")
        if limit.exists() and (text := limit.read_text().strip()) != "max":
            free = min(free, int(text) - int(limit.with_name("memory.current").read_text()))
        return max(free, 2**26)
    except (OSError, StopIteration, ValueError):
        if hasattr(os, "sysconf"):
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
        return 4 * 2**30


def check_inputs(X: Tensor, Y: Tensor, precision: torch.dtype | None, **columns: Tensor) -> torch.dtype:
    """Check dimensions, dtypes and devices of what an operation is given, and return the dtype to compute in."""
    for name, value in {"X": X, "Y": Y, **columns}.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a torch tensor, not {type(value).__name__}")
        if value.ndim != 2:
            raise ValueError(f"{name} must have two dimensions, not shape {tuple(value.shape)}")
        if value.dtype not in FLOATS:
            raise TypeError(f"{name} must be float32 or float64, not {value.dtype}")
        if value.device != X.device:
            raise ValueError(f"{name} is on {value.device} but X is on {X.device}; move one of them")
    if X.shape[1] != Y.shape[1]:
        raise ValueError(f"X has {X.shape[1]} features but Y has {Y.shape[1]}; they must be equal")
    if precision is not None and precision not in FLOATS:
        raise TypeError(f"precision must be torch.float32 or torch.float64, not {precision}")
    return precision or X.dtype


def check_product(X: Tensor, Y: Tensor, V: Tensor, precision: torch.dtype | None) -> torch.dtype:
    """Check the arguments of a product K(X, Y) V and return the dtype to compute in."""
    dtype = check_inputs(X, Y, precision, V=V)
    same_rows(Y, "Y", V, "V")
    return dtype


def check_gradient(
    X: Tensor,
    Y: Tensor,
    left: Tensor,
    right: Tensor,
    weights: Tensor | None,
    precision: torch.dtype | None,
) -> torch.dtype:
    """Check the arguments of a gradient of Σ_j left_jᵀ K(X, Y) right_j and return the dtype to compute in."""
    if weights is not None:
        if Y is not X:
            raise ValueError("weights need Y = X, the same tensor")
        _check_tensor(X, weights, "weights", torch.float64, (len(X), len(X)))
    dtype = check_inputs(X, Y, precision, left=left, right=right)
    same_rows(X, "X", left, "left")
    same_rows(Y, "Y", right, "right")
    if left.shape[1] != right.shape[1]:
        raise ValueError(f"left has {left.shape[1]} columns but right has {right.shape[1]}; they must be equal")
    return dtype


def check_local_factors(
    X: Tensor, neighbours: Tensor, F: Tensor | None, scale: Tensor | None, diagonal: Tensor
) -> None:
    """Check the arguments of local factors: shapes, dtypes, devices, finite numbers and neighbours that exist."""
    check_inputs(X, X, None)
    _require_finite_range(X, "X")
    _check_neighbours(X, neighbours)
    for name, value in {"F": F, "scale": scale, "diagonal": diagonal}.items():
        if value is not None or name == "diagonal":
            shape = (len(X), None) if name == "F" else (len(X),)
            _require_finite_range(_check_tensor(X, value, name, torch.float64, shape), name)
    if len(X) and not diagonal.min() > 0:
        raise ValueError(f"diagonal must be positive, not {diagonal.min().item():.6g}; add noise or a jitter")


def _check_neighbours(X: Tensor, neighbours: Tensor) -> None:
    """Raise unless every row of ``neighbours`` names rows of X other than itself, or −1."""
    n, rows_at_once = len(X), 2**14
    _check_tensor(X, neighbours, "neighbours", torch.int64, (n, None))
    if neighbours.numel() == 0:
        return
    low, high = (bound.item() for bound in neighbours.aminmax())
    if low < -1 or high >= n:
        raise ValueError(f"neighbours must be rows of X, 0 to {n - 1}, or -1 for none, not {low if low < -1 else high}")
    for start in range(0, n, rows_at_once):
        some = neighbours[start : start + rows_at_once]
        own = some == torch.arange(start, start + len(some), device=X.device)[:, None]
        if bool(own.any()):
            row = start + own.nonzero()[0, 0].item()
            raise ValueError(f"neighbours of row {row} hold {row} itself, which always belongs to it; leave it out")


def _check_tensor(X: Tensor, value: object, name: str, dtype: torch.dtype, shape: tuple[int | None, ...]) -> Tensor:
    """Return ``value``, which must be a tensor beside X with this dtype and shape, None for any length."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch tensor, not {type(value).__name__}")
    if value.dtype != dtype:
        raise TypeError(f"{name} must be {str(dtype).removeprefix('torch.')}, not {value.dtype}; convert it")
    if value.ndim != len(shape) or any(b not in (None, a) for a, b in zip(value.shape, shape, strict=True)):
        wanted = ", ".join("any" if length is None else str(length) for length in shape)
        raise ValueError(f"{name} must have shape ({wanted}), not {tuple(value.shape)}, since X has {len(X)} rows")
    if value.device != X.device:
        raise ValueError(f"{name} is on {value.device} but X is on {X.device}; move one of them")
    return value


def _require_finite_range(value: Tensor, name: str) -> None:
    """Raise as `require_finite` does, without its temporaries unless something is wrong."""
    if value.numel() and not all(bool(bound.isfinite()) for bound in value.detach().aminmax()):
        require_finite(value, name)


def rounded_inputs(kernel: Kernel, X: Tensor, Y: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return X and Y as a formula should see them to give entries that are right to ``dtype``.

    Where the kernel allows, they are centred, then rounded. Other formulas may lose all digits of a difference to
    rounding far from the origin, so their inputs, and with them their entries, stay in float64; those that see a phase
    are centred only in features where that rounds nothing (Sterbenz: all inputs within a factor 2 of the centre).
    """
    centre = X.detach().double().mean(0) if kernel.is_stationary else X.new_zeros(X.shape[1], dtype=torch.float64)
    if kernel.is_stationary and not kernel.rounds_well:
        ratios = torch.cat([X.detach(), Y.detach()]).double() / centre
        centre = torch.where(((ratios >= 0.5) & (ratios <= 2)).all(0), centre, 0.0)
    dtype = dtype if kernel.rounds_well else torch.float64
    A = (X.detach().double() - centre).to(dtype)
    return A, A if Y is X else (Y.detach().double() - centre).to(dtype)


def rounded_columns(V: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return V / s in ``dtype`` with the largest entry of each column 1, and s, so that nothing under- or overflows."""
    V = V.detach().double()
    largest = V.abs().amax(0) if len(V) else V.new_ones(V.shape[1])
    scale = torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
    return (V / scale).to(dtype), scale


def rounded_pairs(left: Tensor, right: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return left and right in ``dtype`` and the factor that Σ_j left_j ⊗ right_j was divided by."""
    left, left_scale = rounded_columns(left, dtype)
    right, right_scale = rounded_columns(right, dtype)
    weights = left_scale * right_scale
    overall = weights.max() if len(weights) else weights.new_ones(())
    return left * (weights / overall).to(dtype), right, overall
