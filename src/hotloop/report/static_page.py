"""What pages are made of: the files beside this package, and the policy that allows exactly them."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources


def read_asset(*parts: str) -> str:
    return resources.files("hotloop.report").joinpath(*parts).read_text(encoding="utf-8")


def hash_source(content: str) -> str:
    """The CSP source that allows exactly this inline element."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() + "'"
