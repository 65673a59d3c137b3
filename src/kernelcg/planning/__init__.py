"""Planning: which preconditioner, which precision, and what to do when a solve is too slow."""

from kernelcg.planning.precision import product_dtype
from kernelcg.planning.solve import Kept, solve, solve_automatically, solve_reusing

__all__ = ["Kept", "product_dtype", "solve", "solve_automatically", "solve_reusing"]
