"""Cases by area, Poisson with the expected number as exposure: each area predicted from all others, beside GPBoost.

    python benchmarks/areal_disease.py --data DIR [--refit]

The field is the risk. Three models of ours: an area's Poisson count sees the average of the risk over the area's polygon; it sees the
risk at the area's centre, as in GPBoost's model; and negative binomial counts of polygons, whose scatter has a part that areas do not
share, as that of Besag, York and Mollie has. `leave_out` predicts without a refit; with `--refit` the fit is made again without each area
(kernel kept), which tells how far that is from the truth. GPBoost 1.8 (`pip install gpboost`, left out where it is not installed):
Poisson, Matern 3/2 at the areas' centres, log of the expected number as offset, its parameters learned on all areas, and each area
predicted from a model of the others. Both scores are in nats an area; the last is that of one risk for all other areas.
"""

import argparse
import gzip
import json
import pathlib
import time

import numpy as np
from machine import facts, write_result
from scipy.stats import poisson

import hipgp as hg

SETS = ("scotland_lip", "penn_lung")
MODELS = ("areas", "centres", "overdispersed")
DRAWS = 20_000


def load(folder: pathlib.Path, name: str) -> tuple[list, np.ndarray, np.ndarray]:
    """Polygons in km, cases, and the cases expected of the population."""
    with gzip.open(folder / "areal_disease" / f"{name}.json.gz") as file:
        rows = json.load(file)
    rings = [[np.asarray(ring, float) for ring in row["rings"]] for row in rows]
    if name == "penn_lung":  # degrees
        middle = np.mean(np.concatenate([r for ring in rings for r in ring]), axis=0)
        scale = 111.2 * np.array([np.cos(np.deg2rad(middle[1])), 1.0])
        rings = [[(r - middle) * scale for r in ring] for ring in rings]
    cases = np.array([row["cases"] for row in rows])
    size = np.array([row.get("expected", row.get("population")) for row in rows], float)
    return rings, cases, size if "expected" in rows[0] else size * cases.sum() / size.sum()


def ours(model: str, polygons: list, cases: np.ndarray, expected: np.ndarray, refit: bool) -> dict:
    corners = np.concatenate([r for ring in polygons for r in ring])
    lower, upper = corners.min(axis=0), corners.max(axis=0)
    extent = float(np.max(upper - lower))
    grid = hg.Grid.cover(lower, upper, spacing=extent / 48, margin=0.02)
    at = hg.Points(centres(polygons)) if model == "centres" else hg.PolygonAverages(polygons)
    kind = hg.NegativeBinomial if model == "overdispersed" else hg.Poisson
    observe = lambda rows: hg.observe(at[rows], cases[rows], likelihood=kind(exposure=expected[rows]))
    every, began = np.arange(len(cases)), np.array([time.perf_counter(), time.process_time()])
    gp = hg.GP(hg.Matern32(0.5, 0.15 * extent), grid, trend="constant", link="exp")
    gp = gp.learn(observe(every), start="kernel", progress=False)
    post = gp.condition(observe(every), progress=False)
    left = post.leave_out()
    out = {
        "kernel": repr(gp.kernel),
        "parameters": gp.parameters,
        "seconds": np.array([time.perf_counter(), time.process_time()]) - began,
        "nats": float(np.mean(left.log_density())),
        "coverage_95": left.coverage(0.95),
    }
    if refit:
        logs = []
        for i in every:
            rest = gp.condition(observe(np.delete(every, i)), progress=False)
            new = kind(**{n.split(".")[1]: v for n, v in gp.parameters.items()}, exposure=expected[[i]])
            logs.append(float(rest.predict(at[[i]], noisy=new).log_density(cases[[i]])[0]))
        out["nats_refitted"] = float(np.mean(logs))
    return out


def centres(polygons: list) -> np.ndarray:
    return np.array([np.mean(np.concatenate(ring), axis=0) for ring in polygons])


def gpboost_scores(polygons: list, cases: np.ndarray, expected: np.ndarray) -> dict | None:
    try:
        import gpboost
    except ImportError:
        return None
    x = centres(polygons)
    x = (x - x.min(axis=0)) / np.max(np.ptp(x, axis=0))
    rng, logs, began = np.random.default_rng(0), [], time.perf_counter()
    ones = np.ones((len(cases), 1))
    model = {"cov_function": "matern", "cov_fct_shape": 1.5, "likelihood": "poisson"}
    full = gpboost.GPModel(gp_coords=x, **model)
    full.fit(y=cases, X=ones, offset=np.log(expected))
    parameters = np.asarray(full.get_cov_pars()).ravel()
    for i in range(len(cases)):
        rest = np.delete(np.arange(len(cases)), i)
        one = gpboost.GPModel(gp_coords=x[rest], **model)
        one.fit(
            y=cases[rest], X=ones[rest], offset=np.log(expected[rest]),
            params={"init_cov_pars": parameters, "maxit": 1, "lr_cov": 1e-12},
        )  # fmt: skip
        found = one.predict(
            gp_coords_pred=x[[i]], X_pred=ones[[i]], offset=np.log(expected[rest]),
            offset_pred=np.log(expected[[i]]), predict_var=True, predict_response=False,
        )  # fmt: skip
        eta = found["mu"][0] + np.sqrt(found["var"][0]) * rng.standard_normal(DRAWS)
        logs.append(np.log(np.mean(poisson.pmf(cases[i], np.exp(eta)))))
    return {"nats": float(np.mean(logs)), "parameters": parameters, "seconds": time.perf_counter() - began}


def one_risk(cases: np.ndarray, expected: np.ndarray) -> float:
    rest = (cases.sum() - cases) / (expected.sum() - expected)
    return float(np.mean(poisson.logpmf(cases, expected * rest)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--refit", action="store_true")
    args = parser.parse_args()
    result = {}
    for name in SETS:
        polygons, cases, expected = load(args.data, name)
        result[name] = {
            "areas": len(cases),
            "hipgp": {model: ours(model, polygons, cases, expected, args.refit) for model in MODELS},
            "gpboost": gpboost_scores(polygons, cases, expected),
            "one_risk_nats": one_risk(cases, expected),
        }
        print(name, result[name], flush=True)
    write_result("areal_disease", result | {"machine": facts()})


if __name__ == "__main__":
    main()
