"""What the site builder does beside its own work: figures of the experiments, and pages that need no network."""

import re
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File
from mkdocs.utils import get_relative_url

FIGURES = Path(__file__).parent.parent / "experiments" / "figures"

REMOTE_SHIM, OWN_SHIM = "https://unpkg.com/iframe-worker/shim", "javascripts/iframe-worker.js"
"""What lets pages that are opened as files search: where the theme loads it from, and the copy that the site has."""

LOADED = re.compile(
    r'<(?:script|img)[^>]* src="?(https?:[^" >]*)|<link rel="?stylesheet"?[^>]* href="?(https?:[^" >]*)'
)


def on_files(files, config):
    """Add the committed figures of the experiments to the site."""
    for picture in sorted(FIGURES.glob("*.png")):
        files.append(File.generated(config, f"figures/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Point links to the figures where the site has them."""
    return markdown.replace("](../experiments/figures/", "](figures/")


def on_post_page(output, page, config):
    """Load nothing from elsewhere, so that pages and their search work without a network."""
    output = output.replace(REMOTE_SHIM, get_relative_url(OWN_SHIM, page.url))
    if remote := LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} loads {remote[1] or remote[2]} from elsewhere; keep a copy in docs/")
    return output
