"""Parameters of a kernel inside an estimator, by the names that scikit-learn's searches use: kernel__lengthscale."""

from typing import Any, Self

from hipgp.model.kernels import Kernel


class KernelParameters:
    """To be mixed into an estimator with a `kernel`, which is replaced where one of its parameters is set."""

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
