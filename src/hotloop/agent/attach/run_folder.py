"""A name or a command -> a new run folder under .hotloop/ with its manifest (run.json)."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hotloop import __version__
from hotloop.core.errors import UsageError
from hotloop.core.redact import redact_command


def create_run_folder(name: str | None, command: Sequence[str]) -> tuple[Path, list[str]]:
    """A folder that did not exist, named after time and command without ``name``; and notes for the report.

    It is under .hotloop/ here, or under the temporary folder when this one cannot be written.
    """
    check_name(name)
    base = name or default_name(time.time(), command)
    notes: list[str] = []
    for root in _roots():
        for attempt in range(1000):
            folder = root / (base if attempt == 0 else f"{base}-{attempt}")
            try:
                (folder / "processes").mkdir(parents=True)
            except FileExistsError:
                if name is not None:
                    raise UsageError(f"a run named {name!r} exists in {root}; choose another name") from None
                continue
            except OSError as error:
                notes.append(_elsewhere(root, error))
                break
            ignore_in_git(root)
            return folder, notes
    raise _nowhere()


def join_run_folder(name: str, command: Sequence[str]) -> Path:
    """A folder that several processes of one training share: whoever comes first makes it."""
    check_name(name)
    for root in _roots():
        try:
            (root / name / "processes").mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        ignore_in_git(root)
        write_manifest(root / name, command, [], only_new=True)
        return root / name
    raise _nowhere()


def write_manifest(
    folder: Path,
    command: Sequence[str],
    notes: Sequence[str],
    *,
    targets: Mapping[str, float] | None = None,
    steps_total: int | None = None,
    only_new: bool = False,
) -> None:
    """Write run.json in one move; with ``only_new`` an existing one stays. ``targets`` is what is to be reached,
    ``steps_total`` how many steps the training will take."""
    manifest: dict[str, Any] = {
        "schema": "hotloop.run/1",
        "hotloop": __version__,
        "command": list(redact_command(command)),
        "started_wall_s": time.time(),
        "notes": list(notes),
        "pid": os.getpid(),
        "host": socket.gethostname(),
    }
    if targets:
        manifest["targets"] = dict(targets)
    if steps_total is not None:
        manifest["steps_total"] = steps_total
    part = folder / f".run.json.{os.getpid()}.part"
    try:
        part.write_text(json.dumps(manifest))
        if only_new:
            try:
                os.link(part, folder / "run.json")
            except FileExistsError:
                pass
            finally:
                part.unlink()
        else:
            part.replace(folder / "run.json")
    except OSError as error:
        print(f"hotloop: cannot write {folder / 'run.json'}: {error.strerror}", file=sys.stderr)


def default_name(started_wall_s: float, command: Sequence[str]) -> str:
    """Time and script."""
    first = command[0] if command and command[0] else "python"
    script = next((Path(word).stem for word in command if word.endswith(".py")), Path(first).name)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(started_wall_s))
    return f"{stamp}-{re.sub(r'[^A-Za-z0-9_-]', '-', script)[:40]}"


def check_name(name: str | None) -> None:
    if name is not None and not re.fullmatch(r"[\w][\w.-]{0,100}", name):
        raise UsageError(f"the run name {name!r}: use only letters, digits, '.', '_' and '-'")


def _roots() -> tuple[Path, ...]:
    user = os.getuid() if sys.platform != "win32" else "user"
    return Path.cwd() / ".hotloop", Path(tempfile.gettempdir()) / f"hotloop-{user}"


def _elsewhere(root: Path, error: OSError) -> str:
    return f"cannot write to {root} ({error.strerror}); the recording is in the temporary folder"


def _nowhere() -> UsageError:
    return UsageError("cannot record: neither .hotloop here nor the temporary folder is writable")


def ignore_in_git(root: Path) -> None:
    """Recordings do not belong into the user's repository."""
    if root.name != ".hotloop" or (root / ".gitignore").exists():
        return
    try:
        (root / ".gitignore").write_text("*\n")
    except OSError as error:
        print(f"hotloop: cannot write {root / '.gitignore'}: {error.strerror}", file=sys.stderr)
