"""Plain values, which is what files hold: arrays by name, and what JSON can say."""

from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
Json = dict[str, Any]


def plain(value: Any) -> Any:
    """Convert to types that JSON can hold: NumPy scalars and arrays to numbers and lists, tuples to lists."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__"):
        return np.asarray(value).tolist()
    return value
