"""Maps on disk: a loaded one answers as the saved one did, and no other file gets in."""

import importlib
import json
import os
import zipfile

import numpy as np
import pytest
import xarray as xr

import hipgp as hg
from hipgp.files import io, persistence
from hipgp.runtime import archive
from hipgp.weights import torus

# grids here are coarse, so that the dense reference is small; `test_coarse_grid.py` tests the warning
pytestmark = pytest.mark.filterwarnings("ignore::hipgp.GridTooCoarse")

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 1, (60, 2))
Y = np.sin(5 * X[:, 0]) + X[:, 1] + 0.1 * RNG.standard_normal(60)
GRID = hg.Grid.cover((0, 0), (1, 1), shape=(14, 12), margin=0.05)
KERNEL = hg.Matern52(0.7, (0.3, 0.4))
FUNCTIONALS = {
    "points": hg.Points(X[:5]),
    "slopes": hg.Derivatives(X[:5], direction=[1.0, 2.0]),
    "rays": hg.LineIntegrals((0.0, 0.0), X[:5], average=True),
    "boxes": hg.BoxAverages(X[:5] - 0.04, X[:5] + 0.04),
    "weights": hg.Functionals(X[:6].reshape(2, 3, 2), [1.0, -2.0, 1.0]),
}


def mixed() -> hg.Data:
    data = hg.observe(hg.Points(X), Y)
    for functional in FUNCTIONALS.values():
        data = data + hg.observe(functional, np.ones(len(functional)), noise=0.3)
    return data


@pytest.fixture(
    scope="module",
    params=[
        "batch",
        "trend",
        "variational",
        pytest.param("exact weights", marks=pytest.mark.slow),
        pytest.param("float32", marks=pytest.mark.slow),
    ],
)
def post(request):
    if request.param == "variational":
        return hg.GP(KERNEL, GRID, noise=0.1).condition(mixed(), method=hg.Variational("block", (4, 4)))
    if request.param == "float32":
        data = hg.observe(hg.Points(X.astype(np.float32)), Y.astype(np.float32))
        return hg.GP(KERNEL, GRID, noise=0.1).condition(data, hg.Batch())
    method = hg.Batch(weights="exact") if request.param == "exact weights" else hg.Batch()
    trend = "linear" if request.param == "trend" else None
    return hg.GP(KERNEL, GRID, noise=0.1, trend=trend).condition(mixed(), method=method)


def test_a_loaded_map_predicts_as_the_saved_one(post, tmp_path):
    path = tmp_path / "map.hipgp"
    post.save(path)
    back = hg.load(path)
    np.testing.assert_array_equal(back.mean, post.mean)
    how = "auto" if post.diagnostics["engine"] == "variational" else "vecchia"
    np.testing.assert_array_equal(back.std(how), post.std(how))
    np.testing.assert_array_equal(back.sample(2, key=3), post.sample(2, key=3))
    for functional in FUNCTIONALS.values():
        was, now = (p.predict(functional, std=how) for p in (post, back))
        np.testing.assert_array_equal(now.mean, was.mean)
        np.testing.assert_array_equal(now.std, was.std)
    assert back.diagnostics["grid_points"] == post.diagnostics["grid_points"]
    assert back.noise == post.noise


def test_any_kernel_comes_back():
    kernel = (hg.Matern12(0.3, 2.0) + hg.Gneiting(1.0, (0.1, 0.7), 2.0)) * hg.RationalQuadratic(
        1.0, 1 / 3, 2.0
    )
    back = persistence.kernel_from_json(json.loads(json.dumps(persistence.kernel_to_json(kernel))))
    np.testing.assert_array_equal(back(X, X), kernel(X, X))


@pytest.fixture(scope="module")
def plain():
    data = hg.observe(hg.Points(X), Y, noise=0.1)
    found = hg.GP(hg.Matern32(1.0, 0.3), GRID).learn(data).condition(data, hg.Batch())
    return found.labelled(("East", "North"), "km", "height", "m")


def test_xarray_has_names_and_units(plain):
    made = plain.to_xarray(std=plain.std(), samples=plain.sample(2))
    assert made["mean"].dims == ("East", "North")
    assert made["samples"].dims == ("sample", "East", "North")
    assert made["mean"].attrs == {"long_name": "posterior mean of height", "units": "m"}
    assert made["East"].attrs["units"] == "km"
    np.testing.assert_allclose(made["North"], GRID.axes[1])


def test_labels_and_learning_come_back(plain, tmp_path):
    plain.save(tmp_path / "m")
    back = hg.load(tmp_path / "m")
    assert back.labels == plain.labels
    assert back.learned.names == plain.learned.names
    np.testing.assert_array_equal(back.learned.values, plain.learned.values)
    assert len(back.learned.trace) == len(plain.learned.trace)


def test_xarray_alone_opens_the_file(plain, tmp_path):
    import zarr

    plain.save(tmp_path / "map.zip", std=plain.std())
    with zarr.storage.ZipStore(tmp_path / "map.zip", mode="r") as store:
        made = xr.open_zarr(store, consolidated=False)
        np.testing.assert_array_equal(made["mean"], plain.mean)
        assert made["std"].attrs["units"] == "m"


@pytest.fixture
def in_slabs(plain, tmp_path, monkeypatch):
    """A map whose mean is in slabs of three planes, its draws in as many each, and whose arrays all count as large."""
    monkeypatch.setattr(io, "SLAB_BYTES", 3 * 8 * GRID.shape[1])
    monkeypatch.setattr(archive, "LARGE", 1)
    path = tmp_path / "slabs.hipgp"
    plain.save(path, std=plain.std("vecchia"), samples=plain.sample(2))
    return path


def test_xarray_alone_reads_the_slabs_that_are_asked_for(plain, in_slabs, monkeypatch):
    from zarr.storage import ZipStore

    opened, before = [], zipfile.ZipFile.open
    record = lambda self, name, *a, **k: opened.append(str(name)) or before(self, name, *a, **k)
    monkeypatch.setattr(zipfile.ZipFile, "open", record)
    with ZipStore(in_slabs, mode="r") as store:
        found = xr.open_zarr(store, consolidated=False, chunks=None)
        opened.clear()
        part = found["mean"][4:6].to_numpy()
        assert {name for name in opened if "/c/" in name} == {"mean/c/1/0"}
        np.testing.assert_array_equal(part, plain.mean[4:6])
        np.testing.assert_array_equal(found["mean"], plain.mean)
        np.testing.assert_array_equal(found["samples"][1], plain.sample(2)[1])


def in_a_file(array):
    """Whether an array is a view of a file."""
    while array is not None and not isinstance(array, np.memmap):
        array = array.obj if isinstance(array, memoryview) else array.base
    return array is not None


def test_large_arrays_stay_in_the_file_until_they_are_read(plain, in_slabs):
    back = hg.load(in_slabs)
    assert in_a_file(back.engine.field)
    np.testing.assert_array_equal(back.mean, plain.mean)
    np.testing.assert_array_equal(back.to_xarray()["samples"], plain.sample(2))
    np.testing.assert_array_equal(back.predict(X[:1]).mean, plain.predict(X[:1]).mean)
    content = bytearray(in_slabs.read_bytes())
    content[content.index(plain.mean[3:6].tobytes()) + 9] ^= 1
    in_slabs.write_bytes(content)
    with pytest.raises(ValueError, match="expected a hipgp map, got a damaged file"):
        hg.load(in_slabs)


def test_a_disk_that_fills_up_leaves_the_old_map(plain, tmp_path):
    """The limit on file sizes ends a write half way, as a full disk does."""
    resource = pytest.importorskip("resource")
    path = tmp_path / "map.hipgp"
    plain.save(path)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, old[1]))
    try:
        with pytest.raises(OSError) as caught:
            plain.save(path, std=np.ones(GRID.shape), overwrite=True)
        with pytest.raises(OSError):
            plain.export(tmp_path / "map.nc", std=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert any("map.hipgp was not changed" in note for note in caught.value.__notes__)
    assert [p.name for p in tmp_path.iterdir()] == ["map.hipgp"]
    np.testing.assert_array_equal(hg.load(path).mean, plain.mean)


def test_fits_cube_has_a_wcs(plain, tmp_path):
    fits = pytest.importorskip("astropy.io.fits")
    wcs = pytest.importorskip("astropy.wcs")
    plain.to_fits(tmp_path / "map.fits", std=plain.std())
    with fits.open(tmp_path / "map.fits") as file:
        np.testing.assert_array_equal(file[0].data, plain.mean.T)
        assert file[1].name == "STD" and file[0].header["BUNIT"] == "m"
        world = wcs.WCS(file[0].header).pixel_to_world_values(3, 5)
    np.testing.assert_allclose(world, [GRID.axes[0][3], GRID.axes[1][5]])
    with pytest.raises(FileExistsError, match="overwrite"):
        plain.to_fits(tmp_path / "map.fits")


@pytest.mark.parametrize("keep", [0, 10, 0.5, -1])
def test_truncated_files_are_refused(plain, tmp_path, keep):
    plain.save(tmp_path / "m")
    content = (tmp_path / "m").read_bytes()
    size = int(keep * len(content)) if isinstance(keep, float) else keep
    (tmp_path / "cut").write_bytes(content[:size])
    with pytest.raises(ValueError, match="expected a hipgp map"):
        hg.load(tmp_path / "cut")


def test_damaged_arrays_are_refused(plain, tmp_path):
    plain.save(tmp_path / "m")
    content = bytearray((tmp_path / "m").read_bytes())
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(ValueError, match=r"expected .*map"):
        hg.load(tmp_path / "m")


def test_a_posterior_on_another_torus_is_refused(tmp_path, monkeypatch):
    """As a version of hipgp may have written it that made its tori otherwise."""
    data = hg.observe(hg.Points(X), Y)
    hg.GP(KERNEL, GRID, noise=0.1).condition(data, hg.Variational("mean-field")).save(tmp_path / "m")
    usual = torus.fast_size
    monkeypatch.setattr(torus, "fast_size", lambda n, growth: usual(n, growth) + 2)
    with pytest.raises(ValueError, match="expected q_mean of shape"):
        hg.load(tmp_path / "m")


def test_foreign_files_are_refused(tmp_path):
    (tmp_path / "text").write_text("x,y\n1,2\n")
    np.savez(tmp_path / "arrays.npz", a=np.ones(3))
    for name in ("text", "arrays.npz"):
        with pytest.raises(ValueError, match="expected a hipgp map"):
            hg.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        hg.load(tmp_path / "absent")


def changed(path, name, edit):
    """The file with one JSON entry edited, sealed again."""
    with open(path, "rb") as file:
        entries = archive.read(file)
    told = json.loads(entries[name])
    edit(told)
    archive.write(path, entries | {name: json.dumps(told).encode()})
    return path


HOSTILE = {
    "pickled objects": ("mean/zarr.json", lambda n: n.update(data_type="object"), "plain numeric"),
    "an unknown codec": (
        "model/alpha/zarr.json",
        lambda n: n["codecs"].append({"name": "pickle"}),
        "plain numeric",
    ),
    "an older zarr": ("model/alpha/zarr.json", lambda n: n.update(zarr_format=2), "plain numeric"),
    "a later version": ("zarr.json", lambda n: n["attributes"]["hipgp"].update(version=99), "update hipgp"),
    "no model": ("zarr.json", lambda n: n["attributes"].update(model="{}"), "'grid' is missing"),
    "a strange kernel": (
        "zarr.json",
        lambda n: n["attributes"].update(model=n["attributes"]["model"].replace("Matern32", "os.system")),
        "expected a kernel among",
    ),
}


@pytest.mark.parametrize(("entry", "edit", "message"), HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_files_are_refused(plain, tmp_path, entry, edit, message):
    plain.save(tmp_path / "m")
    with pytest.raises(ValueError, match=message):
        hg.load(changed(tmp_path / "m", entry, edit))


def test_a_failed_write_leaves_the_old_file(plain, tmp_path, monkeypatch):
    plain.save(tmp_path / "m")
    before = (tmp_path / "m").read_bytes()
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        plain.save(tmp_path / "m", overwrite=True)
    assert (tmp_path / "m").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_a_file_is_replaced_only_when_told(plain, tmp_path):
    plain.save(tmp_path / "m")
    before = (tmp_path / "m").read_bytes()
    with pytest.raises(FileExistsError, match="overwrite=True"):
        plain.save(tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == before
    plain.save(tmp_path / "m", std=np.ones(GRID.shape), overwrite=True)
    assert "std" in io.read(tmp_path / "m").fields


@pytest.mark.parametrize(
    "given",
    [{"std": np.full(GRID.shape, np.nan)}, {"std": -np.ones(GRID.shape)}, {"samples": np.ones((2, 3))}],
)
def test_what_could_not_be_loaded_is_not_written(plain, tmp_path, given):
    with pytest.raises(ValueError):
        plain.save(tmp_path / "m", **given)
    assert not list(tmp_path.iterdir())


def test_zeros_stay_zeros(plain, tmp_path):
    """A chunk of nothing but zeros is written and needed like any other."""
    plain.save(tmp_path / "m", std=np.zeros(GRID.shape), samples=np.zeros((3, *GRID.shape), np.float32))
    fields = io.read(tmp_path / "m").fields
    assert not fields["std"].any() and fields["samples"].dtype == np.float32
    with open(tmp_path / "m", "rb") as file:
        assert len(archive.read(file)["std/c/0/0"]) == 8 * GRID.size


def test_what_cannot_be_stored_says_so(tmp_path):
    class Mine(hg.Points):
        pass

    found = hg.GP(hg.Matern32(1.0, 0.3), GRID).condition(hg.observe(Mine(X), Y, noise=0.1), hg.Batch())
    with pytest.raises(ValueError, match="Functionals"):
        found.save(tmp_path / "m")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="axes: expected 2"):
        found.labelled(("x",))


def test_dataset_is_what_xarray_plots(plain):
    assert io.dataset(GRID, plain.labels, {"mean": plain.mean})["mean"].plot() is not None


@pytest.mark.parametrize("name", persistence.ENGINES)
def test_an_engine_is_found_by_the_name_in_its_files(name):
    module, settings = persistence.ENGINES[name]
    assert getattr(importlib.import_module(module), settings).name == name
