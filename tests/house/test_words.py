"""The list of docs/dev/writing.md is what is looked for, outside code and marked lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from .load_script import load_script

PAGE = """\
The run told us nothing.
It stands for a step. <!-- words: ok -->
`told` is a word.
```
told
```
"""
MODULE = """\
told = ["a wait that is beside the step", "beside"]
# beside
"""


@pytest.mark.parametrize(("name", "text", "lines"), [("page.md", PAGE, [1]), ("module.py", MODULE, [1])])
def test_words_are_found_in_prose_alone(
    name: str, text: str, lines: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = load_script("words")
    (tmp_path / name).write_text(text)
    words.ROOT = tmp_path
    assert words.main([str(tmp_path / name)]) == 1
    printed = {int(line.split(":")[1]) for line in capsys.readouterr().out.splitlines()}
    assert sorted(printed) == lines


def test_every_word_of_the_page_matches_itself() -> None:
    words = load_script("words")
    rows = words.ROW.findall(words.PAGE.read_text())
    assert len(rows) > 20
    for (pattern, _), (listed, _) in zip(words.read_list(words.PAGE.read_text()), rows, strict=True):
        plain = [word for word in listed.split(", ") if word.replace(" ", "").isalpha()]
        assert [word for word in plain if not pattern.fullmatch(word)] == []
