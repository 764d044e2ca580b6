"""The page on the architecture agrees with the code: its picture, its table, and every file that it names."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
SOURCE = ROOT / "src" / "hipgp"


@pytest.fixture(scope="module")
def rooms():
    """docs/rooms.py as a module."""
    spec = importlib.util.spec_from_file_location("rooms", ROOT / "docs" / "rooms.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_and_the_table_follow_the_imports(rooms):
    """If this fails: python docs/rooms.py."""
    graph = rooms.imports()
    assert (ROOT / "docs" / "rooms.svg").read_text() == rooms.picture(graph)
    assert rooms.page(PAGE.read_text(), graph) == PAGE.read_text()


def test_imports_are_found_in_functions_but_not_for_annotations(rooms):
    code = "if TYPE_CHECKING:\n    import hipgp.a\ndef f():\n    from hipgp.b import c\nimport hipgp.d, os\n"
    assert list(rooms.imported(rooms.ast.parse(code))) == ["hipgp.b.c", "hipgp.d", "os"]


def test_a_circle_of_imports_is_an_error(rooms):
    with pytest.raises(ValueError, match="cycle"):
        rooms.levels({"a": {"b"}, "b": {"a"}})


def test_an_arrow_that_follows_from_others_is_left_out(rooms):
    assert rooms.direct({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == [("a", "b"), ("b", "c")]


def test_every_file_and_name_on_the_page_is_there():
    text = PAGE.read_text()
    named = set(re.findall(r"`([\w./]+(?:\.py|\.md|\.toml|/))`", text))
    assert len(named) > 30
    assert {name for name in named if not (ROOT / name).exists() and not (SOURCE / name).exists()} <= {
        "benchmarks/NOTES.md",  # the source distribution has none
        "benchmarks/solver_table.py",
    }
    for names, file in re.findall(r"((?:`[\w.]+`(?: and )?)+) (?:in|of) `([\w/]+\.py)`", text):
        for name in re.findall(r"(\w+)`", names):
            defined = rf"\b(def|class) {name}\b|^{name}(: .*)? = "
            assert re.search(defined, (SOURCE / file).read_text(), re.MULTILINE), (name, file)


def test_every_diagnostic_on_the_page_is_there():
    code = "".join(file.read_text() for file in SOURCE.rglob("*.py"))
    for key in re.findall(r'diagnostics\["(\w+)"\]', PAGE.read_text()):
        assert f'"{key}"' in code, key


def test_no_chain_of_imports_is_longer_than_ten_modules():
    """Of imports at the top of a module: those inside functions wait until they are needed."""
    trees = {
        ".".join(("hipgp", *file.relative_to(SOURCE).with_suffix("").parts)): ast.parse(file.read_text())
        for file in SOURCE.rglob("*.py")
        if file.stem != "__init__"
    }
    assert len(_longest_chain(trees)) <= 10, _longest_chain(trees)


def test_the_longest_chain_is_found():
    code = {
        "a": "import b",
        "b": "from c import x\nif TYPE_CHECKING:\n    import d",
        "c": "",
        "d": "import a",
    }
    assert _longest_chain({name: ast.parse(text) for name, text in code.items()}) == list("dabc")


def _longest_chain(trees):
    found = {}

    def chain(name):
        if name not in found:
            named = {n for node in trees[name].body for n in _imported(node)}
            found[name] = [name, *max((chain(n) for n in named & set(trees)), key=len, default=[])]
        return found[name]

    return max((chain(name) for name in trees), key=len)


def _imported(node):
    if isinstance(node, ast.ImportFrom):
        return {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
