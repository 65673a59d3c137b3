"""Models of tables: scores on rows held out, relevance, files."""

import numpy as np
import pandas as pd
import pytest

from kernelcg import GPRegressor
from kernelcg.errors import ModelFileError
from kernelcg.estimators.relevance import relevances
from kernelcg.tables import Table, TableError, Task, fit_table, load_table_model
from kernelcg.tables.fitting import prepare


def table(n=120, seed=0):
    rng = np.random.default_rng(seed)
    x, z, kind = rng.uniform(-2, 2, n), rng.normal(size=n), rng.choice(["a", "b"], n)
    y = np.sin(2 * x) + (kind == "a") + 0.1 * rng.normal(size=n)
    return Table(pd.DataFrame({"x": x, "z": z, "kind": kind, "y": 50 * y}), "made up")


def test_a_regression_is_scored_on_rows_held_out_and_knows_all_rows():
    prepared = prepare(table(), "y", options={"method": "direct"})
    fitted = fit_table(prepared)
    model = fitted.model
    assert len(fitted.held_out) == 12
    assert model.facts["scores"]["r2"] > 0.95
    assert len(model.estimator.posterior_.problem) == 120
    learned = GPRegressor(method="direct").fit(
        np.delete(prepared.X, fitted.held_out, 0), np.delete(prepared.y, fitted.held_out)
    )
    np.testing.assert_allclose(model.estimator.noise_, learned.noise_)
    errors = prepared.y[fitted.held_out] - learned.predict(prepared.X[fitted.held_out])
    np.testing.assert_allclose(model.facts["scores"]["rmse"], np.sqrt(np.mean(errors**2)))


def test_intervals_are_those_of_a_normal_distribution(tmp_path):
    made = table()
    model = fit_table(prepare(made, "y", options={"method": "direct"}), hold_out=False).model
    found = model.predict(made.frame.head(7), interval=0.5)
    mean, std = model.estimator.predict(model.encoding.features(made.frame.head(7)), return_std=True)
    np.testing.assert_allclose(found["y"], mean)
    np.testing.assert_allclose(found["upper"] - found["y"], 0.6744897501960817 * std)
    model.save(tmp_path / "m.kcg")
    loaded = load_table_model(tmp_path / "m.kcg")
    pd.testing.assert_frame_equal(loaded.predict(made.frame.head(7), interval=0.5), found)
    assert loaded.facts == model.facts


def test_classes_keep_their_labels():
    made = table()
    frame = made.frame.assign(y=np.where(made.frame.y > 20, "high", "low"))
    model = fit_table(prepare(Table(frame, "t"), "y")).model
    found = model.predict(frame)
    assert list(found.columns) == ["y", "P(high)", "P(low)"]
    assert (found.y == frame.y).mean() > 0.9
    np.testing.assert_allclose(found["P(high)"] + found["P(low)"], 1)
    assert len(model.estimator.posterior_.problem) == len(frame)


def test_intervals_of_counts_cover_counts():
    rng = np.random.default_rng(3)
    x = rng.uniform(-2, 2, 200)
    frame = pd.DataFrame({"x": x, "visits": rng.poisson(np.exp(1 + np.sin(2 * x)))})
    prepared = prepare(Table(frame, "t"), "visits")
    assert prepared.target.task is Task.COUNTS
    found = fit_table(prepared).model.predict(frame, interval=0.9)
    covered = (found.lower <= frame.visits) & (frame.visits <= found.upper)
    assert 0.86 <= covered.mean() <= 1.0  # whole numbers: at least what was asked for
    assert (found.upper == found.upper.round()).all()


def test_relevance_is_the_total_effect():
    """For m = x₀ + 2x₁ + x₀x₁ with independent standard normal inputs the variance is 6; T₀ = 2/6, T₁ = 5/6."""

    class Known:
        def predict(self, X):
            return X[:, 0] + 2 * X[:, 1] + X[:, 0] * X[:, 1]

    X = np.random.default_rng(0).normal(size=(4000, 3))
    found = relevances(Known(), X, {"first": [0], "second": [1], "none": [2]})
    assert found["none"] == 0
    np.testing.assert_allclose([found["first"], found["second"]], [2 / 6, 5 / 6], atol=0.12)


def test_a_feature_that_matters_alone_has_all_the_relevance():
    class Known:
        def predict(self, X):
            return np.exp(X[:, 1])

    X = np.random.default_rng(0).normal(size=(30, 3))
    found = relevances(Known(), X, {"one": [0], "two": [1], "both": [1, 2]})
    assert found == {"one": 0.0, "two": 1.0, "both": 1.0}


def test_unknown_options_are_named():
    with pytest.raises(TableError, match="has no option 'ofen'"):
        prepare(table(), "y", options={"ofen": 1})


def test_few_rows_are_all_learned_from():
    made = table(12)
    fitted = fit_table(prepare(made, "y"))
    assert len(fitted.held_out) == 0
    assert fitted.model.facts["scores"] == {}


def test_a_model_without_columns_is_told_from_one_with(tmp_path):
    X = np.random.default_rng(0).normal(size=(20, 2))
    GPRegressor(optimizer=None).fit(X, X[:, 0]).save(tmp_path / "plain.kcg")
    with pytest.raises(ModelFileError, match="without columns"):
        load_table_model(tmp_path / "plain.kcg")


def test_a_target_named_like_another_column_of_the_predictions_is_kept():
    made = table(30)
    renamed = Table(made.frame.rename(columns={"y": "std"}), "made up")
    options = {"method": "direct", "optimizer": None}
    model = fit_table(prepare(renamed, "std", options=options), hold_out=False).model
    found = model.predict(renamed.frame)
    assert list(found) == ["std (predicted)", "std", "lower", "upper"]
    np.testing.assert_allclose(found["std (predicted)"], (found.lower + found.upper) / 2)
