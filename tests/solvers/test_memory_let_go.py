"""Solves let go of their blocks when they end, not when the garbage collector comes by."""

import gc

import pytest
import torch

from kernelcg.operators import Identity, as_operator
from kernelcg.solvers import METHODS, solve


@pytest.mark.parametrize("name", METHODS)
def test_the_right_hand_sides_are_gone_after_a_solve(name):
    generator = torch.Generator().manual_seed(0)
    A = torch.diag(torch.linspace(1, 3, 40, dtype=torch.float64))
    B = torch.randn(40, 3, dtype=torch.float64, generator=generator)
    P = None if name in ("cg", "direct") else Identity(40, B)
    operator = as_operator(A)
    gc.collect()
    gc.disable()
    try:
        report = solve(operator, B, method=name, preconditioner=P)
        monitors = [one for one in gc.get_objects() if type(one).__name__ == "Monitor"]
    finally:
        gc.enable()
    assert report.status.name == "CONVERGED"
    assert not monitors
