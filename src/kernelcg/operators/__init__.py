"""Operators: A = S K S + D, and what solvers ask of a matrix and of a preconditioner."""

from kernelcg.operators.base import (
    ConstantInvertible,
    DenseMatrix,
    Identity,
    Invertible,
    LinearOperator,
    in_best_precision,
)
from kernelcg.operators.counting import Counting, CountsInner, Tally
from kernelcg.operators.kernel_plus_diagonal import KernelPlusDiagonal
from kernelcg.operators.scipy_bridge import as_operator, to_scipy

__all__ = [
    "ConstantInvertible",
    "Counting",
    "CountsInner",
    "DenseMatrix",
    "Identity",
    "Invertible",
    "KernelPlusDiagonal",
    "LinearOperator",
    "Tally",
    "as_operator",
    "in_best_precision",
    "to_scipy",
]
