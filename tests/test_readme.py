"""What the README shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vdenoise.models.registry import shipped

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_there_is_an_example_of_ten_lines():
    assert len(SNIPPETS) == 1
    assert len([line for line in SNIPPETS[0].splitlines() if line.strip()]) <= 12


@pytest.mark.skipif(
    "dust" not in shipped(), reason="the example runs the shipped checkpoint, which is not there"
)
def test_the_example_cleans(capsys):
    exec(compile(SNIPPETS[0], "README.md", "exec"), {})
    found = re.fullmatch(r"RMSE 25 before, ([\d.]+) after\n", capsys.readouterr().out)
    assert found
    assert float(found[1]) < 7


def test_every_file_it_names_is_there():
    for name in re.findall(r"(?:docs|benchmarks|data|vdenoise)/[\w/]+\.(?:png|py|md)", README):
        assert (Path(__file__).parent.parent / name).is_file(), name
