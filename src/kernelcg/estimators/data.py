"""What users hand in, checked and turned into arrays."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing, check_consistent_length
from torch import Tensor

Floats = NDArray[np.float64]

LARGEST = 1e150
"""Numbers up to which squares can be summed."""

LARGEST_VARIANCE = 1e100
"""The same for variances, which are multiplied and divided by each other."""

ROUNDING = 1e-14
"""Standard deviation, relative to the largest number, that is nothing but rounding."""


def as_tensor(values: Any) -> Tensor:
    """Return a float64 tensor of its own memory."""
    if isinstance(values, Tensor):
        return values.detach().to(device="cpu", dtype=torch.float64, copy=True).contiguous()
    return torch.from_numpy(np.array(values, dtype=np.float64, order="C"))


def without_missing(X: Any, y: Any, noise_variance: Any, missing: str) -> tuple[Any, Any, Any]:
    """Return the data without the rows whose y is NaN, if that was asked for."""
    if missing not in ("error", "drop"):
        raise ValueError(f"missing must be 'error' or 'drop', not {missing!r}")
    if missing == "error" or y is None:
        return X, y, noise_variance
    check_consistent_length(X, y)
    values = np.asarray(y)
    if values.dtype.kind != "f" and values.dtype != object:
        return X, y, noise_variance
    absent = np.isnan(values.astype(np.float64))
    if np.ndim(noise_variance) > 0 and len(noise_variance) != len(values):
        raise ValueError(f"noise_variance has {len(noise_variance)} entries but y has {len(values)} rows")
    keep = np.flatnonzero(~(absent if absent.ndim == 1 else absent.any(axis=1)))
    if len(keep) == len(values):
        return X, y, noise_variance
    if len(keep) == 0:
        raise ValueError("every y is missing (NaN): there is nothing to fit")
    known = (
        noise_variance if noise_variance is None or np.ndim(noise_variance) == 0 else np.asarray(noise_variance)[keep]
    )
    return _safe_indexing(X, keep), values[keep].astype(np.float64), known


def checked_noise_variance(noise_variance: Any, n: int) -> Floats | None:
    """Return (n,) known variances, or None."""
    if noise_variance is None:
        return None
    values = np.asarray(noise_variance, dtype=np.float64)
    if values.shape not in ((), (n,)):
        raise ValueError(f"noise_variance must be one number or {n} of them, not of shape {values.shape}")
    if not (np.isfinite(values).all() and (values >= 0).all()):
        raise ValueError("noise_variance must be finite and not negative: it holds variances in the units of y²")
    return np.broadcast_to(values, (n,)).copy()


def require_magnitude(values: Floats, name: str, remedy: str, *, least: float = 0.0, most: float = LARGEST) -> None:
    """Raise unless the largest number is finite and within these limits, or all are 0."""
    largest = float(np.abs(values).max())
    if not (largest == 0 or least <= largest <= most):
        raise ValueError(f"{name} reaches {largest:.3g}, which float64 cannot work with; {remedy}")


def scaling(Y: Floats, normalize: bool, *, common: bool) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of each column; one for all columns if their units must agree."""
    c = Y.shape[1]
    if not normalize:
        return np.zeros(c), np.ones(c)
    require_magnitude(Y, "y", "use other units of y", most=LARGEST**2)
    largest = np.full(c, np.abs(Y).max()) if common else np.abs(Y).max(axis=0)
    unit = np.where(largest > 0, largest, 1.0)
    spread = np.std(Y / unit, axis=0)  # of numbers whose squares neither over- nor underflow
    if common:
        spread = np.full(c, np.sqrt(np.mean(spread**2)))
    constant = spread <= ROUNDING
    return np.where(constant, Y[0], np.mean(Y, axis=0)), np.where(constant, 1.0, spread * unit)
