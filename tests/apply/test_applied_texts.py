"""What techniques say of a change is made of its values: every name in braces is one of them."""

from __future__ import annotations

import ast
import string
from pathlib import Path

import pytest

import hotloop.change.apply.techniques
from hotloop.core.techniques import Applied

FILES = sorted(Path(hotloop.change.apply.techniques.__path__[0]).glob("[a-z]*.py"))


def unknown_names(source: str) -> set[str]:
    """Names in braces of texts in a technique's file that none of its values has."""
    tree = ast.parse(source)
    documented = {id(getattr(node.body[0], "value", None)) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    texts, known = [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            texts.append(node.value)
        if isinstance(node, ast.Dict):
            known |= {key.value for key in node.keys if isinstance(key, ast.Constant)}
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            known.add(node.slice.value)
    named = set()
    for text in texts:
        try:
            named |= {name for _, name, _, _ in string.Formatter().parse(text) if name}
        except ValueError:  # a part of an f-string, whose braces stand in the next part
            continue
    return named - known


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_every_name_in_a_text_is_one_of_the_values(path: Path) -> None:
    assert unknown_names(path.read_text()) == set()


def test_a_text_that_does_not_fit_its_values_raises_nothing() -> None:
    assert Applied(text="{size:g} in {place}", values={"size": 2.0, "place": "here"}).detail == "2 in here"
    assert Applied(text="{size:g}", values={"size": "large"}).detail == "{size:g}"
    assert Applied(text="{count}", values={}).detail == "{count}"
