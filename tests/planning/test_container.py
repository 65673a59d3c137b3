"""Plans take no more memory than the machine or container has, whatever was asked for."""

import pytest
import torch

from kernelcg import backends
from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.planning import Method, Pricing
from kernelcg.planning.planner import Options, Resources, Workload, planned

GB = 10**9
MANY = Workload(20_000, 8)


@pytest.fixture(autouse=True)
def container(monkeypatch):
    monkeypatch.setattr("kernelcg.planning.workload.total_memory", lambda: 2 * GB)


def resources(memory):
    return Resources.of(backends.Tiles(memory), torch.device("cpu"), Pricing())


def test_more_than_the_container_has_is_not_planned_with():
    chosen = planned(MANY, Options(), resources("100GB"))
    assert chosen.method is Method.ITERATIVE
    assert chosen.bytes < chosen.memory == 2 * GB


def test_what_only_fits_the_amount_that_was_asked_for_is_refused():
    with pytest.raises(MemoryBudgetExceeded, match="the memory is 2 GB; use method='iterative'"):
        planned(MANY, Options(method=Method.DIRECT), resources("100GB"))


def test_less_than_the_container_has_is_kept():
    assert planned(MANY, Options(), resources("1GB")).memory == GB
