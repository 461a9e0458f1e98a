"""Changes by techniques to an unmodified script -> the same in its source, as a unified diff; and the omissions, why.

Only lines that were observed are changed, and only where the source there has the one form that is understood. All
other characters of the file stay as they are, because the change is made of insertions into its text. What is not
understood is left out, with the reason: it stays in the strategy file.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import io
import json
import sysconfig
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import msgspec

from hotloop.core.applied import AppliedTechnique
from hotloop.core.errors import UsageError
from hotloop.core.input_file import read_bounded
from hotloop.core.output_file import open_whole
from hotloop.core.sources import Arguments, NoSource, Source, TorchCall, Wrapped
from hotloop.core.techniques import Technique
from hotloop.core.tuning import PatchCheck

from .script import Refusal, ScriptEdit, apply_edits, overlap, parse_script
from .source_edits import edit_arguments, plan_arguments, plan_edits

APPLIED = "applied"
REPRODUCED, NOT_REPRODUCED = "reproduced", "not reproduced"
CANNOT_TELL, NOT_CHECKED = "cannot tell", "not checked"
MOST_BYTES = 4 << 20
CONTEXT_LINES = 3


Techniques = Mapping[str, Technique]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A technique that was applied and is not in the patch. ``place`` is file:line, None where it had none."""

    technique: str
    place: str | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """One file as it was read and as it will be."""

    path: Path
    before: bytes
    after: bytes
    techniques: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """``diff`` applies with ``patch -p1`` or ``git apply`` in the root that it was made for; empty without a change."""

    diff: str
    files: tuple[FileChange, ...]
    left_out: tuple[LeftOut, ...]


def make_patch(
    records: Sequence[AppliedTechnique], root: Path, techniques: Techniques, *, script: Path | None = None
) -> Patch:
    """The source change for files below ``root``; libraries are never touched.

    ``techniques`` declare their form in the source. ``script`` is the file that the command starts, for techniques that
    act on the process: their line goes after its imports. Without it that is the file of all other records, if there is
    only one.
    """
    root = root.resolve()
    left_out: list[LeftOut] = []
    by_file: dict[Path, list[AppliedTechnique]] = {}
    everywhere: dict[str, AppliedTechnique] = {}
    for record in records:
        source = _source_of(record, techniques)
        if isinstance(source, TorchCall) and not (record.explicit and record.where):
            if record.status == APPLIED or record.technique in everywhere:
                everywhere[record.technique] = record  # what was done to the process last is what holds
        elif record.where is None:
            if record.status == APPLIED:
                why = (isinstance(source, NoSource) and source.why) or "it does not correspond to a line of the script"
                left_out.append(LeftOut(technique=record.technique, place=None, why=why))
        else:
            by_file.setdefault(Path(record.where.file), []).append(record)
    if script is None and len(by_file) == 1:
        script = next(iter(by_file))
    overridden = {record.technique for held in by_file.values() for record in held if record.explicit}
    for record in everywhere.values():
        if record.technique in overridden:
            continue  # the script's own calls say it
        if record.status != APPLIED:
            left_out.append(LeftOut(technique=record.technique, place=None, why=record.detail))
        elif script is None:
            why = "the file that starts training is unknown"
            left_out.append(LeftOut(technique=record.technique, place=None, why=why))
        else:
            by_file.setdefault(root / script, []).append(record)
    files: list[FileChange] = []
    diffs: list[str] = []
    for path, held in sorted(by_file.items()):
        try:
            text = _read_source(path, root)
        except Refusal as refusal:
            left_out += [_leave(record, str(refusal)) for record in held if record.status == APPLIED]
            continue
        changed, missing, used = patch_source(text, held, techniques)
        left_out += missing
        if changed != text:
            name = path.resolve().relative_to(root).as_posix()
            diffs.append(_diff(name, text, changed))
            files.append(FileChange(path=path.resolve(), before=text.encode(), after=changed.encode(), techniques=used))
    return Patch(diff="".join(diffs), files=tuple(files), left_out=tuple(dict.fromkeys(left_out)))


def apply_patch(patch: Patch) -> None:
    """Write the changed files, each at once. Raises UsageError, with nothing written, if one is not as it was."""
    for change in patch.files:
        try:
            present = change.path.read_bytes()
        except OSError as error:
            raise UsageError(f"cannot read {change.path}: {error.strerror}; nothing was written") from None
        if present != change.before:
            raise UsageError(
                f"{change.path} was changed since the patch was made, so nothing was written; make the patch again"
            )
    written: list[FileChange] = []
    for change in patch.files:
        try:
            _replace(change.path, change.after)
        except OSError as error:
            for earlier in written:
                _replace(earlier.path, earlier.before)
            raise UsageError(f"cannot write {change.path}: {error.strerror}; nothing was changed") from None
        written.append(change)


def _replace(path: Path, content: bytes) -> None:
    with open_whole(path) as file:
        file.write(content)


@dataclass(slots=True)
class _Wanted:
    """The arguments that the records of one call want. Different objects built there prove no common value."""

    call: ast.Call
    arguments: dict[str, str] = field(default_factory=dict)
    holders: list[AppliedTechnique] = field(default_factory=list)
    clash: str = ""

    def add(self, record: AppliedTechnique, arguments: Mapping[str, str]) -> None:
        for name, value in arguments.items():
            if self.arguments.setdefault(name, value) != value:
                self.clash = f"two techniques set {name} in this line"
        self.holders.append(record)


def patch_source(
    text: str, records: Sequence[AppliedTechnique], techniques: Techniques
) -> tuple[str, tuple[LeftOut, ...], tuple[str, ...]]:
    """The source with what ``records`` applied, what was left out, and the ids of the techniques that are in it.

    Records that were not applied count too: a line that also built an object which was not changed stays as it is.
    """
    applied = [record for record in records if record.status == APPLIED]
    try:
        script = parse_script(text)
    except Refusal as refusal:
        return text, tuple(_leave(record, str(refusal)) for record in applied), ()
    left_out: list[LeftOut] = []
    edits: list[ScriptEdit] = []
    used: list[str] = []
    wanted: dict[tuple[int, int], _Wanted] = {}
    for record in applied:
        source = _source_of(record, techniques)
        try:
            _refuse_contradiction(record, records, techniques)
            if isinstance(source, Arguments):
                call, arguments = plan_arguments(script, record, source)
                wanted.setdefault((call.lineno, call.col_offset), _Wanted(call)).add(record, arguments)
            else:
                planned = plan_edits(script, record, source)
                if isinstance(source, Wrapped) and any(edit.start == edit.end == planned[0].start for edit in edits):
                    raise Refusal("another technique wraps the same call")
                if not all(edit in edits for edit in planned):
                    _refuse_overlap(planned, edits)
                edits += [edit for edit in planned if edit not in edits]
                used.append(record.technique)
        except Refusal as refusal:
            left_out.append(_leave(record, str(refusal)))
    for one in wanted.values():
        try:
            if one.clash:
                raise Refusal(one.clash)
            planned = edit_arguments(script, one.call, one.arguments)
            _refuse_overlap(planned, edits)
        except Refusal as refusal:
            left_out += [_leave(record, str(refusal)) for record in one.holders]
            continue
        edits += planned
        used += [record.technique for record in one.holders]
    changed = apply_edits(text, edits)
    try:
        ast.parse(changed)
    except (SyntaxError, ValueError, RecursionError):
        # Never seen; a patch that does not parse must not leave this function all the same.
        return text, tuple(_leave(record, "the changed file would not parse") for record in applied), ()
    return changed, tuple(left_out), tuple(sorted(set(used)))


def _source_of(record: AppliedTechnique, techniques: Techniques) -> Source:
    return techniques[record.technique].source if record.technique in techniques else NoSource()


def _refuse_overlap(planned: Sequence[ScriptEdit], edits: Sequence[ScriptEdit]) -> None:
    if overlap(planned, edits):
        raise Refusal("another technique changes the same statement")


def _refuse_contradiction(
    record: AppliedTechnique, records: Sequence[AppliedTechnique], techniques: Techniques
) -> None:
    """Raises Refusal where the line made other objects that were left alone, or the values have no form in a source."""
    for other in records:
        if other.technique != record.technique or other.where is None or other.status == APPLIED:
            continue
        if record.where and (other.where.file, other.where.line) == (record.where.file, record.where.line):
            raise Refusal(f"the line also creates an object that was not changed ({other.detail})")
    why = techniques[record.technique].why_no_source(record.values) if record.technique in techniques else None
    if why is not None:
        raise Refusal(why)


def _leave(record: AppliedTechnique, why: str) -> LeftOut:
    place = None if record.where is None else f"{record.where.file}:{record.where.line}"
    return LeftOut(technique=record.technique, place=place, why=why)


def _read_source(path: Path, root: Path) -> str:
    """The file's text, exactly. Raises Refusal where it may not or cannot be changed."""
    try:
        real = path.resolve()
        if not real.is_relative_to(root):
            raise Refusal(f"the file is not below {root}")
        if _is_library(real):
            raise Refusal("the file belongs to a library")
        if real.suffix not in (".py", ""):
            raise Refusal("the file is not Python source")
        with real.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise Refusal(f"the file cannot be read ({getattr(error, 'strerror', None) or error})") from error
    name = real.relative_to(root).as_posix()
    if len(data) > MOST_BYTES:
        raise Refusal(f"the file is larger than {MOST_BYTES} bytes")
    if any(not c.isprintable() or c in '"\\' for c in name):
        raise Refusal("the file's name has characters that a diff cannot contain")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        if encoding not in ("utf-8", "utf-8-sig"):
            raise Refusal(f"the file is in {encoding}, not UTF-8")
        return data.decode("utf-8")
    except (SyntaxError, UnicodeDecodeError) as error:
        raise Refusal("the file is not UTF-8") from error


def _is_library(path: Path) -> bool:
    if {"site-packages", "dist-packages"} & set(path.parts):
        return True
    return any(path.is_relative_to(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib"))


def _diff(name: str, before: str, after: str) -> str:
    """A unified diff as git and patch read it: line endings as they are, and a mark where the last one is missing."""
    quoted = f"{name}\t" if " " in name else name  # how git marks the end of a name with spaces
    sides = [[line + "\n" for line in text.split("\n")] for text in (before, after)]
    for side in sides:
        side[-1] = side[-1].removesuffix("\n")
        if not side[-1]:
            side.pop()
    lines = []
    for line in difflib.unified_diff(sides[0], sides[1], f"a/{quoted}", f"b/{quoted}", n=CONTEXT_LINES):
        lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(lines)


# -- kept in a folder of a tuning, applied in full or not at all -------------------------------------------------------

SCHEMA = "hotloop.patch/2"
DIFF, ABOUT = "patch.diff", "patch.json"
MOST_KEPT_BYTES = 16 << 20


class _KeptFile(msgspec.Struct):
    path: str
    before_sha256: str
    after: str
    techniques: tuple[str, ...]


class _KeptCheck(msgspec.Struct):
    status: str
    reason: str


class _About(msgspec.Struct):
    """patch.json, as far as it is needed here."""

    schema: str
    root: str
    files: tuple[_KeptFile, ...]
    check: _KeptCheck


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
    """patch.json: the files by their content before and as they are to be, and the check."""
    files = [
        {
            "path": change.path.relative_to(root.resolve()).as_posix(),
            "before_sha256": hash_bytes(change.before),
            "after": change.after.decode(),
            "techniques": list(change.techniques),
        }
        for change in patch.files
    ]
    result = {"status": check.status, "reason": check.reason, "n": check.n, "speedup_ratio": check.speedup_ratio}
    content = {"schema": SCHEMA, "root": str(root.resolve()), "files": files, "check": result}
    return json.dumps(content, indent=1) + "\n"


def hash_bytes(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def load_patch(folder: Path, root: Path) -> KeptPatch:
    """The patch of a finished tuning, ready to be written. Raises UsageError, naming what does not fit."""
    about = _read_about(folder)
    if about.check.status != REPRODUCED:
        raise UsageError(
            f"the patch in {folder} was not applied ({about.check.status}: {about.check.reason}); tune again with a "
            "larger --budget, or apply patch.diff yourself"
        )
    if about.root != str(root.resolve()):
        raise UsageError(f"the patch in {folder} was made in {about.root}; change to that folder to apply it")
    changes, diffs = [], []
    for one in about.files:
        path, after = _place(root, one.path), one.after.encode()
        before = _read_kept(path)
        if before == after:
            continue
        if hash_bytes(before) != one.before_sha256:
            raise UsageError(f"{one.path} was changed since the patch was made, so nothing was written; tune again")
        changes.append(FileChange(path=path, before=before, after=after, techniques=one.techniques))
        diffs.append(_diff(one.path, before.decode(), one.after))
    if 0 < len(changes) < len(about.files):
        raise UsageError("the patch is already applied to some of its files, so nothing was written; tune again")
    diff = "".join(diffs)
    if changes and _read_kept(folder / DIFF).partition(b"\n")[2] != diff.encode():
        raise UsageError(f"{folder / DIFF} was changed since it was checked, so nothing was written; tune again")
    return KeptPatch(patch=Patch(diff=diff, files=tuple(changes), left_out=()), is_there=not changes)


def _place(root: Path, name: str) -> Path:
    pure = PurePosixPath(name)
    path = root.resolve() / pure
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or path.resolve() != path:
        raise UsageError(f"the patch names {name!r}, which is not a plain file below {root}; nothing was written")
    return path


def _read_kept(path: Path) -> bytes:
    return read_bounded(path, MOST_KEPT_BYTES, "file of a tuning run", UsageError)


def _read_about(folder: Path) -> _About:
    if not (folder / ABOUT).is_file():
        raise UsageError(f"{folder} contains no {ABOUT}: it is not a tuning folder, or no source change was proven")
    damaged = UsageError(f"{folder / ABOUT} was not written by hotloop tune, or is damaged; tune again")
    try:
        about = msgspec.json.decode(_read_kept(folder / ABOUT), type=_About)
    except (msgspec.DecodeError, RecursionError) as error:
        raise damaged from error
    if about.schema != SCHEMA or not about.files:
        raise damaged
    return about
