"""Work on a Dask cluster: sending tasks and data, waiting for results, and saying clearly what went wrong."""

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib import metadata, util
from typing import TYPE_CHECKING, Any, TypeVar, cast

from kernelcg.errors import ClusterFailed

if TYPE_CHECKING:
    from distributed import Client, Future

Answer = TypeVar("Answer")

GRAPH_WARNING = "distributed.admin.large-graph-warning-threshold"
"""Setting of Dask: bytes of a graph above which it warns that data should be scattered. Scattered data die with their
worker; data inside a graph are kept by the scheduler, which gives them to another one."""

LOOK_EVERY = 1.0
"""Seconds after which somebody who waits for results looks whether there still are workers."""


def missing() -> str | None:
    """Return why there can be no cluster in this installation, or None if there can."""
    if util.find_spec("distributed") is None:
        return "dask.distributed is not installed; use pip install 'kernelcg[cluster]'"
    return None


@dataclass(frozen=True)
class Workforce:
    """The workers of a cluster at one time: how many, their threads, and the bytes that all of them may use."""

    workers: int
    threads: int
    memory: int


@dataclass(frozen=True, eq=False)
class Cluster:
    """A connection to a Dask cluster.

    Parameters
    ----------
    patience : seconds without a single worker after which work is given up
    """

    client: "Client"
    patience: float = 60.0

    @property
    def is_open(self) -> bool:
        """Whether the connection was not closed."""
        return bool(self.client.status not in ("closing", "closed"))

    def workforce(self) -> Workforce:
        """Return who can work now: nobody, where the scheduler does not answer."""
        workers = (self._known() or {}).values()
        return Workforce(
            len(workers), sum(one["nthreads"] for one in workers), sum(one["memory_limit"] or 0 for one in workers)
        )

    def _known(self) -> dict[str, Any] | None:
        """Return what the scheduler knows of every worker; None where it does not answer, as when it is very busy.

        ``Client.scheduler_info`` returns what the client has heard last, and Dask's own queries, every two seconds,
        leave out the workers.
        """
        if not self.is_open:
            return None
        try:
            answer: dict[str, Any] = self.client.sync(cast(Any, self.client.scheduler).identity)
        except OSError:
            return None
        return cast(dict[str, Any], answer["workers"])

    def each(self, ask: Callable[[], Answer]) -> list[tuple[int, Answer]]:
        """Return the threads and the answer of every worker that gives one."""
        threads = {name: one["nthreads"] for name, one in (self._known() or {}).items()}
        found = self.client.run(ask, on_error="return")
        answered = {name: answer for name, answer in found.items() if not isinstance(answer, BaseException)}
        return [(threads[name], answer) for name, answer in answered.items() if name in threads]

    def require_workers(self) -> None:
        """Raise unless there are workers, all with the version of this library that runs here."""
        try:
            with _losses_told():
                self.client.wait_for_workers(1, timeout=self.patience)
        except TimeoutError:
            raise ClusterFailed(self._nobody()) from None
        except OSError as error:
            raise ClusterFailed(f"the cluster was lost: {error}; start it again") from error
        own = installed_version()
        found = self.client.run(metadata.version, "kernelcg", on_error="return")
        for worker, version in found.items():
            if isinstance(version, metadata.PackageNotFoundError):
                raise ClusterFailed(f"worker {worker} has no kernelcg; install kernelcg {own} there and restart it")
            if isinstance(version, str):
                _require_version(version, own, worker)

    def map(self, task: Callable[..., Any], *arguments: Collection[Any], **same: Any) -> "list[Future[Any]]":
        """Send one task for each tuple of arguments, futures among them; ``same`` are those that all tasks share.

        A worker with another version of this library refuses the task, also one that has joined since data were sent.
        """
        import dask

        done, name = partial(_done_by_the_same_version, task, installed_version()), task.__name__
        with dask.config.set({GRAPH_WARNING: "1PB"}), _losses_told():
            found: list[Future[Any]] = self.client.map(done, *arguments, pure=False, key=name, **same)
            return found

    def collect(self, futures: "Sequence[Future[Any]]") -> list[Any]:
        """Return the results in the order of the futures; raise `ClusterFailed` if nobody is left to compute them.

        Dask gives tasks of lost workers to others. An exception that a task raised is raised here.
        """

        async def gather() -> list[Any]:
            return list(await self.client.gather(futures, asynchronous=True))

        pending = asyncio.run_coroutine_threadsafe(gather(), cast(Any, self.client.loop).asyncio_loop)
        try:
            with _losses_told():
                return self._awaited(pending)
        finally:
            pending.cancel()  # does nothing where it is done

    def _awaited(self, pending: "concurrent.futures.Future[list[Any]]") -> list[Any]:
        """Return what is pending; raise once there have been no workers for too long, also while fetching."""
        alone_since = None
        while True:
            concurrent.futures.wait([pending], timeout=LOOK_EVERY)
            if pending.done():
                return pending.result()
            alone = not self.is_open or self._known() == {}
            alone_since = (alone_since or time.monotonic()) if alone else None
            if alone_since is not None and time.monotonic() - alone_since > self.patience:
                raise ClusterFailed(self._nobody())

    def _nobody(self) -> str:
        return (
            f"the cluster has had no workers for {self.patience:g} s; start workers and fit again, from the saved "
            "state if there is one"
        )


@cache
def installed_version() -> str:
    """Return the version of this library in this process."""
    return metadata.version("kernelcg")


def _done_by_the_same_version(task: Callable[..., Any], version: str, *arguments: Any, **same: Any) -> Any:
    """Do a task on a worker whose version of this library is that of the process that sends it."""
    from distributed import get_worker

    _require_version(installed_version(), version, get_worker().address)
    return task(*arguments, **same)


def _require_version(found: str, own: str, worker: str) -> None:
    if found != own:
        raise ClusterFailed(
            f"worker {worker} has kernelcg {found}, but this is kernelcg {own}; install the same version everywhere "
            "and restart the workers"
        )


@contextmanager
def _losses_told() -> Iterator[None]:
    """Raise `ClusterFailed` where Dask says that a cluster or what was on it is lost."""
    from distributed import CancelledError, KilledWorker
    from distributed.comm.core import CommClosedError

    try:
        yield
    except KilledWorker as error:
        raise ClusterFailed(
            f"{error.allowed_failures + 1} workers were lost one after the other with the same task, the last at "
            f"{error.last_worker.address}; they may have too little memory"
        ) from error
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "kernelcg":
            raise
        raise ClusterFailed(
            f"a worker that has joined has no kernelcg ({error}); install kernelcg {installed_version()} there and "
            "restart it"
        ) from error
    except (CancelledError, CommClosedError) as error:
        raise ClusterFailed(
            f"the cluster was lost ({type(error).__name__}); start it again and fit again, from the saved state if "
            "there is one"
        ) from error
