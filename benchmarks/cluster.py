"""Products and fits on a cluster of one-thread workers on this machine: speed, overhead, memory, faults.

    python benchmarks/cluster.py rates             # 1 and 2 workers at n = 30,000, k = 16 (two quiet cores: a minute)
    python benchmarks/cluster.py overhead          # milliseconds and bytes of a product at n = 100,000, k = 16
    python benchmarks/cluster.py memory            # driver at n = 500,000 over a few products; X sent, X in a file
    python benchmarks/cluster.py steady            # memory of driver, scheduler, workers over 500 products
    python benchmarks/cluster.py ridge             # kernel ridge of a file that is larger than ``memory``
    python benchmarks/cluster.py faults            # 20 random faults during fits

Each writes results/cluster_NAME.csv. The scheduler and the workers are processes of their own, started by Dask's
command line; every worker is bound to a loopback address of its own (127.0.0.2, 127.0.0.3, ...), so that all data pass
real sockets. ``--rows`` makes the problem smaller for a quick look.

"efficiency" is the time of one process without a cluster and with one thread, divided by workers times the time of the
cluster. "overhead" is measured with tiles of zeros that nobody computes: milliseconds of the fastest of some products,
processor time of the processes for a product, and bytes. "bytes" are those that passed the loopback interface, of all
programs: of these alone with ``unshare -n sh -c "ip link set lo up; python benchmarks/cluster.py overhead"`` as root.
"""

import argparse
import ctypes
import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from distributed import Client
from sklearn.base import clone
from table import Table

from kernelcg import GPRegressor, KernelRidge, backends
from kernelcg.backends import cluster_tasks as tasks
from kernelcg.backends.base import KernelMatrix, Points
from kernelcg.backends.references import Reference
from kernelcg.estimators.data import as_tensor
from kernelcg.kernels import RBF, Matern

FEATURES, COLUMNS = 8, 16

PRODUCTS, OVERHEADS = 5, 20
"""Products during which memory is watched, and from which the overhead is told."""

LONGEST_STOP = 10.0
"""Seconds for which a worker is stopped at most."""

HANG = 600.0
"""Seconds after which a fit counts as one that hangs, and a worker as one that does not come back."""

POINTS = 20
"""Points of a prediction that a fault may meet, in multiples of n: a second, not a tenth of one."""


@contextmanager
def started(name: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of Dask, with one thread for each process, until this ends."""
    command = [sys.executable, "-m", f"distributed.cli.dask_{name}", *options]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, **quiet)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait()


def start_worker(stack: ExitStack, address: str, number: int) -> None:
    """Start a worker with a nanny, which starts it again when it is killed."""
    host = f"127.0.0.{number + 2}"
    options = ("--host", host, "--nthreads", "1", "--nworkers", "1", "--no-dashboard", "--death-timeout", "60")
    stack.enter_context(started("worker", address, *options))


@contextmanager
def cluster(workers: int) -> Iterator[Client]:
    """Start a scheduler and workers; give a client."""
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "scheduler.json"
        stack.enter_context(
            started("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file))
        )
        while not file.exists():
            time.sleep(0.1)
        client = stack.enter_context(Client(scheduler_file=str(file), set_as_default=False))
        for number in range(workers):
            start_worker(stack, client.scheduler.address, number)
        client.wait_for_workers(workers, timeout=120)
        yield client


def normal(n: int, count: int, seed: int) -> torch.Tensor:
    return torch.randn(n, count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def seconds(work: Callable[[], Any], repeats: int = 3) -> float:
    """Return the least time of some runs, after one that does not count."""
    work()
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return min(taken)


def status(pid: int | str, name: str) -> int:
    """Return a number of bytes from the status of a process, such as VmRSS."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def loopback_bytes() -> int:
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:"))


def kernel() -> Matern:
    return Matern([1.5] * FEATURES)


# what is measured


def rates(n: int, table: Table) -> None:
    """Compare one process, one worker and two."""
    X, V = normal(n, FEATURES, 0), normal(n, COLUMNS, 1)
    alone = seconds(lambda K=backends.Native(threads=1).bind(kernel(), X): K.product(V))
    one = None
    for workers in (1, 2):
        with cluster(workers) as client:
            K = backends.Dask(client=client).bind(kernel(), X)
            product = seconds(lambda K=K: K.product(V))
            gradient = seconds(lambda K=K: K.gradient(V, V))
        one = one or product
        row = {"n": n, "k": COLUMNS, "workers": workers, "product s": round(product, 4)}
        row |= {"gradient s": round(gradient, 4), "one process s": round(alone, 4)}
        table.add(
            row | {"against 1 worker": round(one / product, 3), "efficiency": round(alone / workers / product, 3)}
        )


def zeros_of_tile(
    rows: Points, columns: Points | None, V_of_columns: Any, V_of_rows: Any, **same: Any
) -> tuple[np.ndarray, ...]:
    """Return what `product_of_tile` does, in its shape, without computing it."""
    count = V_of_rows[0][V_of_rows[1]][0].shape[1]
    return tuple(np.zeros((len(points.X), count)) for points in (rows, columns) if points is not None)


@contextmanager
def without_arithmetic() -> Iterator[None]:
    """Let the workers return zeros: all else that happens in a product happens here and on the network, too."""
    computed, tasks.product_of_tile = tasks.product_of_tile, zeros_of_tile
    try:
        yield
    finally:
        tasks.product_of_tile = computed


def overhead(n: int, table: Table) -> None:
    """Say what a product costs beyond its arithmetic, from products whose tiles are zeros."""
    X, V = normal(n, FEATURES, 0), normal(n, COLUMNS, 1)
    with cluster(2) as client, without_arithmetic():
        backend = backends.Dask(client=client)
        K = backend.bind(kernel(), X)
        K.product(V)  # sends X
        of_workers = list(client.run(os.getpid).values())
        processes = {"driver": [os.getpid()], "scheduler": [client.run_on_scheduler(os.getpid)], "workers": of_workers}
        before, sent = {name: processor(pids) for name, pids in processes.items()}, loopback_bytes()
        taken = [seconds(lambda: K.product(V), 1) for _ in range(OVERHEADS // 2)]
        sent = (loopback_bytes() - sent) // OVERHEADS
        spent = {name: (processor(pids) - before[name]) / OVERHEADS for name, pids in processes.items()}
    blocks = len(backend.slices(n))
    row = {"n": n, "k": COLUMNS, "blocks": blocks, "tasks": blocks * (blocks + 1) // 2 + blocks}
    row |= {"ms at least": round(1e3 * min(taken))}
    row |= {f"{name} processor ms": round(1e3 * one) for name, one in spent.items()}
    table.add(row | {"bytes": sent, "bytes of V": 8 * V.numel()})


def processor(pids: list[int]) -> float:
    """Return the seconds of processor time that some processes have used."""
    texts = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(text[11]) + int(text[12]) for text in texts) / os.sysconf("SC_CLK_TCK")


def memory(n: int, table: Table) -> None:
    """Compare the growth of the driver with the formula: X if it is sent, V, the pieces of V, and Y.

    What the workers compute is left out: this process does not notice.
    """
    features, columns = 3, 4
    V = normal(n, columns, 1)
    with tempfile.TemporaryDirectory() as folder, cluster(2) as client, without_arithmetic():
        path = Path(folder) / "X.npy"
        np.save(path, normal(n, features, 0).numpy())
        for how in ("in a file", "sent"):
            with own_memory() as grown:
                K = bound_to_file(client, path, by_reference=how == "in a file")
                for _ in range(PRODUCTS):
                    K.product(V)
            expected = (0 if how == "in a file" else 2 * 8 * n * features) + 6 * 8 * n * columns
            row = {"n": n, "features": features, "k": columns, "X": how, "X MB": 8 * n * features // 10**6}
            row |= {"V MB": 8 * n * columns // 10**6, "products": PRODUCTS}
            del K
            table.add(row | {"driver grew MB": max(grown) // 10**6, "formula MB": expected // 10**6})


def bound_to_file(client: Client, path: Path, *, by_reference: bool) -> KernelMatrix:
    mapped = np.load(path, mmap_mode="r")
    own = Matern([1.5] * mapped.shape[1])
    if not by_reference:
        return backends.Dask(client=client).place(torch.from_numpy(np.array(mapped))).bind(own)
    return backends.Dask(client=client, reference=Reference.of(mapped)).place(as_tensor(mapped)).bind(own)


@contextmanager
def own_memory() -> Iterator[list[int]]:
    """Collect by how much this process grows while this lasts, pages of mapped files not counted."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was used before is not there to be used again
    before, grown, done = status("self", "RssAnon"), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            grown.append(status("self", "RssAnon") - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield grown
    finally:
        done.set()
        watcher.join()


def steady(n: int, table: Table) -> None:
    """Say what every process holds in the course of 500 products."""
    X, V = normal(n, FEATURES, 0), normal(n, COLUMNS, 1)
    with cluster(2) as client:
        K = backends.Dask(client=client).bind(kernel(), X)
        scheduler = client.run_on_scheduler(os.getpid)
        for done in range(501):
            K.product(V)
            if done % 100 == 0:
                pids = {"driver": "self", "scheduler": scheduler}
                pids |= {f"worker {i}": pid for i, pid in enumerate(client.run(os.getpid).values())}
                held = {f"{name} MB": status(pid, "VmRSS") // 10**6 for name, pid in pids.items()}
                table.add({"n": n, "products": done} | held)


def ridge(n: int, table: Table) -> None:
    """Fit a file that is larger than the memory that is allowed."""
    features = 1000
    with tempfile.TemporaryDirectory() as folder, cluster(2) as client:
        path, y = Path(folder) / "X.npy", normal(n, 1, 1)[:, 0].numpy()
        file = np.lib.format.open_memmap(path, mode="w+", dtype=np.float64, shape=(n, features))
        for start in range(0, n, 1000):
            file[start : start + 1000] = normal(len(file[start : start + 1000]), features, start).numpy()
            y[start : start + 1000] += np.sin(file[start : start + 1000, 0])
        del file
        allowed = int(0.7 * 8 * n * features)
        options = {"method": "iterative", "preconditioner": None, "probes": 1, "memory": allowed, "rtol": 1e-4}
        model = KernelRidge(1.0, kernel=RBF(30.0), cluster=client, **options)
        clone(model).fit(np.load(path, mmap_mode="r")[:100], y[:100])  # what is imported and measured once
        began = time.perf_counter()
        with own_memory() as grown:
            model.fit(np.load(path, mmap_mode="r"), y)
        row = {"n": n, "features": features, "X MB": 8 * n * features // 10**6, "memory MB": allowed // 10**6}
        row |= {"iterations": int(model.report_.iterations.max()), "seconds": round(time.perf_counter() - began)}
        row |= {"driver grew MB": max(grown) // 10**6}
        table.add(row | {"status": model.report_.status.name, "verdict": model.certificate_.verdict.name})


# faults


@dataclass
class Disturbed:
    """A fit and a prediction, what each of them took, and the fault that meets one of them."""

    meets: str = ""
    """The phase in which the time until the fault begins."""
    fault: threading.Timer | None = None
    struck: str = "never"
    """The phase in which the fault was injected."""
    phase: str = ""
    began: dict[str, float] = field(default_factory=dict)
    found: tuple[np.ndarray, np.ndarray] | None = None

    def enter(self, phase: str) -> None:
        self.phase, self.began[phase] = phase, time.perf_counter()
        if self.fault is not None and phase == self.meets:
            self.fault.start()

    @property
    def seconds(self) -> dict[str, float]:
        """Return the time of each phase that is over."""
        return {phase: self.began[later] - self.began[phase] for phase, later in pairwise(self.began)}


def faults(n: int, table: Table, count: int = 20, seed: int = 0) -> None:
    """Disturb fits and predictions, one fault each, and compare every bit with an undisturbed one.

    A fault that is injected when the prediction is over is drawn again.
    """
    X = normal(n, 3, 0)
    y = (torch.sin(X[:, 0]) + 0.1 * normal(n, 1, 1)[:, 0]).numpy()
    points = torch.cat([X + 0.01 * shift for shift in range(POINTS)]).numpy()
    draw = random.Random(seed)

    def work(client: Client, noted: Disturbed) -> None:
        options = {"method": "iterative", "optimizer": "adam", "max_iter": 2, "probes": 4, "noise": 0.05}
        noted.enter("fit")
        model = GPRegressor(Matern([1.0] * 3), cluster=client, **options).fit(X.numpy(), y)
        noted.enter("predict")
        noted.found = model.posterior_.weights.X.numpy(), model.predict(points)
        noted.enter("over")

    with cluster(2) as client:
        work(client, Disturbed())  # measures the machine, loads modules
        calm = Disturbed()
        work(client, calm)
        usual = sum(calm.seconds.values())
        while len(table.rows) < count:
            before, kind, noted = await_two(client), draw.choice(FAULTS), Disturbed(draw.choice(PHASES))
            when = draw.uniform(0, calm.seconds[noted.meets])
            taken = disturbed(client, lambda noted=noted: work(client, noted), kind, when, draw, noted)
            if noted.struck == "over":
                continue
            equal = noted.found and all(np.array_equal(a, b) for a, b in zip(calm.found, noted.found, strict=True))
            result = "the same bits" if equal else "WRONG" if noted.found else "HANGS" if taken > HANG else "RAISED"
            row = {"fault": len(table.rows), "kind": kind.__name__, "during": noted.struck, "after s": round(when, 2)}
            row |= {"n": n, "seconds": round(taken, 1), "calm s": round(usual, 1), "result": result}
            table.add(row | {"processes lost": len(before - await_two(client))})


def disturbed(
    client: Client, work: Callable[[], None], kind: "Fault", when: float, draw: random.Random, noted: Disturbed
) -> float:
    """Return the seconds of some work during which a fault is injected; a worker that joins leaves afterwards."""
    with ExitStack() as stack:

        def strike() -> None:
            inject = kind(client, draw, stack)
            noted.struck = noted.phase
            inject()

        noted.fault, thread = threading.Timer(when, strike), threading.Thread(target=work, daemon=True)
        began = time.perf_counter()
        thread.start()
        thread.join(HANG)
        taken = time.perf_counter() - began
        if noted.fault.ident is not None:
            noted.fault.join()
    return taken


def await_two(client: Client) -> set[int]:
    """Wait until exactly two workers answer, and return their processes."""
    began = time.perf_counter()
    while len(found := pids(client)) != 2 or len(client.scheduler_info(n_workers=-1)["workers"]) != 2:
        if time.perf_counter() - began > HANG:
            raise TimeoutError(f"after {HANG:g} s there are {len(found)} workers instead of two")
        time.sleep(0.2)
    return set(found)


Fault = Callable[[Client, random.Random, ExitStack], Callable[[], None]]
"""Chooses whom a fault meets, and returns what injects it."""


def pids(client: Client) -> list[int]:
    return sorted(client.run(os.getpid, on_error="ignore").values())


def killed(client: Client, draw: random.Random, stack: ExitStack) -> Callable[[], None]:
    """Let a worker lose its power; its nanny starts another."""
    pid = draw.choice(pids(client))
    return lambda: os.kill(pid, signal.SIGKILL)


def stopped(client: Client, draw: random.Random, stack: ExitStack) -> Callable[[], None]:
    """Let a worker do nothing for a while, and answer nobody."""
    pid, seconds = draw.choice(pids(client)), draw.uniform(1, LONGEST_STOP)

    def stop() -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)

    return stop


def restarted(client: Client, draw: random.Random, stack: ExitStack) -> Callable[[], None]:
    """Restart a worker in good order."""
    worker = draw.choice(sorted(client.scheduler_info(n_workers=-1)["workers"]))
    return lambda: client.restart_workers([worker], timeout=120)


def joined(client: Client, draw: random.Random, stack: ExitStack) -> Callable[[], None]:
    """Let a worker join late, and leave when the work is done."""
    start_worker(stack, client.scheduler.address, 2)
    client.wait_for_workers(3, timeout=120)
    return lambda: None


def all_killed(client: Client, draw: random.Random, stack: ExitStack) -> Callable[[], None]:
    """Lose all workers at once; their nannies start others."""
    every = pids(client)

    def kill() -> None:
        for pid in every:
            os.kill(pid, signal.SIGKILL)

    return kill


PHASES = ("fit", "fit", "predict")

FAULTS = (killed, killed, stopped, restarted, joined, all_killed)

WORK: dict[str, tuple[Callable[[int, Table], None], int]] = {
    "rates": (rates, 30_000),
    "overhead": (overhead, 100_000),
    "memory": (memory, 500_000),
    "steady": (steady, 6_000),
    "ridge": (ridge, 6_000),
    "faults": (faults, 12_000),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*WORK, []], help="by default all")
    parser.add_argument("--rows", type=int, help="of a quick look; its results are not written")
    options = parser.parse_args()
    for name in options.names or WORK:
        work, n = WORK[name]
        table = Table()
        work(options.rows or n, table)
        if options.rows is None:
            table.save(f"cluster_{name}.csv")


if __name__ == "__main__":
    main()
