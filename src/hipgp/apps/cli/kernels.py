"""Kernels in words, such as "Matern32 * Periodic(period=1) + Matern12"."""

import ast
import inspect
from typing import Any

from hipgp.apps.cli.console import BadInput
from hipgp.model.kernel_words import elementary
from hipgp.model.kernels import Kernel
from hipgp.model.periodic import Periodic

OPTIONS = tuple(
    dict.fromkeys(name for cls in elementary().values() for name in inspect.signature(cls).parameters)
)


def kernel_of(text: str, lengthscale: tuple[float, ...] = (), variance: float = 1.0) -> Kernel:
    """The kernel that `text` names: sums, products and brackets of kernels, with options; case does not matter.

    `lengthscale` and `variance` are those of every part whose own are not given. In a product only the first part has
    the variance.
    """
    try:
        tree = ast.parse(text.strip().replace("/", ""), mode="eval").body
        return _made(tree, lengthscale, variance)
    except SyntaxError:
        raise _unknown(text) from None


def _made(node: ast.AST, lengthscale: tuple[float, ...], variance: float) -> Kernel:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
        product = isinstance(node.op, ast.Mult)
        left = _made(node.left, lengthscale, variance)
        right = _made(node.right, lengthscale, 1.0 if product else variance)
        return left * right if product else left + right
    parameters: dict[str, Any] = {}
    if isinstance(node, ast.Call) and not node.args:
        parameters = {str(part.arg).lower(): _value(part) for part in node.keywords}
        node = node.func
    known = {name.lower(): cls for name, cls in elementary().items()}
    if not isinstance(node, ast.Name) or node.id.lower() not in known:
        raise _unknown(ast.unparse(node))
    cls = known[node.id.lower()]
    lengths: Any = lengthscale if len(lengthscale) > 1 else (lengthscale or (1.0,))[0]
    if cls is Periodic and len(lengthscale) > 1:
        lengths = lengthscale[int(parameters.get("axis", 0)) % len(lengthscale)]
    usual = {"variance": variance, "lengthscale": lengths}
    try:
        return cls(**(usual | parameters))
    except TypeError:
        options = ", ".join(name for name in parameters if name not in usual)
        raise BadInput(f"kernel: {node.id} has no option {options}; Periodic has period and axis") from None


def _value(part: ast.keyword) -> Any:
    try:
        value = ast.literal_eval(part.value)
    except ValueError:
        value = None
    if part.arg is None or part.arg.lower() not in OPTIONS or not isinstance(value, int | float | tuple):
        raise BadInput(
            f"kernel: expected options among {', '.join(OPTIONS)} with numbers, as in Periodic(period=1), got "
            f"{ast.unparse(part)!r}"
        )
    return value


def _unknown(text: str) -> BadInput:
    return BadInput(
        f"kernel: expected auto, {', '.join(elementary())}, or sums and products of them, as in 'Matern32 * Periodic(period=1)', "
        f"got {text!r}"
    )
