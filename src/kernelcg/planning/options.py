"""What the automatic choice chooses between, and what it returns."""

from collections.abc import Callable
from dataclasses import dataclass

from kernelcg.operators import ConstantInvertible
from kernelcg.planning.forecast import Forecast
from kernelcg.planning.growing_factor import Construction
from kernelcg.preconditioners.low_rank_remainder import LowRankAndRemainder
from kernelcg.solvers import Approach, SolveReport


@dataclass(frozen=True)
class Option:
    """Something that can be done next, and what it is expected to cost from here to the end."""

    approach: Approach
    rank: int
    neighbours: int
    iterations: float
    seconds: float
    why: str

    @property
    def what(self) -> str:
        """Return the words that a report shows for this option."""
        match self.approach:
            case Approach.LOW_RANK:
                return f"low rank {self.rank}" + (f" + Vecchia {self.neighbours}" if self.neighbours else "")
            case Approach.DIRECT:
                return "direct"
            case _:
                return "no preconditioner"


@dataclass(frozen=True, eq=False)
class Ready:
    """An option with all that its solve needs: the preconditioner, a forecast, and when to give the solve up."""

    option: Option
    P: ConstantInvertible | None
    forecast: Forecast
    give_up: Callable[[], bool]
    what: str
    """The words that the report shows."""


@dataclass(frozen=True, eq=False)
class Automatic:
    """The outcome: the report, and the preconditioner it ended with (None: no preconditioner, or a direct solve)."""

    report: SolveReport
    prepared: LowRankAndRemainder | None
    preconditioner: ConstantInvertible | None
    how: Construction | None
    """How it was built."""
