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


def read_list(page: str) -> list[tuple[re.Pattern[str], str]]:
    """A pattern for each row of the page's table, with what to write instead."""
    rows = ROW.findall(page)
    return [(re.compile(rf"\b(?:{words.replace(', ', '|')})\b", re.I), instead) for words, instead in rows]


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of prose with their numbers: of a page outside code, of a module those of its strings."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if path.suffix != ".py":
        in_code = False
        for number, line in enumerate(lines, 1):
            if line.lstrip().startswith("```"):
                in_code = not in_code
            elif not in_code:
                yield number, re.sub(r"`[^`]*`", "", line)
        return
    prose = {
        number
        for node in ast.walk(ast.parse("\n".join(lines)))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    for number in sorted(prose):
        yield number, re.sub(r"`[^`]*`", "", lines[number - 1])


def main(arguments: list[str]) -> int:
    words = read_list(PAGE.read_text(encoding="utf-8"))
    files = [Path(name).resolve() for name in arguments] or [
        ROOT / "README.md",
        *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "decisions" and path != PAGE),
        *sorted((ROOT / "src").rglob("*.py")),
    ]
    count = 0
    for path in files:
        for number, line in texts(path):
            for pattern, instead in words if LEFT_OUT not in line else ():
                for match in pattern.finditer(line):
                    count += 1
                    print(f"{path.relative_to(ROOT)}:{number}: {match[0]!r}: {instead}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
