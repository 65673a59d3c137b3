"""A scheduler that is lost, or started again between two fits: processes of their own, real sockets."""

import asyncio
import socket
import time
from contextlib import ExitStack, contextmanager

import pytest
import torch
from both_workers import PATIENCE
from dask_processes import free_address, scheduler_at, worker_at
from strategies import normal

from kernelcg import backends
from kernelcg.errors import ClusterFailed
from kernelcg.kernels import Matern

distributed = pytest.importorskip("distributed")

ROWS, BLOCK = 400, 150


@contextmanager
def connected(address, reconnecting=PATIENCE):
    """Give a client once there is a worker; without its scheduler it tries to connect for so many seconds."""
    host, port = address.removeprefix("tcp://").split(":")
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection((host, int(port)), 1).close()
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    client = distributed.Client(address, set_as_default=False, timeout=reconnecting)
    try:
        client.wait_for_workers(1, timeout=PATIENCE)
        yield client
    finally:
        client.close()


def product(client, **options):
    K = backends.Dask(client=client, block_rows=BLOCK, **options).bind(Matern(1.0), normal(ROWS, 2, 1))
    return K, K.product(normal(ROWS, 1, 2))


def test_a_scheduler_that_is_lost_and_started_again():
    host, port = free_address()
    address = f"tcp://{host}:{port}"
    with ExitStack() as stack:
        first = stack.enter_context(ExitStack())
        first.enter_context(scheduler_at(host, port))
        first.enter_context(worker_at("127.0.0.2", address))
        client = stack.enter_context(connected(address))
        K, found = product(client)
        first.close()
        stack.enter_context(scheduler_at(host, port))
        stack.enter_context(worker_at("127.0.0.3", address))
        with connected(address) as another:
            assert torch.equal(product(another)[1], found)
        assert torch.equal(K.product(normal(ROWS, 1, 2)), found), "the data are sent again"
        assert torch.equal(product(client)[1], found)


def test_a_scheduler_that_is_lost_for_good():
    host, port = free_address()
    address = f"tcp://{host}:{port}"
    with ExitStack() as stack:
        scheduler = stack.enter_context(scheduler_at(host, port))
        stack.enter_context(worker_at("127.0.0.2", address))
        client = stack.enter_context(connected(address, reconnecting=20))
        K, found = product(client)
        scheduler.kill()
        scheduler.wait()
        with pytest.raises(ClusterFailed, match="the cluster was lost"):
            K.product(normal(ROWS, 1, 2))
    assert torch.allclose(K.product(normal(ROWS, 1, 2)), found, rtol=1e-12, atol=1e-12), "in this process, once closed"


def test_the_last_worker_is_lost_with_results_that_were_not_fetched(monkeypatch):
    host, port = free_address()
    address = f"tcp://{host}:{port}"
    with ExitStack() as stack:
        stack.enter_context(scheduler_at(host, port))
        worker = stack.enter_context(worker_at("127.0.0.2", address))
        client = stack.enter_context(connected(address))
        K, _ = product(client, patience=2.0)
        gather = client.gather

        def gather_and_lose(futures, **options):
            async def found():
                while not all(future.done() for future in futures):
                    await asyncio.sleep(0.01)
                worker.kill()
                worker.wait()
                return await gather(futures, **options)

            return found()

        monkeypatch.setattr(client, "gather", gather_and_lose)
        with pytest.raises(ClusterFailed, match="no workers for 2 s"):
            K.product(normal(ROWS, 1, 2))
