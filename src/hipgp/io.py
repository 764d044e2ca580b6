"""Maps on disk: named arrays and a JSON description in one file, whole or not there, read without running code.

A file is a zip archive (stored, not compressed again) of a zarr version 3 hierarchy; `xarray.open_zarr(ZipStore(path))`
opens it without hipgp:

    mean, std, ...       on the grid, with their coordinates and units
    model/NAME           the arrays that the model is rebuilt from
    attributes           "hipgp" (format and its version), "labels", and "model": a JSON description

Reading checks every entry first: only plain numeric arrays with well-known codecs are let in, so that no file can name
code to be run. A truncated, damaged or foreign file is a ValueError.
"""

import contextlib
import json
import os
import pathlib
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import xarray as xr

from hipgp.grid import Grid
from hipgp.labels import Labels

FORMAT, VERSION = "hipgp-map", 1
CODECS = {"bytes", "zstd", "crc32c"}
TYPES = {"bool", "float32", "float64", "int32", "int64", "uint32", "uint64"}


class Record(NamedTuple):
    """What a file holds."""

    fields: xr.Dataset  # on the grid
    arrays: dict[str, np.ndarray]
    model: dict[str, Any]  # JSON
    labels: Labels


def dataset(grid: Grid, labels: Labels, fields: Mapping[str, np.ndarray]) -> xr.Dataset:
    """Fields on the grid as xarray knows them: coordinates, units, long names."""
    coordinates = {}
    for name, unit, values in zip(labels.axes, labels.axis_units, grid.axes, strict=True):
        coordinates[name] = (name, values, {"long_name": name} | ({"units": unit} if unit else {}))
    variables = {}
    for key, values in fields.items():
        dims = (("sample",) if values.ndim > grid.ndim else ()) + labels.axes
        prefix = {"mean": "posterior mean of", "std": "posterior std of"}.get(key, "posterior draws of")
        attributes = {"long_name": f"{prefix} {labels.name}"} | (
            {"units": labels.unit} if labels.unit else {}
        )
        variables[key] = (dims, values, attributes)
    return xr.Dataset(variables, coordinates)


@contextlib.contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file that appears under its name only when all of it is on the disk."""
    target = pathlib.Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write(path: str | os.PathLike[str], record: Record) -> None:
    """Write a map. An older file of that name is replaced only once the new one is complete."""
    import zarr.storage

    store = zarr.storage.MemoryStore()
    description = {
        "hipgp": {"format": FORMAT, "version": VERSION},
        "labels": record.labels._asdict(),
        "model": json.dumps(record.model, allow_nan=True),
    }
    record.fields.assign_attrs(description).to_zarr(store, consolidated=False, zarr_format=3)  # type: ignore[call-overload]
    group = zarr.open_group(store, path="model", mode="a", zarr_format=3)
    for name, values in record.arrays.items():
        group.create_array(name, data=np.ascontiguousarray(values))
    with atomic(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(store._store_dict):
            archive.writestr(name, store._store_dict[name].to_bytes())


def read(path: str | os.PathLike[str]) -> Record:
    """Read a map; a ValueError for anything that is not one."""
    import zarr.storage
    from zarr.core.buffer.cpu import Buffer

    entries = _entries(path)
    root = json.loads(entries["zarr.json"])["attributes"]
    store = zarr.storage.MemoryStore(
        {name: Buffer.from_bytes(value) for name, value in entries.items()}, read_only=True
    )
    try:
        fields = xr.open_zarr(store, consolidated=False, chunks=None).load()
        model = zarr.open_group(store, path="model", mode="r")
        arrays = {name: np.asarray(array[...]) for name, array in model.arrays()}
        named: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in root["labels"].items()}
        labels = Labels.of(len(named["axes"]), **named)
        return Record(fields, arrays, json.loads(root["model"]), labels)
    except Exception as error:
        raise ValueError(
            f"{path}: expected a hipgp map, got a damaged one ({type(error).__name__}: {error})"
        ) from None


def _entries(path: str | os.PathLike[str]) -> dict[str, bytes]:
    """The archive's entries, checked."""
    if not pathlib.Path(path).exists():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {info.filename: archive.read(info) for info in archive.infolist()}
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise ValueError(
            f"{path}: expected a hipgp map, got another kind of file or a truncated one ({error})"
        ) from None
    try:
        about = json.loads(entries["zarr.json"])["attributes"]["hipgp"]
        form, version = about["format"], int(about["version"])
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{path}: expected a hipgp map, got a zip archive of something else") from None
    if form != FORMAT or version > VERSION:
        raise ValueError(
            f"{path}: expected {FORMAT} up to version {VERSION}, got {form!r} version {version}; "
            "update hipgp to read it"
        )
    for name, content in entries.items():
        if name.endswith("zarr.json"):
            _check_plain(path, name, json.loads(content))
    return entries


def _check_plain(path: Any, name: str, node: dict[str, Any]) -> None:
    if node.get("zarr_format") == 3 and node.get("node_type") == "group":
        return
    codecs = {c.get("name") if isinstance(c, dict) else c for c in node.get("codecs", [])}
    plain = node.get("zarr_format") == 3 and node.get("data_type") in TYPES and codecs <= CODECS
    if not plain or node.get("storage_transformers"):
        raise ValueError(
            f"{path}: expected plain numeric arrays, got {name} with {node.get('data_type')!r}, {codecs}"
        )


def write_fits(path: str | os.PathLike[str], fields: xr.Dataset, overwrite: bool = False) -> None:
    """The mean as a FITS cube with a linear WCS in the axes' units, other fields as extensions. Needs astropy."""
    fits = _astropy("fits")
    if pathlib.Path(path).exists() and not overwrite:
        raise FileExistsError(f"{path}: exists already; give overwrite=True to replace it")
    made = []
    for name, array in fields.data_vars.items():
        dims = [d for d in array.dims if d != "sample"]
        # FITS counts axes from the fastest: the transpose puts our first axis on NAXIS1
        unit = fits.PrimaryHDU if not made else fits.ImageHDU
        hdu = unit(np.ascontiguousarray(array.transpose("sample", *dims[::-1], missing_dims="ignore").values))
        hdu.name = str(name).upper()
        for number, dim in enumerate(dims, start=1):
            axis = fields[dim]
            hdu.header[f"CTYPE{number}"] = (str(dim).upper()[:8], "axis")
            hdu.header[f"CRPIX{number}"] = 1.0
            hdu.header[f"CRVAL{number}"] = float(axis[0])
            hdu.header[f"CDELT{number}"] = float(axis[1] - axis[0])
            hdu.header[f"CUNIT{number}"] = axis.attrs.get("units", "")
        hdu.header["BUNIT"] = array.attrs.get("units", "")
        hdu.header["OBJECT"] = array.attrs.get("long_name", str(name))
        made.append(hdu)
    with atomic(path) as file:
        fits.HDUList(made).writeto(file)


def _astropy(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"astropy.io.{name}")
    except ModuleNotFoundError:
        raise ImportError("FITS files need astropy: pip install 'hipgp[astro]'") from None
