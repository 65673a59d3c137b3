"""Comparison with approximations: FITC, PITC and VAR. Baselines, no estimators."""

from kernelcg.comparison.sparse import SparseObjective, SparsePosterior
from kernelcg.comparison.sparse_laplace import SparseLaplaceObjective, SparseLaplacePosterior
from kernelcg.comparison.sparse_prior import KINDS, SparseApproximation, inducing_points

__all__ = [
    "KINDS",
    "SparseApproximation",
    "SparseLaplaceObjective",
    "SparseLaplacePosterior",
    "SparseObjective",
    "SparsePosterior",
    "inducing_points",
]
