"""Check what kernel matrices are given: shapes, dtypes, devices, finite numbers."""

import torch
from torch import Tensor

from kernelcg.arguments import FLOATS, require_finite, same_rows
from kernelcg.kernels import Kernel

ROWS_AT_ONCE = 2**14


def check_binding(kernel: object, X: Tensor) -> None:
    """Check a kernel and the data it is bound to, which must be finite; this reads all of X."""
    if not isinstance(kernel, Kernel):
        raise TypeError(f"kernel must be a kernelcg kernel, not {type(kernel).__name__}")
    check_matrix(X, "X", X)
    require_finite_range(X, "X")


def check_matrix(value: object, name: str, X: Tensor) -> None:
    """Raise unless the value is a matrix of floats beside X."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch tensor, not {type(value).__name__}")
    if value.ndim != 2:
        raise ValueError(f"{name} must have two dimensions, not shape {tuple(value.shape)}")
    if value.dtype not in FLOATS:
        raise TypeError(f"{name} must be float32 or float64, not {value.dtype}")
    _require_beside(X, value, name)


def check_points(X: Tensor, points: Tensor) -> None:
    """Check further points: finite and with the features of X."""
    check_matrix(points, "points", X)
    if points.shape[1] != X.shape[1]:
        raise ValueError(f"X has {X.shape[1]} features but points has {points.shape[1]}; they must be equal")
    require_finite_range(points, "points")


def check_columns(X: Tensor, V: Tensor) -> None:
    """Check the columns that a product multiplies."""
    check_matrix(V, "V", X)
    same_rows(X, "X", V, "V")


def chosen_precision(X: Tensor, precision: torch.dtype | None) -> torch.dtype:
    """Return the dtype to compute in, by default that of X."""
    if precision is not None and precision not in FLOATS:
        raise TypeError(f"precision must be torch.float32 or torch.float64, not {precision}")
    return precision or X.dtype


def check_pairs(X: Tensor, left: Tensor, right: Tensor, some: Tensor, weights: Tensor | None) -> None:
    """Check the arguments of a gradient of Σ_j left_jᵀ K(X, some) right_j, where ``some`` are rows of X or all."""
    if weights is not None:
        if some is not X:
            raise ValueError("weights are for all of K: leave columns out")
        check_tensor(X, weights, "weights", torch.float64, (len(X), len(X)))
    check_matrix(left, "left", X)
    check_matrix(right, "right", X)
    same_rows(X, "X", left, "left")
    same_rows(some, "X" if some is X else "X[columns]", right, "right")
    if left.shape[1] != right.shape[1]:
        raise ValueError(f"left has {left.shape[1]} columns but right has {right.shape[1]}; they must be equal")


def check_local_factors(
    X: Tensor, neighbours: Tensor, F: Tensor | None, scale: Tensor | None, diagonal: Tensor
) -> None:
    """Check the arguments of local factors: shapes, dtypes, devices, finite numbers and neighbours that exist."""
    _check_neighbours(X, neighbours)
    for name, value in {"F": F, "scale": scale, "diagonal": diagonal}.items():
        if value is not None or name == "diagonal":
            shape = (len(X), None) if name == "F" else (len(X),)
            require_finite_range(check_tensor(X, value, name, torch.float64, shape), name)
    if len(X) and not diagonal.min() > 0:
        raise ValueError(f"diagonal must be positive, not {diagonal.min().item():.6g}; add noise or a jitter")


def _check_neighbours(X: Tensor, neighbours: Tensor) -> None:
    """Raise unless every row of ``neighbours`` names rows of X other than itself, or −1."""
    n = len(X)
    check_tensor(X, neighbours, "neighbours", torch.int64, (n, None))
    if neighbours.numel() == 0:
        return
    low, high = (bound.item() for bound in neighbours.aminmax())
    if low < -1 or high >= n:
        raise ValueError(f"neighbours must be rows of X, 0 to {n - 1}, or -1 for none, not {low if low < -1 else high}")
    for start in range(0, n, ROWS_AT_ONCE):
        some = neighbours[start : start + ROWS_AT_ONCE]
        own = some == torch.arange(start, start + len(some), device=X.device)[:, None]
        if bool(own.any()):
            row = start + own.nonzero()[0, 0].item()
            raise ValueError(f"neighbours of row {row} hold {row} itself, which always belongs to it; leave it out")


def check_tensor(X: Tensor, value: object, name: str, dtype: torch.dtype, shape: tuple[int | None, ...]) -> Tensor:
    """Return ``value``, which must be a tensor beside X with this dtype and shape, None for any length."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch tensor, not {type(value).__name__}")
    if value.dtype != dtype:
        raise TypeError(f"{name} must be {str(dtype).removeprefix('torch.')}, not {value.dtype}; convert it")
    if value.ndim != len(shape) or any(b not in (None, a) for a, b in zip(value.shape, shape, strict=True)):
        wanted = ", ".join("any" if length is None else str(length) for length in shape)
        raise ValueError(f"{name} must have shape ({wanted}), not {tuple(value.shape)}, since X has {len(X)} rows")
    _require_beside(X, value, name)
    return value


def _require_beside(X: Tensor, value: Tensor, name: str) -> None:
    if value.device != X.device:
        raise ValueError(f"{name} is on {value.device} but X is on {X.device}; move one of them")


def require_finite_range(value: Tensor, name: str) -> None:
    """Raise as `require_finite` does, without temporaries of its size unless something is wrong."""
    for some in value.detach().split(ROWS_AT_ONCE):
        if some.numel() and not all(bool(bound.isfinite()) for bound in some.aminmax()):
            require_finite(value, name)
