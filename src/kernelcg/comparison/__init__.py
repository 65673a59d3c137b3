"""Comparison of methods for learning and prediction, FITC, PITC and VAR among them, on the same data."""

from kernelcg.comparison.compare_methods import Comparison, compare
from kernelcg.comparison.data import table
from kernelcg.comparison.harness import Evaluation, Run, run
from kernelcg.comparison.methods import METHODS, Method
from kernelcg.comparison.sparse import SparseObjective, SparsePosterior
from kernelcg.comparison.sparse_laplace import SparseLaplaceObjective, SparseLaplacePosterior
from kernelcg.comparison.sparse_prior import KINDS, SparseApproximation, inducing_points
from kernelcg.comparison.tasks import ClassificationTask, RegressionTask

__all__ = [
    "KINDS",
    "METHODS",
    "ClassificationTask",
    "Comparison",
    "Evaluation",
    "Method",
    "RegressionTask",
    "Run",
    "SparseApproximation",
    "SparseLaplaceObjective",
    "SparseLaplacePosterior",
    "SparseObjective",
    "SparsePosterior",
    "compare",
    "inducing_points",
    "run",
    "table",
]
