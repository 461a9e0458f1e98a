"""Words that docs/dev/writing.md replaces: FILE:LINE, the word, and what to write instead.

    python scripts/words.py [FILE...]      # README, docs and every text in src/ without them

The list is the table in that page, so that what a writer reads is what is checked. A line that holds ``words: ok`` in
a comment is left out. Fails where a word is found.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "dev" / "writing.md"
ROW = re.compile(r"^\| `([^`]+)` \| (.+?) \|", re.M)
LEFT_OUT = "words: ok"
AS_STORED = ("accuracy-diagnosis.md", "claims.md", "fresh.md", "writing.md")
"""Pages that print stored rows, in the words of their authors, and the list itself."""


def read_list(page: str) -> list[tuple[re.Pattern[str], str]]:
    """A pattern for each row of the page's table, with what to write instead."""
    rows = ROW.findall(page)
    return [(re.compile(rf"\b(?:{words.replace(', ', '|')})\b", re.I), instead) for words, instead in rows]


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Prose with its line numbers: of a page outside code, of a module what its strings hold."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                for number, line in enumerate(node.value.split("\n"), node.lineno):
                    yield number, line
        return
    in_code = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            yield number, line


def main(arguments: list[str]) -> int:
    words = read_list(PAGE.read_text(encoding="utf-8"))
    files = [Path(name).resolve() for name in arguments] or [
        ROOT / "README.md",
        *sorted(
            path
            for path in (ROOT / "docs").rglob("*.md")
            if path.parent.name != "decisions" and path.name not in AS_STORED
        ),
        *sorted((ROOT / "src").rglob("*.py")),
    ]
    count = 0
    for path in files:
        source = path.read_text(encoding="utf-8").splitlines()
        for number, text in texts(path):
            prose = re.sub(r"``.*?``|`[^`]*`", "", text)
            for pattern, instead in words if LEFT_OUT not in source[min(number, len(source)) - 1] else ():
                for match in pattern.finditer(prose):
                    count += 1
                    print(f"{path.relative_to(ROOT)}:{number}: {match[0]!r}: {instead}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
