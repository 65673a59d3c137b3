"""Products on workers in network namespaces of their own while the link to one of them is cut: a machine that vanishes.

    sudo python benchmarks/cluster_network.py         # a few minutes; writes results/cluster_network.csv

Every worker has its own network, joined to that of the scheduler by a pair of virtual devices. A cut takes the device
of the worker down: packets vanish, and no connection is closed. Dask gives the worker up when TCP has had no answer for
``distributed.comm.timeouts.tcp`` (30 s by default, 12 s here), and others do its tasks. The products are compared bit
by bit with one before the cut.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from cluster import kernel, normal
from distributed import Client
from table import Table

from kernelcg import backends

NETWORK, PORT = "10.201.7", 18786

SETTINGS = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "12s", "OMP_NUM_THREADS": "1"}


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def joined_networks(count: int) -> Iterator[list[str]]:
    """Make a bridge and namespaces with a device each on it; give the names of the namespaces, also of the devices."""
    names, bridge = [f"kcg{os.getpid()}n{number}" for number in range(count)], f"kcg{os.getpid()}"
    try:
        ip("link", "add", bridge, "type", "bridge")
        ip("addr", "add", f"{NETWORK}.1/24", "dev", bridge)
        ip("link", "set", bridge, "up")
        for number, name in enumerate(names):
            ip("netns", "add", name)
            ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", name, "master", bridge, "up")
            ip("-n", name, "addr", "add", f"{NETWORK}.{number + 2}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for words in (*(("netns", "del", name) for name in names), ("link", "del", bridge)):
            subprocess.run(["ip", *words], check=False, capture_output=True)


@contextmanager
def started(name: str, *options: str, inside: tuple[str, ...] = ()) -> Iterator[None]:
    command = [*inside, sys.executable, "-m", f"distributed.cli.dask_{name}", *options, "--no-dashboard"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, env=os.environ | SETTINGS, **quiet)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def cut(n: int, cuts: int, table: Table) -> None:
    """Cut the link to one of three workers in the middle of products; restore it, and start another worker there."""
    address, X, V = f"tcp://{NETWORK}.1:{PORT}", normal(n, 8, 0), normal(n, 4, 1)
    with ExitStack() as stack:
        names = stack.enter_context(joined_networks(3))
        stack.enter_context(started("scheduler", "--host", f"{NETWORK}.1", "--port", str(PORT)))

        def work_in(number: int) -> None:
            inside = ("ip", "netns", "exec", names[number])
            options = ("--host", f"{NETWORK}.{number + 2}", "--nthreads", "1", "--no-nanny")
            stack.enter_context(started("worker", address, *options, inside=inside))

        for number in range(3):
            work_in(number)
        client = stack.enter_context(Client(address, set_as_default=False, timeout="60s"))
        client.wait_for_workers(3, timeout=120)
        K = backends.Dask(client=client).bind(kernel(), X)
        expected = K.product(V)
        for number in range(cuts):
            name, began = names[number % 3], time.perf_counter()
            late = threading.Timer(0.2, ip, ("link", "set", name, "down"))
            late.start()
            same = all(torch.equal(K.product(V), expected) for _ in range(5))
            taken = time.perf_counter() - began
            late.join()
            row = {"cut": number, "worker": number % 3, "n": n, "five products s": round(taken, 1)}
            table.add(row | {"result": "the same bits" if same else "WRONG"})
            ip("link", "set", name, "up")
            work_in(number % 3)
            client.wait_for_workers(3, timeout=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=12_000)
    parser.add_argument("--cuts", type=int, default=5)
    options = parser.parse_args()
    table = Table()
    cut(options.rows, options.cuts, table)
    table.save("cluster_network.csv")


if __name__ == "__main__":
    main()
