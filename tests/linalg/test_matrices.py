"""Factorisations of many matrices: right, and unable to stop the program for ever."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hipgp.linalg.matrices import cholesky, map_matrices, solve_lower, solve_lower_transposed

RNG = np.random.default_rng(0)
ROOTS = RNG.normal(size=(7, 5, 5))
MATRICES = ROOTS @ np.swapaxes(ROOTS, 1, 2) + np.eye(5)

# Learning, factorisations, standard deviations, samples, evidence and the block family, on few data: once in the main
# thread, which compiles, and then, where asked for, the factorisations again in several threads.
WORK = """
import faulthandler, os, threading
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
faulthandler.dump_traceback_later({seconds}, exit=True)
import numpy as np
import hipgp as hg

grid = hg.Grid.cover((0, 0), (1, 1), shape=(16, 16))

def factorise(seed):
    rng = np.random.default_rng(seed)
    x, k = rng.uniform(size=({count}, 2)), {count} // 20
    points = hg.observe(hg.Points(x), np.sin(6 * x[:, 0]) + 0.1 * rng.normal(size=len(x)))
    lines = hg.observe(hg.LineIntegrals(x[: 7 * k], x[7 * k : 14 * k]), rng.normal(size=7 * k), noise=0.5)
    gp = hg.GP(hg.Matern32(1.0, 0.3), grid, trend="constant").learn(points, polish=False, progress=False)
    gp.condition(points, hg.Batch(space="data"), progress=False).predict(hg.Points(x[: 10 * k]))
    post = gp.condition(lines, hg.Batch(space="data"), progress=False)
    post.predict(hg.LineIntegrals(x[14 * k : 17 * k], x[17 * k :]), std="vecchia")
    return gp, post

gp, post = factorise(0)
if {threads}:
    threads = [threading.Thread(target=factorise, args=(0,)) for _ in range({threads})]
    [t.start() for t in threads]
    [t.join() for t in threads]
else:
    post.sample(2, key=0, progress=False)
    post.log_evidence()
    x = np.random.default_rng(1).uniform(size=(300, 2))
    block = hg.Variational(family="block", block_shape=(2, 2), batch_size=100, epochs=1)
    few = hg.observe(hg.Points(x), np.sin(6 * x[:, 0]), noise=0.1)
    hg.GP(gp.kernel, grid).condition(few, block, progress=False)
faulthandler.cancel_dump_traceback_later()
print("came back")
"""


def run(script: str, timeout: float, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a new process, with XLA's optimisations on as users have them."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def test_each_matrix_is_factored_and_solved():
    factor = map_matrices(cholesky, jnp.asarray(MATRICES))
    np.testing.assert_allclose(factor, np.linalg.cholesky(MATRICES), rtol=1e-12)
    rhs = jnp.asarray(RNG.normal(size=(7, 5, 2)))
    np.testing.assert_allclose(factor @ map_matrices(solve_lower, factor, rhs), rhs, rtol=1e-11)
    transposed = jnp.swapaxes(factor, 1, 2)
    np.testing.assert_allclose(
        transposed @ map_matrices(solve_lower_transposed, factor, rhs), rhs, rtol=1e-11
    )


def test_it_is_differentiated_like_vmap():
    whitened = lambda m, y: solve_lower(cholesky(m), y)
    y = jnp.asarray(RNG.normal(size=(7, 5)))
    sum_of = lambda mapped: jax.grad(lambda m: jnp.sum(mapped(m, y) ** 3))(jnp.asarray(MATRICES))
    ours = sum_of(lambda m, y: map_matrices(whitened, m, y))
    np.testing.assert_allclose(ours, sum_of(jax.vmap(whitened)), rtol=1e-10)


def test_a_matrix_that_is_not_positive_has_no_factor_and_spoils_no_other():
    broken = MATRICES.copy()
    broken[3] = -np.eye(5)
    factor = np.asarray(map_matrices(cholesky, jnp.asarray(broken)))
    assert np.all(np.isnan(factor[3][np.tril_indices(5)]))
    assert np.all(np.isfinite(np.delete(factor, 3, axis=0)))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="LAPACK is called on a CPU alone")
def test_no_program_calls_lapack_on_a_batch(tmp_path: Path):
    """On a CPU a batched call may block a thread of the pool that it waits for: by construction there is none."""
    script = WORK.format(seconds=280, threads=0, count=400)
    dump = {"JAX_DUMP_IR_TO": str(tmp_path), "JAX_DUMP_IR_MODES": "stablehlo"}  # before XLA optimises it
    done = run(script, 300, JAX_DISABLE_MOST_OPTIMIZATIONS="1", **dump)
    assert "came back" in done.stdout, done.stderr
    calls = [
        line
        for file in tmp_path.rglob("*.mlir")
        for line in file.read_text().splitlines()
        if re.search(r"custom_call @lapack_", line)
    ]
    called = {match[1] for line in calls if (match := re.search(r"@lapack_\w(\w+)_ffi", line))}
    assert {"potrf", "trsm", "syevd"} <= called  # the programs were seen
    batched = [line.strip() for line in calls if re.search(r"tensor<\d+x\d+x\d+x", line)]
    assert not batched


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="LAPACK is called on a CPU alone")
def test_four_threads_come_back():
    done = run(WORK.format(seconds=170, threads=4, count=2000), 180)
    assert done.returncode == 0 and "came back" in done.stdout, done.stderr


def test_a_worker_forked_after_jax_was_used_is_refused_in_words():
    done = run(
        """
        import os, warnings
        warnings.simplefilter("ignore")
        import jax.numpy as jnp
        import numpy as np
        import hipgp as hg
        jnp.ones(3).block_until_ready()
        child = os.fork()
        if child == 0:
            x = np.linspace(0, 1, 20)
            try:
                hg.GP(hg.Matern32(1.0, 0.2), hg.Grid.cover(0, 1, shape=30), noise=0.1).condition(hg.observe(hg.Points(x), x))
            except RuntimeError as error:
                print(error, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        """,
        60,
    )
    assert "forked after JAX had started" in done.stdout and "spawn" in done.stdout, done.stderr
