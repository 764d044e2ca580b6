"""A damaged table of any kind is one error that names the file."""

import numpy as np
import pandas as pd
import pytest

from hipgp.apps.cli.console import BadInput
from hipgp.apps.cli.tables import read_table

TABLE = pd.DataFrame({"x": np.linspace(0, 1, 40), "value": np.linspace(2, 3, 40)})


def written(path):
    if path.suffix == ".csv":
        TABLE.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        TABLE.to_parquet(path)
    else:
        pytest.importorskip("astropy.table").Table.from_pandas(TABLE).write(path)
    return path.read_bytes()


@pytest.mark.filterwarnings("ignore")  # of astropy, which says much of damaged headers
@pytest.mark.parametrize("ending", ["csv", "parquet", "fits", "ecsv"])
def test_damaged_tables_are_one_error(tmp_path, ending):
    path, rng = tmp_path / f"table.{ending}", np.random.default_rng(0)
    content, refused = written(path), 0
    for number in range(100):
        damaged = bytearray(content)
        if number % 2:
            damaged = damaged[: rng.integers(len(damaged))]
        else:
            at = rng.integers(0, min(len(damaged), 600), size=5)  # headers
            for i, byte in zip(at, rng.integers(1, 256, size=5), strict=True):
                damaged[i] ^= int(byte)
        path.write_bytes(bytes(damaged))
        try:
            read_table(path)
        except BadInput as error:
            assert str(path) in str(error) and "\n" not in str(error)
            refused += 1
    assert refused > (0 if ending == "csv" else 40)
