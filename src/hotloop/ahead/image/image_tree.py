"""Files of a mounted image -> one JSON line each. Also a separate program, started in a rootless builder's namespace.

python image_tree.py FOLDER
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from typing import BinaryIO

CHUNK_BYTES = 1 << 20
PYC_FLAGS, PYC_TIME = slice(4, 8), slice(8, 12)
"""The places in a .pyc of its flags, which show whether its source's time is checked, and of that time (PEP 552)."""


def walk(root: str) -> Iterator[dict[str, object]]:
    """Every file, link and device below ``root``; folders are not listed."""
    for folder, folders, names in os.walk(root):
        folders.sort()
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in sorted((*names, *links)):
            path = os.path.join(folder, name)
            facts = os.lstat(path)
            kind = stat.filemode(facts.st_mode)[0]
            if kind == "l":
                digest = os.readlink(path)
            elif kind == "-":
                with open(path, "rb") as file:
                    digest = hash_file(file, is_pyc=name.endswith(".pyc"))
            else:
                digest = str(facts.st_rdev)
            yield {
                "path": os.path.relpath(path, root),
                "kind": kind,
                "mode": stat.S_IMODE(facts.st_mode),
                "owner": f"{facts.st_uid}:{facts.st_gid}",
                "digest": digest,
            }


def hash_file(file: BinaryIO, *, is_pyc: bool) -> str:
    """The digest of a file's bytes. The source's time in a .pyc is not content: it counts as zero."""
    first = bytearray(file.read(CHUNK_BYTES))
    if is_pyc and len(first) >= 16 and not any(first[PYC_FLAGS]):
        first[PYC_TIME] = bytes(4)
    digest = hashlib.blake2b(first, digest_size=20)
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


if __name__ == "__main__":
    for entry in walk(sys.argv[1]):
        print(json.dumps(entry))
