"""How much memory there is, and refusing what would not fit before it is allocated."""

import os
from collections.abc import Iterator
from pathlib import Path

from kernelcg.errors import MemoryBudgetExceeded

UNKNOWN = 8 * 2**30
"""Bytes that are assumed where the system does not say what it has."""


def require_memory(needed: int, budget: int, what: str) -> None:
    """Raise `MemoryBudgetExceeded` before anything is allocated that would not fit."""
    if needed > budget:
        raise MemoryBudgetExceeded(
            f"{what} needs {needed / 1e9:.3g} GB but the budget is {budget / 1e9:.3g} GB; raise the memory "
            "argument or use fewer rows or columns"
        )


def default_budget() -> int:
    """Return half of the memory of the machine or container.

    It is half of all memory, not of what is free, so that the same data are treated the same however busy the machine
    is.
    """
    return total_memory() // 2


def total_memory(system: Path = Path("/")) -> int:
    """Return the bytes of the machine, or of the control group (container) that this process belongs to if less.

    ``system`` is the folder below which ``proc`` and ``sys`` are looked for.
    """
    return min([_machine_memory(), *_group_limits(system)])


def _machine_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not every system has or knows these names
        return UNKNOWN


def _group_limits(system: Path) -> Iterator[int]:
    """Yield the limits of the group of this process and of the groups around it, by both versions of Linux's groups.

    A line of ``/proc/self/cgroup`` reads number:controllers:path. Version 2 has no controllers there; version 1 names
    memory among them. Inside a container the path may be that of the host, which the container does not see: the
    limit of the container then is that of the topmost folder.
    """
    try:
        lines = (system / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        root, name = (
            (system / "sys/fs/cgroup", "memory.max")
            if not controllers
            else (system / "sys/fs/cgroup/memory", "memory.limit_in_bytes")
        )
        if controllers and "memory" not in controllers.split(","):
            continue
        own = root / path.lstrip("/")
        for folder in (own, *own.parents):
            yield from _limit(folder / name)
            if folder == root:
                break


def _limit(file: Path) -> Iterator[int]:
    """Yield the number in a file; yield nothing where there is no such file or no number in it, such as "max"."""
    try:
        yield int(file.read_text())
    except (OSError, ValueError):
        return
