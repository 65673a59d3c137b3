"""Solvers: linear systems, functions of matrices and determinants, each with a report of how it ended."""

from kernelcg.solvers.direct import CholeskyFactor
from kernelcg.solvers.log_determinant import LogDeterminant, log_determinant
from kernelcg.solvers.matrix_functions import FunctionReport, apply_function, sample
from kernelcg.solvers.report import Approach, Attempt, Progress, SolveReport, Status, Stopping
from kernelcg.solvers.shifted_solves import apply_function_rational, spectral_interval
from kernelcg.solvers.solve import METHODS, solve

__all__ = [
    "METHODS",
    "Approach",
    "Attempt",
    "CholeskyFactor",
    "FunctionReport",
    "LogDeterminant",
    "Progress",
    "SolveReport",
    "Status",
    "Stopping",
    "apply_function",
    "apply_function_rational",
    "log_determinant",
    "sample",
    "solve",
    "spectral_interval",
]
