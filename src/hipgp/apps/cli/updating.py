"""`hipgp update`: more measurements for a map."""

import pathlib
from typing import Any

import hipgp as hg
from hipgp.apps.cli import fitting
from hipgp.apps.cli.console import Voice, check_output
from hipgp.apps.cli.reading import read_table
from hipgp.apps.cli.settings import Settings
from hipgp.model import dates
from hipgp.model.degrees import degrees_among


def update(
    path: pathlib.Path,
    paths: list[pathlib.Path],
    output: pathlib.Path,
    options: dict[str, Any],
    overwrite: bool,
    voice: Voice,
) -> None:
    """Read a map and tables, and write the map of all their measurements."""
    check_output(output, overwrite)
    post = hg.load(path)
    data = fitting.load_data(paths, _settings(post, paths[0], options), voice).data
    post = post.update(data, progress=voice.progress)
    std = None if options["std"] == "none" else post.std(options["std"], progress=voice.progress)
    post.save(output, std=std, overwrite=overwrite)
    facts = post.diagnostics
    rows = {
        name: facts.get(name) for name in ("observations", "iterations", "kl_nats", "converged", "started")
    }
    voice.result(f"Map written to {output}", {"output": str(output), "added": len(data)} | rows)


def _settings(post: hg.Posterior, table: pathlib.Path, options: dict[str, Any]) -> Settings:
    """The columns as the user names them, and otherwise as the map does; the kernel is that of the map."""
    labels, found = post.labels, {name: value for name, value in options.items() if value}
    known = {str(column) for column in read_table(table).frame.columns}
    if not any(found.get(name) for name in ("coordinates", "end", "lower")) and set(labels.axes) <= known:
        found["coordinates"] = labels.axes
    if labels.name in known:
        found.setdefault("value", labels.name)
    axis = next((unit for unit in labels.axis_units if dates.origin(unit) is None), "")
    axis = axis or ("deg" if degrees_among(labels.axes) else "")
    usual = {
        "noise": post.noise,
        "unit": labels.unit,
        "axis_unit": axis,
        "lengthscale": (1.0,),
        "variance": 1.0,
    }
    return Settings(**(usual | found))
