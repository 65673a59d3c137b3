"""Turn what a caller hands in into tensors, or say which argument is wrong and what to do about it."""

import math
import re

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

FLOATS = (torch.float32, torch.float64)
AMOUNT = re.compile(r"([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*(?:([KMGT])(I)?)?B?", re.IGNORECASE)


def tensor(value: "Tensor | ArrayLike", name: str) -> Tensor:
    """Return ``value`` as a float tensor: float32 and float64 are kept, integers and booleans become float64."""
    if not isinstance(value, Tensor):
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            raise TypeError(f"{name} must hold real numbers, not {array.dtype}; convert it to floats first")
        # torch can neither share read-only memory without a warning nor represent negative strides
        value = torch.from_numpy(np.array(array, dtype=np.float32 if array.dtype == np.float32 else np.float64))
    if value.is_complex() or value.layout != torch.strided:
        raise TypeError(f"{name} must be a dense real tensor, not {value.dtype} ({value.layout})")
    return value if value.dtype in FLOATS else value.to(torch.float64)


def matrix(value: "Tensor | ArrayLike", name: str, *, finite: bool = True) -> Tensor:
    """Return ``value`` as a contiguous (rows, columns) tensor with at least one row and one column."""
    result = tensor(value, name)
    if result.ndim != 2:
        remedy = f"; use {name}[:, None] for a single column" if result.ndim == 1 else ""
        raise ValueError(f"{name} must have two dimensions, not shape {tuple(result.shape)}{remedy}")
    if 0 in result.shape:
        raise ValueError(f"{name} is empty: its shape is {tuple(result.shape)}")
    if finite:
        require_finite(result, name)
    return result.contiguous()


def vector(value: "Tensor | ArrayLike | float", name: str, length: int, like: Tensor) -> Tensor:
    """Return ``value``, one number or ``length`` of them, as a (length,) tensor beside ``like``."""
    result = tensor(value, name)
    if result.ndim > 1 or (result.ndim == 1 and len(result) not in (1, length)):
        raise ValueError(f"{name} must be one number or {length} of them, not shape {tuple(result.shape)}")
    require_finite(result, name)
    return result.detach().to(like.device, like.dtype, copy=True).expand(length)


def positive(value: "Tensor | ArrayLike | float", name: str) -> Tensor:
    """Return ``value`` as a float64 tensor of positive, finite numbers, a copy of the caller's."""
    result = tensor(value, name).to("cpu", torch.float64).clone()
    if result.ndim > 1 or result.numel() == 0:
        raise ValueError(f"{name} must be a positive number or a vector of them, not shape {tuple(result.shape)}")
    numbers = result.detach().reshape(-1).tolist()  # there are few: their tensors would cost more than their checks
    if not all(0 < number < math.inf for number in numbers):
        raise ValueError(f"{name} must be positive and finite, not {result.detach().tolist()}")
    return result


def same_rows(first: Tensor, first_name: str, second: Tensor, second_name: str) -> None:
    """Raise unless both have the same number of rows."""
    if len(first) != len(second):
        raise ValueError(f"{first_name} has {len(first)} rows but {second_name} has {len(second)}; they must be equal")


def require_finite(value: Tensor, name: str) -> None:
    """Raise if any entry is NaN or infinite, naming the first one."""
    value = value.detach()
    if value.numel() and not bool(torch.stack(value.aminmax()).isfinite().all()):  # no temporaries of its size
        where = tuple((~value.isfinite()).nonzero()[0].tolist())
        raise ValueError(f"{name} holds NaN or infinite values (first at {where}); remove or impute them")


def memory_bytes(value: "int | float | str | None", name: str = "memory") -> int | None:
    """Return a number of bytes from a number or from words such as "4GB" or "512 MiB"; None stays None."""
    if value is None:
        return None
    if isinstance(value, str):
        parts = AMOUNT.fullmatch(value.strip().replace("_", ""))
        if parts is None:
            raise ValueError(f"{name}={value!r} is not an amount of memory; write for example '4GB' or 4_000_000_000")
        number, prefix, binary = parts.groups()
        value = float(number) * (1024 if binary else 1000) ** " KMGT".index((prefix or " ").upper())
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float | np.integer | np.floating)
        or not 1 <= value < 2**63
    ):
        raise ValueError(f"{name} must be a positive number of bytes, not {value!r}")
    return int(value)
