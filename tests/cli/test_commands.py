"""The command as a person uses it: what it prints, what it writes, how it ends."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from kernelcg.cli.app import app
from kernelcg.cli.fitting import _code
from kernelcg.cli.words import line, styled
from kernelcg.errors import Interrupted, StopRequested
from kernelcg.events import EventKind
from kernelcg.tables import Table, fit_table
from kernelcg.tables.fitting import prepare
from kernelcg.tables.houses import houses

COMMAND = [sys.executable, "-c", "from kernelcg.cli import main; main()"]


@dataclass
class Done:
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def kernelcg(*arguments, input=None):
    """Run the command in this process; that saves importing torch anew each time."""
    found = CliRunner().invoke(app, [*map(str, arguments)], input=input)
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return Done(found.exit_code, found.stdout, found.stderr)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a small table and a model of it."""
    found = tmp_path_factory.mktemp("houses")
    houses(150).to_csv(found / "houses.csv", index=False)
    done = kernelcg("fit", found / "houses.csv", "-t", "price", "-o", found / "houses.kcg", "-s", "method=direct")
    assert done.returncode == 0, done.stderr
    (found / "fit.txt").write_text(done.stdout)
    return found


def test_a_fit_says_what_a_person_wants_to_know(folder):
    said = (folder / "fit.txt").read_text()
    for label in ("houses.csv", "target", "plan", "learned", "relevance", "held out 10%", "numerics", "saved"):
        assert f"\n{label}" in f"\n{said}"
    assert "4 numeric, 2 categorical (one-hot), 1 with" in said
    assert (folder / "houses.html").stat().st_size > 500_000


def test_predictions_have_intervals_and_follow_the_model(folder):
    done = kernelcg("predict", folder / "houses.kcg", folder / "houses.csv", "--interval", "80", "-o", folder / "p.csv")
    assert done.returncode == 0, done.stderr
    found, known = pd.read_csv(folder / "p.csv"), pd.read_csv(folder / "houses.csv")
    inside = (found.lower <= known.price) & (known.price <= found.upper)
    assert 0.7 < inside.mean() < 0.95
    assert np.corrcoef(found.price, known.price)[0, 1] > 0.95


def test_predictions_go_to_a_pipe_and_come_from_one(folder):
    text = (folder / "houses.csv").read_text().splitlines()
    done = kernelcg("predict", folder / "houses.kcg", "-", input="\n".join(text[:4]))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "price,std,lower,upper"
    assert len(done.stdout.splitlines()) == 4


def test_a_missing_column_is_named(folder, tmp_path):
    pd.read_csv(folder / "houses.csv").drop(columns="area").to_csv(tmp_path / "b.csv", index=False)
    done = kernelcg("predict", folder / "houses.kcg", tmp_path / "b.csv")
    assert done.returncode == 2
    assert "no column 'area'" in done.stderr


def test_an_unseen_category_is_noted(folder, tmp_path):
    pd.read_csv(folder / "houses.csv").assign(kind="castle").to_csv(tmp_path / "b.csv", index=False)
    done = kernelcg("predict", folder / "houses.kcg", tmp_path / "b.csv")
    assert done.returncode == 0
    assert "'castle'" in done.stderr


def test_a_model_tells_of_itself(folder):
    done = kernelcg("info", folder / "houses.kcg")
    assert done.returncode == 0, done.stderr
    assert "price: regression, 150 rows" in done.stdout
    assert json.loads(kernelcg("info", folder / "houses.kcg", "--json").stdout)["target"] == "price"


def test_a_plan_fits_nothing(folder):
    done = kernelcg("plan", folder / "houses.csv", "-t", "price")
    assert done.returncode == 0, done.stderr
    assert "conditioning" in done.stdout
    assert json.loads(kernelcg("plan", folder / "houses.csv", "-t", "price", "--json").stdout)["rows"] == 150


def test_a_time_limit_is_said_to_leave_the_conditioning(folder):
    done = kernelcg("fit", folder / "houses.csv", "-t", "price", "--max-seconds", "1e-6", "-s", "method=direct")
    assert "learning ends after 1e-06 s with the best so far; conditioning on all rows then takes about" in done.stdout


def test_json_is_all_that_machines_read(folder):
    done = kernelcg("fit", folder / "houses.csv", "-t", "price", "--json", "-s", "max_iter=2", "-s", "method=direct")
    found = json.loads(done.stdout)
    assert found["task"] == "regression"
    assert found["scores"]["rows"] == 15


def test_files_that_exist_are_kept(folder):
    before = (folder / "houses.kcg").read_bytes()
    done = kernelcg("fit", folder / "houses.csv", "-t", "price", "-o", folder / "houses.kcg")
    assert done.returncode == 2
    assert "--force" in done.stderr
    assert (folder / "houses.kcg").read_bytes() == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,y\n1,2\n", "one row"),
        ("a,b\n1,2\n3,4\n", "no column 'y'"),
        ("a,y\nx,1.5\n2,2.5\n3,3.5\n4,4.5\n", "'x' in row 1"),
        ("", "is empty"),
        ("a,y\n", "no rows"),
        ("a,a,y\n1,2,3\n", "several columns"),
        ("a;y\n1;2\n2\n3;4;5\n", "cannot be read as a table"),
        ("a,y\n1,1e309\n2,2\n3,3.5\n", "not a finite number"),
        ("a,y\n1,1\n1,2\n1,3.5\n", "it is constant"),
    ],
)
def test_bad_files_end_with_a_sentence_and_code_2(tmp_path, content, words):
    (tmp_path / "bad.csv").write_text(content)
    done = kernelcg("fit", tmp_path / "bad.csv", "-t", "y", "-o", tmp_path / "m.kcg")
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "m.kcg").exists()


def test_bad_arguments_end_with_code_2(folder, tmp_path):
    data = folder / "houses.csv"
    for arguments in (
        ["fit", tmp_path, "-t", "price"],
        ["fit", tmp_path / "nothing.csv", "-t", "price"],
        ["fit", data, "-t", "price", "-o", tmp_path / "no" / "where.kcg"],
        ["fit", data, "-t", "price", "-s", "colour=direct"],
        ["fit", data, "-t", "price", "-s", "method"],
        ["fit", data, "-t", "price", "--task", "guessing"],
        ["fit", data, "-t", "price", "--resume"],
        ["predict", data, data],
        ["predict", folder / "houses.kcg", data, "--interval", "0"],
        ["info", data],
    ):
        done = kernelcg(*arguments)
        assert done.returncode == 2, (arguments, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, arguments


def test_a_kernel_system_is_solved(tmp_path):
    rng = np.random.default_rng(0)
    X, b = rng.normal(size=(200, 3)), rng.normal(size=200)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "b.npy", b)
    done = kernelcg("solve", tmp_path / "X.npy", tmp_path / "b.npy", "--kernel", "rbf", "-o", tmp_path / "a.npy")
    assert done.returncode == 0, done.stderr
    squared = np.square(X[:, None] - X[None]).sum(-1)
    expected = np.linalg.solve(np.exp(-squared / 2) + 0.1 * np.eye(200), b)
    np.testing.assert_allclose(np.load(tmp_path / "a.npy"), expected, rtol=1e-6, atol=1e-7)
    again = kernelcg("solve", tmp_path / "X.npy", tmp_path / "b.npy", "-o", tmp_path / "a.npy", "--force", "--json")
    assert json.loads(again.stdout)["status"] == "CONVERGED"


def test_a_comparison_is_a_table_for_machines(tmp_path):
    houses(60).to_csv(tmp_path / "few.csv", index=False)
    done = kernelcg("compare", tmp_path / "few.csv", "-t", "price", "--budget", "0.2", "--json")
    assert done.returncode == 0, done.stderr
    assert {"kernelcg", "CHOL"} <= {row["method"] for row in json.loads(done.stdout)}


def test_a_killed_fit_goes_on_to_the_same_numbers(folder, tmp_path):
    arguments = ["fit", folder / "houses.csv", "-t", "price", "--json", "--no-report", "-s", "method=direct"]
    whole = json.loads(kernelcg(*arguments).stdout)
    checkpoint = tmp_path / "run.kcg"
    running = subprocess.Popen(
        [*COMMAND, *map(str, arguments), "--checkpoint", str(checkpoint)], stdout=subprocess.DEVNULL
    )
    while not checkpoint.exists() and running.poll() is None:
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    resumed = kernelcg(*arguments, "--checkpoint", checkpoint, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["kernel"] == whole["kernel"]
    assert json.loads(resumed.stdout)["relevance"] == whole["relevance"]


def test_a_checkpoint_of_other_data_is_refused_with_the_reason(folder, tmp_path):
    other, checkpoint = tmp_path / "other.csv", tmp_path / "run.kcg"
    houses(150, seed=1).to_csv(other, index=False)
    common = ["-t", "price", "--no-report", "-s", "method=direct", "--checkpoint", checkpoint]
    assert kernelcg("fit", folder / "houses.csv", *common).returncode == 0
    done = kernelcg("fit", other, *common, "--resume")
    assert done.returncode == 2
    assert "data" in done.stderr


def test_progress_is_live_on_a_terminal(folder):
    """In a pseudo-terminal the learning line moves, and is gone when the fit is done."""
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        [*COMMAND, "fit", str(folder / "houses.csv"), "-t", "price", "-s", "method=direct"],
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"},
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:
            break
        if not more:
            break
        said += more
    assert running.wait() == 0
    text = said.decode()
    assert "learning" in text
    assert "rows, step" in text
    assert "held out 10%" in text


def test_without_its_packages_the_command_names_the_extra(tmp_path):
    blocked = "import sys; sys.modules['typer'] = None\nimport importlib.util as u; f = u.find_spec\n"
    blocked += "u.find_spec = lambda n: None if n == 'typer' else f(n)\nfrom kernelcg.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "pip install 'kernelcg[cli]'" in done.stderr


def test_help_is_lazy():
    """``--help`` imports neither torch nor pandas: that is what makes it quick."""
    program = (
        "import sys\nfrom kernelcg.cli.app import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'pandas', 'sklearn', 'altair'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1] == "[]"


def test_no_file_is_written_over_another(folder, tmp_path):
    data, model = tmp_path / "data.csv", tmp_path / "model.html"
    for source, copy in ((folder / "houses.csv", data), (folder / "houses.kcg", model)):
        copy.write_bytes(source.read_bytes())
    before = data.read_bytes(), model.read_bytes()
    for arguments, words in (
        (["fit", data, "-t", "price", "--checkpoint", data], "exists"),
        (["fit", data, "-t", "price", "--checkpoint", data, "--force"], "are the same file"),
        (
            ["fit", data, "-t", "price", "-o", tmp_path / "m.kcg", "--checkpoint", tmp_path / "m.kcg"],
            "are the same file",
        ),
        (["fit", data, "-t", "price", "-o", tmp_path / "new.html"], "are the same file"),
        (["report", model, "--force"], "are the same file"),
        (["predict", folder / "houses.kcg", data, "-o", data, "--force"], "are the same file"),
    ):
        done = kernelcg(*arguments)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert (data.read_bytes(), model.read_bytes()) == before


def test_a_demonstration_replaces_nobodys_files(tmp_path):
    (tmp_path / "houses.csv").write_text("mine")
    done = kernelcg("demo", "-o", tmp_path)
    assert (done.returncode, "exists" in done.stderr) == (2, True)
    assert [one.name for one in tmp_path.iterdir()] == ["houses.csv"]
    assert (tmp_path / "houses.csv").read_text() == "mine"


def test_notes_name_categories_with_brackets_and_values_newly_missing(folder, tmp_path):
    pd.read_csv(folder / "houses.csv").head(3).assign(kind="[/i]", area=np.nan).to_csv(tmp_path / "b.csv", index=False)
    done = kernelcg("predict", folder / "houses.kcg", tmp_path / "b.csv")
    said = done.stderr.replace("\n", " ")
    assert done.returncode == 0, done.stderr
    assert "'[/i]'" in said
    assert "'area' is missing in 3 rows" in said


def test_what_cannot_be_solved_is_said(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "X.npy", rng.normal(size=(20, 2)))
    np.save(tmp_path / "words.npy", np.array(["a", "b"]))
    np.savez(tmp_path / "both.npz", X=np.ones((3, 2)), b=np.ones(3))
    for file, words in (("both.npz", "holds several arrays (X, b)"), ("words.npy", "a vector of numbers")):
        done = kernelcg("solve", tmp_path / "X.npy", tmp_path / file, "-o", tmp_path / "a.npy")
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "a.npy").exists()


def test_a_target_with_a_class_for_every_row_is_refused(tmp_path):
    pd.DataFrame({"x": np.arange(40.0), "y": [f"house {i}" for i in range(40)]}).to_csv(tmp_path / "t.csv", index=False)
    done = kernelcg("fit", tmp_path / "t.csv", "-t", "y")
    assert done.returncode == 2
    assert "40 different values in 40 rows" in done.stderr
    assert "Warning" not in done.stderr


def test_a_checkpoint_that_exists_names_the_way_on(folder, tmp_path):
    (tmp_path / "run.kcg").write_text("state")
    done = kernelcg("fit", folder / "houses.csv", "-t", "price", "--checkpoint", tmp_path / "run.kcg")
    assert done.returncode == 2
    assert "--resume to go on from it, or --force to begin again" in done.stderr.replace("\n", " ")


def test_a_failed_write_keeps_the_old_predictions(folder, tmp_path, monkeypatch):
    out = tmp_path / "p.csv"
    out.write_text("old")

    def fail(*files):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    done = kernelcg("predict", folder / "houses.kcg", folder / "houses.csv", "-o", out, "--force")
    assert (done.returncode, "No space left" in done.stderr) == (2, True)
    assert out.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["p.csv"]


def test_interruptions_before_learning_end_with_a_sentence(folder, tmp_path, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("kernelcg.cli.fitting.prepared_table", interrupt)
    arguments = ["fit", folder / "houses.csv", "-t", "price", "--checkpoint", tmp_path / "run.kcg"]
    done = kernelcg(*arguments)
    assert (done.returncode, "interrupted; nothing was written" in done.stderr) == (130, True)
    (tmp_path / "run.kcg").write_text("state")
    done = kernelcg(*arguments, "--resume")
    assert (done.returncode, "with --resume goes on" in done.stderr) == (130, True)


def test_codes_of_interrupted_fits(tmp_path):
    """Only Ctrl-C with a checkpoint gives 130; a time limit and Ctrl-C without one end as the certificate says."""
    prepared = prepare(Table(houses(60), "houses"), "price", options={"method": "direct"})

    def ending(error):
        def listen(event):
            if event.kind is EventKind.STEP:
                raise error

        return fit_table(prepared, callback=listen)

    by_user, by_time = ending(Interrupted("interrupted")), ending(StopRequested("the time limit was reached"))
    assert (by_user.interrupted, by_time.interrupted) == (True, False)
    certified = 0 if by_user.model.is_certified else 3
    assert (_code(by_user, tmp_path / "run.kcg"), _code(by_user, None)) == (130, certified)
    assert _code(by_time, tmp_path / "run.kcg") in (0, 3)


def test_the_memory_of_reading_is_said_before(folder, monkeypatch):
    monkeypatch.setattr("kernelcg.cli.fitting.LARGE_FILE", 1000)
    done = kernelcg("plan", folder / "houses.csv", "-t", "price")
    assert "takes about" in done.stderr
    assert "of memory" in done.stderr.replace("\n", " ")


def test_a_terminal_shows_labels_and_verdicts_in_colour():
    for verdict, style in (("certified: to 1 %", "bold green"), ("NOT exact: why", "bold red")):
        text = f"{line('held out 10%', 'RMSE 1')}\n{line('numerics', verdict)}"
        found = styled(text)
        assert found.plain == text
        marked = {(text[span.start : span.end].strip(), span.style) for span in found.spans}
        assert marked == {("held out 10%", "bold cyan"), ("numerics", "bold cyan"), (verdict.split(":")[0], style)}


def test_files_are_never_coloured_or_broken(folder):
    done = kernelcg("info", folder / "houses.kcg")
    assert "\x1b" not in done.stdout
    assert any(len(one) > 100 for one in done.stdout.splitlines())
