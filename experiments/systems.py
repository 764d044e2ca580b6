"""The systems of the paper's tables, and how each was fitted, in words that say which algorithm it was.

- *closed form*: the optimum of appendix B.1.1, by one solve; where all weights are held and the torus is small.
- *natural gradients*: the paper's algorithm, appendix B.1.2, by mini-batches with a constant step.
- *natural gradients, falling step*: the same with a step that falls from 0.05 to 0.00005, for very many minibatches.
- *natural gradients, kernel learned*: the same after kernel and noise were learned by Adam together with q (appendix B.2).
- *closed form, kernel learned*: kernel and noise learned so, and q by one solve after it.
- *dual ascent*: hipgp's own way to the same optimum by mini-batches, without a step (docs/paper_engine.md).
"""

from typing import Any, Literal

import numpy as np

import hipgp as hg
from hipgp.model.problem import Problem
from hipgp.model.trend import Trend
from hipgp.runtime import memory
from hipgp.variational.whitening import cholesky_bytes

STEP = 0.05  # of the natural gradient, as docs/paper_engine.md recommends
FALLING = (0.05, 5e-5)  # the same for very many minibatches
Fit = Literal[
    "best", "natural gradients", "natural gradients, falling step", "natural gradients, kernel learned", "closed form, kernel learned", "dual ascent"
]  # fmt: skip
EVERY_WAY: tuple[Fit, ...] = (
    "best", "natural gradients", "natural gradients, kernel learned", "dual ascent",
)  # fmt: skip


def variational(system: str, fit: Fit = "best", **settings: Any) -> hg.Variational:
    """HIP-GP or SVGP. `best` is the closed form where it can be had, else dual ascent: the library's default."""
    how: dict[str, Any] = {"whitening": "cholesky" if system == "SVGP" else "toeplitz"}
    if fit.startswith("natural") or fit == "dual ascent":
        how["direct"] = False
    if fit.startswith("natural"):
        how["step"] = FALLING if fit.endswith("falling step") else STEP
    return hg.Variational(**settings, **how, learn=fit.endswith("learned"))


def conditioned(method: Any, gp: hg.GP, data: Any, **kept: Any) -> hg.Posterior:
    """The posterior on the GP's grid, which is not checked: grids here are as coarse as the paper's, or coarser on purpose."""
    assert gp.grid is not None
    problem = Problem(gp.kernel, gp.grid, data, gp.noise, Trend(None))
    return hg.Posterior(method.fit(problem, progress=False, **kept))


def fits_memory(system: str, grid: hg.Grid) -> bool:
    """Whether the memory is large enough: SVGP has a dense factor."""
    return system != "SVGP" or memory.fits(cholesky_bytes(grid.size))


def fitted_by(post: hg.Posterior) -> str:
    """How the posterior was found: from its diagnostics, so that no table can say otherwise."""
    method: Any = post.engine.method
    if not isinstance(method, hg.Variational):
        return ""
    if post.diagnostics["direct"]:
        way = "closed form"
    else:
        way = "dual ascent" if method.step is None else "natural gradients"
        way += ", falling step" if isinstance(method.step, tuple) else ""
    return f"{way}, kernel learned" if method.learn else way


def averaged(splits: list[dict[str, Any]], spread: tuple[str, ...]) -> dict[str, Any]:
    """Means over splits; for those in `spread`, with the standard error of the mean."""
    out: dict[str, Any] = {}
    for key, first in splits[0].items():
        values = [s[key] for s in splits]
        if isinstance(first, bool | str):
            out[key] = first
            continue
        out[key] = float(np.mean(values)) if isinstance(first, float) else first
        if key in spread and len(splits) > 1:
            out[f"{key}_error"] = float(np.std(values, ddof=1) / np.sqrt(len(splits)))
    return out
