"""A checked Patch <-> patch.diff and patch.json in a tuning's folder; what was kept is applied whole or not at all."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.core.tuning import PatchCheck

from .patch import FileChange, Patch
from .patch_check import REPRODUCED

SCHEMA = "hotloop.patch/1"
DIFF, ABOUT = "patch.diff", "patch.json"
MOST_BYTES = 16 << 20
_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPatch:
    """A patch that was read back and fits the files. ``is_there`` says that all of it was applied before."""

    patch: Patch
    is_there: bool


def diff_text(patch: Patch, check: PatchCheck | None) -> str:
    """The diff under a line that says what is known of it; tools pass over that line. Empty without a change."""
    if not patch.files or check is None:
        return patch.diff
    return f"hotloop: {check.status}: {' '.join(check.reason.split())}\n{patch.diff}"


def about_text(patch: Patch, root: Path, check: PatchCheck) -> str:
    """patch.json: the files by their content before and after, and the check."""
    files = [
        {
            "path": change.path.relative_to(root.resolve()).as_posix(),
            "before_sha256": hash_bytes(change.before),
            "after_sha256": hash_bytes(change.after),
            "techniques": list(change.techniques),
        }
        for change in patch.files
    ]
    result = {"status": check.status, "reason": check.reason, "n": check.n, "speedup_ratio": check.speedup_ratio}
    content = {
        "schema": SCHEMA,
        "root": str(root.resolve()),
        "diff_sha256": hash_bytes(diff_text(patch, check).encode()),
        "files": files,
        "check": result,
    }
    return json.dumps(content, indent=1) + "\n"


def hash_bytes(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def load_patch(folder: Path, root: Path) -> KeptPatch:
    """The patch of a finished tuning, ready to be written. Raises UsageError, naming what does not fit."""
    about = _read_about(folder)
    check = about["check"]
    if check["status"] != REPRODUCED:
        raise UsageError(
            f"the patch in {folder} was not applied ({check['status']}: {check['reason']}); tune again with a "
            "larger --budget, or apply patch.diff yourself"
        )
    if about["root"] != str(root.resolve()):
        raise UsageError(f"the patch in {folder} was made in {about['root']}; change to that folder to apply it")
    diff = _read(folder / DIFF)
    if hash_bytes(diff) != about["diff_sha256"]:
        raise UsageError(f"{folder / DIFF} was changed since it was checked, so nothing was written; tune again")
    hunks = split_diff(diff)
    known = {one["path"]: one for one in about["files"]}
    if set(known) != set(hunks) or not known:
        raise UsageError(
            f"{folder / DIFF} and {folder / ABOUT} name different files, so nothing was written; tune again"
        )
    changes, there = [], 0
    for name, one in sorted(known.items()):
        path = _place(root, name)
        before = _read(path)
        if hash_bytes(before) == one["after_sha256"]:
            there += 1
            continue
        if hash_bytes(before) != one["before_sha256"]:
            raise UsageError(f"{name} was changed since the patch was made, so nothing was written; tune again")
        after = apply_hunks(name, before, hunks[name])
        if hash_bytes(after) != one["after_sha256"]:
            raise UsageError(
                f"the patched {name} differs from the file that was checked, so nothing was written; tune again"
            )
        changes.append(FileChange(path=path, before=before, after=after, techniques=tuple(one["techniques"])))
    if there and changes:
        raise UsageError("the patch is already applied to some of its files, so nothing was written; tune again")
    return KeptPatch(patch=Patch(diff=diff.decode(), files=tuple(changes), left_out=()), is_there=not changes)


def split_diff(diff: bytes) -> dict[str, list[list[bytes]]]:
    """File name -> hunks of a unified diff, each as its lines with the heading first. Raises UsageError."""
    found: dict[str, list[list[bytes]]] = {}
    name = ""
    lines = diff.split(b"\n")
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.startswith(b"--- a/") and at + 1 < len(lines) and lines[at + 1].startswith(b"+++ b/"):
            name = line[6:].decode("utf-8", "replace").removesuffix("\t")
            if name in found or lines[at + 1][6:] != line[6:]:
                raise UsageError(f"the patch names {name!r} twice or under two names; nothing was written")
            found[name] = []
            at += 2
            continue
        heading = _HUNK.match(line)
        if heading is None:
            if name and line:
                raise UsageError(f"line {at + 1} of the patch is not valid in a unified diff; nothing was written")
            at += 1
            continue
        if not name:
            raise UsageError(f"line {at + 1} of the patch belongs to no file; nothing was written")
        old_count, new_count = (1 if n is None else int(n) for n in heading.group(2, 3))
        end = _hunk_end(lines, at + 1, old_count, new_count)
        found[name].append(lines[at:end])
        at = end
    return found


def _hunk_end(lines: list[bytes], at: int, old_count: int, new_count: int) -> int:
    """The place after a hunk's last line; its heading says how many lines of each side follow."""
    begin = at
    while old_count or new_count:
        kind = lines[at][:1] if at < len(lines) else b""
        if kind not in (b" ", b"-", b"+", b"\\") or min(old_count, new_count) < 0:
            raise UsageError(f"the hunk at line {begin} of the patch is broken; nothing was written")
        old_count -= kind in (b" ", b"-")
        new_count -= kind in (b" ", b"+")
        at += 1
    while at < len(lines) and lines[at].startswith(b"\\"):
        at += 1
    return at


def apply_hunks(name: str, before: bytes, hunks: list[list[bytes]]) -> bytes:
    """The file with every hunk exactly where it says. Raises UsageError when one does not fit.

    >>> apply_hunks("f", b"a\\nb\\n", [[b"@@ -1,2 +1,2 @@", b" a", b"-b", b"+c"]])
    b'a\\nc\\n'
    """
    lines = _split(before)
    out: list[bytes] = []
    at = 0
    for hunk in hunks:
        heading = _HUNK.match(hunk[0])
        assert heading is not None
        old: list[bytes] = []
        new: list[bytes] = []
        for number, line in enumerate(hunk[1:], 1):
            if line.startswith(b"\\"):
                continue
            is_open = number + 1 < len(hunk) and hunk[number + 1].startswith(b"\\")
            text = line[1:] + (b"" if is_open else b"\n")
            if line[:1] in b" -":
                old.append(text)
            if line[:1] in b" +":
                new.append(text)
        start = int(heading.group(1)) - (1 if old else 0)
        if start < at or lines[start : start + len(old)] != old:
            raise UsageError(f"the hunk at line {start + 1} does not fit {name}; nothing was written")
        out += [*lines[at:start], *new]
        at = start + len(old)
    return b"".join([*out, *lines[at:]])


def _split(content: bytes) -> list[bytes]:
    """Lines that end in a line feed alone: a carriage return before it belongs to the line."""
    parts = content.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _place(root: Path, name: str) -> Path:
    pure = PurePosixPath(name)
    path = root.resolve() / pure
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or path.resolve() != path:
        raise UsageError(f"the patch names {name!r}, which is not a plain file below {root}; nothing was written")
    return path


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > MOST_BYTES:
        raise UsageError(f"{path} is larger than {MOST_BYTES} bytes; nothing was written")
    return content


def _read_about(folder: Path) -> Mapping[str, Any]:
    if not (folder / ABOUT).is_file():
        raise UsageError(f"{folder} contains no {ABOUT}: it is not a tuning, or no source change was proven")
    try:
        about = json.loads(_read(folder / ABOUT))
        is_known = (
            about["schema"] == SCHEMA and isinstance(about["root"], str) and isinstance(about["diff_sha256"], str)
        )
        is_known = is_known and all(isinstance(about["check"][key], str) for key in ("status", "reason"))
        for one in about["files"]:
            is_known = is_known and all(isinstance(one[k], str) for k in ("path", "before_sha256", "after_sha256"))
            is_known = is_known and all(isinstance(t, str) for t in one["techniques"])
    except (ValueError, KeyError, TypeError, RecursionError):
        is_known = False
    if not is_known:
        raise UsageError(f"{folder / ABOUT} was not written by hotloop tune, or is damaged; tune again")
    checked: Mapping[str, Any] = about
    return checked
