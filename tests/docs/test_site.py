"""The built documentation in a browser without a network: its search finds pages."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
OFFLINE = ["--headless", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND"]

pytestmark = [
    pytest.mark.skipif(find_spec("mkdocs") is None, reason="the extra docs is not installed"),
    pytest.mark.skipif(BROWSER is None, reason="there is no browser"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-f", ROOT / "mkdocs.yml", "-d", folder]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    return folder


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("fingerprint", "tutorials/molecules.html"),
        ("publication", "cite.html"),
        pytest.param("nugget", "questions.html", id="a word in parentheses"),
    ],
)
def test_pages_opened_as_files_can_be_searched(site, tmp_path, words, page):
    url = f"{(site / 'index.html').as_uri()}?q={words}"
    own = ["--virtual-time-budget=20000", f"--user-data-dir={tmp_path}", "--dump-dom", url]
    shown = subprocess.run([BROWSER, *OFFLINE, *own], capture_output=True, text=True, timeout=300).stdout
    links = shown[shown.index('class="md-search-result__list"') :]
    assert page in links[: links.index("</ol>")]
