"""`hipgp fit`: from tables to a map."""

import pathlib
import re
from typing import Any, NamedTuple

import numpy as np

import hipgp as hg
from hipgp.apps.cli import grids, tables
from hipgp.apps.cli.console import BadInput, Voice, check_output
from hipgp.apps.cli.settings import (
    LIKELIHOODS,
    Settings,
    additive,
    kernel_asked,
    limit_columns,
    limits_of,
    link_of,
    scale_of,
)
from hipgp.model.labels import Labels

MEANINGS = {"exp": "positive", "softplus": "positive", "logistic": "a probability, between 0 and 1"}


class _Loaded(NamedTuple):
    """The observations of all tables, with the names and units of their columns."""

    data: hg.Data
    columns: tables.Columns
    units: tables.Units

    def labels(self, s: Settings) -> Labels:
        crs, kind = self.data.frame.crs, self.columns.kind
        names = ("X", "Y", "Z") if kind == "sky" else self.columns.first if kind == "points" else None
        if crs:
            names = ("x", "y", *(names or ())[2:]) if self.data.ndim > 2 else None
        axis, field, _ = self.units
        axes = [unit or ("" if crs else axis) for unit in self.data.units or ("",) * self.data.ndim]
        return Labels.of(self.data.ndim, names, axes, s.name or self.columns.value, field)


def load_data(paths: list[pathlib.Path], s: Settings, voice: Voice) -> _Loaded:
    """Read the observations of all tables, and say what their columns are taken for."""
    data, columns, units = None, None, tables.Units(s.axis_unit, s.unit)
    for path in paths:
        sheet = tables.read_table(path, s.average)
        columns = tables.infer(
            sheet, coordinates=s.coordinates, start=s.start, end=s.end, lower=s.lower, upper=s.upper, value=s.value,
            error=s.error, with_error=additive(s), scale=scale_of(s), limits=limit_columns(s), path=path, others=_in_trend(s), total=s.total,
        )  # fmt: skip
        voice.note(f"{path}: {columns.described()}")
        if columns.degrees and not units.axis:
            voice.note(
                f"{path}: longitude and latitude become places on a plane about their middle, in km; give --axis-unit deg to "
                "count degrees as they are"
            )
        units = units.completed(sheet, columns, s.average, path)
        functional, rest, good = tables.functional(sheet, columns, s.drop_nan, s.average, path, units)
        if not np.all(good):
            voice.note(f"{path}: left out {int(np.sum(~good))} rows with empty cells")
        noise = rest[:, 1] if columns.error else s.noise
        if noise is None and additive(s):
            if not _learns(s):
                raise BadInput(
                    f"{path}: no column of errors, and nothing is to be learned; give --noise or --error, or leave out "
                    "--lengthscale or --variance of `hipgp fit`"
                )
            voice.note(f"{path}: no column of errors; the noise is learned")
        begin = 2 if columns.error else 1
        limits = _limits(s, rest[:, begin : begin + len(columns.limits)])
        likelihood = _likelihood(s, rest[:, -1] if columns.scale else None, limits)
        covariates = sheet.frame.loc[good].reset_index(drop=True) if "~" in s.trend else None
        one = hg.observe(functional, rest[:, 0], noise, likelihood, covariates)
        data = one if data is None else data + one
    assert data is not None and columns is not None
    return _Loaded(data, columns, units)


def _in_trend(s: Settings) -> tuple[str, ...]:
    """The columns that the trend's formula names, which hold no measured values."""
    return tuple(re.findall(r"[^\W\d]\w*", s.trend)) if "~" in s.trend else ()


def _likelihood(s: Settings, scale: np.ndarray | None, limits: dict[str, Any]) -> hg.Likelihood | None:
    """The likelihood that is asked for, with its exposures, trials or limits of detection; None for Gaussian noise."""
    kind, _, name = LIKELIHOODS[s.likelihood]
    if limits:
        return hg.Censored(**limits, base=None if s.likelihood == "gaussian" else getattr(hg, kind)())
    if s.likelihood == "gaussian":
        return None
    return getattr(hg, kind)(**({} if scale is None else {name: scale}))


def _limits(s: Settings, columns: np.ndarray) -> dict[str, Any]:
    """The limits of detection as Censored takes them, each a number or a column of them."""
    left = iter(columns.T)
    limits = {name: getattr(s, name) for name in limits_of(s)}
    return {n.removesuffix("_limit"): next(left) if isinstance(v, str) else v for n, v in limits.items()}


def _learns(s: Settings) -> bool:
    """Tell whether anything of the kernel, and with it the noise, is left to be learned."""
    return not s.lengthscale or s.variance is None


def fit(
    paths: list[pathlib.Path], output: pathlib.Path, s: Settings, overwrite: bool, resume: bool, voice: Voice
) -> None:
    """Read the tables, learn, condition, and write the map, whole, at the end."""
    check_output(output, overwrite)
    checkpoint, of_learning = checkpoints_of(output)
    if not resume:
        checkpoint.unlink(missing_ok=True)
        of_learning.unlink(missing_ok=True)
    loaded = load_data(paths, s, voice)
    data = loaded.data
    loaded.labels(s)  # a name that no map can have is refused before the work
    kernel = kernel_asked(s, data.ndim, data.units)
    trend = None if s.trend == "none" else s.trend
    grid_of_settings = grids.wanted(data, s.spacing, s.shape) if s.spacing or s.shape else None
    link = None if link_of(s) == "none" else link_of(s)
    if link is not None and s.link is None:
        voice.note(f"link: {link}, which suits {s.likelihood}; the field is {MEANINGS[link]}")
    gp = hg.GP(kernel, grid_of_settings or grids.first(data), s.noise, trend, link)
    if _learns(s):
        start = "kernel" if s.lengthscale else "data"
        gp = gp.learn(data, start=start, key=s.seed, progress=voice.progress, checkpoint=of_learning)
        assert gp.learned is not None
        others = [f"{name.split('.')[1]} {value:.4g}" for name, value in gp.parameters.items()]
        if gp.learned.choice:
            voice.note(f"kernel chosen: {gp.learned.choice}")
        voice.note("learned: " + ", ".join([*gp.learned.shown(), *others]))
    if grid_of_settings is None:
        learned, grid = gp.learned, _first_grid(gp, data, s)
        gp = _with_learned(hg.GP(gp.kernel, grid, gp.noise, trend, link, gp.parameters), learned)
        if grid is not None:
            voice.note(
                f"grid: {' x '.join(map(str, grid.shape))} points, spacing {', '.join(f'{h:.3g}' for h in grid.spacing)}"
            )
    _finish(gp, loaded, output, checkpoint, s, voice, overwrite)
    of_learning.unlink(missing_ok=True)


def _first_grid(gp: hg.GP, data: hg.Data, s: Settings) -> hg.Grid | None:
    """None where conditioning chooses a grid on which the posterior is near that without one, as in Python."""
    chosen = s.engine == "batch" and data.gaussian and link_of(s) == "none"
    return None if chosen else grids.fitted(data, gp)


def plan(paths: list[pathlib.Path], s: Settings, voice: Voice) -> None:
    """Print what a fit of the tables would take. Nothing is learned: what is not given of the kernel is assumed."""
    data = load_data(paths, s, voice).data
    if kernel_asked(s, data.ndim, data.units) == "auto":
        raise BadInput(
            "kernel: expected one by name with --plan, got auto, which only the data choose; name one"
        )
    if not s.lengthscale:
        s = s._replace(lengthscale=grids.assumed_lengthscale(data))
        voice.note(
            f"the kernel is not learned yet, and learning is not counted: planned with --lengthscale {s.lengthscale[0]:.3g}, "
            "a tenth of the data's extent; give another to see what it would take"
        )
    kernel = kernel_asked(s, data.ndim, data.units)
    grid_given = s.spacing or s.shape
    grid = grids.wanted(data, s.spacing, s.shape) if grid_given else _first_grid(hg.GP(kernel), data, s)
    noise = s.noise or 0.3 * float(np.std(data.y)) or 1.0
    link = None if link_of(s) == "none" else link_of(s)
    trend = None if s.trend == "none" or s.engine == "variational" else s.trend
    gp = hg.GP(kernel, grid, noise, trend, link)
    method = hg.Batch(tolerance=s.tolerance) if s.engine == "batch" else hg.Variational()
    found = gp.plan(data, method, progress=voice.progress)
    title, rows = found._shown()
    parts = [part._asdict() for part in found.parts]
    facts = {"bytes": found.bytes, "seconds": found.seconds, "fits": found.fits, "refusal": found.refusal}
    voice.result(title, facts | {"parts": parts} if voice.as_json else rows)


def _with_learned(gp: hg.GP, learned: Any) -> hg.GP:
    import equinox as eqx

    return eqx.tree_at(lambda g: g.learned, gp, learned, is_leaf=lambda a: a is None)


def checkpoints_of(output: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """The checkpoint files of the solve and of learning."""
    return output.with_name(output.name + ".checkpoint"), output.with_name(output.name + ".learning")


def _finish(
    gp: hg.GP,
    loaded: _Loaded,
    output: pathlib.Path,
    checkpoint: pathlib.Path,
    s: Settings,
    voice: Voice,
    overwrite: bool,
) -> None:
    if s.engine == "batch":
        method = hg.Batch(tolerance=s.tolerance)
        post = gp.condition(loaded.data, method=method, progress=voice.progress, checkpoint=checkpoint)
    else:
        gp = hg.GP(gp.kernel, gp.grid, gp.noise)
        post = gp.condition(loaded.data, method=hg.Variational(), progress=voice.progress)
    if "grid_chosen" in post.diagnostics:
        voice.note(str(post.diagnostics["grid_chosen"]))
    post = post.labelled(*loaded.labels(s))
    std = None if s.std == "none" else post.std(s.std, progress=voice.progress)  # type: ignore[arg-type]
    draws = post.sample(s.samples, key=s.seed, progress=voice.progress) if s.samples else None
    post.save(output, std=std, samples=draws, overwrite=overwrite)
    facts = post.diagnostics
    rows = {
        k: facts.get(k)
        for k in (
            "observations",
            "grid",
            "iterations",
            "kl_nats",
            "rounds",
            "change_nats",
            "converged",
            "setup_seconds",
            "solve_seconds",
        )
    }
    voice.result(f"Map written to {output}", {"output": str(output)} | rows | {"noise": post.noise})
    voice.note(f"next: hipgp report {output}")
