"""Estimators on a cluster: the numbers of one machine within their certificates, the same bits whoever is lost."""

import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from both_workers import PATIENCE, await_both, data
from sklearn.base import clone

import kernelcg
from kernelcg import GPClassifier, GPGeneralizedRegressor, GPRegressor, KernelRidge
from kernelcg.backends import dask as dask_backend
from kernelcg.backends.cluster import Cluster
from kernelcg.errors import ClusterFailed
from kernelcg.estimators.cluster_connection import connected
from kernelcg.events import EventKind
from kernelcg.kernels import Kernel, Linear, Matern
from kernelcg.kernels.distances import squared_distances
from kernelcg.planning.plan import Storage

pytest.importorskip("distributed")  # first: a setting of dask that is changed before takes those of distributed along

pytestmark = pytest.mark.usefixtures("small_blocks")


def regressor(cluster=None, **options):
    given = {"method": "iterative", "optimizer": None, "noise": 0.1, "dtype": "float64"}
    return GPRegressor(Matern([1.0, 1.5]), cluster=cluster, **(given | options))


def test_a_regressor_agrees_with_one_machine_within_the_certificates(client):
    X, y = data()
    there, here = (regressor(cluster).fit(X, y) for cluster in (client, None))
    assert there.plan_.backend == "dask"
    assert "2 workers" in str(there.plan_)
    assert there.certificate_.verdict == here.certificate_.verdict
    points = X[:50] + 0.1
    (mean, std), (mean_here, std_here) = (model.predict(points, return_std=True) for model in (there, here))
    off = there.certificate_.mean_error + here.certificate_.mean_error
    assert np.abs(mean - mean_here).max() <= off
    assert np.allclose(std, std_here, rtol=1e-4)


def test_a_kernel_that_is_not_stationary_is_certified_alike(client):
    X, y = data()
    kernel = Matern(1.0) + Linear(0.5)
    there, here = (
        KernelRidge(0.3, kernel=kernel, method="iterative", cluster=cluster).fit(X, y) for cluster in (client, None)
    )
    assert there.certificate_.verdict == here.certificate_.verdict
    assert np.abs(there.predict(X) - here.predict(X)).max() <= 1e-6


def disturbed(client, number):
    """Return a callback that kills a worker, and stops another for a second, when hyperparameters have changed."""
    left = [number]

    def listen(event):
        if event.kind is EventKind.STEP and left[0]:
            left[0] -= 1
            await_both(client)
            killed, stopped = sorted(client.run(os.getpid).values())
            os.kill(killed, signal.SIGKILL)
            os.kill(stopped, signal.SIGSTOP)
            subprocess.Popen(["/bin/sh", "-c", f"sleep 1; kill -CONT {stopped}"]).wait()

    return listen


def test_faults_while_learning_and_predicting_change_no_bit(client):
    X, y = data()
    options = {"optimizer": "adam", "max_iter": 2, "probes": 2}
    calm = regressor(client, **options).fit(X, y)
    other = regressor(client, **options).fit(X, y, callback=disturbed(client, 1))
    assert other.kernel_.lengthscale.tolist() == calm.kernel_.lengthscale.tolist() != [1.0, 1.5]
    assert np.array_equal(other.posterior_.weights.X, calm.posterior_.weights.X)
    expected = calm.predict(X + 0.1)
    await_both(client)
    os.kill(min(client.run(os.getpid).values()), signal.SIGKILL)
    assert np.array_equal(other.predict(X + 0.1), expected)
    await_both(client)


def test_other_estimators(client):
    X, y = data()
    ridge, ridge_here = (
        KernelRidge(0.1, kernel="rbf", method="iterative", cluster=cluster).fit(X, y) for cluster in (client, None)
    )
    assert ridge.plan_.backend == "dask"
    assert np.allclose(ridge.predict(X), ridge_here.predict(X), rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match="precomputed"):
        KernelRidge(kernel="precomputed", cluster=client).fit(X @ X.T, y)
    given = {"kernel": Matern(1.0), "method": "iterative", "optimizer": None}
    for model in (GPClassifier(**given), GPGeneralizedRegressor(**given, likelihood="poisson")):
        counts = (y > 0).astype(int)
        there, here = (clone(model).set_params(cluster=cluster).fit(X, counts) for cluster in (client, None))
        assert there.plan_.backend == "dask"
        assert np.allclose(there.predict(X), here.predict(X), rtol=1e-5)


def test_kernel_ridge_of_a_matrix_in_a_file(client, tmp_path):
    X, y = data()
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    by_file, sent = (
        KernelRidge(0.1, kernel="rbf", method="iterative", cluster=client).fit(given, y) for given in (mapped, X)
    )
    assert by_file.posterior_.problem.points.is_by_reference
    assert by_file.posterior_.problem.X.data_ptr() == mapped.ctypes.data, "it was copied"
    assert by_file.plan_.bytes < sent.plan_.bytes
    assert np.array_equal(by_file.dual_coef_, sent.dual_coef_)
    assert np.array_equal(by_file.predict(mapped), sent.predict(X))


# what the plan knows of the workers


class Dear(Kernel):
    """A formula of a user's own, which costs more to compute than to remember."""

    width: torch.Tensor

    def covariance(self, X, Y):
        found = 1 / (1 + squared_distances(X / self.width, Y / self.width))
        for _ in range(20):
            found = found.log().exp()
        return found


@pytest.mark.parametrize("estimator", [KernelRidge, GPClassifier])
def test_workers_store_the_matrix_where_the_plan_says_so(client, monkeypatch, estimator):
    X, y = data()
    given = {"method": "iterative", "dtype": "float64", "kernel": Dear(1.0), "preconditioner": None, "cluster": client}
    model = KernelRidge(0.1, **given) if estimator is KernelRidge else GPClassifier(**given, optimizer=None)
    target = y if estimator is KernelRidge else y > 0
    stored = clone(model).fit(X, target)
    assert stored.plan_.conditioning.storage is Storage.STORED
    assert "K stored" in stored.plan_.explain()
    assert stored.plan_.pricing.workers_memory > 0
    with killing_at(client, EventKind.PLAN) as listen:
        again = clone(model).fit(X, target, plan=stored.plan_, callback=listen)
    await_both(client)
    assert np.array_equal(again.predict(X), stored.predict(X)), "the entries of a lost worker are computed again"
    monkeypatch.setattr(dask_backend, "STORED_SHARE", 0.0)
    recomputed = clone(model).fit(X, target)
    assert recomputed.plan_.conditioning.storage is Storage.RECOMPUTED
    assert stored.plan_.bytes == recomputed.plan_.bytes, "this process stores nothing"
    if estimator is KernelRidge:
        assert np.abs(stored.predict(X) - recomputed.predict(X)).max() <= 1e-6
    copied = pickle.loads(pickle.dumps(stored))
    assert np.allclose(copied.predict(X), stored.predict(X), rtol=1e-10, atol=1e-10)


@contextmanager
def killing_at(client, kind):
    """Give a callback that kills a worker a moment after the first event of a kind."""
    killers = []

    def listen(event):
        if event.kind is kind and not killers:
            await_both(client)
            pid = min(client.run(os.getpid).values())
            killers.append(threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)))
            killers[0].start()

    yield listen
    killers[0].join()


def test_the_plan_names_threads_memory_and_speed(client):
    X, y = data()
    words = str(regressor(client).fit(X, y).plan_)
    assert re.search(r"2 workers, 2 threads, [0-9.]+ GB, together [0-9.e+]+ times as fast as this process", words)
    assert [(one.workers, one.threads) for one in regressor(client).fit(X, y).plan_.workers.rates] == [(2, 2)]


def test_learning_goes_on_with_another_number_of_workers(client, tmp_path):
    X, y = data()
    options = {"optimizer": "adam", "max_iter": 3, "probes": 2}
    whole = regressor(client, **options).fit(X, y)
    path = tmp_path / "run.kcg"
    with pytest.warns(kernelcg.errors.ConvergenceWarning, match="stopped"):
        regressor(client, **options).fit(X, y, checkpoint=path, callback=lambda event: event.kind is EventKind.STEP)
    from distributed import LocalCluster

    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0", silence_logs="CRITICAL") as one:
        resumed = regressor(one.scheduler_address, **options).fit(X, y, checkpoint=path)
        assert "1 workers" in str(resumed.plan_)
        assert np.array_equal(resumed.predict(X), whole.predict(X))


def test_a_fit_does_not_go_on_alone_when_its_connection_is_closed(client):
    from distributed import Client

    X, y = data()
    model = regressor(Client(client.scheduler.address, set_as_default=False), optimizer="adam", max_iter=3, probes=2)
    with pytest.raises(ClusterFailed, match="closed during the fit"):
        model.fit(X, y, callback=lambda event: event.kind is EventKind.STEP and model.cluster.close())
    assert not hasattr(model, "posterior_")
    with pytest.raises(ClusterFailed, match="was closed; connect again"):
        model.fit(X, y)


# ways to name a cluster


def test_an_address(client):
    X, y = data()
    by_client, by_address = (regressor(cluster).fit(X, y) for cluster in (client, client.scheduler.address))
    assert np.array_equal(by_client.predict(X), by_address.predict(X))


def test_a_local_cluster_waits_for_a_worker_that_comes_back_late():
    pytest.importorskip("distributed")
    import dask

    with dask.config.set({"distributed.deploy.lost-worker-timeout": "1ms"}), connected("local", 1) as client:
        ((address, pid),) = client.run(os.getpid).items()
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE
        while list(client.scheduler_info()["workers"]) in ([], [address]) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert client.submit(sum, (1, 2)).result(timeout=PATIENCE) == 3


def test_a_local_cluster_ends_with_the_fit():
    X, y = data()
    there = regressor("local", n_jobs=1).fit(X, y)
    assert "1 workers" in str(there.plan_)
    assert there.posterior_.problem.backend.client.status == "closed"
    assert np.allclose(there.predict(X), regressor().fit(X, y).predict(X), rtol=1e-5)


def test_a_script_that_fits_when_it_is_imported_is_told_what_to_do(tmp_path):
    pytest.importorskip("distributed")
    script = tmp_path / "script.py"
    script.write_text(
        "from kernelcg import KernelRidge\nKernelRidge(cluster='local', n_jobs=1).fit([[0.0], [1]], [0, 1])"
    )
    command = [sys.executable, "-W", "ignore", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    *_, last = done.stderr.strip().splitlines()
    assert done.returncode == 1
    assert last.startswith("kernelcg.errors.ClusterFailed: cluster='local' could not start its processes"), done.stderr
    assert "below if __name__ == '__main__':" in last


@pytest.mark.parametrize("cluster", [3, True, object()])
def test_what_is_no_cluster_is_refused(cluster):
    with pytest.raises(ValueError, match="cluster must be None"):
        regressor(cluster).fit(*data(20))
    with pytest.raises(ValueError, match=r"cluster must be None.*cluster\.get_client\(\)"):
        KernelRidge(cluster=cluster).fit(*data(20))


def test_an_address_where_nobody_answers():
    import dask

    with (
        dask.config.set({"distributed.comm.timeouts.connect": "0.3s"}),
        pytest.raises(ValueError, match="cannot be reached"),
    ):
        regressor("tcp://127.0.0.1:1").fit(*data(20))  # a port below those that programs are given


# what leaves the process


def test_clones_share_the_connection_and_pickles_leave_it(client, tmp_path):
    X, y = data()
    fitted = regressor(client).fit(X, y)
    assert clone(fitted).cluster is client
    copied = pickle.loads(pickle.dumps(fitted))
    assert copied.cluster == client.scheduler.address
    fitted.save(tmp_path / "model")
    loaded = kernelcg.load(tmp_path / "model")
    assert loaded.cluster is None
    for other in (copied, loaded):
        assert np.allclose(other.predict(X), fitted.predict(X), rtol=1e-10, atol=1e-10)
        assert np.allclose(other.predict(X, return_std=True)[1], fitted.predict(X, return_std=True)[1], rtol=1e-4)


def test_the_core_imports_no_dask():
    code = "import sys, kernelcg, kernelcg.estimators, kernelcg.backends; assert 'distributed' not in sys.modules"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=PATIENCE)


# whom to work with


def test_workers_with_another_version_are_refused(tmp_path):
    from distributed import Client, LocalCluster

    record = tmp_path / "kernelcg-9.9.9.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: kernelcg\nVersion: 9.9.9\n")
    options = {"n_workers": 0, "dashboard_address": ":0", "silence_logs": "CRITICAL"}
    with LocalCluster(**options) as own, Client(own, set_as_default=False) as client:
        command = [sys.executable, "-m", "distributed.cli.dask_worker", own.scheduler_address, "--no-nanny"]
        worker = subprocess.Popen(
            [*command, "--no-dashboard"], env=os.environ | {"PYTHONPATH": str(tmp_path)}, stderr=subprocess.DEVNULL
        )
        try:
            client.wait_for_workers(1, timeout=PATIENCE)
            with pytest.raises(ClusterFailed, match=r"has kernelcg 9\.9\.9, but this is kernelcg"):
                regressor(client).fit(*data())
            joined_late = Cluster(client)  # where nobody has asked the workers
            with pytest.raises(ClusterFailed, match=r"has kernelcg 9\.9\.9, but this is kernelcg"):
                joined_late.collect(joined_late.map(len, ["ab"]))
        finally:
            worker.kill()
            worker.wait()


WITH_CERTIFICATES = """
import os

import numpy as np
from distributed import Client, LocalCluster
from distributed.security import Security

from kernelcg import GPRegressor

X = np.random.default_rng(0).normal(size=(300, 2))
y = np.sin(X[:, 0])
known, stranger = Security.temporary(), Security.temporary()
options = {"n_workers": 1, "processes": False, "dashboard_address": ":0", "silence_logs": "CRITICAL"}
own = LocalCluster(security=known, protocol="tls://", **options)
address = own.scheduler_address
assert address.startswith("tls://")
try:
    GPRegressor(cluster=address).fit(X, y)
except ValueError as error:
    print(error)
with Client(address, security=known, set_as_default=False) as client:
    print(GPRegressor(cluster=client, method="iterative", noise=0.1, optimizer=None).fit(X, y).plan_.backend)
try:
    Client(address, security=stranger, timeout="2s", set_as_default=False)
except OSError:
    print("a stranger is refused", flush=True)
os._exit(0)  # Dask waits long for clients that were refused
"""


def test_a_cluster_with_certificates_refuses_strangers():
    pytest.importorskip("cryptography")
    command = [sys.executable, "-W", "ignore", "-c", WITH_CERTIFICATES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    without, inside, stranger = done.stdout.splitlines() or pytest.fail(done.stderr)
    assert "asks for certificates, and Dask's configuration names none" in without
    assert (inside, stranger) == ("dask", "a stranger is refused")
