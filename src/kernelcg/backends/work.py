"""How much was multiplied with a kernel matrix."""

from dataclasses import dataclass


@dataclass
class Work:
    """A counter of work.

    Attributes
    ----------
    rows : number of rows of the whole matrix
    columns : number of columns that have been multiplied with the whole matrix so far; a part of it counts as a part
    """

    rows: int
    columns: float = 0.0
