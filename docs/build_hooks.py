"""What the site builder does beside its own work: figures of the experiments lie outside of the pages' folder."""

from pathlib import Path

from mkdocs.structure.files import File

FIGURES = Path(__file__).parent.parent / "experiments" / "figures"


def on_files(files, config):
    """Add the committed figures of the experiments to the site."""
    for picture in sorted(FIGURES.glob("*.png")):
        files.append(File.generated(config, f"figures/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Point links to the figures where the site has them."""
    return markdown.replace("](../experiments/figures/", "](figures/")
