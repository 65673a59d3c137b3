"""Files become tables, or an error says in plain words why not."""

import gzip
import io
import os
import zipfile

import numpy as np
import pandas as pd
import pytest

from kernelcg.tables import TableError, read_table
from kernelcg.tables.reading import no_column

ROWS = "area,kind,price\n10,flat,1.5\n20,house,2.5\n"


def written(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plain.csv", ROWS),
        ("bom.csv", b"\xef\xbb\xbf" + ROWS.encode()),
        ("utf16.csv", ROWS.encode("utf-16")),
        ("semicolon.csv", ROWS.replace(",", ";")),
        ("tabs.tsv", ROWS.replace(",", "\t")),
        ("pipes.txt", ROWS.replace(",", "|")),
        ("comma.csv", ROWS.replace(",", ";").replace(".", ",")),
        ("packed.csv.gz", gzip.compress(ROWS.encode(), mtime=0)),
        ("quoted.csv", 'area,kind,price\n10,"flat",1.5\n20,"house",2.5\n'),
        ("spaced.csv", " area , kind, price\n10,flat, 1.5\n20, house,2.5\n"),
        ("windows.csv", ROWS.replace("\n", "\r\n")),
    ],
)
def test_text_is_read_whatever_its_delimiter_and_encoding(tmp_path, name, content):
    frame = read_table(written(tmp_path, name, content)).frame
    expected = pd.DataFrame({"area": [10, 20], "kind": ["flat", "house"], "price": [1.5, 2.5]})
    pd.testing.assert_frame_equal(frame, expected, check_dtype=False)


def test_cells_may_hold_newlines_and_delimiters(tmp_path):
    frame = read_table(written(tmp_path, "a.csv", 'note,y\n"two\nlines, one cell",1\n"say ""hi""",2\n')).frame
    assert frame.note.tolist() == ["two\nlines, one cell", 'say "hi"']


def test_another_encoding_is_noted(tmp_path):
    table = read_table(written(tmp_path, "a.csv", "größe,y\nklein,1\nfünf,2\n".encode("cp1252")))
    assert table.frame.columns[0] == "größe"
    assert any("cp1252" in note for note in table.notes)


def test_binary_formats_give_the_same_table(tmp_path):
    frame = pd.DataFrame({"x0": [1.0, 2.0], "x1": [3.0, 4.0]})
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_feather(tmp_path / "a.feather")
    np.save(tmp_path / "a.npy", frame.to_numpy())
    np.savez(tmp_path / "a.npz", x0=frame.x0, x1=frame.x1)
    for name in ("a.parquet", "a.feather", "a.npy", "a.npz"):
        pd.testing.assert_frame_equal(read_table(tmp_path / name).frame, frame)


def test_a_matrix_in_an_archive_gives_several_columns(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.arange(6.0).reshape(3, 2), y=np.arange(3.0))
    assert list(read_table(tmp_path / "a.npz").frame.columns) == ["X0", "X1", "y"]


def test_objects_in_numpy_files_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"run": "code"}], dtype=object), allow_pickle=True)
    with pytest.raises(TableError, match="cannot be read"):
        read_table(tmp_path / "a.npy")


def test_a_pipe_is_read(monkeypatch):
    monkeypatch.setattr("sys.stdin", type("Pipe", (), {"buffer": io.BytesIO(ROWS.encode())}))
    assert len(read_table("-").frame) == 2


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.csv", "", "is empty"),
        ("blank.csv", "\n \n", "is empty"),
        ("header.csv", "a,b\n", "has a header but no rows"),
        ("twice.csv", "a,b,a\n1,2,3\n", "several columns named 'a'"),
        ("ragged.csv", "a,b\n1,2\n3,4,5\n", "cannot be read as a table"),
        ("wide.csv", "a,b\n1,2,3\n4,5,6\n", "more cells than its header"),
        ("binary.csv", b"a,b\n\x00\x01\x02,2\n", "is not text"),
        ("broken.parquet", b"no parquet", "cannot be read"),
        ("broken.npy", b"no array", "cannot be read"),
        ("broken.csv.gz", b"\x1f\x8bnonsense", "cannot be read"),
    ],
)
def test_files_that_are_no_tables_are_refused_in_plain_words(tmp_path, name, content, words):
    with pytest.raises(TableError, match=words):
        read_table(written(tmp_path, name, content))


def test_directories_and_missing_files_are_named(tmp_path):
    with pytest.raises(TableError, match="is a directory"):
        read_table(tmp_path)
    with pytest.raises(TableError, match="there is no file"):
        read_table(tmp_path / "nothing.csv")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(tmp_path):
    path = written(tmp_path, "a.csv", ROWS)
    path.chmod(0)
    with pytest.raises(TableError, match="permission"):
        read_table(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("mark.csv", b"\xef\xbb\xbf\n"),
        ("cell.csv", 'a,y\n"' + "x" * 200_000 + '",1\n'),
        ("packed.csv.gz", gzip.compress(b"a,y\n", mtime=0)[:10] + b"\xff" * 30),
        ("arrays.npz", b"PK\x03\x04 and then nothing of an archive"),
    ],
)
def test_damaged_files_are_refused_in_words(tmp_path, name, content):
    with pytest.raises(TableError, match=name):
        read_table(written(tmp_path, name, content))


def test_names_are_one_line_that_can_be_seen(tmp_path):
    frame = read_table(written(tmp_path, "a.csv", '"Price\n(EUR)",\x1b[31mred,,y\n1,2,3,4\n')).frame
    assert list(frame.columns) == ["Price (EUR)", "[31mred", "column 3", "y"]


def test_a_file_without_a_header_is_said_to_have_none(tmp_path):
    with pytest.raises(TableError, match="the file has no header"):
        read_table(written(tmp_path, "a.csv", "0,0,1.5\n1,2,2.5\n"))


def test_a_column_that_may_be_meant_is_named():
    assert "did you mean 'price'?" in str(no_column("Price", ["area", "price"]))
    assert "did you mean 'price'?" in str(no_column("prise", ["area", "price"]))
    many = str(no_column("zzz", [f"x{i}" for i in range(300)]))
    assert "and 280 others" in many
    assert len(many) < 300


def test_labels_of_rows_that_mean_something_are_a_column(tmp_path):
    times = pd.date_range("2024-01-01", periods=3, name="when")
    pd.DataFrame({"y": [1.0, 2.0, 3.0]}, index=times).to_parquet(tmp_path / "a.parquet")
    assert list(read_table(tmp_path / "a.parquet").frame.columns) == ["when", "y"]
    pd.DataFrame({"y": [1.0, 2.0, 3.0]}, index=[5, 7, 9]).to_parquet(tmp_path / "b.parquet")
    assert list(read_table(tmp_path / "b.parquet").frame.columns) == ["y"]


def test_spreadsheets_and_archives_are_refused_with_the_way_out(tmp_path):
    with zipfile.ZipFile(tmp_path / "houses.xlsx", "w") as packed:
        packed.writestr("xl/workbook.xml", "<workbook/>")
    with pytest.raises(TableError, match="save its table as CSV"):
        read_table(tmp_path / "houses.xlsx")
