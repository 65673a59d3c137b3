"""What the automatic choice chooses between, and what it returns."""

from dataclasses import dataclass

from kernelcg.operators import ConstantInvertible
from kernelcg.planning.growing_factor import Construction
from kernelcg.preconditioners.low_rank_remainder import LowRankAndRemainder
from kernelcg.solvers import SolveReport


@dataclass(frozen=True)
class Option:
    """Something that can be done next, and what it is expected to cost from here to the end."""

    what: str
    rank: int
    neighbours: int
    iterations: float
    seconds: float
    why: str


@dataclass(frozen=True, eq=False)
class Automatic:
    """The outcome: the report, and the preconditioner it ended with (None: no preconditioner, or a direct solve)."""

    report: SolveReport
    prepared: LowRankAndRemainder | None
    preconditioner: ConstantInvertible | None
    how: Construction | None
    """How it was built."""


def named(rank: int, neighbours: int) -> str:
    """Return the name of a preconditioner of this rank on so many neighbours."""
    return f"low rank {rank}" + (f" + Vecchia {neighbours}" if neighbours else "")
