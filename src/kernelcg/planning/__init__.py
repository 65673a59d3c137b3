"""Planning: which preconditioner, which precision, and what to do when a solve is too slow."""

from kernelcg.planning.costs import Pricing
from kernelcg.planning.plan import Method, Plan
from kernelcg.planning.precision import product_dtype
from kernelcg.planning.solve import Kept, solve, solve_automatically, solve_reusing

__all__ = ["Kept", "Method", "Plan", "Pricing", "product_dtype", "solve", "solve_automatically", "solve_reusing"]
