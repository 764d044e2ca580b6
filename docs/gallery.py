"""A hook of mkdocs: the page of tutorials, each with what it prints and the picture that it ends in, made by running it.

Results are kept in build/gallery for each text of a tutorial; delete that folder to make them anew. With `gallery: false` under `extra` in
mkdocs.yml, or HIPGP_GALLERY=off, nothing is run, and the page has the programs alone.
"""

import ast
import hashlib
import html
import os
import pathlib
import shutil
import subprocess
import sys

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
KEPT = ROOT / "build" / "gallery"
AT_ONCE = 2
LONGEST = 600  # seconds of one tutorial
ALONE = """
import runpy, sys
runpy.run_path(sys.argv[1], run_name="__main__")
"""
HEAD = """# Gallery

The tutorials, short programs that run as they are, with what they print and the picture that each ends in. All of it is made when
this page is built.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page and its pictures to the site."""
    wanted = config.extra.get("gallery", True) and os.environ.get("HIPGP_GALLERY") != "off"
    programs = sorted(TUTORIALS.glob("*.py"))
    results = _made(programs) if wanted else {}
    page = HEAD + "".join(_section(program, results.get(program)) for program in programs)
    files.append(File.generated(config, "gallery.md", content=page))
    for program, folder in results.items():
        picture = _picture(program, folder)
        name = f"gallery/{program.stem}.png"
        files.append(File.generated(config, name, abs_src_path=str(picture)))
    return files


def _made(programs: list[pathlib.Path]) -> dict[pathlib.Path, pathlib.Path]:
    """The folder of results of each tutorial; those that are missing are run, two at once."""
    folders = {p: KEPT / f"{p.stem}-{hashlib.sha256(p.read_bytes()).hexdigest()[:12]}" for p in programs}
    waiting = [p for p in programs if not folders[p].exists()]
    running: list[tuple[pathlib.Path, subprocess.Popen]] = []
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            program = waiting.pop(0)
            running.append((program, _started(program, folders[program])))
        program, process = running.pop(0)
        _finished(program, folders[program], process)
    return folders


def _started(program: pathlib.Path, folder: pathlib.Path) -> subprocess.Popen:
    work = folder.with_suffix(".part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    with open(work / "output.txt", "w") as output, open(work / "errors.txt", "w") as errors:
        return subprocess.Popen(
            [sys.executable, "-c", ALONE, str(program)],
            cwd=work,
            stdout=output,
            stderr=errors,
            env=os.environ | {"MPLBACKEND": "agg", "HIPGP_CACHE": str(KEPT / "programs")},
        )


def _finished(program: pathlib.Path, folder: pathlib.Path, process: subprocess.Popen) -> None:
    work = folder.with_suffix(".part")
    try:
        code = process.wait(LONGEST)
    except subprocess.TimeoutExpired:
        process.kill()
        code = f"no end after {LONGEST} s"
    if code != 0:
        raise PluginError(f"{program.name}: {code}\n{(work / 'errors.txt').read_text()[-2000:]}")
    _picture(program, work)
    work.rename(folder)


def _picture(program: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """The picture that the tutorial wrote."""
    found = sorted(folder.glob("*.png"))
    if len(found) != 1:
        raise PluginError(f"{program.name}: expected one picture, got {len(found)}")
    return found[0]


def _section(program: pathlib.Path, folder: pathlib.Path | None) -> str:
    """A title, what the tutorial is about, its picture, what it prints, and its text."""
    code = program.read_text()
    about = ast.get_docstring(ast.parse(code)) or ""
    title, _, rest = about.partition(": ")
    lines = [f"## {title.rstrip('.')}", f"{rest[:1].upper()}{rest[1:]}", ""]
    if folder is not None:
        output = html.escape((folder / "output.txt").read_text())
        lines += [f"![{html.escape(title)}](gallery/{program.stem}.png)", "", f"<pre>{output}</pre>", ""]
    body = html.escape(code)
    lines += [
        f"<details><summary><code>docs/tutorials/{program.name}</code></summary>",
        f'<pre><code class="language-python">{body}</code></pre></details>',
        "",
    ]
    return "\n" + "\n".join(lines) + "\n"
