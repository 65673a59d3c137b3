"""Connecting an estimator to a Dask cluster, for as long as a fit lasts or a model lives."""

import atexit
import logging
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kernelcg.backends.cluster import missing
from kernelcg.errors import ClusterFailed
from kernelcg.events import Event, Listener

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger("kernelcg")

# Dask gives up a worker of its own that died and is not back within 15 seconds; on a busy machine it takes longer. Its
# scheduler keeps the last 1,000 messages of up to a megabyte to each worker, for developers
PATIENT = {"distributed.deploy.lost-worker-timeout": "10 minutes", "distributed.admin.low-level-log-length": 10}

CLUSTERS = (
    "None, 'local', the address of a scheduler, or a synchronous dask.distributed.Client (cluster.get_client() makes "
    "one of a LocalCluster, SLURMCluster and the like)"
)
"""What a parameter ``cluster`` may be, in words."""


def is_cluster(value: Any) -> bool:
    """Say whether a parameter ``cluster`` means something: None, "local", an address, or a client."""
    distributed = sys.modules.get("distributed")
    return value is None or isinstance(value, str) or (distributed is not None and _is_client(value))


def _is_client(value: Any) -> bool:
    from distributed import Client

    return isinstance(value, Client) and not value.asynchronous


@contextmanager
def connected(cluster: Any, workers: int | None) -> Iterator["Client | None"]:
    """Give a connection to the cluster that a user names; None without one.

    A client is the user's, who closes it. Connections to an address are closed with the last model that uses them.
    "local" starts one process with one thread for each core, or ``workers`` of them, and ends them afterwards.
    """
    if not is_cluster(cluster):
        raise ValueError(f"cluster must be {CLUSTERS}, not {cluster!r}")
    if cluster is None:
        yield None
        return
    reason = missing()
    if reason is not None:
        raise ValueError(f"cluster={cluster!r} cannot be used: {reason}")
    if cluster == "local":
        with _own_processes(workers) as client, client.as_current():
            yield client
        return
    client = cluster if _is_client(cluster) else _client_at(cluster)
    if _is_closed(client):
        raise ClusterFailed(
            f"cluster={cluster!r} is a connection that was closed; connect again and give the new client"
        )
    logger.info("cluster: dashboard at %s", client.dashboard_link)
    with client.as_current():  # Dask arrays of the user are computed there
        yield client


@contextmanager
def _own_processes(workers: int | None) -> Iterator["Client"]:
    """Give a connection to workers that are processes of this machine, and end them afterwards."""
    import dask
    from distributed import Client, LocalCluster

    with dask.config.set(PATIENT):
        try:
            own = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0")
        except Exception as error:
            raise ClusterFailed(
                f"cluster='local' could not start its processes ({type(error).__name__}: {error}); each of them "
                "imports the script that is run, which must not fit when it is imported: put what it does below "
                "if __name__ == '__main__':"
            ) from error
        with own, Client(own) as client:
            yield client


def insisting_on(client: "Client | None") -> Listener | None:
    """Return a listener that raises `ClusterFailed` once the connection of a fit is closed, if it has one.

    Fitted models go on without, in this process; a fit that did would take many times as long.
    """
    if client is None:
        return None

    def listen(_: Event) -> None:
        if _is_closed(client):
            raise ClusterFailed(
                "the connection to the cluster was closed during the fit; connect and fit again, from the saved state "
                "if there is one"
            )

    return listen


def _is_closed(client: "Client") -> bool:
    return client.status in ("closing", "closed")


def _client_at(address: str) -> "Client":
    from distributed import Client
    from distributed.security import Security

    own = Security()  # as Dask's configuration says
    if address.startswith("tls://") and own.get_connection_args("client").get("ssl_context") is None:
        # a client that is made all the same fails, too, but holds up the end of Python for a minute
        raise ValueError(
            f"cluster={address!r} asks for certificates, and Dask's configuration names none: give "
            "cluster=distributed.Client(address, security=distributed.Security(...))"
        )
    try:
        client = Client(address, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"cluster={address!r} cannot be reached: {error}; start a scheduler there") from error
    atexit.register(_close, weakref.ref(client))  # with the last model that uses it, or when Python ends
    return client


def _close(reference: "weakref.ref[Client]") -> None:
    client = reference()
    if client is not None:
        client.close()
