"""What is known about a fitted model, in one word."""

from enum import Enum

from kernelcg.solvers import Status

BY_ROUNDING = (Status.PRECISION_EXHAUSTED, Status.STAGNATED)
"""Ends of a solve at which float64 has no more to give."""


class Verdict(Enum):
    """Whether the numbers of a fitted model are those of exact arithmetic; the value says it in words."""

    CERTIFIED = "certified"
    """A bound of the error is known, rounding included, and it is small."""
    UNINFORMATIVE = "solved, but the bound says little"
    """Every solve reached its tolerance; what is known of the error is more than anyone would accept."""
    NOT_EXACT = "NOT exact"
    """A solve did not reach its tolerance."""


def is_met(status: Status, tolerance: float, *, known: bool) -> bool:
    """Say whether a solve gave what was asked for.

    A tolerance of 0, which no residual meets, asks for as much as float64 has to give: a solve that rounding ended gave
    that where the error that is left is ``known`` to be small.
    """
    return status is Status.CONVERGED or (tolerance == 0 and known and status in BY_ROUNDING)
