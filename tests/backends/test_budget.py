"""How much memory a backend reckons with: what the machine or the container has, whatever is free."""

import pytest

from kernelcg import backends
from kernelcg.backends import memory
from kernelcg.backends.memory import total_memory

MACHINE = 64 * 2**30


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    monkeypatch.setattr(memory, "_machine_memory", lambda: MACHINE)


def system(folder, groups, limits):
    """Write what Linux says about control groups below a folder."""
    for name, text in {"proc/self/cgroup": groups, **limits}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


CASES = {
    "no limit in version 2": ("0::/\n", {"sys/fs/cgroup/memory.max": "max\n"}, MACHINE),
    "a container": ("0::/\n", {"sys/fs/cgroup/memory.max": "2000000\n"}, 2_000_000),
    "a group of its own": ("0::/job/one\n", {"sys/fs/cgroup/job/one/memory.max": "3000000\n"}, 3_000_000),
    "a group in a smaller one": (
        "0::/job/one\n",
        {"sys/fs/cgroup/job/one/memory.max": "3000000\n", "sys/fs/cgroup/job/memory.max": "1000000\n"},
        1_000_000,
    ),
    "a path of the host": ("0::/docker/abc\n", {"sys/fs/cgroup/memory.max": "2000000\n"}, 2_000_000),
    "version 1": (
        "5:cpu:/\n4:memory:/docker/abc\n",
        {"sys/fs/cgroup/memory/memory.limit_in_bytes": "4000000\n"},
        4_000_000,
    ),
    "no limit in version 1": (
        "4:memory:/\n",
        {"sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2**63 - 4096}"},
        MACHINE,
    ),
    "other controllers": ("4:cpu:/\n", {"sys/fs/cgroup/memory/memory.limit_in_bytes": "4000000\n"}, MACHINE),
    "more than the machine has": ("0::/\n", {"sys/fs/cgroup/memory.max": f"{2 * MACHINE}\n"}, MACHINE),
}


@pytest.mark.parametrize("name", CASES)
def test_limits_of_control_groups_hold(tmp_path, name):
    groups, limits, expected = CASES[name]
    assert total_memory(system(tmp_path, groups, limits)) == expected


def test_without_control_groups_it_is_the_machine(tmp_path):
    assert total_memory(tmp_path) == MACHINE


def test_the_budget_is_half_of_it_and_does_not_change(monkeypatch):
    monkeypatch.setattr(memory, "total_memory", lambda: 10_000)
    backend = backends.Tiles()
    assert backend.budget() == 5000
    monkeypatch.setattr(memory, "total_memory", lambda: 400)
    assert backend.budget() == 5000
    assert backends.Tiles(7000).budget() == 7000
