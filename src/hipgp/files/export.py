"""Maps for other programs: NetCDF, zarr, GeoTIFF and FITS, with the field's mean, std, interval and draws."""

import os
import pathlib
import shutil
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np

from hipgp.files import io
from hipgp.model.dates import origin
from hipgp.model.grid import Grid
from hipgp.model.labels import Labels

if TYPE_CHECKING:
    import xarray as xr

ENDINGS = (".nc", ".zarr", ".tif", ".tiff", ".fits")


def check_ending(path: str | os.PathLike[str], ndim: int | None = None) -> str:
    """The ending of the name, which decides on the format; a ValueError where there is none for it."""
    ending = pathlib.Path(path).suffix.lower()
    if ending not in ENDINGS:
        raise ValueError(
            f"{path}: expected a name that ends in {', '.join(ENDINGS)}, got {ending or 'no ending'}"
        )
    if ending in (".tif", ".tiff") and ndim not in (None, 2):
        raise ValueError(
            f"{path}: expected a map in two dimensions for GeoTIFF, got {ndim}; use .nc or .fits"
        )
    return ending


def fields_of(post: Any, std: Any, samples: Any, interval: float | None = None) -> dict[str, np.ndarray]:
    """The arrays on the grid that a file gets: the mean, and std, draws and ends of intervals where they are asked for.

    True means those that the map was loaded with, or else new ones; None those that it was loaded with, if any.
    """
    fields = {"mean": post.mean}
    for name, choice in (("std", std), ("samples", samples)):
        values = post.kept.get(name) if choice is None or choice is True else choice
        if choice is True and values is None:
            if name == "samples":
                raise ValueError("samples: expected draws such as post.sample(8), got True")
            values = post.std()
        if values is not None and values is not False:
            fields[name] = np.asarray(values)
    if interval is not None:
        share = f"{100 * interval:g}".replace(".", "_")
        fields |= dict(zip((f"lower{share}", f"upper{share}"), post.interval(interval), strict=True))
    return fields


def write(
    path: str | os.PathLike[str],
    fields: "xr.Dataset",
    grid: Grid,
    labels: Labels,
    crs: str | None,
    overwrite: bool,
) -> None:
    """Write fields on a grid in the format of the name's ending; `crs` such as "EPSG:32614" says what the axes are."""
    ending = check_ending(path, grid.ndim)
    io.check_free(path, overwrite)
    if ending == ".fits":
        io.write_fits(path, fields, overwrite)
    elif ending in (".tif", ".tiff"):
        _write_geotiff(path, fields, grid, labels, crs)
    else:
        fields = _with_crs(fields, crs)
        if ending == ".nc":
            with io.atomic(path) as file:
                file.write(io.netcdf(fields, labels))
        else:
            _write_zarr(pathlib.Path(path), io.plain_names(fields, labels))


def described(crs: str) -> str:
    """A coordinate reference system in well-known text, as given where pyproj is missing; a ValueError where PROJ knows none."""
    try:
        from pyproj import CRS  # type: ignore[import-not-found]
        from pyproj.exceptions import CRSError  # type: ignore[import-not-found]
    except ModuleNotFoundError:
        return crs
    try:
        return str(CRS.from_user_input(crs).to_wkt())
    except CRSError:
        raise ValueError(
            f"crs: expected a coordinate reference system that PROJ knows, such as EPSG:4326, got {crs!r}; leave it out if the "
            "axes are not on the Earth"
        ) from None


def _with_crs(fields: "xr.Dataset", crs: str | None) -> "xr.Dataset":
    """The fields with a variable `spatial_ref` that holds the coordinate reference system, as in the CF conventions."""
    if crs is None:
        return fields
    for name in fields.data_vars:
        fields[name].attrs["grid_mapping"] = "spatial_ref"
    text = described(crs)
    return fields.assign_coords(spatial_ref=((), 0, {"crs_wkt": text, "spatial_ref": text}))


def _write_zarr(path: pathlib.Path, fields: "xr.Dataset") -> None:
    """A zarr store in a folder, which appears under its name once it is whole."""
    with tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=".hipgp-") as folder:
        made = pathlib.Path(folder) / "made"
        fields.to_zarr(made, zarr_format=2)  # which GDAL and others read too
        if path.exists():
            shutil.move(path, pathlib.Path(folder) / "old")
        shutil.move(made, path)


def _write_geotiff(
    path: str | os.PathLike[str], fields: "xr.Dataset", grid: Grid, labels: Labels, crs: str | None
) -> None:
    """A band for each field, north up; rows are the second axis from above, as geographers have them."""
    try:
        import rasterio  # type: ignore[import-not-found]
        from rasterio.io import MemoryFile  # type: ignore[import-not-found]
    except ModuleNotFoundError:
        raise ImportError("GeoTIFF files need rasterio: pip install 'hipgp[geo]'") from None
    if any(origin(unit) for unit in labels.axis_units):
        raise ValueError(f"{path}: expected axes of lengths or angles for GeoTIFF, got dates; use .nc")
    bands: dict[str, Any] = {}
    for name, array in fields.data_vars.items():
        values = array.values.reshape(-1, *grid.shape)
        bands |= {str(name) if len(values) == 1 else f"{name} {i + 1}": v for i, v in enumerate(values)}
    (west, _), (_, north), (dx, dy) = grid.lower, grid.upper, grid.spacing
    profile: Any = {
        "driver": "GTiff", "width": grid.shape[0], "height": grid.shape[1], "count": len(bands), "crs": crs and described(crs),
        "dtype": next(iter(bands.values())).dtype, "transform": rasterio.Affine(dx, 0, west - dx / 2, 0, -dy, north + dy / 2),
    }  # fmt: skip
    with MemoryFile() as memory:
        with rasterio.Env(), memory.open(**profile) as target:
            for number, (name, values) in enumerate(bands.items(), 1):
                target.write(np.ascontiguousarray(values.T[::-1]), number)
                target.set_band_description(number, f"{name} of {labels.name}")
            target.units = (labels.unit,) * len(bands)
        with io.atomic(path) as file:
            file.write(memory.getbuffer())
