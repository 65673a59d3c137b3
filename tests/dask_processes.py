"""A scheduler and workers of Dask as processes of their own, which tests kill and start again."""

import os
import socket
import subprocess
import sys
from contextlib import contextmanager


@contextmanager
def started(name, *options):
    """Run a command of Dask until this ends."""
    command = [sys.executable, "-m", f"distributed.cli.dask_{name}", *options, "--no-dashboard"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, **quiet)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def scheduler_at(host, port):
    """Return a context with a scheduler at this address."""
    return started("scheduler", "--host", host, "--port", str(port))


def worker_at(host, scheduler):
    """Return a context with a worker of one thread, bound to a host."""
    return started("worker", scheduler, "--no-nanny", "--nthreads", "1", "--host", host, "--memory-limit", "2GB")


def free_address():
    """Return a host and the number of a port for a scheduler.

    The host is a loopback address of this process alone: nobody else takes its ports while no scheduler is there.
    """
    number = os.getpid()
    host = f"127.{64 + (number >> 16) % 64}.{(number >> 8) % 256}.{number % 256}"
    with socket.socket() as one:
        one.bind((host, 0))
        return host, one.getsockname()[1]
