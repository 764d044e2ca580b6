"""The README's example runs as printed."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_first_example_runs_and_finds_the_field(capsys):
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(examples) == 1
    exec(compile(examples[0], str(README), "exec"), {"__name__": "readme"})
    number = r"(-?\d+\.\d+)"
    lines = re.findall(rf"\w+ {number} ± {number}, truth {number}", capsys.readouterr().out)
    assert len(lines) == 2
    for mean, std, truth in lines:
        assert abs(float(mean) - float(truth)) < 4 * float(std) + 0.01
