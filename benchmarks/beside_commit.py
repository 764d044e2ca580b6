"""Processor seconds of fits, predictions and learning, beside those of another commit of this repository.

    python benchmarks/beside_commit.py c043462 [--rounds 4]

Writes benchmarks/results/beside-commit-<revision>.json. Each round runs the other commit and this tree one after the other,
each in a process of its own without programs kept on disk. `first` is the first call in a process, with its compilation,
`again` the second. The smallest over the rounds is kept of each: other work on the machine only adds to it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
CALLS = ("first", "again")


def problems() -> Iterator[tuple[str, Callable[[], Any]]]:
    """What is timed: in each of four problems a fit and predictions with std, in two of them learning."""
    import hipgp as hg

    rng = np.random.default_rng(0)
    field = lambda x: np.sin(9 * x[:, 0]) * np.cos(7 * x[:, 1])
    square = lambda shape: hg.Grid.cover((0.0, 0.0), (1.0, 1.0), shape=shape)
    noisy = lambda x: hg.observe(hg.Points(x), field(x) + 0.1 * rng.standard_normal(len(x)), noise=0.1)

    def fitted(kernel: Any, grid: Any, data: Any, at: Any) -> Callable[[], Any]:
        return lambda: hg.GP(kernel, grid).condition(data, hg.Batch(), progress=False).predict(at)

    at = hg.Points(rng.uniform(size=(5_000, 2)))
    spread = noisy(rng.uniform(size=(20_000, 2)))
    yield "points", fitted(hg.Matern32(lengthscale=0.1), square(200), spread, at)
    towns = rng.uniform(0.05, 0.95, (400, 2))
    crowded = noisy(towns[rng.integers(400, size=20_000)] + rng.uniform(-0.01, 0.01, (20_000, 2)))
    yield "crowded points", fitted(hg.Matern32(lengthscale=0.1), square(200), crowded, at)
    many = noisy(rng.uniform(size=(60_000, 2)))
    yield "grid space", fitted(hg.Matern32(lengthscale=0.1), square(100), many, at)

    def rays(count: int) -> Any:
        end = rng.uniform(size=(count, 3))
        length = np.linalg.norm(end - 0.5, axis=1)
        y = length * (1 + 0.3 * np.sin(5 * end[:, 0])) + 0.1 * rng.standard_normal(count)
        return hg.observe(hg.LineIntegrals(np.full(3, 0.5), end), y, noise=0.1)

    cube = hg.Grid.cover((0.0,) * 3, (1.0,) * 3, shape=(40, 40, 20))
    smooth, lines = hg.Matern32(lengthscale=0.2), rays(4_000)
    yield "rays", fitted(smooth, cube, lines, hg.LineIntegrals(np.full(3, 0.5), rng.uniform(size=(500, 3))))

    few, fewer = noisy(rng.uniform(size=(4_000, 2))), rays(600)
    learned = lambda grid, data: hg.GP(hg.Matern32(), grid).learn(data, polish=False, progress=False)
    yield "learning, points", lambda: learned(square(60), few)
    yield "learning, rays", lambda: learned(cube, fewer)


def timed() -> dict[str, dict[str, float]]:
    """Processor seconds of the first and the second call of every problem, in this process."""
    found: dict[str, dict[str, float]] = {}
    for name, run in problems():
        for call in CALLS:
            before = time.process_time()
            run()
            found.setdefault(name, {})[call] = time.process_time() - before
    return found


def run_tree(tree: Path) -> dict[str, dict[str, float]]:
    """The seconds of a tree of the sources, from a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "HIPGP_CACHE": "off"}
    command = [sys.executable, __file__, "--inside"]
    return json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)


def least(rounds: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    return {name: {call: min(found[name][call] for found in rounds) for call in CALLS} for name in rounds[0]}


def compared(revision: str, before: list[Any], after: list[Any]) -> dict[str, Any]:
    old, new = least(before), least(after)
    rows = [
        {"problem": name, "call": call, "before": old[name][call], "after": new[name][call],
         "ratio": new[name][call] / old[name][call]}
        for name in old for call in CALLS
    ]  # fmt: skip
    return {"revision": revision, "rounds": len(before), "rows": rows, "each": [before, after]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", nargs="?", default="c043462")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--inside", action="store_true", help="time the library on the path, and print JSON")
    chosen = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if chosen.inside:
        print(json.dumps(timed()))
        return
    from machine import facts, write_result

    before, after = [], []
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "-C", ROOT, "archive", chosen.revision, "src"], check=True, stdout=-1
        )
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        for _ in range(chosen.rounds):
            before.append(run_tree(Path(folder)))
            after.append(run_tree(ROOT))
            print(json.dumps({"before": before[-1], "after": after[-1]}), flush=True)
            write_result(
                f"beside-commit-{chosen.revision}",
                compared(chosen.revision, before, after) | {"machine": facts()},
            )


if __name__ == "__main__":
    main()
