"""Data sets by name: from a directory of yours, from the cache, or from their public source; always verified.

A data set is looked for in three places, in this order: the directory named by the environment variable
``KERNELCG_DATA``; the cache (``$XDG_CACHE_HOME/kernelcg``, usually ``~/.cache/kernelcg``); its public source, whose
copy is then put into the cache. Files are gzip CSV without a header, named ``<name>.csv.gz``, the target in the last
column. Wherever the numbers come from, their count, their sums and their order are compared with what is known.
"""

import gzip
import io
import os
import sys
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.request import urlopen

import numpy as np
from numpy.typing import NDArray

DIRECTORY_VARIABLE = "KERNELCG_DATA"
TARGET_TOLERANCE = 1e-10
FEATURE_TOLERANCE = 1e-6
"""Relative tolerance. Public copies agree in every digit of the target, but some have rounded features."""

SPLITS = 10
"""Standard 90/10 splits, in ``<name>.test_mask.csv.gz``: n rows, ten columns, 1 = test row."""

PAPER = (
    "https://raw.githubusercontent.com/mauriziofilippone/preconditioned_GPs/"
    "d7bc09b6804ef002cc3fc6bbf936517578d7436e/datasets/"
)
PREPARED = (
    "https://raw.githubusercontent.com/treforevans/uci_datasets/f0737523712fe66a1640e4b980b927e8490b58eb/uci_datasets/"
)
UCI = "https://archive.ics.uci.edu/static/public/"
PROTEIN_AT_UCI = "physicochemical+properties+of+protein+tertiary+structure"

Array = NDArray[np.float64]
Task = Literal["regression", "binary", "multiclass"]
Fetch = Callable[[str], bytes]


class DatasetNotFound(FileNotFoundError):
    """A data set is in none of the places where it was looked for; the message says what to do."""


class DatasetCorrupt(ValueError):
    """A file was found, but it does not hold the data set that its name promises."""


@dataclass(frozen=True)
class Source:
    """A public place and the layout of what lies there.

    ``member`` is the file inside a zip archive; ``target_first`` and ``header`` (lines) describe its columns;
    ``letters`` says that its first column holds one capital letter.
    """

    url: str
    member: str = ""
    delimiter: str | None = ","
    header: int = 0
    target_first: bool = False
    letters: bool = False


@dataclass(frozen=True)
class Checksum:
    """Sums that fix the content: target, target by row, features, features by column, features by row and column.

    "By row" weights row i with i, counted from 1; "by column" likewise. Equal plain sums with other weighted ones
    are the mark of a copy whose rows or columns are in another order.
    """

    target: float
    target_by_row: float
    features: float
    features_by_column: float
    features_by_both: float


@dataclass(frozen=True)
class Known:
    """What is known of a data set before it is read."""

    n: int
    d: int
    task: Task
    description: str


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set in memory: raw values in the row order of the original file.

    Labels are −1 and +1 in binary tasks and 0, 1, … in multiclass ones. ``source`` is the file or address it was
    read from. ``test_mask`` (n, splits) marks the test rows of the standard splits, where there are some.
    """

    name: str
    X: Array  # (n, d)
    y: Array  # (n,)
    task: Task
    description: str
    source: str
    test_mask: NDArray[np.bool_] | None = None


def names() -> tuple[str, ...]:
    """Return the names of all known data sets."""
    return tuple(KNOWN)


def download(url: str) -> bytes:
    """Return what lies at this address."""
    with urlopen(url, timeout=60) as answer:
        return bytes(answer.read())


def load(name: str, *, fetch: Fetch | None = download) -> Dataset:
    """Return the data set of this name.

    Parameters
    ----------
    name : one of `names()`
    fetch : what turns an address into bytes; None forbids downloads

    Raises
    ------
    ValueError
        if there is no such name
    DatasetNotFound
        if it is neither in a directory nor to be had from its source; the message says what was tried
    DatasetCorrupt
        if a file was found whose content is wrong: truncated, changed, or in another row order
    """
    if name not in KNOWN:
        raise ValueError(f"there is no data set {name!r}; choose one of {', '.join(KNOWN)}")
    directories = _directories()
    for directory in directories:
        if _file(directory, name).exists():
            return _read(directory, name)
    tried = [f"{_file(directory, name)} does not exist" for directory in directories]
    if len(directories) == 1:
        tried.insert(0, f"the environment variable {DIRECTORY_VARIABLE} is not set")
    return _from_source(name, fetch, tried)


def cache_directory() -> Path:
    """Return where downloads are kept, by the convention of the platform."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "kernelcg" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "kernelcg"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernelcg"


def _directories() -> list[Path]:
    local = os.environ.get(DIRECTORY_VARIABLE)
    return [Path(local).expanduser(), cache_directory()] if local else [cache_directory()]


def _file(directory: Path, name: str) -> Path:
    return directory / f"{name}.csv.gz"


def _mask_file(directory: Path, name: str) -> Path:
    return directory / f"{name}.test_mask.csv.gz"


def _read(directory: Path, name: str) -> Dataset:
    """Return the data set from the files of a directory."""
    file, mask_file = _file(directory, name), _mask_file(directory, name)
    try:
        values = _table(gzip.decompress, file.read_bytes(), str(file))
        with_mask = name in MASK_SUMS and mask_file.exists()
        mask = _table(gzip.decompress, mask_file.read_bytes(), str(mask_file)) if with_mask else None
        return _verified(name, values, mask, str(file))
    except DatasetCorrupt as error:
        raise DatasetCorrupt(f"{error}; delete or replace the file") from error


def _from_source(name: str, fetch: Fetch | None, tried: list[str]) -> Dataset:
    """Return the first public copy that can be had and is right, after putting it into the cache."""
    if name not in SOURCES:
        tried.append("it has no public source that can be read automatically")
    elif fetch is None:
        tried.append("downloads were not allowed")
    for source in SOURCES.get(name, ()):
        if fetch is None:
            break
        try:
            dataset = _verified(name, *_fetched(name, source, fetch), source.url)
        except (OSError, DatasetCorrupt) as error:
            tried.append(f"{source.url}: {error}")
        else:
            _keep(dataset)
            return dataset
    raise DatasetNotFound(_advice(name, tried))


def _advice(name: str, tried: list[str]) -> str:
    here = [other for other in KNOWN if any(_file(directory, other).exists() for directory in _directories())]
    return "\n".join(
        [
            f"the data set {name} ({KNOWN[name].description}) could not be had:",
            *(f"  - {attempt}" for attempt in tried),
            f"Set {DIRECTORY_VARIABLE} to a directory that holds {name}.csv.gz (gzip CSV, no header, target last).",
            f"Can be downloaded, with a network: {', '.join(SOURCES)}.",
            f"Are here and need no download: {', '.join(here) or 'none'}.",
        ]
    )


def _fetched(name: str, source: Source, fetch: Fetch) -> tuple[Array, Array | None]:
    """Return the table of a public copy, target last and labels in our form, and its test masks."""
    values = _table(lambda raw: _text(raw, source), fetch(source.url), source.url, source.delimiter, source.header)
    if source.target_first:
        values = np.roll(values, -1, axis=1)
    if KNOWN[name].task == "binary":
        values[:, -1] = np.where(values[:, -1] == values[:, -1].max(), 1, -1)
    if KNOWN[name].task == "multiclass":
        values[:, -1] = np.unique(values[:, -1], return_inverse=True)[1]
    if name not in MASK_SUMS:
        return values, None
    mask_url = source.url.replace("data.csv.gz", "test_mask.csv.gz")
    return values, _table(gzip.decompress, fetch(mask_url), mask_url)


def _text(content: bytes, source: Source) -> bytes:
    """Return the CSV inside what was downloaded."""
    if source.member:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            content = archive.read(source.member)
    if (source.member or source.url).endswith(".gz"):
        content = gzip.decompress(content)
    if source.letters:
        content = b"\n".join(str(line[0]).encode() + line[1:] for line in content.splitlines() if line)
    return content


def _table(
    unpack: Callable[[bytes], bytes], content: bytes, where: str, delimiter: str | None = ",", header: int = 0
) -> Array:
    """Return the numbers of a packed CSV file."""
    try:
        text = io.StringIO(unpack(content).decode("utf-8"))
        return np.loadtxt(text, delimiter=delimiter, skiprows=header, ndmin=2)
    except (EOFError, KeyError, OSError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DatasetCorrupt(f"{where} cannot be read as a table of numbers ({error})") from error


def _keep(dataset: Dataset) -> None:
    """Put a data set into the cache; a file appears there complete or not at all."""
    directory = cache_directory()
    directory.mkdir(parents=True, exist_ok=True)
    if dataset.test_mask is not None:
        _write(_mask_file(directory, dataset.name), dataset.test_mask.astype(int))
    _write(_file(directory, dataset.name), np.column_stack([dataset.X, dataset.y]))


def _write(file: Path, values: NDArray[np.generic]) -> None:
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    with gzip.open(partial, "wt", encoding="ascii") as stream:
        stream.writelines(",".join(map(repr, row)) + "\n" for row in values.tolist())
    partial.replace(file)


def _verified(name: str, values: Array, mask: Array | None, where: str) -> Dataset:
    """Return the data set, or raise `DatasetCorrupt` saying in what it differs from the original."""
    known = KNOWN[name]
    n, d = known.n, known.d
    if values.shape != (n, d + 1):
        raise _wrong(where, f"it has {values.shape[0]} rows and {values.shape[1]} columns instead of {n} and {d + 1}")
    if not np.isfinite(values).all():
        raise _wrong(where, "it holds NaN or infinite values")
    X, y = np.ascontiguousarray(values[:, :-1]), values[:, -1].copy()
    found, size, expected = _checksum(X, y), _checksum(np.abs(X), np.abs(y)), SUMS[name]
    if not _agree(found.target, expected.target, size.target, TARGET_TOLERANCE):
        raise _wrong(where, f"its target sums to {found.target:.10g} instead of {expected.target:.10g}")
    if not _agree(found.features, expected.features, size.features, FEATURE_TOLERANCE):
        raise _wrong(where, f"its features sum to {found.features:.10g} instead of {expected.features:.10g}")
    if not _agree(found.features_by_column, expected.features_by_column, size.features_by_column, FEATURE_TOLERANCE):
        raise _wrong(where, "its columns are in another order")
    if not (
        _agree(found.target_by_row, expected.target_by_row, size.target_by_row, TARGET_TOLERANCE)
        and _agree(found.features_by_both, expected.features_by_both, size.features_by_both, FEATURE_TOLERANCE)
    ):
        raise _wrong(where, "its rows are in another order, so that folds and splits would not be the published ones")
    return Dataset(name, X, y, known.task, known.description, where, _verified_mask(name, mask, where))


def _verified_mask(name: str, mask: Array | None, where: str) -> NDArray[np.bool_] | None:
    if mask is None:
        return None
    n = KNOWN[name].n
    right_form = mask.shape == (n, SPLITS) and bool(np.isin(mask, (0, 1)).all())
    if not right_form or _weights(n) @ mask @ _weights(SPLITS) != MASK_SUMS[name]:
        raise _wrong(where, "the test masks beside it are not those of its ten standard splits")
    return mask.astype(bool)


def _wrong(where: str, what: str) -> DatasetCorrupt:
    return DatasetCorrupt(f"{where} is not the data set its name promises: {what}")


def _weights(count: int) -> Array:
    return np.arange(1.0, count + 1)


def _checksum(X: Array, y: Array) -> Checksum:
    rows, columns = _weights(len(X)), _weights(X.shape[1])
    sums = X.sum(0)
    return Checksum(*map(float, (y.sum(), rows @ y, sums.sum(), sums @ columns, rows @ X @ columns)))


def _agree(found: float, expected: float, size: float, tolerance: float) -> bool:
    return abs(found - expected) <= tolerance * size


KNOWN: dict[str, Known] = {
    "concrete": Known(1030, 8, "regression", "compressive strength of concrete, MPa"),
    "powerplant": Known(9568, 4, "regression", "hourly electrical output of a power plant, MW"),
    "protein": Known(45730, 9, "regression", "RMSD of protein tertiary structure, Ångström"),
    "spambase": Known(4601, 57, "binary", "+1 spam, −1 other mail"),
    "eeg": Known(14980, 14, "binary", "eyes +1 closed, −1 open"),
    "credit": Known(1000, 24, "binary", "German credit, numeric version: +1 bad, −1 good"),
    "uci_airfoil": Known(1503, 5, "regression", "prepared benchmark, centred"),
    "uci_energy": Known(768, 8, "regression", "prepared benchmark, heating load, centred"),
    "uci_pol": Known(15000, 26, "regression", "prepared benchmark, centred"),
    "uci_elevators": Known(16599, 18, "regression", "prepared benchmark, log of the target, centred"),
    "uci_protein": Known(45730, 9, "regression", "prepared benchmark, log(1 + RMSD), centred"),
    "letter": Known(20000, 16, "multiclass", "letters A to Z as 0 to 25"),
    "pendigits": Known(10992, 16, "multiclass", "handwritten digits, in the row order of the KEEL copy"),
    "covtype": Known(581012, 54, "multiclass", "forest cover type"),
    "etopo20": Known(583200, 2, "regression", "relief of the Earth on a 20-minute grid, m"),
    "egm96": Known(1035360, 2, "regression", "EGM96 geoid height on a 15-minute grid, m"),
    "levitus_temp": Known(718725, 3, "regression", "annual mean ocean temperature, °C (Levitus 1982)"),
    "nycflights13": Known(273853, 8, "regression", "arrival delay of flights, minutes"),
}
"""Every data set the library knows: the six of Cutajar et al. (2016), prepared benchmarks, and larger ones."""

SOURCES: dict[str, tuple[Source, ...]] = {
    "concrete": (Source(f"{PAPER}regDatasets/Concrete_Data.csv"),),
    "powerplant": (Source(f"{PAPER}regDatasets/PowerPlant_Data.csv"),),
    "protein": (
        Source(f"{PAPER}regDatasets/Protein_Data.csv"),
        Source(f"{UCI}265/{PROTEIN_AT_UCI}.zip", "CASP.csv", header=1, target_first=True),
    ),
    "spambase": (Source(f"{PAPER}classDatasets/Spam_Data.csv"), Source(f"{UCI}94/spambase.zip", "spambase.data")),
    "eeg": (Source(f"{PAPER}classDatasets/EEG_Data.csv"),),
    "credit": (
        Source(f"{PAPER}classDatasets/Credit_Data.csv"),
        Source(f"{UCI}144/statlog+german+credit+data.zip", "german.data-numeric", delimiter=None),
    ),
    "uci_airfoil": (Source(f"{PREPARED}airfoil/data.csv.gz"),),
    "uci_energy": (Source(f"{PREPARED}energy/data.csv.gz"),),
    "uci_pol": (Source(f"{PREPARED}pol/data.csv.gz"),),
    "uci_elevators": (Source(f"{PREPARED}elevators/data.csv.gz"),),
    "uci_protein": (Source(f"{PREPARED}protein/data.csv.gz"),),
    "letter": (Source(f"{UCI}59/letter+recognition.zip", "letter-recognition.data", target_first=True, letters=True),),
    "covtype": (Source(f"{UCI}31/covertype.zip", "covtype.data.gz"),),
}
"""Public copies, best first; the sets that are missing here need a directory."""

SUMS: dict[str, Checksum] = {
    "concrete": Checksum(36892.5, 17427283.72, 2460861.1, 13355691.8, 6832411842.7),
    "powerplant": Checksum(4347364.41, 20803621416.6, 11103904.07, 33117488.62, 158474369789),
    "protein": Checksum(354340.205, 8141036050.3, 63360363224.4, 314964868691, 7.21088907311e15),
    "spambase": Checksum(-975, -7298119, 1613082.538, 90109031.054, 147257799990),
    "eeg": Checksum(-1534, -27460818, 905336499.027, 6842198790.07, 5.122029809e13),
    "credit": Checksum(-400, -191044, 118363, 789799, 395864156),
    "uci_airfoil": Checksum(0.03642782, -48146.0428947, -15.6211507401, -16.4827036996, 42204518.8503),
    "uci_energy": Checksum(0.0604, 16350.6272, -0.1318368, -0.0196768, 1278917.10683),
    "uci_pol": Checksum(4.8191, -9529770.0691, -7.3916631, -58.425769, -72097020.1202),
    "uci_elevators": Checksum(-0.0020789, 101510.862179, 55.9132727, 64.9229881, -28379762.5619),
    "uci_protein": Checksum(-0.01297143, 1584321.36283, 148.083183, 365.9971267, 4.55280640609e12),
    "letter": Checksum(250335, 2511236239, 1896149, 16710114, 167106002556),
    "pendigits": Checksum(48712, 268169640, 8918653, 69583909, 381801180988),
    "covtype": Checksum(610917, 176233004130, 4854589843, 25059856586, 6.47863508254e15),
    "etopo20": Checksum(-1105737652.85, -3.18142341616e14, 116639984.318, 116639979.102, 4.42348030747e13),
    "egm96": Checksum(-1476397.17, -2.56412928611e12, 186235380, 186235380, 6.43407698305e13),
    "levitus_temp": Checksum(5941731.87, 1.47617473887e12, 654318567, 1663994653.5, 9.63406794005e14),
    "nycflights13": Checksum(1926838, 281164813747, 821565220, 2915115228, 3.98841884765e14),
}

MASK_SUMS: dict[str, int] = {
    "uci_airfoil": 6329569,
    "uci_energy": 1622723,
    "uci_pol": 618046151,
    "uci_elevators": 758930611,
    "uci_protein": 5745921092,
}
"""Digests of the test masks, by row and column."""
