"""Planning: which preconditioner, which precision, and what to do when a solve is too slow."""

from kernelcg.planning.precision import product_dtype
from kernelcg.planning.solve import Kept, automatic, solve, solve_reusing

__all__ = ["Kept", "automatic", "product_dtype", "solve", "solve_reusing"]
