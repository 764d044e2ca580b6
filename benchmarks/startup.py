"""How long does one wait for a first answer? Import, a first fit with and without compiled programs on disk, another size, cross-validation.

    python benchmarks/startup.py

Each case runs in a process of its own, the first time with an empty folder of compiled programs and then again with what that left. Python's
bytecode is there in both, as after an installation by pip. Seconds are those of a wall clock and of the processor, over the import of JAX;
where other work shares the cores, compare the latter.
Writes benchmarks/results/startup-<device>.json.
"""

import compileall
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from machine import facts, write_result

import hipgp

HEAD = """
import json, time
import jax, numpy as np
began = time.perf_counter(), time.process_time()
def passed():
    return {"wall": time.perf_counter() - began[0], "cpu": time.process_time() - began[1]}
import hipgp as hg
rng = np.random.default_rng(0)
x = rng.uniform(0, 1, (500, 2))
y = np.sin(5 * x[:, 0]) * np.cos(3 * x[:, 1]) + 0.1 * rng.standard_normal(500)
"""
CASES = {
    "import hipgp, up to hg.GP": "hg.GP",
    "learn, condition and predict 200 points": """
data = hg.observe(hg.Points(x[:200]), y[:200])
hg.GP(hg.Matern32()).learn(data, progress=False).condition(data, progress=False).predict(x[200:300], progress=False)
""",
    "regressor, 121 rows after 120": """
hg.HIPGPRegressor().fit(x[:120], y[:120]).predict(x[:10])
began = time.perf_counter(), time.process_time()
hg.HIPGPRegressor().fit(x[:121], y[:121]).predict(x[:10])
""",
    "cross_val_score(cv=5), 500 rows": """
from sklearn.model_selection import cross_val_score
cross_val_score(hg.HIPGPRegressor(), x, y, cv=5)
""",
    "classifier, 100 rows": "hg.HIPGPClassifier().fit(x[:100], y[:100] > 0.3).predict(x[:10])",
}


def seconds(code: str, programs: str) -> dict[str, float]:
    """Wall and processor seconds of the case in a new process."""
    environment = os.environ | {"HIPGP_CACHE": programs}
    text = HEAD + code + "\nprint(json.dumps(passed()))"
    done = subprocess.run(
        [sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    records = []
    compileall.compile_dir(pathlib.Path(hipgp.__file__).parent, quiet=1)
    for name, code in CASES.items():
        with tempfile.TemporaryDirectory() as programs:
            for when in ("first", "again"):
                found = {key: round(value, 3) for key, value in seconds(code, programs).items()}
                records.append({"case": name, "when": when, **found})
                print(records[-1], flush=True)
    device = "gpu" if "cpu" not in facts()["device"].lower() else "cpu"
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    write_result(f"startup-{device}", {"facts": facts(), "load": load, "records": records})


if __name__ == "__main__":
    main()
