"""Estimators with data that lie elsewhere: the numbers of data in memory, and predictions chunk by chunk."""

from functools import partial

import numpy as np
import pytest
from both_workers import data

from kernelcg import GPClassifier, GPGeneralizedRegressor, GPRegressor, KernelRidge
from kernelcg.backends.parquet_rows import ParquetRows
from kernelcg.kernels import Matern

da = pytest.importorskip("dask.array")

pytestmark = pytest.mark.usefixtures("small_blocks")


def ridge(**options):
    return KernelRidge(0.1, kernel="rbf", method="iterative", **options)


def test_a_fit_on_a_cluster_to_dask_arrays(client):
    X, y = data()
    lazy, lazy_y = da.from_array(X, chunks=(70, 1)), da.from_array(y, chunks=90)
    model, sent = ridge(cluster=client).fit(lazy, lazy_y), ridge(cluster=client).fit(X, y)
    assert model.posterior_.problem.points.is_by_reference
    assert model.plan_.bytes < sent.plan_.bytes
    assert np.array_equal(model.dual_coef_, sent.dual_coef_)
    assert np.array_equal(model.predict(X + 0.1), sent.predict(X + 0.1))


def test_learning_on_a_cluster_from_dask_arrays(client):
    X, y = data()
    options = {"method": "iterative", "optimizer": "adam", "max_iter": 2, "probes": 2, "dtype": "float64"}
    given = ((da.from_array(X, chunks=70), da.from_array(y, chunks=90)), (X, y))
    lazy, sent = (GPRegressor(Matern([1.0, 1.5]), cluster=client, **options).fit(*one) for one in given)
    assert lazy.kernel_.lengthscale.tolist() == sent.kernel_.lengthscale.tolist() != [1.0, 1.5]
    assert np.array_equal(lazy.predict(X), sent.predict(X))


def test_data_frames_and_parquet_files(tmp_path, client):
    pandas, frames = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    X, y = data()
    table = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y})
    frame, expected = frames.from_pandas(table, npartitions=4), ridge(cluster=client).fit(X, y)
    lazy = ridge(cluster=client).fit(frame[["a", "b"]], frame["y"])
    assert np.array_equal(lazy.dual_coef_, expected.dual_coef_)
    pytest.importorskip("pyarrow")
    table.to_parquet(tmp_path / "1.parquet", row_group_size=110)
    rows = ParquetRows.of(tmp_path, ["a", "b"])
    by_file = ridge(cluster=client).fit(rows, table["y"])
    assert by_file.posterior_.problem.points.is_by_reference
    assert np.array_equal(by_file.dual_coef_, expected.dual_coef_)
    assert np.array_equal(by_file.predict(rows), expected.predict(X))


def test_without_a_cluster():
    X, y = data()
    assert np.array_equal(ridge().fit(da.from_array(X, chunks=70), y).predict(X), ridge().fit(X, y).predict(X))


def test_faults_in_lazy_data_are_named():
    X, y = data()
    X[123, 1] = np.nan
    with pytest.raises(ValueError, match="column 1 of X holds NaN in row 123"):
        ridge().fit(da.from_array(X, chunks=70), y)


def test_what_is_masked_in_lazy_data_is_missing():
    X, y = data()
    lazy = da.ma.masked_array(
        da.from_array(X, chunks=70), da.from_array(np.arange(600).reshape(300, 2) == 247, chunks=70)
    )
    with pytest.raises(ValueError, match="column 1 of X holds NaN in row 123"):
        ridge().fit(lazy, y)


# predictions


@pytest.fixture
def points():
    return data(90)[0] + 0.1


def models():
    X, y = data()
    given = {"method": "iterative", "optimizer": None}
    yield GPRegressor(Matern(1.0), noise=0.1, **given).fit(X, y)
    yield GPRegressor(Matern(1.0), noise=0.1, **given).fit(X, np.stack([y, -y], 1))
    yield ridge().fit(X, y)
    yield GPClassifier(Matern(1.0), **given).fit(X, np.where(y > 0, "up", "down"))
    yield GPGeneralizedRegressor(Matern(1.0), likelihood="poisson", **given).fit(X, (y > 0).astype(int))


def in_three(answer, points):
    """Return what three chunks are answered one by one: estimates of variances may depend on the other points."""
    parts = [answer(points[start : start + 40]) for start in (0, 40, 80)]
    return (
        [np.concatenate(one) for one in zip(*parts, strict=True)] if type(parts[0]) is tuple else np.concatenate(parts)
    )


def test_a_dask_array_is_predicted_chunk_by_chunk(points):
    lazy = da.from_array(points, chunks=(40, 1))
    for model in models():
        expected, found = in_three(model.predict, points), model.predict(lazy)
        assert isinstance(found, da.Array)
        assert (found.shape, found.dtype, found.chunks[0]) == (expected.shape, expected.dtype, (40, 40, 10))
        assert np.array_equal(found.compute(scheduler="sync"), expected)


def test_chunks_without_rows_have_no_answers(points):
    regressor, *_ = models()
    lazy = da.from_array(points, chunks=(40, 2))
    some = lazy[da.from_array(np.arange(90) >= 40, chunks=40)]  # nothing is left of the first chunk
    expected = regressor.predict(points[40:])
    found, std = regressor.predict(some, return_std=True)
    assert np.allclose(found.compute(scheduler="sync"), expected, rtol=1e-12, atol=1e-12)
    assert std.compute(scheduler="sync").shape == (50,)
    assert regressor.predict(lazy[:0]).compute(scheduler="sync").shape == (0,)
    with pytest.raises(ValueError, match="this Dask array has 1 dimensions"):
        regressor.predict(lazy[:, 0])


def test_several_answers_are_several_dask_arrays(points):
    regressor, _, _, classifier, counts = models()
    lazy = da.from_array(points, chunks=(40, 2))
    for model in (regressor, counts):
        expected = in_three(partial(model.predict, return_std=True), points)
        for one, other in zip(model.predict(lazy, return_std=True), expected, strict=True):
            assert np.array_equal(one.compute(scheduler="sync"), other)
    quantiles = regressor.predict(lazy, quantiles=[0.1, 0.9])
    assert quantiles.shape == (90, 2)
    expected = in_three(classifier.predict_proba, points)
    assert np.array_equal(classifier.predict_proba(lazy).compute(scheduler="sync"), expected)
    for wrong in ({"return_cov": True}, {"return_bound": True}, {"callback": print}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            regressor.predict(lazy, **wrong)
    with pytest.raises(ValueError, match="exposure"):
        counts.predict(lazy, np.ones(90))


def test_workers_predict_and_write(client, tmp_path, points):
    X, y = data()
    model = ridge(cluster=client).fit(X, y)
    with client.as_current():
        da.to_npy_stack(str(tmp_path), model.predict(da.from_array(points, chunks=(40, 2))))
    found = np.concatenate([np.load(tmp_path / f"{number}.npy") for number in range(3)])
    assert np.allclose(found, model.predict(points), rtol=1e-12, atol=1e-12)
