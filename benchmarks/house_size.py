"""Lines of the library by what they serve: all of them, and those of code, without blanks, comments and docstrings.

    python benchmarks/house_size.py [SOURCES]

SOURCES is src/hipgp by default; that of an older commit can be counted too. A file belongs to the first group in GROUPS with a
pattern that its path begins with; what is left is the core.
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

GROUPS = {
    "applications, pictures": ("apps/", "plots/", "display.py", "cli/", "demos/", "plots.py", "report.py", "simulate.py"),
    "links and likelihoods": (
        "nonlinear/", "classifier.py", "model/likelihood", "model/counts", "model/links", "model/point_pattern",
    ),
    "tables, dates, places on the Earth, named trends": (
        "model/dates", "model/frames", "model/covariates", "model/geometry", "model/tables", "model/sky", "model/sphere",
        "files/shapes", "files/export", "model/coordinates", "model/quantities", "model/degrees", "model/features",
    ),
    "paths, polygons, periods": ("model/paths", "model/polygon", "model/vertices", "model/periodic", "learning/periods"),
    "choices of grid, engine and kernel; averages over kernels": (
        "choices/", "averaging.py", "comparison.py", "learning/integration", "model/undecided",
    ),
    "several devices, streams of data": (
        "mesh/", "runtime/hosts", "batch/streamed", "weights/information", "model/stream", "model/sublattice", "linalg/band",
    ),
    "plans": ("planning.py", "batch/plan", "variational/plan", "linalg/rates"),
    "updates, leave-out, predictions beyond the grid": (
        "batch/updating", "batch/leave_out", "batch/beyond", "batch/reference", "scores.py",
    ),
    "check of the grid": ("vecchia/grid_check", "vecchia/grid_error", "vecchia/local_problems", "vecchia/node_sums"),
    "the variational engine": ("variational/",),
    "learning of kernel and noise": ("learning/",),
    "the exact engine": ("exact.py", "weights/dense"),
    "the low-rank preconditioner, products by slabs": (
        "batch/low_rank", "linalg/low_rank", "linalg/pivoted_cholesky", "weights/slabs",
    ),
    "services: memory, signals, damaged files, compiled programs": (
        "runtime/archive", "runtime/checkpoints", "runtime/compilations", "runtime/memory", "runtime/processes",
        "runtime/programs", "runtime/signals", "runtime/callers", "runtime/interrupts",
    ),
}  # fmt: skip
CORE = "core: model, batch engine, files"
BESIDE_CODE = (
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
)  # fmt: skip


def code_lines(source: str) -> int:
    """The number of lines that hold code."""
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in BESIDE_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                lines -= set(range(value.lineno, (value.end_lineno or value.lineno) + 1))
    return len(lines)


def group_of(path: str) -> str:
    for group, beginnings in GROUPS.items():
        if path.startswith(beginnings):
            return group
    return CORE


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "src" / "hipgp")
    files: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    code: Counter[str] = Counter()
    for path in sorted(root.rglob("*.py")):
        group, source = group_of(str(path.relative_to(root))), path.read_text()
        for name in (group, "all"):
            files[name] += 1
            lines[name] += source.count("\n")
            code[name] += code_lines(source)
    print("| part | files | lines | of code |\n| --- | --- | --- | --- |")
    for name in (CORE, *GROUPS, "all"):
        print(f"| {name} | {files[name]} | {lines[name]:,} | {code[name]:,} |")


if __name__ == "__main__":
    main()
