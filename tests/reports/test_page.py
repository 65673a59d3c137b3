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
from kernelcg.reports.page import page_of
from kernelcg.reports.pictures import _typical, pictures
from kernelcg.tables import Table, fit_table
from kernelcg.tables.fitting import prepare
from kernelcg.tables.houses import houses

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
NASTY = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def regression():
    return fit_table(prepare(Table(houses(120), "houses.csv"), "price", options={"method": "direct"})).model


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
    assert "Classes of rows held out" in titles
    (boundary,) = [picture for picture in pictures(model) if picture.title.startswith("Classes over")]
    drawn = boundary.chart.to_dict()
    cells = next(iter(drawn["datasets"].values()))
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
@pytest.mark.parametrize("which", ["regression", "nasty"])
def test_a_browser_draws_all_pictures_without_an_error(request, tmp_path, which, width):
    model = request.getfixturevalue(which)
    path = tmp_path / "page.html"
    noted = "<script>window.onerror = (m) => document.body.setAttribute('data-error', m);</script>"
    path.write_text(page_of(model).replace("<main>", f"{noted}<main>"), encoding="utf-8")
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    flags += f" --disable-component-update --disable-sync --window-size={width},900 --virtual-time-budget=10000"
    command = [BROWSER, *flags.split(), f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
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
