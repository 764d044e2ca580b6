"""The documentation's Python blocks run as printed, page by page, and its links and names exist."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # every example of the documentation is run

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
WITH_CODE = [page for page in PAGES if "```python" in page.read_text() and page.stem != "command_line"]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda p: p.stem)
def test_code_runs(page):
    for optional in ("geopandas", "astropy", "formulaic"):
        if re.search(rf"^(import|from) {optional}|hipgp\[{optional[:7]}\]", page.read_text(), re.MULTILINE):
            pytest.importorskip(optional)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    names = {"__name__": page.stem}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)


def test_the_command_line_page_runs_as_printed(tmp_path):
    """In order: Python, files of settings, and every command."""
    text = (ROOT / "docs" / "command_line.md").read_text()
    for kind, block in re.findall(r"```(python|toml|console)\n(.*?)```", text, flags=re.DOTALL):
        if kind == "toml":
            (tmp_path / block.splitlines()[0].strip("# ")).write_text(block)
            continue
        lines = (
            [["-c", block]]
            if kind == "python"
            else [["-m", "hipgp", *shlex.split(c)[1:]] for c in block.splitlines()]
        )
        for line in lines:
            done = subprocess.run([sys.executable, *line], cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0, (line, done.stderr)
    made = {"seabed.hipgp", "predicted.csv", "draws.nc", "seabed.png", "seabed.html", "pictures"}
    assert made <= {p.name for p in tmp_path.iterdir()}


def test_references_exist():
    for name in re.findall(
        r"^::: ([\w.]+)$", (ROOT / "docs" / "reference.md").read_text(), flags=re.MULTILINE
    ):
        module, attribute = name.rsplit(".", 1)
        assert getattr(importlib.import_module(module), attribute).__doc__


def test_every_public_name_is_in_the_reference():
    import hipgp

    text = (ROOT / "docs" / "reference.md").read_text()
    missing = [name for name in hipgp.__all__ if not re.search(rf"^::: [\w.]+\.{name}$", text, re.MULTILINE)]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_page_is_in_the_menu():
    menu = (ROOT / "mkdocs.yml").read_text()
    assert [page.name for page in PAGES if f": {page.name}\n" not in menu] == []


def test_it_builds_without_a_warning(tmp_path):
    build = pytest.importorskip("mkdocs.commands.build", reason="docs: pip install 'hipgp[docs]'")
    pytest.importorskip("mkdocstrings", reason="docs: pip install 'hipgp[docs]'")
    from mkdocs.config import load_config

    config = load_config(
        str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site"), strict=True, extra={"gallery": False}
    )
    build.build(config)
    assert (tmp_path / "site" / "reference.html").exists()
    page = (tmp_path / "site" / "gallery.html").read_text()
    assert page.count("<summary>") == len(list((ROOT / "docs" / "tutorials").glob("*.py")))


def test_the_gallery_runs_what_is_new_and_says_what_failed(tmp_path, monkeypatch):
    pytest.importorskip("mkdocs", reason="docs: pip install 'hipgp[docs]'")
    spec = importlib.util.spec_from_file_location("gallery", ROOT / "docs" / "gallery.py")
    gallery = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gallery)
    monkeypatch.setattr(gallery, "KEPT", tmp_path / "kept")
    program = tmp_path / "01_one.py"
    program.write_text('"""One: a < b."""\nprint("two & three")\nopen("one.png", "wb").write(b"png")\n')
    (folder,) = gallery._made([program]).values()
    text = gallery._section(program, folder)
    assert (
        "## One\nA < b.\n" in text and "<pre>two &amp; three\n</pre>" in text and "gallery/01_one.png" in text
    )
    (folder / "output.txt").write_text("kept")
    assert "<pre>kept</pre>" in gallery._section(program, gallery._made([program])[program])
    for fault, told in (("raise ValueError('no')", "ValueError: no"), ("1", "expected one picture, got 0")):
        program.write_text(fault)
        with pytest.raises(gallery.PluginError, match=told):
            gallery._made([program])
