"""Pictures of models, made of plain numbers by Altair.

One description of a picture serves the interactive page, which needs no network, and files: `save_picture` writes PNG
and SVG without a browser. That is why Altair was chosen: Plotly's PNG files need a browser, and
matplotlib's pictures are not interactive.
"""

from kernelcg.plots.computing import convergence, learning_curve, save_picture
from kernelcg.plots.functions import boundaries, class_dependence, dependence, map_of, relevance
from kernelcg.plots.judging import (
    calibration,
    confusion,
    predicted_against_observed,
    probability_integral,
    reliability,
    residuals,
    surprises,
    unforeseen,
)

__all__ = [
    "boundaries",
    "calibration",
    "class_dependence",
    "confusion",
    "convergence",
    "dependence",
    "learning_curve",
    "map_of",
    "predicted_against_observed",
    "probability_integral",
    "relevance",
    "reliability",
    "residuals",
    "save_picture",
    "surprises",
    "unforeseen",
]
