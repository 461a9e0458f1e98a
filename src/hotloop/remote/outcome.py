"""upload.json: what of a run's recording did not arrive, from the end of ``hotloop run --record`` to its reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from hotloop.core.frames import decode_object
from hotloop.core.report import Health

from .manifest import NodeManifest, list_files, write_json
from .uploader import CountRows

NAME = "upload.json"
SCHEMA = "hotloop.upload/1"
UNREADABLE = "what is missing could not be read, or is larger than 2 GiB"
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """What became of the recording of one node. ``lost_rows_count`` is what lies on this disk and is not known to
    have arrived, ``late_files_count`` in how many files something is missing; ``reason`` is None if all arrived."""

    url: str
    rows_count: int
    lost_rows_count: int
    late_files_count: int
    reason: str | None

    def describe(self) -> str:
        """What is missing, in one sentence."""
        return (
            f"{self.lost_rows_count:,} of {self.rows_count:,} rows, in {self.late_files_count} files, did not arrive "
            f"at {self.url} ({self.reason})"
        )


def count_uploaded(
    folder: Path, url: str, arrived: NodeManifest | None, count_rows: CountRows, reason: str | None
) -> Uploaded:
    """Compare the folder with what is known to have arrived. ``reason`` is why not all of it may have."""
    files = {} if arrived is None else arrived.files
    rows = lost = late = 0
    for name, path in list_files(folder).items():
        state = files.get(name)
        if not name.endswith(".hlr"):
            late += state is None
            continue
        known = (0 if state is None else state.rows_count) or 0
        here = max(known, count_rows(path, known) or 0)
        rows, lost, late = rows + here, lost + here - known, late + (here > known)
    has_ended = arrived is not None and arrived.ended
    is_whole = has_ended and not late
    return Uploaded(
        url=url,
        rows_count=rows,
        lost_rows_count=lost,
        late_files_count=late,
        reason=None if is_whole else reason or (UNREADABLE if has_ended else "the store did not take it in time"),
    )


def write_uploaded(folder: Path, uploaded: Uploaded) -> None:
    """Raises OSError."""
    write_json(folder / NAME, {"schema": SCHEMA, **asdict(uploaded)})


def describe_upload(folder: Path) -> tuple[Health, ...]:
    """One warning where not all arrived; nothing where all went well or the file is no such."""
    try:
        with (folder / NAME).open("rb") as file:
            given = decode_object(file.read(_MOST_BYTES)) or {}
    except OSError:
        return ()
    counts = [given.get(name) for name in ("rows_count", "lost_rows_count", "late_files_count")]
    if given.get("reason") is None or not all(type(count) is int and count >= 0 for count in counts):
        return ()
    rows, lost, late = counts
    text = Uploaded(
        url=str(given.get("url"))[:300],
        rows_count=rows or 0,
        lost_rows_count=lost or 0,
        late_files_count=late or 0,
        reason=str(given["reason"])[:300],
    ).describe()
    return (Health(level="warning", message=f"{text}; hotloop upload {folder.name} URL sends the rest"),)
