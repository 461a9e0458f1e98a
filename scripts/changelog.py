"""Fragments of changes/ -> the newest section of CHANGELOG.md: ``make changelog``.

Without options the section is ``VERSION (unreleased)``, written anew each time, and the fragments stay. With
``--release YYYY-MM-DD`` it gets the date and the fragments are deleted.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hotloop import __version__

ROOT = Path(__file__).resolve().parents[1]
UNRELEASED = re.compile(r"^## \S+ \(unreleased\)\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Assemble CHANGELOG.md from the fragments in changes/.")
    parser.add_argument("--release", metavar="DATE", help="date the section, and delete the fragments")
    date = parser.parse_args(arguments).release
    page = ROOT / "CHANGELOG.md"
    page.write_text(cut_unreleased(page.read_text(encoding="utf-8")), encoding="utf-8")
    words = ["build", "--version", __version__, "--date", date or "unreleased", "--yes" if date else "--keep"]
    return subprocess.run([sys.executable, "-m", "towncrier", *words], cwd=ROOT, check=False).returncode


def cut_unreleased(page: str) -> str:
    """The changelog without the section of changes that are not released."""
    return UNRELEASED.sub("", page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
