"""Preconditioners: the recipes, in a folder of their own, and the shapes and factors that they share."""

from kernelcg.preconditioners.base import Preconditioner, Prepared, available, catalogue, recipe
from kernelcg.preconditioners.recipes.block_jacobi import BlockJacobi
from kernelcg.preconditioners.recipes.fitc import FITC
from kernelcg.preconditioners.recipes.jacobi import Jacobi
from kernelcg.preconditioners.recipes.low_rank_vecchia import LowRankVecchia
from kernelcg.preconditioners.recipes.nystrom import Nystrom
from kernelcg.preconditioners.recipes.pitc import PITC
from kernelcg.preconditioners.recipes.pivoted_cholesky import PivotedCholesky
from kernelcg.preconditioners.recipes.randomized_svd import RandomizedSVD
from kernelcg.preconditioners.recipes.regularized import Regularized
from kernelcg.preconditioners.recipes.rp_cholesky import RPCholesky
from kernelcg.preconditioners.recipes.ski import SKI
from kernelcg.preconditioners.recipes.spectral import Spectral
from kernelcg.preconditioners.recipes.vecchia import Vecchia
from kernelcg.preconditioners.rounded_low_rank import RoundedLowRank
from kernelcg.preconditioners.shapes import (
    BlockDiagonal,
    Diagonal,
    InnerSolve,
    LowRankPlus,
    SparseInverse,
)

__all__ = [
    "FITC",
    "PITC",
    "SKI",
    "BlockDiagonal",
    "BlockJacobi",
    "Diagonal",
    "InnerSolve",
    "Jacobi",
    "LowRankPlus",
    "LowRankVecchia",
    "Nystrom",
    "PivotedCholesky",
    "Preconditioner",
    "Prepared",
    "RPCholesky",
    "RandomizedSVD",
    "Regularized",
    "RoundedLowRank",
    "SparseInverse",
    "Spectral",
    "Vecchia",
    "available",
    "catalogue",
    "recipe",
]
