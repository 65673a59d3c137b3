"""What is known about a fitted model, in one word."""

from enum import Enum


class Verdict(Enum):
    """Whether the numbers of a fitted model are those of exact arithmetic; the value says it in words."""

    CERTIFIED = "certified"
    """A bound of the error is known, rounding included, and it is small."""
    UNINFORMATIVE = "solved, but the bound says little"
    """Every solve reached its tolerance; what is known of the error is more than anyone would accept."""
    NOT_EXACT = "NOT exact"
    """A solve did not reach its tolerance."""
