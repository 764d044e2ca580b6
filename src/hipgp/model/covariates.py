"""Trends in named columns: a formula such as "~ elevation + C(type)", or a list of columns, and the matrix made of them.

>>> import pandas as pd
>>> table = pd.DataFrame({"height": [1.0, 2.0, 4.0], "rock": ["clay", "sand", "clay"]})
>>> design = Formula(["height", "rock"]).of(table)
>>> design.names
('constant', 'height', 'rock[sand]')
>>> design.matrix(table).tolist()
[[1.0, 1.0, 0.0], [1.0, 2.0, 1.0], [1.0, 4.0, 0.0]]
"""

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy  # its submodules are imported when they are first used
from jaxtyping import Float

from hipgp.model.grid import Grid
from hipgp.model.trend import Trend
from hipgp.runtime.plain import Arrays, Json

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 8  # categories that a message lists


class Formula:
    """The definition of a trend: a formula in Wilkinson's notation, as formulaic reads it, or names of columns.

    Of names, numbers count as they are, and anything else as categories, of which the first has no coefficient; a constant
    is added.
    """

    def __init__(self, terms: Any):
        self.text = terms if isinstance(terms, str) else ""
        self.columns = () if self.text else tuple(terms)
        if not self.text and (not self.columns or not all(isinstance(c, str) for c in self.columns)):
            raise ValueError(
                f'trend: expected names of columns, or a formula such as "~ elevation + C(type)", got {terms!r}'
            )

    def __repr__(self) -> str:
        return self.text or ", ".join(self.columns)

    @property
    def terms(self) -> str | list[str]:
        """The formula, or the names of columns: a valid argument of Formula."""
        return self.text or list(self.columns)

    def of(self, table: Any) -> "Design":
        """The columns of the trend that these observations determine."""
        return Design(self, table)


class Design:
    """The columns of a trend, with the categories and the scales of the table that it was made for."""

    def __init__(self, formula: Formula, table: Any):
        self.formula, self._spec = formula, None
        if formula.text:
            made = _of_formula(formula.text, table)
            self._spec = made.model_spec
            self.variables = tuple(sorted(str(v) for v in made.model_spec.required_variables))
            self.names = tuple(
                "constant" if n == "Intercept" else str(n) for n in made.model_spec.column_names
            )
            marked = set(re.findall(r"\bC\(\s*(\w+)", formula.text))
        else:
            self.variables, marked = formula.columns, set[str]()
        _check_there(self.variables, table)
        self.table = table[list(self.variables)]  # for files: scales and splines follow from it
        self.levels = {
            name: sorted(set(table[name]), key=str)
            for name in self.variables
            if name in marked or not _numeric(table[name])
        }
        if not formula.text:
            variables = [
                [f"{name}[{level}]" for level in self.levels[name][1:]] if name in self.levels else [name]
                for name in self.variables
            ]
            self.names = ("constant", *(name for part in variables for name in part))

    def matrix(self, table: Any) -> Float[np.ndarray, "N p"]:
        """The columns for the rows of another table; a ValueError where it lacks one, or has a category not seen before."""
        if table is None or not hasattr(table, "columns"):
            got = "none" if table is None else type(table).__name__
            raise ValueError(
                f"columns: expected a DataFrame with {', '.join(self.variables)}, of which the trend is made, got {got}"
            )
        _check_there(self.variables, table)
        for name, levels in self.levels.items():
            new = np.flatnonzero(~np.isin(np.asarray(table[name], object), np.asarray(levels, object)))
            if len(new):
                known = ", ".join(map(str, levels[:SHOWN])) + ", ..." * (len(levels) > SHOWN)
                raise ValueError(
                    f"columns: expected {name} among {known}, which the data have, got {table[name].iloc[new[0]]!r} in "
                    f"row {new[0]} ({len(new)} rows in all); the data say nothing of it: leave these rows out"
                )
        if self._spec is not None:
            found = np.asarray(self._spec.get_model_matrix(table, na_action="ignore"), float)
        else:
            parts = [np.ones((len(table), 1))]
            for name in self.variables:
                values = np.asarray(table[name])
                parts.append(
                    np.stack([values == level for level in self.levels[name][1:]], axis=1)
                    if len(self.levels.get(name, ())) > 1
                    else np.empty((len(table), 0))
                    if name in self.levels
                    else values[:, None]
                )
            found = np.concatenate(parts, axis=1).astype(float)
        bad = np.argwhere(~np.isfinite(found))
        if len(bad):
            row, column = bad[0]
            raise ValueError(
                f"columns: expected finite numbers, got {found[row, column]} in row {row} of {self.names[column]}; leave "
                "such rows out"
            )
        return found


def pack_design(design: Design) -> tuple[Arrays, Json]:
    """The formula, and the columns that it was made for: numbers as arrays, categories as their numbers and a list."""
    arrays: Arrays = {}
    columns: list[Json] = []
    for number, name in enumerate(design.variables):
        values, levels = design.table[name], None
        if not _numeric(values):
            levels = sorted(set(values), key=str)
            odd = [level for level in levels if not isinstance(level, str | bool | np.bool_)]
            if odd:
                raise ValueError(
                    f"trend: expected categories of {name} that are words, which can be saved, got {odd[0]!r}; convert "
                    "them with .astype(str)"
                )
            values = np.array([levels.index(value) for value in values])
            levels = [level if isinstance(level, str) else bool(level) for level in levels]
        arrays[f"covariate{number}"] = np.asarray(values, float)
        whole = getattr(values.dtype, "kind", "f") in "iu"
        columns.append({"name": name, "levels": levels, "whole": levels is None and whole})
    return arrays, {"terms": design.formula.terms, "columns": columns}


def unpack_design(packed: Json | None, arrays: Arrays) -> Design | None:
    """The columns of a trend that `pack_design` described; its arrays are taken from `arrays`."""
    if packed is None:
        return None
    import pandas as pd

    table = {}
    for number, column in enumerate(packed["columns"]):
        values, levels = arrays.pop(f"covariate{number}"), column["levels"]
        if levels is not None:
            values = np.array(levels, object)[values.astype(int)]
        table[column["name"]] = values.astype(int) if column["whole"] else values
    return Design(Formula(packed["terms"]), pd.DataFrame(table))


def coefficient_table(
    trend: Trend,
    estimate: Float[np.ndarray, " p"],
    covariance: Float[np.ndarray, "p p"],
    grid: Grid,
    names: tuple[str, ...],
    unit: float,
) -> "pd.DataFrame":
    """Coefficients with standard errors and 95% intervals; `names` are those of the columns, or of the axes."""
    import pandas as pd

    scale = np.full(len(estimate), unit)
    if trend.kind in ("constant", "linear"):
        names = ("constant", *names)[: len(estimate)]
        scale[1:] /= trend.centre_and_half_width(grid)[1][: len(estimate) - 1]  # per unit of each axis
    elif len(names) != len(estimate):
        names = tuple(f"column {i}" for i in range(len(estimate)))
    estimate, std = scale * estimate, scale * np.sqrt(np.diag(covariance))
    half = float(scipy.special.ndtri(0.975)) * std
    found = {"estimate": estimate, "std_error": std, "lower": estimate - half, "upper": estimate + half}
    return pd.DataFrame(found, index=pd.Index(names, name="coefficient"))


def _check_there(variables: tuple[str, ...], table: Any) -> None:
    missing = [name for name in variables if name not in table.columns]
    if missing:
        raise ValueError(
            f"columns: expected a table with {', '.join(variables)}, of which the trend is made, got one without "
            f"{', '.join(missing)}"
        )


def _numeric(column: Any) -> bool:
    return getattr(column.dtype, "kind", "O") in "iuf"


def _of_formula(text: str, table: Any) -> Any:
    """The matrix that formulaic makes of a table; a ValueError where it cannot read the formula, or there is no such column."""
    formulaic = _formulaic()
    try:
        return formulaic.model_matrix(text, table, na_action="ignore")
    except (formulaic.errors.FormulaicError, SyntaxError) as error:
        why = re.sub(r"\x1b\[[\d;]*m|[\u29da\u29db]", "", str(error)).split("\n")[0]
        raise ValueError(
            f'trend: expected a formula of the columns {", ".join(map(str, table.columns))}, as in "~ height + C(type)", got '
            f"{text!r} ({why})"
        ) from None


def _formulaic() -> Any:
    try:
        import formulaic
    except ModuleNotFoundError:
        raise ImportError(
            "trend: a formula needs formulaic: pip install 'hipgp[formula]'; names of columns, as in "
            'trend=["elevation", "type"], need nothing'
        ) from None
    return formulaic
