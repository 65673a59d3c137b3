"""What users hand in, checked and turned into arrays."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing, check_consistent_length
from torch import Tensor

from kernelcg.backends.dask_rows import DaskRows, dask_array
from kernelcg.backends.references import Reference
from kernelcg.backends.row_sources import RowSource, copied, unmasked
from kernelcg.errors import warn_user

Floats = NDArray[np.float64]

LARGEST = 1e150
"""Numbers up to which squares can be summed."""

LARGEST_VARIANCE = 1e100
"""The same for variances, which are multiplied and divided by each other."""

ROUNDING = 1e-14
"""Standard deviation, relative to the largest number, that is nothing but rounding."""


def as_tensor(values: Any) -> Tensor:
    """Return a float64 tensor of its own memory, or in the file of a matrix that is mapped from one for reading.

    The memory is torch's, aligned to 64 bytes: sums of products over memory that NumPy placed somewhere else may differ
    in the last bit from one run to the next.
    """
    if Reference.of(values) is not None:
        return _mapped(values)
    if isinstance(values, Tensor):
        return values.detach().to(device="cpu", dtype=torch.float64, copy=True).contiguous()
    return torch.from_numpy(np.array(values, dtype=np.float64, order="C")).clone()


def _mapped(values: Floats) -> Tensor:
    """Return a matrix that may only be read as a tensor, which torch warns of: nobody here writes to inputs."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(values)


def on_host(value: Any) -> Any:
    """Return a tensor, wherever it is and whether or not it has a gradient, as an array; anything else as it is.

    A matrix that lies elsewhere is copied to a temporary file, from which the array is mapped; a vector is read. What
    is masked is NaN.
    """
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    if isinstance(value, RowSource):
        return copied(value)
    array = dask_array(value)
    if array is None:
        return unmasked(value)
    return copied(DaskRows.of(array)) if array.ndim == 2 else np.asarray(unmasked(array.compute()))


def as_floats(values: Any, name: str) -> Floats:
    """Return real numbers as float64, or raise with the name of the argument that holds something else."""
    array = np.asarray(on_host(values))
    if array.dtype.kind in "cmM":
        raise TypeError(f"{name} must hold real numbers, not {array.dtype}")
    try:
        return array.astype(np.float64)
    except OverflowError:
        raise ValueError(f"{name} holds an integer that is too large for float64; use other units") from None
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name} must hold numbers: {error}") from None


def without_missing(X: Any, y: Any, noise_variance: Any, missing: str) -> tuple[Any, Any, Any]:
    """Return the data on the host without the rows that have no y, if missing ones are to be dropped; warn of them.

    Rows of several outputs of which some have a y stay: NaN in them stands for an observation that is not there.
    """
    if missing not in ("error", "drop"):
        raise ValueError(f"missing must be 'error' or 'drop', not {missing!r}")
    X, y, noise_variance = on_host(X), on_host(y), on_host(noise_variance)
    if missing == "error" or y is None:
        return X, y, noise_variance
    check_consistent_length(X, y)
    values = np.asarray(y)
    if values.dtype.kind != "f" and values.dtype != object:
        return X, y, noise_variance
    absent = np.isnan(as_floats(values, "y")).reshape(len(values), -1)
    if not absent.any():
        return X, y, noise_variance
    if np.ndim(noise_variance) > 0 and len(noise_variance) != len(values):
        raise ValueError(f"noise_variance has {len(noise_variance)} rows but y has {len(values)}")
    if absent.all():
        raise ValueError("every y is missing (NaN): there is nothing to fit")
    warn_user(_words_on_missing(absent))
    keep = np.flatnonzero(~absent.all(axis=1))
    known = noise_variance if np.ndim(noise_variance) == 0 else np.asarray(noise_variance)[keep]
    return _safe_indexing(X, keep), values[keep].astype(np.float64), known


def _words_on_missing(absent: NDArray[np.bool_]) -> str:
    """Return how many observations are left out, by output if there are several."""
    n, c = absent.shape
    counts = absent.sum(axis=0)
    if c == 1:
        return f"missing='drop': {counts[0]} of {n} rows are left out, since their y is NaN"
    each = ", ".join(f"{count} of output {j}" for j, count in enumerate(counts) if count)
    return f"missing='drop': {counts.sum()} of {n * c} entries of y are NaN and left out: {each}"


@dataclass(frozen=True, eq=False)
class Holes:
    """y with 0 for each NaN, so that it can be checked as numbers, and the NaN to put back."""

    filled: Any
    absent: NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, y: Any, missing: str) -> "Holes":
        """Return the holes of y if it is an array that may have them; else y as it is."""
        if missing == "error" or y is None or np.asarray(y).dtype.kind != "f":
            return cls(y)
        values = np.asarray(y)
        return cls(np.where(np.isnan(values), 0.0, values), np.isnan(values))

    def restored(self, y: Floats) -> Floats:
        """Return checked numbers with the holes again."""
        return y if self.absent is None else np.where(self.absent.reshape(y.shape), np.nan, y)


def checked_noise_variance(noise_variance: Any, shape: tuple[int, ...]) -> Floats | None:
    """Return known variances of the shape (n, c) of all outputs, or None; given are one, (n,), or of the shape of y."""
    if noise_variance is None:
        return None
    values = as_floats(noise_variance, "noise_variance")
    n = shape[0]
    if values.shape not in ((), (n,), shape):
        each = "" if len(shape) == 1 else f", or of the shape {shape} of y"
        raise ValueError(f"noise_variance must be one number or {n} of them{each}, not of shape {values.shape}")
    if not (np.isfinite(values).all() and (values >= 0).all()):
        raise ValueError("noise_variance must be finite and not negative: it holds variances in the units of y²")
    columns = values[:, None] if values.ndim == 1 else values
    return np.broadcast_to(columns, (n, shape[1] if len(shape) > 1 else 1)).copy()


def require_magnitude(values: Floats, name: str, remedy: str, *, least: float = 0.0, most: float = LARGEST) -> None:
    """Raise unless the largest number is finite and within these limits, or all are 0."""
    largest = float(max(np.nanmax(values), -np.nanmin(values)))  # NaN stands for observations that are not there
    if not (largest == 0 or least <= largest <= most):
        raise ValueError(f"{name} reaches {largest:.3g}, which float64 cannot work with; {remedy}")


def scaling(Y: Floats, normalize: bool) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of each column, of what is not NaN."""
    c, empty = Y.shape[1], np.isnan(Y).all(axis=0)
    if empty.any():
        raise ValueError(f"every y of output {empty.argmax()} is missing (NaN): there is nothing to fit; leave it out")
    if not normalize:
        return np.zeros(c), np.ones(c)
    means, scales = zip(*(_scaling_of(column[~np.isnan(column)]) for column in Y.T), strict=True)
    return np.array(means), np.array(scales)


def standardised(Y: Floats, known: Floats | None, mean: Floats, scale: Floats) -> tuple[Floats, Floats | None]:
    """Return observations and their known variances in standard units; raise where float64 cannot work with them."""
    Y, remedy = (Y - mean) / scale, "use normalize_y=True, or other units of y"
    require_magnitude(Y, "y", remedy, least=1 / LARGEST_VARIANCE, most=LARGEST_VARIANCE)
    if known is None:
        return Y, None
    known = known / scale / scale
    remedy = "it is in the units of y²; leave out observations that say nothing"
    require_magnitude(known, "noise_variance, relative to the variance of y,", remedy, most=LARGEST_VARIANCE)
    return Y, known


def _scaling_of(y: Floats) -> tuple[float, float]:
    require_magnitude(y, "y", "use other units of y", most=LARGEST**2)
    unit = float(np.abs(y).max()) or 1.0
    spread = float(np.std(y / unit))  # of numbers whose squares neither over- nor underflow
    return (float(y[0]), 1.0) if spread <= ROUNDING else (float(np.mean(y)), spread * unit)
