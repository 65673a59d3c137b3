"""The function `solve`, which checks its arguments and calls one of the solvers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelcg.arguments import matrix
from kernelcg.events import Listener
from kernelcg.operators import Identity, Invertible, as_operator
from kernelcg.solvers.block_pcg import block_pcg
from kernelcg.solvers.direct import direct
from kernelcg.solvers.flexible_pcg import flexible_pcg
from kernelcg.solvers.monitor import Monitor
from kernelcg.solvers.pcg import pcg
from kernelcg.solvers.report import SolveReport, Stopping

METHODS: dict[str, Callable[[Monitor], Tensor]] = {
    "cg": pcg,
    "pcg": pcg,
    "block_pcg": block_pcg,
    "flexible_pcg": flexible_pcg,
    "direct": direct,
}


def solve(
    A: Any,
    B: Any,
    *,
    method: str | None = None,
    preconditioner: Invertible | None = None,
    start: Any = None,
    stopping: Stopping = Stopping(),
    callback: Listener | None = None,
) -> SolveReport:
    """Solve A X = B for a symmetric positive definite A and return the solution with its record.

    Parameters
    ----------
    A : operator, tensor, array, or SciPy matrix or LinearOperator, n × n
    B : (n, k)
    method : "cg", "pcg", "block_pcg", "flexible_pcg" or "direct"; None means flexible PCG if the preconditioner
        is not constant, block PCG if B has several columns, PCG otherwise
    preconditioner : a built P with ``solve(R)``; "cg" and "direct" take none
    start : (n, k) first guess
    stopping : tolerance and limits
    callback : told of every iteration, the payload being a `Progress`; the solve ends if it returns True

    Returns
    -------
    SolveReport
        Numerical failure is a `Status` in it, never an exception: call ``report.raise_if_failed()`` for that.
        Vectors are float64 whatever the precision of the products.

    Examples
    --------
    >>> import numpy as np
    >>> from kernelcg.solvers import solve
    >>> report = solve(np.diag([1.0, 2.0, 4.0]), np.ones((3, 1)))
    >>> report.solution[:, 0].numpy().round(6).tolist()
    [1.0, 0.5, 0.25]
    """
    operator = as_operator(A)
    right = _block(B, "B", (len(operator), None), operator.device)
    guess = None if start is None else _block(start, "start", tuple(right.shape), operator.device)
    P = Identity(len(operator), right) if preconditioner is None else preconditioner
    if not isinstance(P, Invertible):
        raise TypeError(f"preconditioner must have solve(R) and is_constant, which {type(P).__name__} has not")
    if not isinstance(stopping, Stopping):
        raise TypeError(f"stopping must be a Stopping, not {stopping!r}")
    name = method or ("flexible_pcg" if not P.is_constant else "pcg" if right.shape[1] == 1 else "block_pcg")
    if name not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)} or None, not {name!r}")
    if name in ("cg", "direct") and preconditioner is not None:
        raise ValueError(f"method={name!r} takes no preconditioner; use 'pcg' or 'block_pcg'")
    if name in ("pcg", "block_pcg") and not P.is_constant:
        raise ValueError(f"the preconditioner changes between calls, so method={name!r} is wrong: use 'flexible_pcg'")
    monitor = Monitor(operator, right, guess, P, stopping, callback, name)
    return monitor.report(METHODS[name](monitor))


def _block(value: Any, name: str, shape: tuple[int | None, ...], device: torch.device) -> Tensor:
    """Return a float64 block of columns of the expected shape on the expected device."""
    block = matrix(value, name, finite=False)
    if any(wanted not in (None, size) for wanted, size in zip(shape, block.shape, strict=True)):
        wanted_text = " x ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} has shape {tuple(block.shape)} but must be {wanted_text}")
    if block.device != device:
        raise ValueError(f"{name} is on {block.device} but A is on {device}; move one of them")
    return block.detach().double()
