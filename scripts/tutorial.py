"""docs/tutorials -> each command run as written, each in an empty folder, by an environment that has the wheel alone.

    python scripts/tutorial.py FOLDER_OF_THE_ENVIRONMENT [NAME ...]

A block ``python title=FILE`` is written to the file; each line of a block ``sh`` has to exit with 0, or with what its
comment says; a block ``text`` is an excerpt of what was printed before: every rule and every first word of it has to be
there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

TUTORIALS = Path(__file__).resolve().parents[1] / "docs" / "tutorials"
BLOCK = re.compile(r"^```(python|sh|text)(?: title=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXIT = re.compile(r"# exits with (\d+)$")


def main() -> int:
    binaries, names = Path(sys.argv[1]).resolve() / "bin", sys.argv[2:]
    environment = {**os.environ, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}
    problems = []
    for page in sorted(TUTORIALS.glob("*.md")):
        if not names or page.stem in names:
            with tempfile.TemporaryDirectory() as folder:
                problems += [f"{page.name}: {problem}" for problem in follow(page, Path(folder), environment)]
    print(*problems or ["every command of every tutorial did what its page says"], sep="\n")
    return int(bool(problems))


def follow(page: Path, folder: Path, environment: dict[str, str]) -> list[str]:
    """What differs from the page when its blocks are followed in order."""
    printed, problems = "", []
    for kind, title, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == "python":
            (folder / title).write_text(text, encoding="utf-8")
        elif kind == "text":
            wanted = re.findall(r"\[[a-z-]+\]|^\S+", text, re.MULTILINE)
            problems += [f"{word!r} was not printed" for word in wanted if word not in printed]
        for line in text.splitlines() if kind == "sh" else ():
            print(f"{page.stem}$ {line}", flush=True)
            done = subprocess.run(
                line,
                shell=True,
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            printed += done.stdout
            code = EXIT.search(line)
            if done.returncode != int(code[1] if code else 0):
                problems.append(f"{line}: exit code {done.returncode}\n{done.stdout[-2000:]}")
    return problems


if __name__ == "__main__":
    sys.exit(main())
