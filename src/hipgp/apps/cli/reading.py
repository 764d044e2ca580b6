"""Reading a table from a file, with the units that the file gives."""

import csv
import pathlib
from typing import Any, NamedTuple

import pandas as pd

from hipgp.apps.cli.console import BadInput

ASTROPY = (".fits", ".fit", ".ecsv", ".vot", ".votable")  # endings of the files that astropy reads
GEOGRAPHIC = (".geojson", ".gpkg", ".shp")  # of those that geopandas reads
PARQUET = (".parquet", ".pq")


class Sheet(NamedTuple):
    """A table with the units its file gave, and the names of its axes if it is of cells of an array."""

    frame: pd.DataFrame
    units: dict[str, str]
    axes: tuple[str, ...] = ()


def read_table(path: pathlib.Path, average: bool = False) -> Sheet:
    """CSV, Parquet, FITS, ECSV, VOTable, NetCDF, GeoJSON, GeoPackage or a shapefile, by the file's ending.

    Rows of NetCDF are the middles of its cells, with `average` their lower and upper corners.
    """
    if not path.exists():
        raise BadInput(f"{path}: no such file")
    ending = path.suffix.lower()
    try:
        if ending in ASTROPY:
            sheet = _through_astropy(path)
        elif ending == ".nc":
            sheet = _cells(path, average)
        elif ending in GEOGRAPHIC:
            sheet = Sheet(_through_geopandas(path), {})
        else:
            sheet = Sheet(pd.read_parquet(path) if ending in PARQUET else _read_csv(path), {})
    except (BadInput, MemoryError):
        raise
    except Exception as error:  # readers raise all kinds; the user can do the same about each
        lines = str(error).splitlines() or [type(error).__name__]
        raise BadInput(f"{path}: cannot be read as a table ({lines[0]})") from None
    if sheet.frame.empty:
        raise BadInput(f"{path}: has no rows")
    frame = sheet.frame.rename(columns=lambda c: str(c).strip())
    _check_names(list(frame.columns), path)
    return sheet._replace(frame=frame)


def _through_astropy(path: pathlib.Path) -> Sheet:
    try:
        from astropy.table import Table
    except ModuleNotFoundError:
        raise BadInput(
            f"{path}: FITS, ECSV and VOTable files need astropy: pip install 'hipgp[astro]'"
        ) from None
    table: Any = Table.read(path)
    units_of_columns = {name: getattr(table[name], "unit", None) for name in table.colnames}
    units = {name.strip(): str(unit) for name, unit in units_of_columns.items() if unit is not None}
    return Sheet(table.to_pandas(), units)  # masked cells become missing ones


def _cells(path: pathlib.Path, average: bool) -> Sheet:
    """The cells of a NetCDF file that hold numbers, a row each with their middles, or their lower and upper corners."""
    import xarray as xr

    from hipgp.model.tables import edges

    with xr.open_dataset(path) as found:
        axes = tuple(str(dim) for dim in found.dims)
        if not average:
            return Sheet(found.to_dataframe().reset_index().dropna(), {}, axes)
        named = {str(found[dim].attrs.get("bounds")) for dim in found.dims}
        fields = found[[name for name in found.data_vars if name not in named]]
        ends = {
            f"{side}_{dim}": (dim, values)
            for dim in fields.dims
            for side, values in zip(("lower", "upper"), edges(found, found[dim]), strict=True)
        }
        table: Any = fields.assign(ends).to_dataframe().reset_index(drop=True).dropna()
        table = table[[name for name in table.columns if name not in found.coords]]
        return Sheet(table, {}, tuple(str(dim) for dim in fields.dims))


def _through_geopandas(path: pathlib.Path) -> pd.DataFrame:
    try:
        import geopandas  # type: ignore[import-not-found]
    except ModuleNotFoundError:
        raise BadInput(f"{path}: files of geometries need geopandas: pip install 'hipgp[geo]'") from None
    return geopandas.read_file(path)


def _read_csv(path: pathlib.Path) -> pd.DataFrame:
    _check_rectangular(path)
    return pd.read_csv(path, skipinitialspace=True, index_col=False)


def _check_rectangular(path: pathlib.Path) -> None:
    """Raise BadInput where a row does not have as many fields as the header: pandas would shift or fill its cells."""
    from pandas.io.common import get_handle  # opens compressed files as `read_csv` does

    with get_handle(path, "r", encoding="utf-8-sig", compression="infer") as opened:
        rows = csv.reader(opened.handle, skipinitialspace=True)  # type: ignore[arg-type]
        header: list[str] | None = None
        for row in rows:
            if not row or (header is not None and len(header) > 1 and row == [""]):
                continue  # a blank line
            if header is None:
                header = row
                _check_names([name.strip() for name in header if name.strip()], path)
            elif len(row) != len(header):
                raise BadInput(
                    f"{path}: line {rows.line_num} has {len(row)} fields, but the header names {len(header)} columns; "
                    "mend that line, or put fields that hold a comma in double quotes"
                )


def _check_names(names: list[str], path: pathlib.Path) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadInput(f"{path}: has more than one column {twice[0]!r}; give each its own name")
