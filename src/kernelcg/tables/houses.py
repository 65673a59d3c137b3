"""A table of invented houses, made by a formula: data for demonstrations whose truth is known."""

import numpy as np
import pandas as pd

KINDS = {"flat": 0.0, "terraced": 12.0, "detached": 45.0}

NOISE = 15.0
"""Standard deviation of the price that no column explains, in thousands."""


def houses(rows: int = 1500, seed: int = 0) -> pd.DataFrame:
    """Return invented houses: area in m², rooms, age in years, distance to the centre in km, kind, heating, price.

    The price rises with the area, less so for old houses, and falls with the distance; the heating does not matter. A
    few ages are missing, as ages are.
    """
    generator = np.random.default_rng(seed)
    kind = generator.choice(list(KINDS), rows, p=[0.5, 0.3, 0.2])
    size = generator.gamma(9.0, 12.0, rows) + 30 * (kind == "detached")
    rooms = np.clip(np.round(size / 28 + generator.normal(0, 0.8, rows)), 1, 9)
    age = generator.uniform(0, 120, rows)
    distance = generator.exponential(6.0, rows)
    price = (
        1.6 * size * (1 + 0.35 * np.exp(-age / 25))
        + 9 * np.sqrt(rooms)
        + 130 * np.exp(-distance / 5)
        + 25 * np.sin(distance / 3)
        + np.vectorize(KINDS.get)(kind)
    )
    frame = pd.DataFrame(
        {
            "area": size.round(1),
            "rooms": rooms.astype(int),
            "age": age.round(),
            "distance": distance.round(2),
            "kind": kind,
            "heating": generator.choice(["gas", "heat pump", "oil"], rows),
            "price": (price + NOISE * generator.normal(size=rows)).round(1),
        }
    )
    frame.loc[generator.random(rows) < 0.03, "age"] = np.nan
    return frame
