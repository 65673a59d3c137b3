"""What the command says, and that saying it never spoils the work."""

import io
import os
import sys

import pandas as pd
import pytest
from typer.testing import CliRunner

from kernelcg.cli import main
from kernelcg.cli.app import app
from kernelcg.cli.words import line, listed, of_relevance, say
from kernelcg.tables import TableModel
from kernelcg.tables.houses import houses


def kernelcg(*arguments):
    """Run the command in this process."""
    found = CliRunner().invoke(app, [*map(str, arguments)])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a table, with a name that not every terminal knows, and a model of it."""
    found = tmp_path_factory.mktemp("houses")
    houses(40).rename(columns={"kind": "größe"}).to_csv(found / "houses.csv", index=False)
    options = ["-s", "optimizer=None", "-s", "method=direct", "--no-report"]
    done = kernelcg("fit", found / "houses.csv", "-t", "price", "-o", found / "houses.kcg", *options)
    assert done.exit_code in (0, 3), done.stderr
    return found


def test_long_labels_are_apart_from_what_follows():
    assert line("standard_input.csv", "80 rows") == "standard_input.csv 80 rows"
    assert line("note", "words") == "note         words"


def test_many_columns_are_named_in_part():
    assert listed(["a", "b"], 2) == "a, b"
    assert listed(list("abcde"), 2) == "a, b and 3 others"
    said = of_relevance({f"x{i}": 0.5 / (i + 1) if i < 30 else 0.0 for i in range(300)})
    assert "18 others less" in said
    assert "and 258 others" in said


def test_a_reader_that_has_gone_does_not_end_the_work(monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        say("nobody reads this\n")
        say("nor this\n")


def test_an_encoding_without_a_letter_does_not_end_the_work(monkeypatch, folder):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "argv", ["kernelcg", "info", str(folder / "houses.kcg"), "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    stream.flush()
    assert b"gr\\u00f6\\u00dfe" in stream.buffer.getvalue()


def test_predictions_say_what_was_odd_and_where_they_are(folder, tmp_path, monkeypatch):
    new = houses(3).rename(columns={"kind": "größe"}).drop(columns="price")
    new["größe"], new["area"] = ["castle", None, "boat"], ["1,200", "80", "90"]
    new.to_csv(tmp_path / "new.csv", index=False)
    monkeypatch.setattr(TableModel, "is_certified", property(lambda model: False))
    done = kernelcg("predict", folder / "houses.kcg", tmp_path / "new.csv", "-o", tmp_path / "p.csv")
    assert done.exit_code == 3
    assert "categories that the fit has not seen: '(missing)', 'boat', 'castle'" in done.stderr
    assert "'area' is read as numbers: thousands separators" in done.stderr
    assert "the predictions are not certified" in done.stderr
    assert f"{tmp_path / 'p.csv'} (3 rows)" in done.stdout
    assert len(pd.read_csv(tmp_path / "p.csv")) == 3


def test_a_category_that_looks_like_a_number_is_the_category_of_the_fit(tmp_path):
    """Of one row with "10%" the column could be read as numbers; the fit knows the words "10%" and "none"."""
    options = ["-s", "optimizer=None", "-s", "method=direct", "--no-report"]
    frame = houses(40).assign(discount=10 * ["10%", "none", "none", "20%"])[["area", "discount", "price"]]
    frame.to_csv(tmp_path / "a.csv", index=False)
    kernelcg("fit", tmp_path / "a.csv", "-t", "price", "-o", tmp_path / "m.kcg", *options)
    frame.head(1).to_csv(tmp_path / "one.csv", index=False)
    one, all_rows = (kernelcg("predict", tmp_path / "m.kcg", tmp_path / name) for name in ("one.csv", "a.csv"))
    assert "not seen" not in one.stderr
    assert one.stdout.splitlines()[1] == all_rows.stdout.splitlines()[1]


def test_files_that_are_not_there_are_named(folder, tmp_path):
    done = kernelcg("predict", tmp_path / "no.kcg", folder / "houses.csv")
    assert (done.exit_code, f"there is no file {tmp_path / 'no.kcg'}" in done.stderr) == (2, True)


def test_a_page_that_fails_does_not_hide_that_the_model_is_safe(folder, tmp_path, monkeypatch):
    def fail(model, page):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kernelcg.reports.write_page", fail)
    options = ["-s", "optimizer=None", "-s", "method=direct"]
    done = kernelcg("fit", folder / "houses.csv", "-t", "price", "-o", tmp_path / "m.kcg", *options)
    assert (done.exit_code, "No space left" in done.stderr) == (2, True)
    assert f"saved        {tmp_path / 'm.kcg'}" in done.stdout


def test_no_threads_are_refused_in_words(folder):
    done = kernelcg("plan", folder / "houses.csv", "-t", "price", "--jobs", "0")
    assert (done.exit_code, "give 1 or more" in done.stderr) == (2, True)
