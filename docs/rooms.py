"""Draw the rooms of src/hipgp from the imports in the code: docs/rooms.svg, and the table in docs/architecture.md.

Run it after an import or a room's docstring has changed: `python docs/rooms.py`. A test compares what it makes with
what is there.
"""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

DOCS = Path(__file__).parent
SOURCE = DOCS.parent / "src" / "hipgp"
BEGIN, END = "<!-- rooms: begin -->", "<!-- rooms: end -->"
BOX, GAP, MARGIN, HEIGHT, STEP = 130, 40, 10, 34, 64

Graph = dict[str, set[str]]


def rooms() -> dict[str, Path]:
    """Each room with its folder, and the modules beside the rooms with their files."""
    folders = {folder.name: folder for folder in SOURCE.iterdir() if (folder / "__init__.py").exists()}
    return folders | {file.stem: file for file in SOURCE.glob("*.py") if not file.stem.startswith("__")}


def imported(tree: ast.AST) -> Iterator[str]:
    """Names of modules of hipgp that this code imports, in functions too, but not for type annotations alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            yield from imported(node)


def imports() -> Graph:
    """Which other rooms each room imports; the package itself, `import hipgp`, is none."""
    known, out = rooms(), {}
    for room, path in known.items():
        files = path.rglob("*.py") if path.is_dir() else [path]
        names = [name.split(".") for file in files for name in imported(ast.parse(file.read_text()))]
        ours = {parts[1] for parts in names if parts[0] == "hipgp" and len(parts) > 1}
        out[room] = ours & set(known) - {room}
    return out


def levels(graph: Graph) -> dict[str, int]:
    """How many rooms stand below each, one upon the other; an error where imports go round in a circle."""
    depth: dict[str, int] = {}
    for room in TopologicalSorter(graph).static_order():
        depth[room] = 1 + max((depth[below] for below in graph[room]), default=-1)
    return depth


def direct(graph: Graph) -> list[tuple[str, str]]:
    """The imports that do not follow from others: a room reached through another one has no arrow of its own."""

    def below(room: str) -> set[str]:
        return graph[room].union(*(below(other) for other in graph[room]))

    return sorted(
        (room, other)
        for room in graph
        for other in graph[room]
        if not any(other in below(between) for between in graph[room])
    )


def paths(graph: Graph) -> list[list[str]]:
    """The arrows, each with a place to pass through in every row between its ends: "upper>lower 3" in row 3."""
    depth = levels(graph)
    return [
        [upper, *(f"{upper}>{lower} {row}" for row in range(depth[upper] - 1, depth[lower], -1)), lower]
        for upper, lower in direct(graph)
    ]


def places(graph: Graph) -> tuple[dict[str, tuple[float, float]], int, int]:
    """The middle of each room and passage, and the picture's width and height."""
    arrows, row_of = paths(graph), levels(graph)
    row_of |= {name: row_of[arrow[0]] - steps for arrow in arrows for steps, name in enumerate(arrow)}
    below = {name: [b for arrow in arrows for a, b in pairwise(arrow) if a == name] for name in row_of}
    rows = [
        [name for name in sorted(row_of) if row_of[name] == row] for row in range(max(row_of.values()) + 1)
    ]
    width = 2 * MARGIN + max(len(row) for row in rows) * (BOX + GAP) - GAP
    height = 2 * MARGIN + len(rows) * STEP - STEP + HEIGHT
    at: dict[str, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        row.sort(key=lambda name: sum(at[b][0] for b in below[name]) / max(len(below[name]), 1))
        left = (width - len(row) * (BOX + GAP) + GAP) / 2
        for column, name in enumerate(row):
            at[name] = left + column * (BOX + GAP) + BOX / 2, height - MARGIN - number * STEP - HEIGHT / 2
    return at, width, height


def picture(graph: Graph) -> str:
    """An SVG with the rooms in rows, each above all that it imports."""
    at, width, height = places(graph)
    lines, boxes = [], []
    for arrow in paths(graph):
        (x, y), *between, (u, v) = (at[name] for name in arrow)
        points = [(x, y + HEIGHT / 2), *between, (u, v - HEIGHT / 2)]
        shown = " ".join(f"{a:g},{b:g}" for a, b in points)
        lines.append(f'<polyline points="{shown}" fill="none" stroke="#777" marker-end="url(#head)"/>')
    for room, (x, y) in sorted((room, at[room]) for room in graph):
        corner = f'x="{x - BOX / 2:g}" y="{y - HEIGHT / 2:g}" width="{BOX}" height="{HEIGHT}" rx="5"'
        name = room if (SOURCE / room).is_dir() else f"{room}.py"
        boxes.append(f'<rect {corner} fill="#eef3f8" stroke="#456"/>')
        boxes.append(f'<text x="{x:g}" y="{y + 5:g}" text-anchor="middle">{name}</text>')
    size = f'viewBox="0 0 {width} {height}" width="{width}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="14">',
            "<title>The rooms of hipgp: an arrow leads from a room to one that it imports</title>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
            'orient="auto"><path d="M0 0 8 4 0 8z" fill="#777"/></marker></defs>',
            *lines,
            *boxes,
            "</svg>\n",
        ]
    )


def table(graph: Graph) -> str:
    """The rooms from the top down: the first line of each docstring, and all that each imports."""
    depth, lines = levels(graph), ["| room | what lives there | imports |", "| --- | --- | --- |"]
    for room in sorted(graph, key=lambda room: (-depth[room], room)):
        path = SOURCE / room
        file, name = (
            (path / "__init__.py", f"{room}/") if path.is_dir() else (SOURCE / f"{room}.py", f"{room}.py")
        )
        says = (ast.get_docstring(ast.parse(file.read_text())) or "").splitlines()[0]
        below = sorted(graph[room], key=lambda other: (-depth[other], other))
        lines.append(f"| `{name}` | {says} | {', '.join(below) or 'nothing'} |")
    return "\n".join(lines)


def page(text: str, graph: Graph) -> str:
    """The page with the table that belongs there."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table(graph)}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    found, architecture = imports(), DOCS / "architecture.md"
    (DOCS / "rooms.svg").write_text(picture(found))
    architecture.write_text(page(architecture.read_text(), found))
