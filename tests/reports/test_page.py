"""The page about a model: complete, escaped, and drawn without errors in a real browser."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from kernelcg.plots import save_picture
from kernelcg.plots.judging import calibration, probability_integral, reliability
from kernelcg.reports.page import page_of
from kernelcg.reports.pictures import _averages, _codes, _typical, pictures
from kernelcg.reports.slices import _drawn_probabilities, centres_at, slices_at
from kernelcg.tables import Table, fit_table
from kernelcg.tables.fitting import _held_out, prepare
from kernelcg.tables.houses import houses
from kernelcg.tables.task import Task

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
NASTY = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def regression():
    return fit_table(prepare(Table(houses(120), "houses.csv"), "price", options={"method": "direct"})).model


@pytest.fixture(scope="module")
def counts():
    rng = np.random.default_rng(0)
    days = pd.date_range("2023-01-01", periods=90)
    frame = pd.DataFrame({"day": days.strftime("%d.%m.%Y"), "rain": rng.gamma(1, 2, 90)})
    frame["visits"] = rng.poisson(np.exp(1 + np.sin(np.arange(90) / 10) - 0.2 * frame.rain))
    frame.loc[rng.permutation(90)[:8], "visits"] += 30
    return fit_table(prepare(Table(frame, "counts.csv"), "visits")).model


@pytest.fixture(scope="module")
def nasty():
    frame = houses(80).rename(columns={"area": NASTY, "price": "a</script>&b"})
    frame["kind"] = frame.kind.replace("flat", NASTY)
    return fit_table(prepare(Table(frame, f"{NASTY}.csv"), "a</script>&b", options={"method": "direct"})).model


class Tags(HTMLParser):
    """Collects tags and the identifiers of pictures."""

    def __init__(self):
        super().__init__()
        self.tags, self.labels = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if dict(attrs).get("role") == "img":
            self.labels.append(dict(attrs).get("aria-label"))


def test_every_picture_has_a_place_and_a_description(regression):
    tags = Tags()
    tags.feed(page_of(regression))
    assert len(tags.labels) == len(list(pictures(regression))) >= 8
    assert all(label and len(label) > 20 for label in tags.labels)


def test_names_from_the_data_are_words_not_code(nasty):
    page = page_of(nasty)
    tags = Tags()
    tags.feed(page)
    assert tags.tags.count("script") == 2
    assert NASTY not in page
    specs = json.loads(re.search(r'id="specs">(.*?)</script>', page, re.DOTALL).group(1))
    assert any(NASTY in json.dumps(spec) for spec in specs)


def test_a_class_report_has_its_confusion():
    frame = houses(100)
    frame["dear"] = np.where(frame.price > frame.price.median(), "yes", "no")
    model = fit_table(prepare(Table(frame.drop(columns="price"), "t"), "dear")).model
    titles = [picture.title for picture in pictures(model)]
    assert {"Classes of rows held out", "Reliability"} <= set(titles)
    (boundary,) = [picture for picture in pictures(model) if picture.title.startswith("Classes over")]
    drawn = boundary.chart.to_dict()
    cells, dots = (drawn["datasets"][layer["data"]["name"]] for layer in drawn["layer"])
    assert {dot["class"] for dot in dots} == {"yes", "no"}
    assert {cell["class"] for cell in cells} == {"yes", "no"}
    assert all(0.5 <= cell["probability"] <= 1 for cell in cells)
    assert "Predicted against observed" not in titles


def test_rows_to_look_at_are_those_of_the_table():
    """A row with a wrong value is found under its number in the file, though rows without a target were left out."""
    frame = houses(120)
    frame.loc[[3, 50], "price"] = np.nan
    frame.loc[77, "price"] += 400
    found = fit_table(prepare(Table(frame, "t"), "price", options={"method": "direct"})).model.facts["surprises"]
    assert found["row"][0] == 78
    assert found["observed"][0] == frame.price[77]
    assert found["score"][0] > 3


def test_a_wrong_label_is_a_row_to_look_at():
    """Of rows held out, the one with the wrong label is found under its number in the file."""
    frame = pd.DataFrame({"x": np.linspace(-3, 3, 80)})
    right = np.where(frame.x > 0, "right", "left")

    def labels(wrong):
        return np.where(np.arange(80) == wrong, np.where(right == "left", "right", "left"), right)

    wrong = next(row for row in range(5, 80) if _held_out(labels(row), Task.CLASSIFICATION, 0)[row])
    model = fit_table(prepare(Table(frame.assign(label=labels(wrong)), "t"), "label")).model
    found = model.facts["unforeseen"]
    assert found["row"][0] == wrong + 1
    assert found["observed"][0] == labels(wrong)[wrong]
    assert found["probability"] == sorted(found["probability"])
    assert "Rows to look at" in [picture.title for picture in pictures(model)]


def test_rows_that_were_foreseen_are_not_to_be_looked_at():
    """Rows held out whose class had a probability above a half are no errors."""
    frame = pd.DataFrame({"x": np.linspace(-3, 3, 80)})
    frame["side"] = np.where(frame.x > 0.02, "right", "left")
    model = fit_table(prepare(Table(frame, "t"), "side")).model
    assert model.facts["unforeseen"]["row"] == []
    assert "Rows to look at" not in [picture.title for picture in pictures(model)]


def test_intervals_of_counts_are_those_of_counts(counts):
    """Bars end at the quantiles of the counts, which are whole and never negative; rows to look at lie outside."""
    held = counts.facts["held_out"]
    lower, upper, observed = (np.array(held[name]) for name in ("lower", "upper", "observed"))
    assert (lower >= 0).all()
    assert (lower == np.floor(lower)).all()
    shown = list(pictures(counts))
    drawn = shown[0].chart.to_dict()
    bars = drawn["datasets"][drawn["layer"][0]["data"]["name"]]
    assert [bar["lower"] for bar in bars] == lower.tolist()
    outside = int(((observed < lower) | (observed > upper)).sum())
    assert len(counts.facts["unforeseen"]["row"]) == min(outside, 12)


def test_dates_are_drawn_as_dates(counts):
    (curve,) = [picture for picture in pictures(counts) if picture.title == "Along day"]
    drawn = curve.chart.to_dict()
    assert {layer["encoding"]["x"]["type"] for layer in drawn["layer"]} == {"temporal"}
    rows = drawn["datasets"][drawn["data"]["name"]]
    assert rows[0]["at"].startswith("2023-01-0")
    (drawn,) = [picture.chart.to_dict() for picture in pictures(counts) if picture.title.count(" and ")]
    cells = next(iter(drawn["datasets"].values()))
    day, end = ("x", "x2") if drawn["encoding"]["x"]["title"] == "day" else ("y", "y2")
    assert all("2023" in cell[day] < cell[end] for cell in cells)


def test_only_columns_that_matter_are_drawn():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(80, 30)), columns=[f"x{i}" for i in range(30)])
    frame["y"] = 3 * frame.x3 + 0.1 * rng.normal(size=80)
    model = fit_table(prepare(Table(frame, "t"), "y", options={"method": "direct"})).model
    shown = {picture.title: picture for picture in pictures(model)}
    along = [title.removeprefix("Along ") for title in shown if title.startswith("Along ")]
    assert along[0] == "x3"
    assert all(model.facts["relevance"][name] >= 1e-3 for name in along)
    bars = next(iter(shown["What matters"].chart.to_dict()["datasets"].values()))
    assert (len(bars), bars[0]["column"]) == (15, "x3")
    assert "15 columns that matter less are left out" in shown["What matters"].caption


def test_bands_hold_what_chance_explains():
    """The band of the calibration holds 95 % of the shares that right intervals cover, or a little more."""
    rng = np.random.default_rng(0)
    drawn = calibration([0.5], [0.4], rows=40).to_dict()
    band = drawn["datasets"][drawn["layer"][0]["data"]["name"]]
    (at,) = [one for one in band if abs(one["promised"] - 0.8) < 1e-9]
    shares = rng.binomial(40, 0.8, size=100_000) / 40
    assert 0.95 <= ((at["lower"] <= shares) & (shares <= at["upper"])).mean() < 0.99
    drawn = probability_integral(rng.uniform(size=200)).to_dict()
    (at,) = drawn["datasets"][drawn["layer"][0]["data"]["name"]]
    heights = rng.binomial(200, 0.1, size=100_000)
    assert 0.95 <= ((at["lower"] <= heights) & (heights <= at["upper"])).mean() < 0.98


def test_the_solve_of_an_iterative_fit_is_drawn():
    prepared = prepare(Table(houses(120), "t"), "price", options={"method": "iterative", "max_iter": 2})
    model = fit_table(prepared).model
    residuals = model.facts["solve"]
    assert residuals[-1] < 1e-5 < residuals[0]
    assert "Convergence" in [picture.title for picture in pictures(model)]


def test_pictures_are_written_as_files(regression, tmp_path):
    picture = next(iter(pictures(regression)))
    save_picture(picture.chart, tmp_path / "a.png")
    save_picture(picture.chart, tmp_path / "a.svg")
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    assert "<svg" in (tmp_path / "a.svg").read_text()
    with pytest.raises(ValueError, match="pictures are written as"):
        save_picture(picture.chart, tmp_path / "a.bmp")


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("which", ["regression", "nasty", "counts"])
def test_a_browser_draws_all_pictures_without_an_error(request, tmp_path, which, width):
    model = request.getfixturevalue(which)
    path = tmp_path / "page.html"
    noted = "<script>window.onerror = (m) => document.body.setAttribute('data-error', m);</script>"
    path.write_text(page_of(model).replace("<main>", f"{noted}<main>"), encoding="utf-8")
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    flags += f" --disable-component-update --disable-sync --window-size={width},900 --virtual-time-budget=10000"
    command = [BROWSER, *flags.split(), f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert "data-error" not in re.search(r"<body[^>]*>", done.stdout).group()
    drawn = done.stdout.split("<main>")[1].split("</main>")[0]
    assert drawn.count("<svg") == len(list(pictures(model)))


def test_a_frame_of_plain_columns_needs_nothing_else(regression):
    assert isinstance(regression.predict(pd.DataFrame(houses(3)).drop(columns="price")), pd.DataFrame)


def test_the_typical_house_is_of_the_commonest_kind(regression):
    X = regression.estimator.posterior_.problem.X.numpy()
    for name in ("kind", "heating"):
        features = regression.encoding.groups()[name]
        expected = np.eye(len(features))[X[:, features].sum(0).argmax()]
        np.testing.assert_array_equal(_typical(regression, X)[features], expected)


def table_of(values, **options):
    """Return a model of one column that is predicted from two random ones."""
    X = np.random.default_rng(0).uniform(0, 4, (len(values), 2))
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": values})
    return fit_table(prepare(Table(frame, "t"), "y", options=options), hold_out=False).model, X


def test_a_slice_of_numbers_is_the_mean_within_both_bands(regression):
    points = regression.estimator.posterior_.problem.X.numpy()[:7]
    (found,) = slices_at(regression, points)
    np.testing.assert_allclose(found.level, regression.estimator.predict(points))
    assert (found.exact[0] <= found.level).all()
    assert (found.level <= found.exact[1]).all()
    widths = [high - low for low, high in (found.exact, found.credible)]
    assert (widths[0] > 0).all()
    assert (widths[0] < 1e-3 * widths[1]).all()


@pytest.mark.parametrize("weight", [None, "balanced"])
def test_a_slice_of_two_classes_is_their_probability_within_both_bands(weight):
    X = np.random.default_rng(0).uniform(0, 4, (90, 2))
    model, _ = table_of(np.where(X.sum(1) > 5, "yes", "no"), class_weight=weight)
    (found,) = slices_at(model, X[:9])
    np.testing.assert_allclose(found.level, model.estimator.predict_proba(X[:9])[:, 1], atol=1e-9)
    for low, high in (found.exact, found.credible):
        assert ((low <= found.level) & (found.level <= high)).all()
        assert ((low >= 0) & (high <= 1)).all()


@pytest.mark.parametrize(("likelihood", "weight"), [("softmax", "balanced"), ("logit", None)])
def test_slices_of_three_classes_are_their_probabilities_within_both_bands(likelihood, weight):
    X = np.random.default_rng(0).uniform(0, 4, (90, 2))
    labels = np.array(["low", "middle", "high"])[np.digitize(X.sum(1), [2.5, 4.5])]
    model, _ = table_of(labels, likelihood=likelihood, class_weight=weight, max_iter=3)
    found = slices_at(model, X[:9])
    assert [one.label for one in found] == ["P(high)", "P(low)", "P(middle)"]
    np.testing.assert_allclose(np.stack([one.level for one in found], 1), model.estimator.predict_proba(X[:9]))
    np.testing.assert_allclose(centres_at(model, X[:9]), model.estimator.predict_proba(X[:9]))
    for one in found:
        low, high = one.exact
        assert ((low >= 0) & (low <= one.level) & (one.level <= high) & (high <= 1)).all()
        assert (high - low).max() < 0.1
        low, high = one.credible
        assert ((low >= 0) & (low <= one.level) & (one.level <= high) & (high <= 1)).all()
        assert (low < high).all()
    titles = {picture.title: picture.chart.to_dict() for picture in pictures(model)}
    assert {"Along a", "Along b"} <= set(titles)
    assert any(title.startswith("Classes over") for title in titles)
    (curves,) = titles["Along a"]["datasets"].values()
    assert {curve["class"] for curve in curves} == {"low", "middle", "high"}
    at_first = [curve["probability"] for curve in curves if curve["at"] == curves[0]["at"]]
    assert sum(at_first) == pytest.approx(1)


def test_draws_of_probabilities_have_the_mean_that_is_predicted():
    X = np.random.default_rng(0).uniform(0, 4, (90, 2))
    labels = np.array(["low", "middle", "high"])[np.digitize(X.sum(1), [2.5, 4.5])]
    for likelihood in ("softmax", "probit"):
        model, _ = table_of(labels, likelihood=likelihood, max_iter=3)
        drawn = _drawn_probabilities(model.estimator, X[:9])
        np.testing.assert_allclose(drawn.sum(1), 1)
        spread = drawn.std(2) / drawn.shape[2] ** 0.5
        share = 0.0 if likelihood == "softmax" else 0.03  # averages of shares are not shares of averages
        off = np.abs(drawn.mean(2) - model.estimator.predict_proba(X[:9]))
        assert (off < 4.5 * spread + share + 2e-3).all()


def test_the_band_of_a_class_holds_95_per_cent_of_its_probabilities():
    X = np.random.default_rng(0).uniform(0, 4, (90, 2))
    model, _ = table_of(np.where(X.sum(1) > 4, "yes", "no"), calibrated=False, likelihood="logit")
    (found,) = slices_at(model, X[:5])
    mean, std = model.estimator.latent(X[:5], return_std=True)
    low, high = (1 / (1 + np.exp(-(mean + side * std))) for side in (-1.959964, 1.959964))
    np.testing.assert_allclose(found.credible[0], np.minimum(low, found.level), rtol=1e-6)
    np.testing.assert_allclose(found.credible[1], np.maximum(high, found.level), rtol=1e-6)


def test_a_slice_of_counts_is_their_median_rate():
    X = np.random.default_rng(0).uniform(0, 4, (90, 2))
    model, _ = table_of(np.random.default_rng(1).poisson(np.exp(X[:, 0] / 2)))
    (found,) = slices_at(model, X[:9])
    np.testing.assert_allclose(found.level, np.exp(model.estimator.latent(X[:9])))
    assert ((found.exact[0] < found.level) & (found.level < found.exact[1])).all()


@pytest.mark.parametrize(
    ("values", "likelihood"),
    [(["no", "yes"], "auto"), (["a", "b", "c"], "softmax"), (["a", "b", "c"], "logit")],
)
def test_the_classes_of_the_rows_are_known_to_the_picture(values, likelihood):
    labels = np.random.default_rng(2).choice(values, 60)
    model, _ = table_of(labels, likelihood=likelihood, max_iter=1)
    assert (model.estimator.classes_[_codes(model)] == labels).all()


def test_the_partial_dependence_averages_over_the_rows(regression):
    X = regression.estimator.posterior_.problem.X.numpy()
    feature = regression.encoding.groups()["area"][0]
    moved = X[np.linspace(0, len(X) - 1, 50).astype(int)].copy()
    moved[:, feature] = 80.0
    found = _averages(regression, X, feature, np.array([50.0, 60.0, 80.0]))
    np.testing.assert_allclose(found[2, 0], regression.estimator.predict(moved).mean())


def test_curves_of_counts_and_their_average_are_rates_alike():
    X = np.random.default_rng(0).uniform(0, 4, (60, 2))
    model, _ = table_of(np.random.default_rng(1).poisson(np.exp(X[:, 0] / 2)))
    np.testing.assert_allclose(centres_at(model, X[:5])[:, 0], slices_at(model, X[:5])[0].level)


def test_reliability_is_the_share_of_right_rows_by_probability():
    drawn = reliability([0.61, 0.69, 0.95, 1.0], [True, False, True, True]).to_dict()
    (dots,) = [found for found in drawn["datasets"].values() if "right" in found[0]]
    assert [(dot["right"], dot["rows"]) for dot in dots] == [(0.5, 2), (1.0, 2)]
    np.testing.assert_allclose([dot["promised"] for dot in dots], [0.65, 0.975])


def test_a_report_of_counts_has_its_calibration():
    frame = houses(120).drop(columns="price")
    frame["visits"] = np.random.default_rng(0).poisson(3, 120)
    model = fit_table(prepare(Table(frame, "t"), "visits")).model
    assert 0.5 <= model.facts["scores"]["coverage"] <= 1
    assert "Calibration" in [picture.title for picture in pictures(model)]


def test_the_page_summarises_the_data(regression):
    frame = houses(120)
    page = page_of(regression)
    assert f"from {frame.price.min():.4g} to {frame.price.max():.4g}, median {frame.price.median():.4g}" in page
    assert f"from {frame.area.min():.4g} to {frame.area.max():.4g}, median {frame.area.median():.4g}" in page


def test_dates_are_summarised_as_dates():
    frame = pd.DataFrame({"day": pd.date_range("2024-02-28", periods=40), "y": np.sin(np.arange(40) / 5.0)})
    model = fit_table(prepare(Table(frame, "t"), "y", options={"method": "direct", "max_iter": 1})).model
    assert "from 2024-02-28 to 2024-04-07" in page_of(model)
