"""The devices that a fit is cut over: a mesh with one axis, and arrays that are cut or replicated over it."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "slabs"  # the name of the mesh's one axis


def as_mesh(mesh: Any, shape: Sequence[int]) -> Mesh:
    """Return a mesh of one axis from a mesh of any shape or a number of devices, for a grid of this shape."""
    if isinstance(mesh, Mesh):
        devices = list(mesh.devices.flat)
    elif isinstance(mesh, int | np.integer) and not isinstance(mesh, bool):
        found = jax.devices()
        if not 1 <= mesh <= len(found):
            raise ValueError(
                f"mesh: expected 1 to {len(found)} devices, as many as JAX sees, got {mesh}; on CPUs, set "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={max(int(mesh), 1)} before JAX starts"
            )
        devices = found[: int(mesh)]
    else:
        raise ValueError(
            f"mesh: expected a jax.sharding.Mesh or a number of devices, got {type(mesh).__name__}; use "
            "mesh=len(jax.devices())"
        )
    if len(shape) < 2:
        raise ValueError(
            "mesh: expected a grid of two or more dimensions, whose other axes are transformed on each device, got one of "
            f"{len(shape)}; leave mesh out"
        )
    if len(devices) > shape[0]:
        raise ValueError(
            f"mesh: expected at most {shape[0]} devices, one for each plane along the grid's first axis, got "
            f"{len(devices)}; use mesh={shape[0]} or fewer, or make the longest axis the first"
        )
    return Mesh(np.array(devices), (AXIS,))


def device_count(mesh: Mesh) -> int:
    """Return how many devices there are."""
    return mesh.devices.size


def parts_of(size: int, mesh: Mesh) -> int:
    """Return how many of `size` things each device holds, the last ones fewer or none."""
    return -(-size // device_count(mesh))


def here(mesh: Mesh) -> list[int]:
    """Return the numbers of the mesh's devices that belong to this process."""
    return [i for i, device in enumerate(mesh.devices.flat) if device.process_index == jax.process_index()]


def over_mesh(mesh: Mesh, function: Callable[..., Any], inputs: Any, outputs: Any) -> Callable[..., Any]:
    """Run a function on each device's part of its arguments, with collectives named by AXIS."""
    return jax.shard_map(function, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False)


def cut(axis: int | None = 0) -> PartitionSpec:
    """Return how an array is held that is cut along `axis`, or replicated for None."""
    return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, AXIS)


def replicated(mesh: Mesh, tree: Any) -> Any:
    """Copy every array to all devices."""
    sharding = NamedSharding(mesh, cut(None))

    def everywhere(leaf: Any) -> Any:
        host = np.asarray(leaf)
        parts = [jax.device_put(host, mesh.devices.flat[i]) for i in here(mesh)]
        return jax.make_array_from_single_device_arrays(host.shape, sharding, parts)

    return jax.tree.map(lambda leaf: everywhere(leaf) if eqx.is_array_like(leaf) else leaf, tree)


def along_first(mesh: Mesh, make: Callable[[int], np.ndarray]) -> jax.Array:
    """Return the array whose i-th part along the first axis, `make(i)`, lies on device i; all parts have one shape."""
    parts = {i: make(i) for i in here(mesh)}
    first = next(iter(parts.values()))
    shape = (first.shape[0] * device_count(mesh), *first.shape[1:])
    placed = [jax.device_put(part, mesh.devices.flat[i]) for i, part in parts.items()]
    return jax.make_array_from_single_device_arrays(shape, NamedSharding(mesh, cut()), placed)


def stacked(mesh: Mesh, make: Callable[[int], Any]) -> Any:
    """Return a tree whose arrays have a leading axis over devices; part i is the tree `make(i)`, all of equal shapes."""
    trees = {i: make(i) for i in here(mesh)}
    structures = [jax.tree.flatten(tree) for tree in trees.values()]
    leaves, structure = structures[0]
    whole = [
        along_first(mesh, lambda i, k=k: np.asarray(jax.tree.leaves(trees[i])[k])[None])
        for k in range(len(leaves))
    ]
    return jax.tree.unflatten(structure, whole)


def own(tree: Any) -> Any:
    """Return this device's part of a stacked tree, inside `over_mesh`."""
    return jax.tree.map(lambda leaf: leaf[0], tree)
