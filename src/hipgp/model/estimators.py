"""What the estimators for scikit-learn share: their parameters, and those of a kernel as kernel__lengthscale."""

from typing import Any, Literal, Self

from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel


class GridEstimator:
    """Parameters of an estimator with a `kernel`, which is replaced where one of its own parameters is set."""

    def __init__(
        self,
        kernel: Kernel | Literal["auto"] | None = None,
        *,
        trend: Literal["constant", "linear"] | None = "constant",
        learn: bool = True,
        grid: Grid | None = None,
        points_per_lengthscale: float = 6.0,
        margin: float = 0.05,
        max_grid_points: int = 100_000,
        method: Any = None,
        random_state: int = 0,
    ):
        self.kernel: Kernel | Literal["auto"] | None = kernel
        self.trend = trend
        self.learn = learn
        self.grid = grid
        self.points_per_lengthscale = points_per_lengthscale
        self.margin = margin
        self.max_grid_points = max_grid_points
        self.method = method
        self.random_state = random_state

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name, with `deep` also those of the kernel: kernel__lengthscale and so on."""
        found = super().get_params(deep=False)  # type: ignore[misc]
        kernel = found["kernel"]
        if deep and isinstance(kernel, Kernel):
            found |= {f"kernel__{name}": value for name, value in kernel.get_params().items()}
        return found

    def set_params(self, **params: Any) -> Self:
        """Other values of some parameters, by the names of `get_params`."""
        inside = {name: value for name, value in params.items() if name.startswith("kernel__")}
        super().set_params(**{name: value for name, value in params.items() if name not in inside})  # type: ignore[misc]
        if inside:
            kernel = super().get_params(deep=False)["kernel"]  # type: ignore[misc]
            if not isinstance(kernel, Kernel):
                raise ValueError(f"kernel: expected a kernel with {next(iter(inside))}, got {kernel!r}")
            changed = {name.removeprefix("kernel__"): value for name, value in inside.items()}
            super().set_params(kernel=kernel.set_params(**changed))  # type: ignore[misc]
        return self
