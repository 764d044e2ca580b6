"""One self-contained web page about a map: model, verdicts, pictures, and a browser of its values. No network.

Pictures are data URIs. The browser of maps and of slices of volumes is a script in the page (`browser.py`).
"""

import base64
import html
import io as buffers
import json
import os
import pathlib
import re
from importlib.resources import files
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hipgp import display, plots
from hipgp import posterior as models
from hipgp.apps import browser
from hipgp.files import io
from hipgp.model import dates
from hipgp.model.data import Data, count_repeated
from hipgp.model.grid import Grid
from hipgp.model.kernel_words import describe
from hipgp.scores import LeaveOut, describe_calibration
from hipgp.vecchia import grid_check

MOST_LEFT_OUT = 50_000  # observations: some ten seconds
LEAST_COVERAGE = 0.85  # of 95% intervals, below which they are called poor
TEMPLATE, SCRIPT = "report.html", "browser.js"
GOOD, FAIR, POOR = "good", "fair", "poor"


def write(path: str | os.PathLike[str], output: str | os.PathLike[str]) -> None:
    """The report of the map in `path`, as one HTML file."""
    text = page(path)
    with io.atomic(output) as file:
        file.write(text.encode(errors="backslashreplace"))  # a file's name need not be text


def page(path: str | os.PathLike[str]) -> str:
    """The report of the map in `path`, as HTML."""
    record = io.read(path)
    post = models.load(path)
    held = {str(k): np.asarray(record.fields[k]) for k in record.fields.data_vars} | {"mean": post.mean}
    left = left_out(post)
    parts = {
        "TITLE": html.escape(f"{post.labels.name}: {pathlib.Path(path).name}"),
        "WORDS": _in_words(post),
        "VERDICTS": "".join(
            f'<li class="{grade}">{html.escape(text)}</li>' for grade, text in verdicts(post, left)
        ),
        "DECISIONS": _decisions(post),
        "PICTURES": "".join(_figure_html(title, fig) for title, fig in pictures(post, left)),
        "BROWSER": browser.contents(post, held),
        "SCRIPT": files("hipgp.apps").joinpath(SCRIPT).read_text(encoding="utf-8"),
        "PROVENANCE": html.escape(json.dumps(record.model["provenance"])),
    }
    text = files("hipgp.apps").joinpath(TEMPLATE).read_text(encoding="utf-8")
    # in one pass: a label such as {{PICTURES}} is text, not a place to be filled
    return re.sub("{{(" + "|".join(parts) + ")}}", lambda place: parts[place[1]], text)


def _link_name(post: models.Posterior) -> str:
    """The link of a transformed field; empty where there is none."""
    name = post.diagnostics.get("link", "identity")
    return "" if name == "identity" else str(name)


def _scatter_in_words(post: models.Posterior, data: Data | None) -> str:
    """The distribution of the data about the functionals of the field, in words."""
    kinds = (
        [] if data is None else [type(b.likelihood).__name__ for b in data.blocks if b.likelihood is not None]
    )
    learned = getattr(post.engine.method, "parameters", {})
    if kinds:
        values = ", ".join(f"{name.split('.')[1]} {value:.4g}" for name, value in learned.items())
        return f"whose likelihood is {' and '.join(sorted(set(kinds)))}" + (
            f" (learned: {values})" if values else ""
        )
    if post.noise is None:
        return "each with its own noise"
    return f"with noise of standard deviation {post.noise:.4g} where none was given"


def _in_words(post: models.Posterior) -> str:
    """The field, the data, the prior and what was learned, in sentences."""
    info, labels, grid = post.diagnostics, post.labels, post.grid
    data = post.engine.observations()
    observed_as = kinds(data) if data is not None else f"{info.get('observations', 0):,} observations"
    names = [
        labels.axes[i] if dates.origin(unit) else labels.axis(i) for i, unit in enumerate(labels.axis_units)
    ]
    box = "; ".join(
        f"{name} from {dates.place(low, labels.axis_units[i])} to {dates.place(high, labels.axis_units[i])}"
        for i, (name, low, high) in enumerate(zip(names, grid.lower, grid.upper, strict=True))
    )
    link = _link_name(post)
    of_f = f"The field is {link}(f) of a Gaussian process f, whose kernel is given here. " if link else ""
    lines = [
        f"The field is <b>{html.escape(labels.value())}</b>, over {html.escape(box)}.",
        f"It was observed through {html.escape(observed_as)}, {html.escape(_scatter_in_words(post, data))}.",
        f"{of_f}The prior is a Gaussian process with covariance {html.escape(describe(post.kernel, labels.axis_units))}, carried "
        f"by a grid of {' x '.join(map(str, grid.shape))} = {grid.size:,} points.",
    ]
    if post.learned is not None:
        found = ", ".join(post.learned.shown())
        seconds = f"{post.learned.seconds:.1f} s"
        lines.append(f"Learned from the data in {seconds}, with standard errors: {html.escape(found)}.")
        if post.learned.choice:
            lines.append(f"The kernel was chosen by the data: {html.escape(post.learned.choice)}.")
    return "".join(f"<p>{line}</p>" for line in lines)


def kinds(data: Data) -> str:
    """The number of observations of each kind, in words."""
    names = {"Points": "values at points", "Derivatives": "slopes", "LineIntegrals": "line integrals",
             "BoxAverages": "averages over boxes", "Functionals": "weighted sums",
             "PolygonAverages": "averages over polygons", "PathIntegrals": "integrals along paths"}  # fmt: skip
    return " and ".join(
        f"{len(b.y):,} {names.get(type(b.functional).__name__, 'functionals')}" for b in data.blocks
    )


def verdicts(post: models.Posterior, left: LeaveOut | None) -> list[tuple[str, str]]:
    """Judgements on the solve, the grid, the kernel and the residuals, each good, fair or poor."""
    info = post.diagnostics
    out = _convergence_verdict(info)
    if (clipped := info.get("clipped_mass")) is not None:
        grade = GOOD if clipped < 1e-6 else FAIR if clipped < 1e-3 else POOR
        sentence = f"{100 * clipped:.2g}% of the prior covariance had to be changed to fit the FFT's torus."
        out.append((grade, sentence))
    open_part = info.get("residual_to_noise")
    if open_part is not None:
        grade = GOOD if open_part < 0.3 else FAIR if open_part < 2 else POOR
        advice = "" if grade == GOOD else " A finer grid would use the data better."
        share = f"{open_part:.2g} of the noise variance"
        out.append((grade, f"The residual variance, which the grid does not represent, is {share}.{advice}"))
    if "grid_mean_error" in info:
        out.append(_grid_verdict(info, post.grid))
    if post.learned is not None:
        missing = post.learned.undetermined
        text = (
            "The data determine every parameter of the kernel."
            if not missing
            else f"Not determined by the data: {', '.join(missing)}."
        )
        out.append((FAIR if missing else GOOD, text))
    out += [] if left is None else _leave_out_verdict(left)
    return out + _repeated_verdict(post)


def _convergence_verdict(info: dict[str, Any]) -> list[tuple[str, str]]:
    """Whether the solve, the rounds of the linearisation or the variational fit came close enough to their end."""
    if "kl_nats" in info:
        ok = info["kl_nats"] <= info["tolerance_nats"]
        judged = "nothing you could notice" if ok else "not close enough; raise max_iterations or neighbours"
        sentence = (
            f"The solve stopped after {info['iterations']} steps, at most {info['kl_nats']:.2g} nats from the exact "
            f"posterior of the model on its grid: {judged}."
        )
        return [(GOOD if ok else POOR, sentence)]
    if "rounds" in info:
        return [_rounds_verdict(info)]
    if "message" in info:
        return [(GOOD if info.get("converged") else FAIR, f"Variational fit: {info['message']}.")]
    return []


def _rounds_verdict(info: dict[str, Any]) -> tuple[str, str]:
    """Whether the rounds of the linearisation came to rest."""
    sentence = (
        f"In the last of {info['rounds']} rounds the posterior moved by {info['change_nats']:.2g} nats: "
    )
    if info.get("converged"):
        return GOOD, sentence + "it came to rest."
    return (
        POOR,
        sentence
        + f"it did not come to rest at {info['tolerance_nats']:g}; give more rounds, or look at the data.",
    )


def _decisions(post: models.Posterior) -> str:
    """The engine's decisions and their reasons as HTML; empty where it has none."""
    taken: dict[str, str] = post.diagnostics.get("decisions", {})
    rows = "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in taken.items())
    return f"<details><summary>What was decided, and why</summary><dl>{rows}</dl></details>" if rows else ""


def _grid_verdict(info: dict[str, Any], grid: Grid) -> tuple[str, str]:
    """Whether the grid is fine enough for the data."""
    if "grid_needed" in info:
        sentence = grid_check.describe_error(info, grid)
        return POOR, f"{sentence[0].upper()}{sentence[1:]}."
    return GOOD, (
        f"The grid is fine enough: it puts the mean off by at most {info['grid_mean_error']:.2g} posterior standard "
        f"deviations at {info['grid_error_places']} places tried."
    )


def left_out(post: models.Posterior) -> LeaveOut | None:
    """Each observation predicted from all others, where the engine gives that and there are not too many."""
    data = post.engine.observations()
    if data is None or len(data) > MOST_LEFT_OUT:
        return None
    try:
        return post.leave_out()
    except ValueError:  # an engine without it, or one observation that decides on the trend
        return None


def _leave_out_verdict(found: LeaveOut) -> list[tuple[str, str]]:
    """Whether the error bars are right, and whether some observations lie far off."""
    judged = describe_calibration(found.pit())
    grade = GOOD if judged.right else POOR if found.coverage() < LEAST_COVERAGE else FAIR
    out = [
        (
            grade,
            f"Each observation predicted from all the others: {judged.words[0].lower()}{judged.words[1:]}",
        )
    ]
    far = float(np.mean(np.abs(found.pull) > 4))
    if far > 1e-3:
        sentence = f"{100 * far:.2g}% of the data lie more than 4 standard deviations from what the others say of them"
        out.append((FAIR, f"{sentence}: outliers, or errors too small."))
    return out


def _repeated_verdict(post: models.Posterior) -> list[tuple[str, str]]:
    data = post.engine.observations()
    if data is None or not data.gaussian or not (repeated := count_repeated(data)):
        return []
    sentence = f"{repeated:,} of {len(data):,} observations repeat another one exactly, place and value"
    return [
        (FAIR, f"{sentence}: each counts as a measurement of its own. Leave them out if they are copies.")
    ]


def pictures(post: models.Posterior, left: LeaveOut | None) -> list[tuple[str, Figure]]:
    """The map, the residuals, and how solve and learning converged, each with its title."""
    info = post.diagnostics
    found = [
        ("The map", display.figure(post) if post.grid.ndim < 4 else None),
    ]
    if left is not None:
        found.append(("Each observation predicted from all the others", plots.calibration_of(left.pit())))
    if info.get("rounds"):
        found.append(("Rounds of the linearisation", plots.rounds(info["trace"], info["tolerance_nats"])))
    if info.get("kl_trace"):
        found.append(("Convergence", plots.convergence(info["kl_trace"], info["tolerance_nats"])))
    if post.learned is not None and post.learned.trace:
        found.append(("Learning", plots.learning(post.learned.trace, post.learned.names)))
    return [(title, figure) for title, figure in found if figure is not None]


def _figure_html(title: str, fig: Figure) -> str:
    buffer = plots.save(fig, buffers.BytesIO(), dpi=120, format="png")
    caption, png = html.escape(title), base64.b64encode(buffer.getvalue()).decode()
    source = f"data:image/png;base64,{png}"
    return f'<figure><img alt="{caption}" src="{source}"><figcaption>{caption}</figcaption></figure>'
