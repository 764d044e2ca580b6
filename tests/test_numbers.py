"""Numbers in the tables of README.md and the documentation are those of the JSON files that the tables name.

Above each table stands a comment that names its files:

    <!-- numbers: experiments/results/small/housing.json by M, system; labels 2 -->

`by` names the keys that tell records apart: a cell is looked up in the records whose values of these keys all appear in
its row's labels or in its column's head. `labels` is the number of leading columns that are not looked up (usually 1).
`times` is a factor that stored numbers may be shown with (1000 for milliseconds).
A row may name files of its own in a comment in its last cell. A table of settings, with no results, says `none` in place
of files. A number that no file holds carries a dagger (†),
and the page says what that means. A shown number must be the rounding of a stored one, to the digits that it shows.
"""

import functools
import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/reproduction.md", "docs/paper_engine.md", "benchmarks/README.md")
MARK = re.compile(
    r"<!-- numbers: (?P<files>[^;>]*?)(?: by (?P<keys>[\w, %/-]+))?(?:; labels (?P<labels>\d))?(?:; times (?P<times>\d+))? -->"
)
OWN = re.compile(r"<!-- (?!numbers)(?P<files>\S+(?:, \S+)*) -->")
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w/])%?†?")
DAGGER = "†"


class Table(NamedTuple):
    """A table of a page: where it begins, the text of its mark (if any), its heads, and its rows of cells."""

    page: str
    line: int
    mark: re.Match | None
    heads: list[str]
    rows: list[list[str]]


class Cell(NamedTuple):
    where: str
    text: str
    labels: str  # the row's labels and the column's head
    files: tuple[str, ...]
    keys: tuple[str, ...]
    times: float


def cells_of(line: str) -> list[str]:
    return [c.strip() for c in line.strip().strip("|").split("|")]


def tables(page: str, text: str) -> list[Table]:
    lines, found, begin = text.splitlines(), [], None
    for number, line in enumerate([*lines, ""]):
        if line.startswith("|") and begin is None:
            begin = number
        elif not line.startswith("|") and begin is not None:
            above = [x for x in lines[max(0, begin - 2) : begin] if x.strip()]
            mark = MARK.fullmatch(above[-1].strip()) if above else None
            rows = [cells_of(x) for x in lines[begin + 2 : number]]
            found.append(Table(page, begin + 1, mark, cells_of(lines[begin]), rows))
            begin = None
    return found


def cells(table: Table) -> list[Cell]:
    """Every cell to be looked up; an empty label stands for the one above it."""
    assert table.mark is not None
    files = tuple(f.strip() for f in table.mark["files"].split(","))
    keys = tuple(k.strip() for k in (table.mark["keys"] or "").split(",") if k.strip())
    count, times = int(table.mark["labels"] or 1), float(table.mark["times"] or 1)
    above, found = {}, []
    for number, row in enumerate(table.rows):
        own = OWN.search(" ".join(row))
        where = tuple(beside(files[0], f) for f in own["files"].split(", ")) if own else files
        labels = [above.get(i, "") if c == "" else c for i, c in enumerate(row[:count])]
        above = dict(enumerate(labels))
        for head, cell in zip(table.heads[count:], row[count:], strict=False):
            at = f"{table.page}:{table.line + number + 2}"
            found.append(Cell(at, OWN.sub("", cell), " | ".join([*labels, head]), where, keys, times))
    return found


def beside(first: str, name: str) -> str:
    """A file named without its folder lies beside the table's first one."""
    return name if "/" in name else f"{first.rsplit('/', 1)[0]}/{name}.json"


# --- what the files hold ----------------------------------------------------------------------------------------------


def records(value: object, outer: dict | None = None) -> list[dict]:
    """Every dictionary of a file, each with the plain values of those around it."""
    outer = outer or {}
    if isinstance(value, list):
        return [r for v in value for r in records(v, outer)] + [{**outer, **dict(enumerate(value))}]
    if not isinstance(value, dict):
        return []
    plain = {k: v for k, v in value.items() if not isinstance(v, dict | list)}
    here = {**outer, **plain}
    nested = [r for k, v in value.items() for r in records(v, {**here, "name": k, f"name_{k}": k})]
    return [here, *nested] if plain else nested


@functools.cache
def load(name: str) -> list[dict]:
    """The records of a file, or of all files that a pattern with * names."""
    files = sorted(ROOT.glob(name))
    assert files, f"{name}: expected a file, found none"
    return [r for f in files for r in records(json.loads(f.read_text()))]


def numbers_in(text: str) -> set[float]:
    return {float(n.rstrip(f"%{DAGGER}").replace(",", "")) for n in NUMBER.findall(text)}


def told(record: dict, keys: tuple[str, ...], labels: str) -> bool:
    """Whether the record has each key with a value that the labels show."""
    low = labels.lower().replace(",", "")
    if keys and not any(key in record for key in keys):
        return False
    for key in keys:
        value = record.get(key)
        if value is None or value == "":  # this record has no such label
            continue
        if isinstance(value, bool | str):
            said = {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else value
            if not re.search(rf"(?<!\w){re.escape(said.lower().replace(',', ''))}(?!\w)", low):
                return False
        elif not any(rounds_to(value, n) for n in NUMBER.findall(labels)):
            return False
    return True


def rounds_to(value: float, shown: str, times: float = 1.0) -> bool:
    """Whether the stored value, rounded as the shown one is, is the shown one; NLL and log-likelihood differ in sign."""
    digits = shown.rstrip(f"%{DAGGER}").replace(",", "")
    mantissa, _, exponent = digits.partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    scaled = (value, times * value, 100 * value if shown.endswith("%") else value)
    return any(abs(abs(v) - abs(float(digits))) <= 0.5 * unit * (1 + 1e-6) for v in scaled)


@functools.cache
def values(files: tuple[str, ...], keys: tuple[str, ...], labels: str) -> frozenset[float]:
    """All numbers of the records that the labels tell, those within texts included."""
    found: set[float] = set()
    for record in (r for f in files for r in load(f) if told(r, keys, labels)):
        for value in record.values():
            if isinstance(value, str):
                found |= numbers_in(value)
            elif isinstance(value, int | float) and not isinstance(value, bool):
                found.add(float(value))
    return frozenset(found)


def faults(cell: Cell) -> list[str]:
    """The cell's numbers that its records do not hold."""
    shown = [n for n in NUMBER.findall(cell.text) if not n.endswith(DAGGER)]
    there = values(cell.files, cell.keys, cell.labels) if shown else ()
    return [
        f"{cell.where}: {n} ({cell.labels})"
        for n in shown
        if not any(rounds_to(v, n, cell.times) for v in there)
    ]


# --- the tests --------------------------------------------------------------------------------------------------------

EVERY = [t for page in PAGES for t in tables(page, (ROOT / page).read_text())]
WITH_NUMBERS = [t for t in EVERY if any(NUMBER.search(c) for row in t.rows for c in row)]
RESULTS = [t for t in WITH_NUMBERS if t.mark is None or t.mark["files"] != "none"]


def test_every_table_of_numbers_names_its_files():
    unmarked = [f"{t.page}:{t.line}" for t in WITH_NUMBERS if t.mark is None]
    assert not unmarked, f"expected a comment above each table that names its files, found none at {unmarked}"
    assert len(RESULTS) > 25


@pytest.mark.parametrize("table", [t for t in RESULTS if t.mark], ids=lambda t: f"{t.page}:{t.line}")
def test_tables_show_what_their_files_hold(table):
    wrong = [fault for cell in cells(table) for fault in faults(cell)]
    assert not wrong, "\n".join(wrong)


def test_a_changed_digit_is_found():
    """In nearly all cells that show three digits and more."""
    changed = found = 0
    for cell in [c for t in RESULTS if t.mark for c in cells(t)][::4]:
        shown = [
            n for n in NUMBER.findall(cell.text) if len(re.sub(r"\D", "", n)) > 2 and not n.endswith(DAGGER)
        ]
        if shown:
            last = re.search(r"\d(?=\D*$)", shown[-1].partition("e")[0])
            assert last is not None
            other = str((int(last[0]) + 5) % 10)
            text = cell.text.replace(shown[-1], shown[-1][: last.start()] + other + shown[-1][last.end() :])
            changed, found = changed + 1, found + bool(faults(cell._replace(text=text)))
    assert changed > 100 and found > 0.85 * changed  # measured 0.89: a digit may chance on another number


def test_files_say_what_they_were_run_on():
    """Machine facts in each; the command too in those that are not of earlier versions or pieces of a run."""
    for name in sorted(
        {f for t in RESULTS if t.mark for c in cells(t) for f in c.files} - {"experiments/paper.json"}
    ):
        for file in ROOT.glob(name):
            held = json.loads(file.read_text())
            assert "machine" in held or "facts" in held or "conclusions" in held, name
        if "/small/" in name:
            assert held["command"].startswith("hipgp reproduce"), name
