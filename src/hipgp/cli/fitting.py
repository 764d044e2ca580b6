"""`hipgp fit`: from tables to a map."""

import pathlib
import tomllib
from typing import Any, NamedTuple

import numpy as np

import hipgp as hg
from hipgp.cli import grids, tables
from hipgp.cli.console import BadInput, Voice, check_output
from hipgp.kernels import Kernel, elementary
from hipgp.labels import Labels


class Settings(NamedTuple):
    """Everything `fit` can be told; the names are those of the flags and of the TOML file."""

    coordinates: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    lower: tuple[str, ...] = ()
    upper: tuple[str, ...] = ()
    value: str | None = None
    error: str | None = None
    noise: float | None = None
    average: bool = False
    drop_nan: bool = False
    kernel: str = "Matern32"
    variance: float | None = None
    lengthscale: tuple[float, ...] = ()
    trend: str = "constant"
    spacing: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()
    engine: str = "batch"
    tolerance: float = 0.01
    name: str | None = None
    unit: str = ""
    axis_unit: str = ""
    std: str = "auto"
    samples: int = 0
    seed: int = 0


def settings(config: pathlib.Path | None, flags: dict[str, Any]) -> Settings:
    """The file's settings, overruled by the flags that were given."""
    told: dict[str, Any] = {}
    if config is not None:
        try:
            told = tomllib.loads(config.read_text())
        except tomllib.TOMLDecodeError as error:
            raise BadInput(f"{config}: not valid TOML ({error})") from None
    unknown = [k for k in told if k not in Settings._fields]
    if unknown:
        raise BadInput(f"{config}: unknown setting {unknown[0]!r}; there are {', '.join(Settings._fields)}")
    told |= {k: v for k, v in flags.items() if v not in (None, (), False)}
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in told.items()}
    return Settings(**given)


def parse_kernel(text: str, ndim: int, s: Settings) -> Kernel:
    """ "Matern32", or "Matern12 + Matern32": names of kernels, without regard to case."""
    known = {name.lower(): cls for name, cls in elementary().items()}
    total: Kernel | None = None
    for word in text.split("+"):
        cls = known.get(word.strip().lower().replace("/", ""))
        if cls is None:
            raise BadInput(
                f"kernel: expected {', '.join(elementary())} or a sum of them, got {word.strip()!r}"
            )
        lengths: Any = s.lengthscale if len(s.lengthscale) > 1 else (s.lengthscale or (1.0,))[0]
        part = cls(variance=s.variance or 1.0, lengthscale=lengths)
        total = part if total is None else total + part
    assert total is not None
    total.check_dimension(ndim)
    return total


class Loaded(NamedTuple):
    """Every table's rows as measurements, in one data set, and what they are called and measured in."""

    data: hg.Data
    columns: tables.Columns
    units: tables.Units

    def labels(self, s: Settings) -> Labels:
        kind = self.columns.kind
        names = ("X", "Y", "Z") if kind == "sky" else self.columns.first if kind == "points" else None
        axis, field = self.units
        return Labels.of(self.data.ndim, names, axis, s.name or self.columns.value, field)


def load_data(paths: list[pathlib.Path], s: Settings, voice: Voice) -> Loaded:
    data, columns, units = None, None, tables.Units(s.axis_unit, s.unit)
    for path in paths:
        sheet = tables.read_table(path)
        columns = tables.infer(
            sheet, coordinates=s.coordinates, start=s.start, end=s.end, lower=s.lower, upper=s.upper, value=s.value,
            error=s.error, path=path,
        )  # fmt: skip
        voice.note(f"{path}: {columns.described()}")
        units = units.completed(sheet, columns, s.average)
        functional, rest, good = tables.functional(sheet, columns, s.drop_nan, s.average, path, units)
        if not np.all(good):
            voice.note(f"{path}: left out {int(np.sum(~good))} rows with empty cells")
        noise = rest[:, 1] if columns.error else s.noise
        if noise is None:
            voice.note(f"{path}: no column of errors; the noise is learned")
        one = hg.observe(functional, rest[:, 0], noise)
        data = one if data is None else data + one
    assert data is not None and columns is not None
    return Loaded(data, columns, units)


def fit(
    paths: list[pathlib.Path], output: pathlib.Path, s: Settings, overwrite: bool, resume: bool, voice: Voice
) -> None:
    """The whole job; the map is written at the end, all at once."""
    check_output(output, overwrite)
    checkpoint, of_learning = checkpoints_of(output)
    if not resume:
        checkpoint.unlink(missing_ok=True)
        of_learning.unlink(missing_ok=True)
    loaded = load_data(paths, s, voice)
    data = loaded.data
    loaded.labels(s)  # a name that no map can have is refused before the work
    kernel = parse_kernel(s.kernel, data.ndim, s)
    trend = None if s.trend == "none" else s.trend
    given = grids.wanted(data, s.spacing, s.shape) if s.spacing or s.shape else None
    gp = hg.GP(kernel, given or grids.first(data), s.noise, trend)
    learning = not (s.lengthscale and s.variance)
    if learning:
        start = "kernel" if s.lengthscale else "data"
        gp = gp.learn(data, start=start, key=s.seed, progress=voice.progress, checkpoint=of_learning)
        assert gp.learned is not None
        pairs = zip(gp.learned.names, gp.learned.values, strict=True)
        voice.note("learned: " + ", ".join(f"{n} {v:.4g}" for n, v in pairs))
    if given is None:
        learned = gp.learned
        gp = hg.GP(gp.kernel, grids.fitted(data, gp), gp.noise, trend)
        gp = with_learned(gp, learned)
        voice.note(
            f"grid: {' x '.join(map(str, gp.grid.shape))} points, "
            f"spacing {', '.join(f'{h:.3g}' for h in gp.grid.spacing)}"
        )
    finish(gp, loaded, output, checkpoint, s, voice, overwrite)
    of_learning.unlink(missing_ok=True)


def with_learned(gp: hg.GP, learned: Any) -> hg.GP:
    import equinox as eqx

    return eqx.tree_at(lambda g: g.learned, gp, learned, is_leaf=lambda a: a is None)


def checkpoints_of(output: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Of the solve, and of learning."""
    return output.with_name(output.name + ".checkpoint"), output.with_name(output.name + ".learning")


def finish(
    gp: hg.GP,
    loaded: Loaded,
    output: pathlib.Path,
    checkpoint: pathlib.Path,
    s: Settings,
    voice: Voice,
    overwrite: bool,
) -> None:
    if s.engine == "batch":
        method = hg.Batch(tolerance=s.tolerance)
        post = gp.condition(loaded.data, method=method, progress=voice.progress, checkpoint=checkpoint)
    elif s.engine == "variational":
        gp = hg.GP(gp.kernel, gp.grid, gp.noise)
        post = gp.condition(loaded.data, method=hg.Variational(), progress=voice.progress)
    else:
        raise BadInput(f"engine: expected batch or variational, got {s.engine!r}")
    post = post.labelled(*loaded.labels(s))
    std = None if s.std == "none" else post.std(s.std, progress=voice.progress)  # type: ignore[arg-type]
    draws = post.sample(s.samples, key=s.seed, progress=voice.progress) if s.samples else None
    post.save(output, std=std, samples=draws, overwrite=overwrite)
    told = post.diagnostics
    rows = {
        k: told.get(k)
        for k in (
            "observations",
            "grid",
            "iterations",
            "kl_nats",
            "converged",
            "setup_seconds",
            "solve_seconds",
        )
    }
    voice.result(f"Map written to {output}", {"output": str(output)} | rows | {"noise": post.noise})
    voice.note(f"next: hipgp report {output}")
