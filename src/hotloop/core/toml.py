"""TOML text -> its tables, by the standard library's parser, or by tomli where Python is older than 3.11."""

from __future__ import annotations

import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML document. Raises ValueError (TOMLDecodeError) when it is none."""
    content: dict[str, Any] = tomllib.loads(text)
    return content
