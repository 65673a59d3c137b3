"""How fast this machine is: measured once, stored, and the only thing about the machine that choices depend on."""

import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from kernelcg.backends import Backend
from kernelcg.dense import multiply
from kernelcg.kernels import Matern
from kernelcg.planning.store import stored
from kernelcg.threads import allowed, working

ROWS, ROWS_ON_GPU = 1200, 16_384
"""Rows of the products that are timed: enough for the rate of large ones, in a few milliseconds each."""

SQUARE, SQUARE_ON_GPU = 768, 4096
"""Size of the matrices that are multiplied and factorised."""

TALL = 2**16
"""Rows of the tall matrix whose product with a few columns shows the speed of memory."""

NEIGHBOURS = 60
"""Of every row, in the neighbourhoods that are factored."""

REPEATS = 8
"""Times that a piece of work is timed; the least counts. On a machine that others use some of the times are theirs."""

SETTING = "KERNELCG_PROFILE"
"""Environment variable: the path of a stored profile, or "typical" for the same numbers on every machine."""


@dataclass(frozen=True)
class PairSeconds:
    """Seconds that one entry of K takes in a product with k columns, d features: base + feature·d + column·k."""

    base: float
    feature: float
    column: float

    def __call__(self, d: int, k: int) -> float:
        """Return the seconds of one entry."""
        return self.base + self.feature * d + self.column * k


@dataclass(frozen=True)
class Profile:
    """Rates of one machine with one backend, rounded so that measuring them again gives the same choices.

    Attributes
    ----------
    machine : what the rates were measured on, in words
    multiply : multiply-adds a second of float64 matrix products
    factorise : multiply-adds a second of a Cholesky factorisation, n³/6 of them
    stream : numbers a second that a product of a tall matrix with a few columns reads
    step : seconds of Python in one iteration of a solver
    double, single : of an entry of a Matérn kernel in a product in float64 and in float32
    local : multiply-adds a second where many neighbourhoods are factored at once; None where these are a part of those
        of large factorisations, as on a CPU
    """

    machine: str
    multiply: float
    factorise: float
    stream: float
    step: float
    double: PairSeconds
    single: PairSeconds
    local: float | None = None

    def pair(self, precision: torch.dtype) -> PairSeconds:
        """Return the cost of an entry in this precision."""
        return self.single if precision == torch.float32 else self.double

    def to_json(self) -> str:
        """Return the profile as text."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the profile that `to_json` wrote; `ValueError` if it is none."""
        try:
            values = dict(json.loads(text))
            double, single = (PairSeconds(**values.pop(name)) for name in ("double", "single"))
            found = cls(**values, double=double, single=single)
            numbers = [found.multiply, found.factorise, found.stream, found.step, *_numbers(found)]
            numbers += [] if found.local is None else [found.local]
            if not all(math.isfinite(number) and number > 0 for number in numbers):
                raise ValueError("its rates are not positive numbers")
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"this is no profile of a machine: {error}") from None
        return found


TYPICAL = Profile(
    "two cores of a server",
    multiply=3e10,
    factorise=1.5e10,
    stream=1.5e9,
    step=1e-3,
    double=PairSeconds(1.2e-10, 1e-11, 2e-11),
    single=PairSeconds(4e-11, 5e-12, 1e-11),
)
"""What to go by where nothing was measured."""


def current(backend: Backend, device: torch.device | str = "cpu") -> Profile:
    """Return the profile of this machine: the one that was asked for, the stored one, or one measured now and stored.

    Measuring takes a fraction of a second, once for each machine, backend and number of threads.
    """
    if is_typical():
        return TYPICAL
    if asked := os.environ.get(SETTING, ""):
        return Profile.from_json(Path(asked).read_text(encoding="utf-8"))
    own = backend.here
    return _of_machine(own.name(), own.threads, str(device))


@cache
def _of_machine(name: str, threads: int | None, device: str) -> Profile:
    """Return the stored profile, or measure one; once for each process."""
    from kernelcg import backends

    label = describe(name, threads, device)

    def measured() -> Profile:
        backend = backends.named(name, threads=threads)
        return replace(calibrated(backend, torch.device(device)), machine=label)

    return stored("profile", label, Profile.from_json, measured, Profile.to_json)


def is_typical() -> bool:
    """Say whether the same numbers are to be gone by on every machine, whatever it is."""
    return os.environ.get(SETTING, "") == "typical"


def describe(name: str, threads: int | None, device: str) -> str:
    """Return what a profile depends on, in words: processor, threads, libraries, backend."""
    where = torch.cuda.get_device_name(device) if device.startswith("cuda") else _processor()
    count = threads or allowed()
    return f"{where}, {count} threads, backend {name}, torch {torch.__version__}, Python {platform.python_version()}"


def calibrated(
    backend: Backend,
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
    own: Callable[[], float] = time.thread_time,
) -> Profile:
    """Measure the rates of this machine with this backend: about a quarter of a second on two cores."""
    on_gpu = device.type == "cuda"
    n, size = (ROWS_ON_GPU, SQUARE_ON_GPU) if on_gpu else (ROWS, SQUARE)
    like = torch.zeros((), dtype=torch.float64, device=device)

    def seconds(work: Callable[[], Tensor]) -> float:
        return best_of(REPEATS, work, clock, own)

    square = torch.eye(size).to(like) + 1e-3
    tall, few = torch.ones(TALL, 64).to(like), torch.ones(64, 8).to(like)
    with working(backend.threads):
        return Profile(
            "calibrated",
            multiply=coarse(size**3 / seconds(lambda: multiply(square, square))),
            factorise=coarse(size**3 / 6 / seconds(lambda: torch.linalg.cholesky_ex(square)[0])),
            stream=coarse(tall.numel() / seconds(lambda: multiply(tall, few))),
            step=TYPICAL.step,
            double=_pairs(backend, n, like, torch.float64, seconds),
            single=_pairs(backend, n, like, torch.float32, seconds),
            local=_local(backend, n, like, seconds) if on_gpu else None,
        )


def _pairs(
    backend: Backend, n: int, like: Tensor, precision: torch.dtype, seconds: Callable[[Callable[[], Tensor]], float]
) -> PairSeconds:
    """Return the cost of an entry from products with few and many features and columns."""
    few, many, wide = 2, 18, 17

    def each(d: int, k: int) -> float:
        points = torch.linspace(0, 1, n * d).reshape(n, d).to(like)
        K = backend.bind(Matern(torch.full((d,), 1.0, dtype=torch.float64)), points)
        V = torch.ones(n, k).to(like)
        return seconds(lambda: K.product(V, precision=precision)) / n**2

    narrow, deep, broad = each(few, 1), each(many, 1), each(few, wide)
    feature = max((deep - narrow) / (many - few), 1e-3 * narrow)
    column = max((broad - narrow) / (wide - 1), 1e-3 * narrow)
    base = max(narrow - few * feature - column, 0.1 * narrow)
    return PairSeconds(coarse(base), coarse(feature), coarse(column))


def _local(backend: Backend, n: int, like: Tensor, seconds: Callable[[Callable[[], Tensor]], float]) -> float:
    """Return the multiply-adds a second with which neighbourhoods are factored."""
    points = torch.linspace(0, 1, 8 * n).reshape(n, 8).to(like)
    K = backend.bind(Matern(torch.ones(8, dtype=torch.float64)), points)
    neighbours = torch.arange(n, device=like.device)[:, None] - torch.arange(1, NEIGHBOURS + 1, device=like.device)
    neighbours, diagonal = neighbours.clamp_min(-1), torch.ones(n).to(like)
    work = n * NEIGHBOURS * (NEIGHBOURS + 1) ** 2
    return coarse(work / seconds(lambda: K.local_factors(neighbours, None, None, diagonal)))


def best_of(
    repeats: int,
    work: Callable[[], Tensor],
    clock: Callable[[], float] = time.perf_counter,
    own: Callable[[], float] = time.thread_time,
) -> float:
    """Return the seconds that a piece of work takes on a quiet machine, after one run that does not count.

    That is the least time by the clock; or, where others keep this thread from the processor meanwhile, the middle of
    the processor times of this thread, which takes its share of the work. On a GPU the clock alone says it.
    """
    first = work()
    float(first.reshape(-1)[0])
    taken, worked = [], []
    for _ in range(repeats):
        began, began_work = clock(), own()
        float(work().reshape(-1)[0])  # waits for a GPU
        worked.append(own() - began_work)
        taken.append(clock() - began)
    least = min(min(taken), statistics.median(worked)) if first.device.type == "cpu" else min(taken)
    return max(least, 1e-9)


def coarse(value: float) -> float:
    """Return the nearest power of 2^¼: a machine measured twice should be the same machine."""
    return float(2.0 ** (round(4 * math.log2(value)) / 4))


def _numbers(profile: Profile) -> list[float]:
    return [number for pair in (profile.double, profile.single) for number in asdict(pair).values()]


def _processor() -> str:
    """Return the name of the processor, as far as the system says, and how many of its cores may be used."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name} ({os.cpu_count()} cores, {sys.platform})"
