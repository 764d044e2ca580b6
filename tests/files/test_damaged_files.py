"""A damaged, incomplete or hostile map is one ValueError that names the file; it never loads as another, nor takes memory."""

import io as buffers
import json
import tracemalloc
import zipfile

import numpy as np
import pytest

import hipgp as hg
from hipgp.files import persistence
from hipgp.runtime import archive

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 1, (40, 2))
DATA = hg.observe(hg.Points(X[:30]), np.sin(5 * X[:30, 0]), noise=0.1) + hg.observe(
    hg.Points(X[30:]), X[30:, 1]
)
GRID = hg.Grid.cover((0, 0), (1, 1), shape=(9, 8), margin=0.05)
KERNEL = hg.Matern52(0.7, (0.3, 0.4))
LITTLE = 2**24  # bytes

pytestmark = pytest.mark.filterwarnings("ignore::hipgp.GridTooCoarse")  # grids here are small on purpose


@pytest.fixture(scope="module")
def maps(tmp_path_factory):
    """A small map of each engine."""
    folder = tmp_path_factory.mktemp("maps")
    batch = hg.GP(KERNEL, GRID, noise=0.1, trend="linear").condition(DATA, hg.Batch())
    batch.save(folder / "batch", std=np.ones(GRID.shape), samples=np.zeros((2, *GRID.shape)))
    hg.GP(KERNEL, GRID, noise=0.1).condition(DATA, hg.Variational("mean-field")).save(folder / "variational")
    return folder


@pytest.fixture
def batch(maps):
    return maps / "batch"


def members_of(path):
    with open(path, "rb") as file:
        return archive.read(file)


def flipped(content, rng):
    at = rng.integers(len(content))
    return content[:at] + bytes([content[at] ^ int(rng.integers(1, 256))]) + content[at + 1 :]


def cut(content, rng):
    return content[: rng.integers(len(content))]


def without_a_piece(content, rng):
    begin, end = np.sort(rng.integers(len(content), size=2))
    return content[:begin] + content[end + 1 :]


def without_a_member(content, rng):
    return rewritten(content, lambda names: names[: (at := rng.integers(len(names)))] + names[at + 1 :])


def with_members_swapped(content, rng):
    return rewritten(content, lambda names: names, lambda names: rng.permutation(names))


def rewritten(content, keep, order=lambda names: names):
    """The archive with some of its members, or their contents in another order; its comment, the digest, is kept."""
    out = buffers.BytesIO()
    with zipfile.ZipFile(buffers.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        names = keep(old.namelist())
        for name, other in zip(names, order(names), strict=True):
            new.writestr(name, old.read(other))
        new.comment = old.comment
    return out.getvalue()


def same(post, was):
    (arrays, model), (old_arrays, old_model) = (persistence.pack(p) for p in (post, was))
    for told in (model, old_model):
        told.pop("provenance")
    return model == old_model and all(np.array_equal(arrays[k], v) for k, v in old_arrays.items())


DAMAGES = (flipped, cut, without_a_piece, without_a_member, with_members_swapped)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("engine", "cases"), [("batch", 80), ("variational", 8)])
def test_a_damaged_map_never_loads_as_another(maps, tmp_path, damage, engine, cases):
    rng, content, path = np.random.default_rng(1), (maps / engine).read_bytes(), tmp_path / "map.hipgp"
    whole, refused = hg.load(maps / engine), 0
    for _ in range(cases):
        path.write_bytes(damage(content, rng))
        try:
            post = hg.load(path)
        except ValueError as error:
            assert str(path) in str(error)
            refused += 1
        else:  # what it hit says nothing of the map: the time in the archive's own directory, for one
            assert same(post, whole) and post.labels == whole.labels
    assert refused >= (0.5 if damage is flipped else 0.95) * cases


def test_no_contents_of_a_sealed_file_are_another_error(batch, tmp_path):
    """Even where the digest is right: a map, or one ValueError."""
    rng, members, path = np.random.default_rng(2), members_of(batch), tmp_path / "map.hipgp"
    names, refused = sorted(members), 0
    for _ in range(200):
        name = names[rng.integers(len(names))]
        changed = flipped(bytes(members[name]), rng)
        archive.write(path, members | {name: changed})
        try:
            hg.load(path)
        except ValueError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > 100


def described(edit, name="zarr.json"):
    """A change of a JSON member."""

    def change(members):
        told = json.loads(members[name])
        edit(told)
        members[name] = json.dumps(told).encode()

    return change


def modelled(**changes):
    """A change of the model's description."""

    def edit(told):
        told["attributes"]["model"] = json.dumps(json.loads(told["attributes"]["model"]) | changes)

    return described(edit)


def numbers(name, edit, dtype=float):
    """A change of an array's numbers."""

    def change(members):
        key = next(k for k in members if k.startswith(f"{name}/c"))
        values = np.frombuffer(members[key], dtype).copy()
        edit(values)
        members[key] = values.tobytes()

    return change


def put(at, value):
    return lambda values: values.__setitem__(at, value)


GRID_TOLD = {"origin": [-0.05, -0.05], "spacing": [0.1, 0.1], "shape": [9, 8]}
WRONG = {
    "noise -1": (modelled(noise=-1.0), "noise"),
    "noise of text": (modelled(noise="a"), "noise"),
    "a negative lengthscale": (modelled(kernel={"kind": "Matern32", "variance": 1, "lengthscale": -1}), "lengthscale"),
    "lengthscales of other axes": (
        modelled(kernel={"kind": "Matern32", "variance": 1, "lengthscale": [1, 2, 3]}),
        "lengthscale",
    ),
    "another engine": (modelled(engine="deep"), "engine"),
    "another grid": (modelled(grid=GRID_TOLD), "coordinates of the model's grid"),
    "a grid of another shape": (modelled(grid=GRID_TOLD | {"shape": [8, 9]}), "grid's shape"),
    "no diagnostics": (modelled(diagnostics=None), "diagnostics"),
    "no data": (modelled(data=[]), "observations"),
    "data outside the grid": (numbers("model/data0_x", put(0, 7.0)), "outside the grid"),
    "a noise of zero": (numbers("model/data0_noise", put(0, 0.0)), "noise"),
    "a value that is no number": (numbers("model/data0_y", put(0, np.nan)), "finite"),
    "a solution that is no number": (numbers("model/alpha", put(3, np.nan)), "finite numbers in alpha"),
    "a field that is infinite": (numbers("model/field", put(3, np.inf)), "finite numbers in field"),
    "a variance below zero": (numbers("model/noise_variance", put(3, -1.0)), "positive"),
    "a mean that is no number": (numbers("mean", put(0, np.nan)), "mean"),
    "a std below zero": (numbers("std", put(0, -1.0)), "std"),
    "a missing chunk": (lambda m: m.pop("model/field/c/0"), "bytes of model/field"),
    "a missing mean": (lambda m: [m.pop(k) for k in [*m] if k.startswith("mean/")], "mean"),
    "a missing array": (lambda m: [m.pop(k) for k in [*m] if k.startswith("model/beta/")], "without 'beta'"),
    "a stray member": (lambda m: m.update({"readme": b"hello"}), "readme"),
    "labels of other axes": (described(lambda t: t["attributes"]["labels"].update(axes=["x"])), "axes"),
    "a model nested too deeply": (described(lambda t: t["attributes"].update(model="[" * 10**5)), "RecursionError"),
    "a model that is no text": (described(lambda t: t["attributes"].update(model=7)), "TypeError"),
    "text that is no text": (lambda m: m.update({"zarr.json": b"\xff\xfe{"}), "zarr|codec|utf|JSON"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG.keys())
def test_every_part_is_needed_and_checked(batch, tmp_path, change, message):
    members, path = members_of(batch), tmp_path / "map.hipgp"
    change(members)
    archive.write(path, members)
    with pytest.raises(ValueError, match=message) as caught:
        hg.load(path)
    assert str(path) in str(caught.value)


def deflated(path, members):
    """An eighth of a megabyte that is an eighth of a gigabyte."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
        with file.open("model/alpha/c/0/bomb", "w") as stream:
            for _ in range(128):
                stream.write(bytes(2**20))


def claimed(name, shape, chunk=None):
    """A description of an array that is not there."""

    def write(path, members):
        node = {
            "shape": shape,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk or shape}},
        }
        described(lambda told: told.update(node), f"{name}/zarr.json")(members)
        archive.write(path, members)

    return write


def zstd(path, members):
    described(lambda told: told["codecs"].append({"name": "zstd", "configuration": {}}), "mean/zarr.json")(
        members
    )
    archive.write(path, members)


def large_grid(shape):
    def write(path, members):
        told = {"origin": 0.0, "spacing": 1.0, "shape": shape}
        modelled(grid=told)(members)
        archive.write(path, members)

    return write


BOMBS = {
    "a compressed member": deflated,
    "a compressed array": zstd,
    "an array of 3 GiB": claimed("mean", [20000, 20000]),
    "an empty array without end": claimed("model/alpha", [0, 2**60]),
    "chunks without end": claimed("mean", [9, 8], [1, 1]),
    "a grid of 20000 x 20000": large_grid([20000, 20000]),
    "a grid of one long axis": large_grid([2**33]),
}


@pytest.mark.parametrize("engine", ["batch", "variational"])
@pytest.mark.parametrize("write", BOMBS.values(), ids=BOMBS.keys())
def test_a_small_file_does_not_take_the_memory(maps, tmp_path, monkeypatch, engine, write):
    path, members = tmp_path / "map.hipgp", members_of(maps / engine)
    if engine == "variational" and write is BOMBS["an empty array without end"]:
        pytest.skip("it has no such array")
    write(path, members)
    monkeypatch.setattr(
        "hipgp.variational.posterior.whiten", None
    )  # nothing is embedded before it is checked
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"map\.hipgp: expected a hipgp map"):
            hg.load(path)
        assert tracemalloc.get_traced_memory()[1] < LITTLE
    finally:
        tracemalloc.stop()


def test_members_are_counted(batch, monkeypatch):
    monkeypatch.setattr(archive, "MOST_MEMBERS", 5)
    with pytest.raises(ValueError, match="at most 5 members"):
        hg.load(batch)
