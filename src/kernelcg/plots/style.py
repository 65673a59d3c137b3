"""Colours, and how many points a picture shows."""

import pandas as pd

ACCENT, BAND, SECOND, GREY = "#4c78a8", "#9ecae9", "#e45756", "#8a8f98"

MOST_POINTS = 2000
"""Points that a picture shows; more are thinned out evenly."""


def thinned(frame: pd.DataFrame) -> pd.DataFrame:
    """Return at most `MOST_POINTS` rows, evenly spaced."""
    step = -(-len(frame) // MOST_POINTS)
    return frame.iloc[::step]
