"""A machine on which exact evaluations pay up to a given number of rows, for tests of both ways."""

from kernelcg.planning import planner
from kernelcg.planning.expectations import Expectations
from kernelcg.planning.plan import Method


def direct_up_to(monkeypatch, rows):
    """Make plans choose the direct method up to so many rows, and iterate beyond."""
    cost = lambda self, n, method, columns=0: float(n if method is Method.DIRECT else rows)  # noqa: E731
    monkeypatch.setattr(planner, "NEAR_TIE", 1.0)
    for name in ("learning", "evaluation"):
        monkeypatch.setattr(Expectations, name, cost)
