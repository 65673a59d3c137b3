"""Distribution functions that torch lacks, entry by entry: those of SciPy, on the CPU and without derivatives."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import special
from torch import Tensor


def gamma_cumulative(shape: Tensor, x: Tensor) -> Tensor:
    """Return the regularised lower incomplete gamma function P(shape, x)."""
    return _entrywise(special.gammainc, shape, x)


def beta_cumulative(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """Return the regularised incomplete beta function I_x(a, b)."""
    return _entrywise(special.betainc, a, b, x)


def student_cumulative(degrees: Tensor, x: Tensor) -> Tensor:
    """Return the distribution function of Student's t."""
    return _entrywise(special.stdtr, degrees, x)


def _entrywise(function: Callable[..., Any], *arguments: Tensor) -> Tensor:
    values = function(*(argument.detach().cpu().numpy() for argument in arguments))
    return torch.from_numpy(np.asarray(values, dtype=np.float64)).to(arguments[-1].device)
