"""The command `hipgp`: fit a map from tables, ask it, look at it."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="hipgp", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich",
    help="Infer a field from noisy linear measurements of it, and say how sure you are.",
)  # fmt: skip

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object, for scripts.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing output file.")]
MapFile = Annotated[Path, typer.Argument(help="A map written by `hipgp fit`.", show_default=False)]
Names = Annotated[str, typer.Option(help="Columns, separated by commas.", show_default=False)]
Values = Annotated[str | None, typer.Option(help="Column of measured values.")]
Errors = Annotated[str | None, typer.Option(help="Column of their standard errors.")]
Average = Annotated[
    bool,
    typer.Option(
        "--average", help="Rays are averages, not integrals, and cells of NetCDF averages, not values."
    ),
]
Total = Annotated[bool, typer.Option("--total", help="Polygons are totals, not averages.")]
DropNan = Annotated[bool, typer.Option("--drop-nan", help="Leave out rows with empty cells.")]
COLUMNS = ("coordinates", "start", "end", "lower", "upper")
FIT_SETTINGS = (
    "value", "error", "noise", "average", "total", "link", "likelihood", "exposure", "trials", "lower_limit", "upper_limit",
    "drop_nan", "kernel", "variance", "trend", "engine", "name", "unit", "axis_unit", "std", "samples", "seed",
)  # fmt: skip


def _asked(context: typer.Context, *names: str) -> dict[str, Any]:
    """The command's parameters `names` as they are, and those of COLUMNS as tuples of columns."""
    columns = {name: _split(context.params[name]) for name in COLUMNS}
    return columns | {name: context.params[name] for name in names}


def _voice(quiet: bool, as_json: bool) -> Any:
    from hipgp.apps.cli.console import Voice

    return Voice(quiet, as_json)


def _split(text: str, kind: Any = str) -> tuple[Any, ...]:
    from hipgp.apps.cli.console import BadInput

    try:
        return tuple(kind(part.strip()) for part in text.split(",") if part.strip())
    except ValueError:
        raise BadInput(
            f"expected {'whole numbers' if kind is int else 'numbers'} separated by commas, got {text!r}"
        ) from None


@app.command()
def demo(
    name: Annotated[str, typer.Argument(help="Which one; see --list.")] = "dust",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for the pictures [./hipgp-demo-NAME]."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the simulated data.")] = 0,
    list_: Annotated[bool, typer.Option("--list", help="List the demos.")] = False,
    quiet: Quiet = False,
    json: AsJson = False,
) -> None:
    """A complete problem with a known truth: simulate, learn, map, draw."""
    from hipgp.apps import demos

    voice = _voice(quiet, json)
    with voice.guarded():
        if list_:
            voice.result("hipgp demo NAME", demos.DEMOS)
            return
        folder = output or Path(f"hipgp-demo-{name}")
        if name in demos.DEMOS:
            voice.note(f"{name}: {demos.DEMOS[name]}")
        found = demos.run(name, folder, seed, voice.progress)
        pictures = [str(p) for p in found.pictures]
        voice.result(found.title, found.numbers | ({"pictures": pictures} if json else {}))
        voice.note("pictures: " + "  ".join(pictures))


@app.command()
def fit(
    context: typer.Context,
    tables: Annotated[list[Path], typer.Argument(help="CSV, Parquet, FITS, ECSV, VOTable, NetCDF, GeoJSON or GeoPackage.", show_default=False)],
    config: Annotated[Path | None, typer.Option(help="Settings in TOML; flags overrule them.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The map to write.")] = Path("map.hipgp"),
    coordinates: Names = "", start: Names = "", end: Names = "", lower: Names = "", upper: Names = "",
    value: Values = None, error: Errors = None,
    noise: Annotated[float | None, typer.Option(help="One standard error for all.")] = None,
    link: Annotated[str | None, typer.Option(help="none, exp, softplus or logistic [what suits the likelihood].")] = None,
    likelihood: Annotated[
        str | None, typer.Option(help="gaussian, student-t, poisson, negative-binomial, binomial, ... [gaussian].")
    ] = None,
    exposure: Annotated[str | None, typer.Option(help="Column of areas, times or populations of counts.")] = None,
    trials: Annotated[str | None, typer.Option(help="Column of trials, for binomial.")] = None,
    lower_limit: Annotated[str | None, typer.Option(help="Of detection, number or column: values there mean 'at most'.")] = None,
    upper_limit: Annotated[str | None, typer.Option(help="Values there mean 'at least'.")] = None,
    average: Average = False, total: Total = False, drop_nan: DropNan = False,
    kernel: Annotated[str | None, typer.Option(help="Such as 'Matern12 + Matern52', auto, or 'Matern32 * Periodic(period=1)' [Matern32].")] = None,
    lengthscale: Annotated[str, typer.Option(help="With --variance: fixed, nothing is learned.")] = "",
    variance: Annotated[float | None, typer.Option(help="Of the field.")] = None,
    trend: Annotated[str | None, typer.Option(help="none, constant, linear, or a formula such as '~ height + C(type)' [constant].")] = None,
    spacing: Annotated[str, typer.Option(help="Of the grid; otherwise from the lengthscale and memory.")] = "",
    shape: Annotated[str, typer.Option(help="Points of the grid per axis.")] = "",
    engine: Annotated[str | None, typer.Option(help="batch or variational [batch].")] = None,
    name: Annotated[str | None, typer.Option(help="What the field is called.")] = None,
    unit: Annotated[str | None, typer.Option(help="Its unit.")] = None,
    axis_unit: Annotated[str | None, typer.Option(help="Unit of the coordinates.")] = None,
    std: Annotated[str | None, typer.Option(help="auto, vecchia, samples, exact or none [auto].")] = None,
    samples: Annotated[int | None, typer.Option(help="Draws to keep in the map.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random.")] = None,
    overwrite: Overwrite = False,
    plan: Annotated[bool, typer.Option("--plan", help="Print memory and expected time of the fit, and stop.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint of a stopped run.")] = False,
    quiet: Quiet = False, json: AsJson = False,
) -> None:  # fmt: skip
    """Fit a map to tables of measurements. What can be inferred is not asked for, and is told."""
    from hipgp.apps.cli import fitting
    from hipgp.apps.cli.settings import settings

    voice = _voice(quiet, json)
    again = "hipgp " + shlex.join(a for a in sys.argv[1:] if a != "--resume") + " --resume"
    with voice.guarded(again, fitting.checkpoints_of(output)):
        asked = _asked(context, *FIT_SETTINGS) | {
            "lengthscale": _split(lengthscale, float), "spacing": _split(spacing, float), "shape": _split(shape, int),
        }  # fmt: skip
        if plan:
            fitting.plan(tables, settings(config, asked), voice)
        else:
            fitting.fit(tables, output, settings(config, asked), overwrite, resume, voice)


@app.command()
def predict(
    context: typer.Context,
    map: MapFile,
    table: Annotated[Path | None, typer.Argument(help="Places, rays or boxes to predict.", show_default=False)] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help=".csv or .parquet; of shapes also .geojson or .gpkg.")
    ] = Path("predictions.csv"),
    begin: Annotated[str, typer.Option("--from", help="In place of a table: the first date or place of an axis.")] = "",
    end_at: Annotated[str, typer.Option("--to", help="The last one.")] = "",
    step: Annotated[str, typer.Option(help="Between them, such as 6h or 0.5 [200 places].")] = "",
    coordinates: Names = "", start: Names = "", end: Names = "", lower: Names = "", upper: Names = "",
    average: Average = False, total: Total = False, drop_nan: DropNan = False,
    std: Annotated[str, typer.Option(help="auto, vecchia, samples or exact.")] = "auto",
    noisy: Annotated[bool, typer.Option("--noisy", help="Of new measurements, with how the data scatter.")] = False,
    exposure: Annotated[str | None, typer.Option(help="With --noisy: column of exposures or trials.")] = None,
    overwrite: Overwrite = False, quiet: Quiet = False, json: AsJson = False,
) -> None:  # fmt: skip
    """Mean and standard deviation of any functional, for every row of a table."""
    from hipgp.apps.cli import maps
    from hipgp.apps.cli.console import check_output
    from hipgp.apps.cli.settings import STDS, one_of

    voice = _voice(quiet, json)
    with voice.guarded():
        one_of("std", std, STDS[:-1])
        check_output(output, overwrite)
        columns = _asked(context, "drop_nan", "average", "total", "noisy") | {"scale": exposure}
        columns["ends"] = begin, end_at, step
        maps.predict(map, table, output, columns, std, voice)


@app.command()
def sample(
    map: MapFile,
    count: Annotated[int, typer.Option("--count", "-n", help="How many.")] = 8,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    output: Annotated[Path, typer.Option("--output", "-o", help=".nc or .npy.")] = Path("samples.nc"),
    overwrite: Overwrite = False, quiet: Quiet = False, json: AsJson = False,
) -> None:  # fmt: skip
    """Exact draws of the whole map."""
    from hipgp.apps.cli import maps
    from hipgp.apps.cli.console import check_output

    voice = _voice(quiet, json)
    with voice.guarded():
        check_output(output, overwrite)
        maps.sample(map, count, seed, output, voice)


@app.command()
def update(
    context: typer.Context,
    map: MapFile,
    tables: Annotated[list[Path], typer.Argument(help="More measurements, as for `hipgp fit`.", show_default=False)],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The new map [MAP, with --overwrite].")] = None,
    coordinates: Names = "", start: Names = "", end: Names = "", lower: Names = "", upper: Names = "",
    value: Values = None, error: Errors = None,
    noise: Annotated[float | None, typer.Option(help="One standard error for all [the map's].")] = None,
    average: Average = False, total: Total = False, drop_nan: DropNan = False,
    std: Annotated[str, typer.Option(help="auto, vecchia, samples, exact or none.")] = "auto",
    overwrite: Overwrite = False, quiet: Quiet = False, json: AsJson = False,
) -> None:  # fmt: skip
    """More measurements for a map, with its kernel and noise: the posterior of all, in a fraction of a fit's steps."""
    from hipgp.apps.cli import updating
    from hipgp.apps.cli.settings import STDS, one_of

    voice = _voice(quiet, json)
    with voice.guarded():
        asked = _asked(context, "value", "error", "noise", "average", "total", "drop_nan")
        asked["std"] = one_of("std", std, STDS)
        updating.update(map, tables, output or map, asked, overwrite, voice)


@app.command()
def plot(
    map: MapFile,
    output: Annotated[Path | None, typer.Option("--output", "-o", help=".png, .pdf or .svg [MAP.png].")] = None,
    overwrite: Overwrite = False, quiet: Quiet = False, json: AsJson = False,
) -> None:  # fmt: skip
    """A picture of the map: mean, std and draws."""
    from hipgp.apps.cli import maps
    from hipgp.apps.cli.console import check_output

    voice = _voice(quiet, json)
    with voice.guarded():
        target = output or map.with_suffix(".png")
        check_output(target, overwrite)
        maps.plot(map, target, voice)


@app.command()
def export(
    map: MapFile,
    to: Annotated[Path, typer.Option(help="The file to write: .nc, .zarr, .tif (GeoTIFF) or .fits.", show_default=False)],
    interval: Annotated[float | None, typer.Option(help="Probability of intervals to add, such as 0.95.")] = None,
    samples: Annotated[int, typer.Option(help="Draws to add.")] = 0,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    crs: Annotated[str | None, typer.Option(help="Which coordinates the axes are, such as EPSG:32614.")] = None,
    overwrite: Overwrite = False, quiet: Quiet = False, json: AsJson = False,
) -> None:  # fmt: skip
    """The map for other programs: mean, std, intervals and draws, with units."""
    from hipgp.apps.cli import maps
    from hipgp.apps.cli.console import check_output

    voice = _voice(quiet, json)
    with voice.guarded():
        if not (to.is_dir() and to.suffix == ".zarr"):  # a store is a folder
            check_output(to, overwrite)
        maps.export(map, to, {"interval": interval, "crs": crs, "overwrite": overwrite}, samples, seed, voice)


@app.command()
def report(
    map: MapFile,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The page to write [MAP.html].")] = None,
    overwrite: Overwrite = False, quiet: Quiet = False, json: AsJson = False,
) -> None:  # fmt: skip
    """One self-contained web page: the model in words, verdicts, pictures, a slice browser."""
    from hipgp.apps import report as pages
    from hipgp.apps.cli.console import check_output

    voice = _voice(quiet, json)
    with voice.guarded():
        target = output or map.with_suffix(".html")
        check_output(target, overwrite)
        pages.write(map, target)
        voice.result(f"Report written to {target}", {"output": str(target)})


@app.command()
def info(map: MapFile, quiet: Quiet = False, json: AsJson = False) -> None:
    """What is in a map."""
    from hipgp.apps.cli import maps

    voice = _voice(quiet, json)
    with voice.guarded():
        maps.info(map, voice)


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="Which experiment, or all; see --list.", show_default=False)] = "",
    data: Annotated[Path | None, typer.Option(envvar="HIPGP_DATA", help="Folder of the data sets.")] = None,
    size: Annotated[str, typer.Option(help="small (one or two minutes on two cores) or paper (the paper's).")] = "small",
    output: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for figures and tables [./hipgp-reproduce-NAME].")
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the tables to this file as well; with all, a folder.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="End after so many minutes, with exit code 75; the same command goes on.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """One of the paper's experiments: its tables and figures, beside the paper's numbers."""
    from hipgp.apps.cli import reproducing

    voice = _voice(quiet, False)
    with voice.guarded():
        if list_ or not name:
            voice.result("hipgp reproduce NAME", reproducing.listed())
        elif name == "all":
            reproducing.reproduce_all(size, data, output or Path("hipgp-reproduce-all"), json, voice)
        else:
            if minutes is not None:
                reproducing.end_after(minutes, name)
            reproducing.reproduce(name, size, data, output or Path(f"hipgp-reproduce-{name}"), json, voice)


@app.command()
def version() -> None:
    """The version."""
    from hipgp import __version__

    print(__version__)


def main() -> None:
    app()
