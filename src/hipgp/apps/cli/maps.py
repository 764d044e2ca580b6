"""The commands that read a map: predict, sample, plot and info."""

import pathlib
import tempfile
from typing import Any

import numpy as np
import pandas as pd

import hipgp as hg
from hipgp import display, plots
from hipgp.apps.cli import forecasts, tables
from hipgp.apps.cli.console import BadInput, Voice
from hipgp.apps.cli.reading import GEOGRAPHIC
from hipgp.files import export as files
from hipgp.files import io
from hipgp.model import dates
from hipgp.model.degrees import degrees_among
from hipgp.model.geometry import has_geometry
from hipgp.model.kernel_words import describe


def predict(
    path: pathlib.Path,
    table: pathlib.Path | None,
    output: pathlib.Path,
    columns: dict[str, Any],
    std: str,
    voice: Voice,
) -> None:
    """Write the table again, with the mean and std of each row's functional in two more columns."""
    _check_ending(output, (".csv", ".parquet", ".pq", *GEOGRAPHIC[:2]))
    ends = columns.pop("ends")
    _check_asked(table, ends)
    post = hg.load(path)
    drop, average, noisy = (columns.pop(name) for name in ("drop_nan", "average", "noisy"))
    sheet = tables.read_table(table, average) if table is not None else forecasts.places(post, *ends)
    if not any(columns[k] for k in ("coordinates", "end", "lower")):
        columns["coordinates"] = _axes_among(list(sheet.frame.columns), post)
    if columns["scale"] is not None and not noisy:
        raise BadInput("exposure: expected --noisy with it, as only new measurements have one, got none")
    source = "--from, --to" if table is None else table
    found = tables.infer(sheet, need_value=False, path=source, **columns)
    voice.note(f"{source}: {found.described()}")
    units = tables.Units(
        next((u for u in post.labels.axis_units if dates.origin(u) is None), ""), crs=post.crs
    )
    functional, rest, good = tables.functional(sheet, found, drop, average, source, units)
    scatter = False if not noisy else _scatter(post, rest[:, -1] if found.scale else None)
    frame = sheet.frame.loc[good].reset_index(drop=True)
    covariates = None if post.design is None else frame.copy()
    p = post.predict(functional, std=std, noisy=scatter, columns=covariates, progress=voice.progress)  # type: ignore[arg-type]
    frame["mean"], frame["std"] = p.mean, p.std
    if type(p) is not hg.Prediction:  # skewed: mean and std do not say enough
        frame["lower95"], frame["upper95"] = p.interval(0.95)
    _write_table(frame, output)
    summary = {
        "output": str(output),
        "rows": len(frame),
        "mean_of_means": float(np.mean(p.mean)),
        "mean_std": float(np.mean(p.std)),
    }
    voice.result(f"{len(frame)} predictions written to {output}", summary)


def _axes_among(columns: list[str], post: hg.Posterior) -> tuple[str, ...]:
    """The columns that are the map's axes by name, or longitude, latitude and the map's other axes; none where one lacks."""
    axes, known = post.labels.axes, {c.lower() for c in columns}
    pair = degrees_among(columns) if post.crs else None
    wanted = axes if pair is None else (*pair, *axes[2:])
    return tuple(wanted) if all(name.lower() in known for name in wanted) else ()


def _check_asked(table: pathlib.Path | None, ends: tuple[str, str, str]) -> None:
    """Raise BadInput, before any work is done, unless there is a table of places, or an interval."""
    if (table is None) != all(ends[:2]) or (table is not None and any(ends)):
        raise BadInput(
            "expected a table of places, or --from and --to along a single axis; give one of the two"
        )


def _scatter(post: hg.Posterior, scale: np.ndarray | None) -> Any:
    """The likelihood of new measurements: that of the data, with the exposures or trials of the table where it has them."""
    data = post.engine.observations()
    known = None if data is None else data.blocks[0].likelihood
    if scale is None:
        return True
    named = [name for name in ("exposure", "trials") if known is not None and hasattr(known, name)]
    if known is None or not named:
        raise BadInput("exposure: expected none with this map, whose data have neither exposures nor trials")
    return known.replaced({named[0]: scale})


def _write_table(frame: pd.DataFrame, output: pathlib.Path) -> None:
    shapes, ending = has_geometry(frame), output.suffix.lower()
    if ending in GEOGRAPHIC and not shapes:
        raise BadInput(f"{output}: expected .csv or .parquet for a table without shapes, got {ending}")
    if shapes and ending not in GEOGRAPHIC:
        frame = pd.DataFrame(frame.drop(columns=frame.geometry.name))
    with io.atomic(output) as file:
        if ending in (".parquet", ".pq"):
            frame.to_parquet(file)
        elif ending in GEOGRAPHIC:
            file.write(_shapes(frame, ending))
        else:
            frame.to_csv(file, index=False)


def _shapes(frame: Any, ending: str) -> bytes:
    """A GeoDataFrame as GeoJSON or a GeoPackage, which geopandas writes to a file of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / f"shapes{ending}"
        frame.to_file(path)
        return path.read_bytes()


def _check_ending(output: pathlib.Path, endings: tuple[str, ...]) -> None:
    """Raise BadInput, before any work is done, where the name's ending is none of these."""
    if output.suffix.lower() not in endings:
        raise BadInput(f"{output}: expected a name that ends in {' or '.join(endings)}")


def sample(path: pathlib.Path, count: int, seed: int, output: pathlib.Path, voice: Voice) -> None:
    """Draws of the whole map: NetCDF for xarray, or a plain .npy array."""
    _check_ending(output, (".nc", ".npy"))
    if count < 1:
        raise BadInput(f"count: expected a positive number of draws, got {count}")
    post = hg.load(path)
    draws = post.sample(count, key=seed, progress=voice.progress)
    with io.atomic(output) as file:
        if output.suffix.lower() == ".npy":
            np.save(file, draws, allow_pickle=False)
        else:
            file.write(io.netcdf(io.dataset(post.grid, post.labels, {"samples": draws}), post.labels))
    voice.result(f"{count} draws written to {output}", {"output": str(output), "shape": list(draws.shape)})


def export(
    path: pathlib.Path, to: pathlib.Path, how: dict[str, Any], samples: int, seed: int, voice: Voice
) -> None:
    """The map in the format of another program."""
    files.check_ending(to)
    post = hg.load(path)
    draws = post.sample(samples, key=seed, progress=voice.progress) if samples else None
    post.export(to, samples=draws, **how)
    voice.result(f"Map exported to {to}", {"output": str(to)})


def plot(path: pathlib.Path, output: pathlib.Path, voice: Voice) -> None:
    """A picture of the map: a curve, a map, or slices."""
    post = hg.load(path)
    fig = display.figure(post, progress=voice.progress)
    with io.atomic(output) as file:
        plots.save(fig, file, format=output.suffix[1:] or "png")
    voice.result(f"Picture written to {output}", {"output": str(output)})


def info(path: pathlib.Path, voice: Voice) -> None:
    """The field, grid, kernel and origin of the map in a file."""
    record = io.read(path)
    post = hg.load(path)
    kept = [str(n) for n in record.fields.data_vars]
    facts = post.diagnostics
    rows = {
        "field": post.labels.value(),
        "axes": ", ".join(post.labels.axis(i) for i in range(post.grid.ndim)),
        "grid": list(post.grid.shape),
        "lower": ", ".join(map(dates.place, post.grid.lower, post.labels.axis_units)),
        "upper": ", ".join(map(dates.place, post.grid.upper, post.labels.axis_units)),
        "observations": facts.get("observations"),
        "kernel": describe(post.kernel, post.labels.axis_units),
        "link": facts.get("link"),
        "noise": post.noise,
        "engine": facts.get("engine"),
        "converged": facts.get("converged"),
        "kl_nats": facts.get("kl_nats"),
        "rounds": facts.get("rounds"),
        "change_nats": facts.get("change_nats"),
        "decisions": facts.get("decisions"),
        "kept": ", ".join(kept),
        "created": record.model["provenance"]["created"],
        "hipgp": record.model["provenance"]["packages"]["hipgp"],
    }
    voice.result(str(path), rows)
