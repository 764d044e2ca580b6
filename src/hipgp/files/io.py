"""Maps on disk: named arrays and a JSON description in one file, written atomically and read without running code.

A file is a zip archive (`archive.py`: stored, sealed with a digest) of a zarr version 3 hierarchy in its plainest form,
each array one chunk of raw numbers, and large fields on the grid one for each slab of its first axis;
`xarray.open_zarr(ZipStore(path), chunks=None)` opens it without hipgp, and reads the slabs that are asked for:

    mean, std, samples   on the grid; their dimensions are axis0, axis1, ...
    axis0, axis1, ...    the coordinates; long_name and units are the user's, which are never part of a path
    model/NAME           the arrays that the model is rebuilt from
    attributes           "hipgp" (format and its version), "labels", and "model": a JSON description

Reading checks that every member exists, is described as this module writes it, and has exactly the described size, before
anything is allocated. A truncated, damaged or foreign file raises a ValueError.
"""

import itertools
import json
import math
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hipgp.model.grid import Grid
from hipgp.model.labels import FIELDS, Labels
from hipgp.runtime import archive
from hipgp.runtime.archive import atomic as atomic  # for what else is written: tables, pictures, reports

if TYPE_CHECKING:
    import xarray as xr

FORMAT, VERSION = "hipgp-map", 2
TYPES = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}
LARGEST_JSON = 2**25  # bytes
SLAB_BYTES = 2**26  # bytes of a slab, about: fields on the grid that are larger are cut
ROOT, MODEL = "zarr.json", "model/"


class Record(NamedTuple):
    """The contents of a map file: fields on the grid, the arrays and description of the model, and labels."""

    fields: "xr.Dataset"
    arrays: dict[str, np.ndarray]
    model: dict[str, Any]  # JSON
    labels: Labels


def dataset(grid: Grid, labels: Labels, fields: Mapping[str, np.ndarray]) -> "xr.Dataset":
    """Fields on the grid as an xarray dataset with coordinates, units and long names."""
    import xarray as xr

    coordinates = {}
    for name, unit, values in zip(labels.axes, labels.axis_units, grid.axes, strict=True):
        coordinates[name] = (name, values, _attributes(name, unit))
    variables = {}
    for key, values in fields.items():
        dims = (("sample",) if values.ndim > grid.ndim else ()) + labels.axes
        kind = "draws" if key == "samples" else key
        variables[key] = (dims, values, _attributes(f"posterior {kind} of {labels.name}", labels.unit))
    return xr.Dataset(variables, coordinates)


def _attributes(name: str, unit: str) -> dict[str, str]:
    return {"long_name": name} | ({"units": unit} if unit else {})


def write(path: str | os.PathLike[str], record: Record, overwrite: bool = False) -> None:
    """Write a map; a file of that name is replaced only with `overwrite`, and only once the new one is complete."""
    check_free(path, overwrite)
    grid = Grid(**record.model["grid"])
    held = {str(name): np.asarray(record.fields[name]) for name in record.fields.data_vars}
    _check_fields(held, grid)
    attributes = {
        "hipgp": {"format": FORMAT, "version": VERSION},
        "labels": record.labels._asdict(),
        "model": json.dumps(record.model, allow_nan=True),
    }
    members: dict[str, Any] = {ROOT: _packed(_group(attributes)), MODEL + ROOT: _packed(_group({}))}
    axes = tuple(f"axis{i}" for i in range(grid.ndim))
    for name, label, unit, values in zip(
        axes, record.labels.axes, record.labels.axis_units, grid.axes, strict=True
    ):
        _add(members, name, values, (name,), _attributes(label, unit))
    for name, values in held.items():
        dims = (("sample",) if values.ndim > grid.ndim else ()) + axes
        chunk = _slab(values.shape, values.dtype.itemsize, values.ndim - grid.ndim)
        _add(members, name, values, dims, dict(record.fields[name].attrs), chunk)
    for name, values in record.arrays.items():
        _add(members, MODEL + name, values, None, {})
    archive.write(path, members)


def check_free(path: str | os.PathLike[str], overwrite: bool) -> None:
    """Raise a FileExistsError where the file exists and `overwrite` is not given."""
    if pathlib.Path(path).exists() and not overwrite:
        raise FileExistsError(f"{path}: exists already; give overwrite=True to replace it")


def _slab(shape: tuple[int, ...], itemsize: int, axis: int) -> tuple[int, ...]:
    """The shape of slabs along the grid's first axis, which is number `axis`; draws come one by one."""
    plane = itemsize * math.prod(shape[axis + 1 :])
    if itemsize * math.prod(shape) <= SLAB_BYTES:
        return shape
    return (*[1] * axis, max(1, min(shape[axis], SLAB_BYTES // max(plane, 1))), *shape[axis + 1 :])


def _add(
    members: dict[str, Any],
    name: str,
    values: Any,
    dims: tuple[str, ...] | None,
    attributes: dict[str, Any],
    chunk: tuple[int, ...] | None = None,
) -> None:
    array: Any = np.asarray(values)
    kind = "float32" if array.dtype == np.float32 else "float64"
    array = np.ascontiguousarray(array, TYPES[kind]).reshape(array.shape)
    each: tuple[int, ...] = array.shape if chunk is None else chunk
    members[f"{name}/{ROOT}"] = _packed(_array(array.shape, kind, dims, attributes, each))
    if array.size:
        members.update((where, _whole(array[at], each)) for where, at in _chunks(name, array.shape, each))


def _chunks(
    name: str, shape: tuple[int, ...], chunk: tuple[int, ...]
) -> Iterator[tuple[str, tuple[slice, ...]]]:
    """The path at which zarr looks for each chunk of an array, and the part of the array that it holds."""
    for number in itertools.product(*(range(-(-n // c)) for n, c in zip(shape, chunk, strict=True))):
        part = tuple(slice(i * c, (i + 1) * c) for i, c in zip(number, chunk, strict=True))
        yield "/".join([name, "c", *map(str, number)]), part


def _whole(part: Any, chunk: tuple[int, ...]) -> memoryview:
    """The bytes of a chunk; the last ones of an array are filled up with zeros, as zarr has it."""
    if part.shape != chunk:
        part = np.pad(part, [(0, c - n) for n, c in zip(part.shape, chunk, strict=True)])
    whole: Any = np.ascontiguousarray(part).reshape(part.shape)  # its type does not say that it is a buffer
    return memoryview(whole).cast("B")


def _packed(node: dict[str, Any]) -> bytes:
    return json.dumps(node).encode()


def _group(attributes: Any) -> dict[str, Any]:
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes}


def _array(shape: Any, kind: Any, dims: Any, attributes: Any, chunk: Any) -> dict[str, Any]:
    """The metadata with which zarr describes an array of raw little-endian numbers in chunks of one shape."""
    node = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": kind,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [max(1, n) for n in chunk]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0.0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": attributes,
    }
    return node if dims is None else node | {"dimension_names": list(dims)}


def damaged(path: str | os.PathLike[str]) -> Any:
    """Turn every error of reading a file that is not a whole map into one ValueError with its name and the reason."""
    return archive.one_error(f"{path}: expected a hipgp map, got a damaged file or one of another kind")


def read(path: str | os.PathLike[str]) -> Record:
    """Read a map; a ValueError where the file is not one."""
    if not pathlib.Path(path).exists():
        raise FileNotFoundError(f"{path}: no such file")
    with open(path, "rb") as file, damaged(path):
        members = archive.read(file)
        root = _attributes_of(members, ROOT)
        _check_format(root.get("hipgp") or {})
        _attributes_of(members, MODEL + ROOT)
        arrays = _arrays(members)
        model = json.loads(root["model"])
        grid = Grid(**model["grid"])
        labels = Labels.of(grid.ndim, **root["labels"])
        held = {name: arrays.pop(name) for name in FIELDS if name in arrays}
        _check_fields(held, grid)  # whose sizes are real: from here on the grid's is too
        for i, axis in enumerate(grid.axes):
            if not np.array_equal(arrays.pop(f"axis{i}"), axis):
                raise ValueError(f"expected the coordinates of the model's grid, got others for axis{i}")
        strange = [name for name in arrays if not name.startswith(MODEL)]
        if strange:
            raise ValueError(f"expected mean, std and samples on the grid, got also {strange[0]!r}")
        named = {name.removeprefix(MODEL): values for name, values in arrays.items()}
        return Record(dataset(grid, labels, held), named, model, labels)


def _check_format(about: dict[str, Any]) -> None:
    form, version = about.get("format"), about.get("version")
    if form != FORMAT or version != VERSION:
        raise ValueError(
            f"expected {FORMAT} version {VERSION}, got {form!r} version {version!r}; update hipgp to read a later "
            "version, fit again in place of an earlier one"
        )


def _attributes_of(members: dict[str, bytes], name: str) -> dict[str, Any]:
    """The attributes of a group, which is taken from the members."""
    node = _parsed(members.pop(name, b"{}"))
    attributes = node.get("attributes")
    if node != _group(attributes) or not isinstance(attributes, dict):
        raise ValueError(f"expected a group of arrays, got {name} of something else or none")
    return attributes


def _parsed(content: bytes) -> dict[str, Any]:
    if len(content) > LARGEST_JSON:
        raise ValueError(f"expected a description of at most {LARGEST_JSON} bytes, got {len(content)}")
    node = json.loads(bytes(content))
    if not isinstance(node, dict):
        raise ValueError("expected a description in JSON, got something else")
    return node


def _arrays(members: dict[str, bytes]) -> dict[str, np.ndarray]:
    """Every array by its path. All members must be used, and each be what its description says."""
    arrays = {}
    for described in [name for name in members if name.endswith("/" + ROOT)]:
        name, node = described.removesuffix("/" + ROOT), _parsed(members.pop(described))
        shape: Any = node.get("shape")
        kind: Any = node.get("data_type")
        counts = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
        dims, attributes = node.get("dimension_names"), node.get("attributes")
        chunk = _chunk_shape(node, shape) if counts else None
        if chunk is None or kind not in TYPES or node != _array(shape, kind, dims, attributes, chunk):
            raise ValueError(
                f"expected plain numeric arrays in one piece or in slabs, got {name} of {kind!r}"
            )
        numbers = _joined(members, name, tuple(shape), chunk, TYPES[kind])
        arrays[name] = numbers.astype(numbers.dtype.newbyteorder("="), copy=False)
    if members:
        raise ValueError(f"expected arrays and their descriptions, got also {min(members)!r}")
    return arrays


def _chunk_shape(node: dict[str, Any], shape: list[int]) -> tuple[int, ...] | None:
    """The shape of an array's chunks; None where its description has none."""
    try:
        chunk = node["chunk_grid"]["configuration"]["chunk_shape"]
        fits = len(chunk) == len(shape) and all(type(c) is int and c >= 1 for c in chunk)
    except (KeyError, TypeError):
        return None
    return tuple(chunk) if fits else None


def _joined(
    members: dict[str, Any], name: str, shape: tuple[int, ...], chunk: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    """An array from its chunks; one that is in one piece is not copied."""
    each = dtype.itemsize * math.prod(chunk)
    places = (
        [] if 0 in shape else list(_chunks(name, shape, chunk)) if _fit(members, shape, chunk) else [("", ())]
    )
    parts = [members.pop(where, b"") for where, _ in places]
    if any(len(part) != each for part in parts):
        claimed = dtype.itemsize * math.prod(shape)
        raise ValueError(f"expected {claimed} bytes of {name}, of shape {shape}, got {sum(map(len, parts))}")
    if len(parts) == 1 and shape == chunk:
        return np.frombuffer(parts[0], dtype).reshape(shape)
    out = np.empty(shape, dtype)
    for (_, at), part in zip(places, parts, strict=True):
        here = out[at]
        here[...] = np.frombuffer(part, dtype).reshape(chunk)[tuple(slice(n) for n in here.shape)]
    return out


def _fit(members: dict[str, Any], shape: tuple[int, ...], chunk: tuple[int, ...]) -> bool:
    """Whether the file has as many members as an array of this shape has chunks."""
    return math.prod(-(-n // c) for n, c in zip(shape, chunk, strict=True)) <= len(members)


def _check_fields(held: Mapping[str, np.ndarray], grid: Grid) -> None:
    if "mean" not in held:
        raise ValueError("mean: expected the posterior mean on the grid, got none")
    for name, values in held.items():
        shape = values.shape[1:] if name == "samples" else values.shape
        if name not in FIELDS or shape != grid.shape:
            raise ValueError(
                f"{name}: expected {', '.join(FIELDS)} of the grid's shape {grid.shape}, got {shape}"
            )
        if not np.all(np.isfinite(values)) or (name == "std" and np.any(values < 0)):
            raise ValueError(
                f"{name}: expected finite numbers{', none below 0' * (name == 'std')}, got others"
            )


def netcdf(fields: "xr.Dataset", labels: Labels) -> bytes:
    """A NetCDF file; its axes are axis0, axis1, ... where not all names are plain, and long_name has the user's."""
    return bytes(plain_names(fields, labels).to_netcdf())  # type: ignore[arg-type]


def plain_names(fields: "xr.Dataset", labels: Labels) -> "xr.Dataset":
    """The same fields with axes called axis0, axis1, ... where not all of their names are plain."""
    if all(axis.isascii() and axis.isidentifier() for axis in labels.axes):
        return fields
    return fields.rename({axis: f"axis{i}" for i, axis in enumerate(labels.axes)})


def write_fits(path: str | os.PathLike[str], fields: "xr.Dataset", overwrite: bool = False) -> None:
    """The mean as a FITS cube with a linear WCS in the axes' units, other fields as extensions. Needs astropy."""
    fits = _astropy("fits")
    check_free(path, overwrite)
    made = []
    for name, array in fields.data_vars.items():
        dims = [d for d in array.dims if d != "sample"]
        # FITS counts axes from the fastest: the transpose puts our first axis on NAXIS1
        unit = fits.PrimaryHDU if not made else fits.ImageHDU
        hdu = unit(np.ascontiguousarray(array.transpose("sample", *dims[::-1], missing_dims="ignore").values))
        hdu.name = str(name).upper()
        for number, dim in enumerate(dims, start=1):
            axis = fields[dim]
            hdu.header[f"CTYPE{number}"] = (_ascii(str(dim).upper())[:8], "axis")
            hdu.header[f"CNAME{number}"] = _ascii(str(dim))
            hdu.header[f"CRPIX{number}"] = 1.0
            hdu.header[f"CRVAL{number}"] = float(axis[0])
            hdu.header[f"CDELT{number}"] = float(axis[1] - axis[0])
            hdu.header[f"CUNIT{number}"] = _ascii(axis.attrs.get("units", ""))
        hdu.header["BUNIT"] = _ascii(array.attrs.get("units", ""))
        hdu.header["OBJECT"] = _ascii(array.attrs.get("long_name", str(name)))
        made.append(hdu)
    with atomic(path) as file:
        fits.HDUList(made).writeto(file)


def _ascii(text: str) -> str:
    """A label as a FITS header can hold it: other characters as their escapes."""
    return text.encode("ascii", "backslashreplace").decode()


def _astropy(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"astropy.io.{name}")
    except ModuleNotFoundError:
        raise ImportError("FITS files need astropy: pip install 'hipgp[astro]'") from None
