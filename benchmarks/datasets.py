"""The real data sets that benchmarks solve: each as a model to be learned and its data, from a folder the user names.

Sources and licences are in the README of each folder of the data.
"""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

import hipgp as hg
from hipgp.model.kernels import Kernel


class Problem(NamedTuple):
    gp: hg.GP
    data: hg.Data


def points(x: np.ndarray, y: np.ndarray, shape: tuple[int, ...], kernel: Kernel, trend: str) -> Problem:
    grid = hg.Grid.cover(x.min(axis=0), x.max(axis=0), shape=shape)
    return Problem(hg.GP(kernel, grid, trend=trend), hg.observe(hg.Points(x), y))


def plane(lon: np.ndarray, lat: np.ndarray) -> np.ndarray:
    """Longitude and latitude in units of a degree of latitude, about their middle."""
    return np.stack([lon * np.cos(np.radians(lat.mean())), lat], axis=1).astype(float)


def heaton(folder: Path) -> Problem:
    file = np.load(folder / "heaton" / "heaton_satellite.npz")
    truth, train = file["true_temp"].astype(float), file["train_mask"]
    grid = hg.Grid((0, 0), 1.0, truth.shape)
    gp = hg.GP(hg.Matern12() + hg.Matern32(), grid, trend="linear")
    return Problem(gp, hg.observe(hg.Points(np.argwhere(train).astype(float)), truth[train]))


def uk_prices(folder: Path, shape: tuple[int, int] = (200, 200)) -> Problem:
    file = np.load(folder / "uk_house_prices" / "uk_prices_2018_update.npz")
    x = np.stack([file["lon"], file["lat"]], axis=1).astype(float)
    return points(x, np.log(file["price"]).astype(float), shape, hg.Matern12() + hg.Matern32(), "constant")


def aeromagnetic(folder: Path) -> Problem:
    """Every fifth reading along the flight lines."""
    file = np.load(folder / "gb_aeromagnetic" / "gb_aeromagnetic.npz")
    x, y = plane(file["lon"][::5], file["lat"][::5]), file["tfa_nt"][::5].astype(float)
    return points(x, y, (400, 600), hg.Matern12() + hg.Matern32(), "constant")


def bathymetry(folder: Path) -> Problem:
    file = np.load(folder / "verde" / "baja_bathymetry.npz")
    x, y = plane(file["longitude"], file["latitude"]), file["bathymetry_m"].astype(float)
    return points(x, y, (256, 256), hg.Matern12() + hg.Matern32(), "linear")


def rio_magnetic(folder: Path) -> Problem:
    file = np.load(folder / "verde" / "rio_magnetic.npz")
    x = plane(file["longitude"], file["latitude"])
    return points(x, file["total_field_anomaly_nt"].astype(float), (256, 256), hg.Matern32(), "constant")


def drifters(folder: Path) -> Problem:
    """Velocities as the two derivatives of a stream function: u = -d/dy, v = d/dx."""
    file = np.load(folder / "ocean_drifters" / "glad_laser_drifters.npz")
    x, velocity = file["gladfull_XY"].astype(float), file["gladfull_UV"].astype(float)
    down, across = np.array([0.0, -1.0]), np.array([1.0, 0.0])
    data = hg.observe(hg.Derivatives(x, direction=down), velocity[:, 0]) + hg.observe(
        hg.Derivatives(x, direction=across), velocity[:, 1]
    )
    grid = hg.Grid.cover(x.min(axis=0), x.max(axis=0), shape=(100, 100))
    return Problem(hg.GP(hg.Matern52(), grid), data)


def dust_domain(folder: Path) -> Problem:
    file = np.load(folder / "dust_hipgp_domain" / "domain_subsample.npz")
    stars = np.stack([file["x"], file["y"], file["z"]], axis=1).astype(float)
    rng = np.random.default_rng(0)
    noise = rng.uniform(0.0025, 0.0075, len(stars))
    y = file["e"].astype(float) + noise * rng.standard_normal(len(stars))
    grid = hg.Grid.cover((-0.25, -0.25, -0.05), (0.25, 0.25, 0.05), shape=(51, 51, 11))
    return Problem(hg.GP(hg.Matern32(), grid), hg.observe(hg.LineIntegrals(np.zeros(3), stars), y, noise))


def dust_clusters(folder: Path) -> Problem:
    """Clusters within 2 kpc of the Sun and 0.4 kpc of the plane, of good quality."""
    with gzip.open(folder / "dust_clusters_hunt2023" / "hunt2023_clusters.csv.gz") as file:
        table = pd.read_csv(file)
    x = table[["x_pc", "y_pc", "z_pc"]].to_numpy(float) / 1000
    near = (np.abs(x[:, :2]).max(axis=1) < 2) & (np.abs(x[:, 2]) < 0.4) & (table["CMDCl50"].to_numpy() > 0.5)
    grid = hg.Grid.cover((-2, -2, -0.4), (2, 2, 0.4), shape=(64, 64, 16))
    rays = hg.LineIntegrals(np.zeros(3), x[near])
    spread = (table["AV84"] - table["AV16"]).to_numpy(float)[near] / 2
    return Problem(
        hg.GP(hg.Matern32(), grid, trend="constant"),
        hg.observe(rays, table["AV50"].to_numpy(float)[near], np.maximum(spread, 0.05)),
    )


def surface_waves(folder: Path, nodes: int = 64) -> Problem:
    """Mean slowness (s/km) along great circles; the part of the given split that is not for testing."""
    file = np.load(folder / "surface_wave_tomography" / "usa_rayleigh_10s.npz")
    split = np.load(folder / "surface_wave_tomography" / "usa_rayleigh_10s_split.npz")
    train = np.ones(len(file["lat1"]), bool)
    train[split["test_idx"]] = False
    paths = great_circles(*(file[k][train].astype(float) for k in ("lat1", "lon1", "lat2", "lon2")), nodes)
    grid = hg.Grid.cover(paths.reshape(-1, 2).min(0), paths.reshape(-1, 2).max(0), shape=(240, 120))
    rays = hg.Functionals(paths, np.full(nodes, 1 / nodes))
    y = file["slowness_s_per_m"][train].astype(float) * 1000
    return Problem(hg.GP(hg.Matern32(), grid, trend="constant"), hg.observe(rays, y))


def great_circles(lat1, lon1, lat2, lon2, nodes: int) -> np.ndarray:
    """Points at equal steps along each great circle, as (N, nodes, 2) of longitude and latitude in degrees."""
    unit = lambda lat, lon: np.stack(
        [np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=-1
    )
    a, b = (unit(np.radians(lat), np.radians(lon)) for lat, lon in ((lat1, lon1), (lat2, lon2)))
    angle = np.arccos(np.clip(np.sum(a * b, axis=1), -1, 1))[:, None]
    t = (np.arange(nodes) + 0.5) / nodes
    p = (
        np.sin((1 - t) * angle)[..., None] * a[:, None] + np.sin(t * angle)[..., None] * b[:, None]
    ) / np.sin(angle)[..., None]
    return np.stack([np.degrees(np.arctan2(p[..., 1], p[..., 0])), np.degrees(np.arcsin(p[..., 2]))], axis=-1)


def tooth(folder: Path) -> Problem:
    """One slice, every second angle and pixel; the rotation's centre is at pixel 296."""
    file = np.load(folder / "ct_tooth" / "tooth_sinogram.npz")
    angle = np.radians(file["theta"].astype(float))[::2, None]
    offset = ((np.arange(640) - 296.0) / 320)[None, ::2]
    keep = np.broadcast_to(np.abs(offset) < 0.9, (len(angle), offset.shape[1]))
    across = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    along = np.stack([-np.sin(angle), np.cos(angle)], axis=-1)
    half = np.sqrt(np.maximum(0.95**2 - offset**2, 0.0))[..., None]
    rays = [(offset[..., None] * across + sign * half * along)[keep] for sign in (-1, 1)]
    grid = hg.Grid.cover((-1.0, -1.0), (1.0, 1.0), shape=(160, 160))
    y = file["sinogram"][0][::2, ::2].astype(float)[keep]
    return Problem(hg.GP(hg.Matern32(), grid), hg.observe(hg.LineIntegrals(*rays), y))


PROBLEMS: dict[str, Callable[[Path], Problem]] = {
    "heaton": heaton,
    "uk_prices": uk_prices,
    "aeromagnetic": aeromagnetic,
    "bathymetry": bathymetry,
    "rio_magnetic": rio_magnetic,
    "drifters": drifters,
    "dust_domain": dust_domain,
    "dust_clusters": dust_clusters,
    "surface_waves": surface_waves,
    "tooth": tooth,
}
