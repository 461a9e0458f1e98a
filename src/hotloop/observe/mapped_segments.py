"""Segments of memory -> one file that holds them: mapped where that is safe, copied where it is not.

Space is allocated before it is mapped and never given back while mapped: touching a mapped page without a block
behind it would end the training with SIGBUS. On a file system where allocated space may still run out (copy on write)
or whose kind is unknown, nothing is mapped. On a network file system the file is node-local until it is closed.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

from hotloop.core.frames import HEAD_BYTES, MIN_SEGMENT_BYTES, STATUS_OFFSETS, FileHeader, encode_header

POINTER_SUFFIX = ".where"
"""``<file>.where`` stands where a recording belongs while it is still on the node's own disk."""

MAPPABLE_FILE_SYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs", "overlay", "f2fs"})
"""File systems where allocated space is certain, so that mapping it is safe; overlay stands for its usual uppers."""
_NETWORK_FILE_SYSTEMS = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "fhgfs", "fuse", "fuseblk", "glusterfs", "gpfs", "lustre", "ncpfs"}
    | {"nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "wekafs"}
)

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_COPY_BACK_S = 30.0
_MADV_POPULATE_WRITE = 23  # Linux 5.14: faults the pages in, and answers with an error where a touch would be SIGBUS


@dataclass(slots=True, eq=False)
class Segment:
    """One segment in memory: a mapping of the file, or (``mapping`` is None) a copy that maintain() writes out."""

    number: int
    base_bytes: int
    view: memoryview
    mapping: mmap.mmap | None
    at: int = 0  # end of what was appended
    flushed: int = 0  # of a copy: appended bytes that the file has
    dirty: set[tuple[int, int]] | None = None  # of a copy: (offset, bytes) rewritten in place since


@dataclass(slots=True, eq=False)
class Slot:
    """A place in a segment that a frame may be written to more than once."""

    segment: Segment
    at: int
    span_bytes: int


def file_system_type(folder: str, mounts: str) -> str | None:
    """Type of the file system that holds ``folder``, from the text of /proc/self/mountinfo; None when not listed."""
    folder = os.path.realpath(folder)
    best, found = -1, None
    for line in mounts.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split(" ")
        if not separator or len(fields) < 5:
            continue
        # Mount points hold spaces and the like as octal escapes.
        point = fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
        inside = point == "/" or folder == point or folder.startswith(point + "/")
        if inside and len(point) >= best:  # a later mount on the same point hides the earlier one
            best, found = len(point), right.split(" ")[0]
    return found


def is_network_file_system(kind: str) -> bool:
    """Whether files of this type lie on another machine (or behind a FUSE daemon that may be one)."""
    return kind in _NETWORK_FILE_SYSTEMS or kind.startswith("fuse.")


def read_mounts() -> str:
    """The text of /proc/self/mountinfo; empty where there is none."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


class SegmentFile:
    """The file of one recording. Its methods raise OSError or ValueError; callers see to it that one runs at a time.

    ``path`` is where the recording belongs, ``present_path`` where it is, ``copies`` are segments that are not mapped
    and may have something to flush.
    """

    def __init__(self, path: str, segment_bytes: int, mounts: str | None) -> None:
        self.path = self.present_path = path
        self.segment_bytes = segment_bytes
        self.mapped = False
        self.copies: list[Segment] = []
        self._mounts = mounts
        self._descriptor = -1

    def open(self) -> Segment:
        """Create the file; answers its first segment, with the file's header."""
        folder = os.path.dirname(os.path.abspath(self.path))
        if not os.path.isdir(folder):
            os.mkdir(folder)  # one level only: a deleted run folder is not made anew
        mounts = read_mounts() if self._mounts is None else self._mounts
        kind = file_system_type(folder, mounts)
        path = self.path
        if kind is not None and is_network_file_system(kind):
            path, kind = self._node_local_path(mounts, kind)
        return self._create(path, kind in MAPPABLE_FILE_SYSTEMS and sys.platform == "linux")

    def allocate(self, number: int) -> Segment:
        """A segment with its space taken. Falls back to copies in memory where space cannot be taken or mapped."""
        base = number * self.segment_bytes
        if self.mapped:
            try:
                os.posix_fallocate(self._descriptor, base, self.segment_bytes)
                mapping = mmap.mmap(self._descriptor, self.segment_bytes, offset=base)
                _populate(mapping)
                return Segment(number, base, memoryview(mapping), mapping)
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and (error.errno in _NO_SPACE or number > 0):
                    raise
                self.mapped = False
        copy = Segment(number, base, memoryview(bytearray(self.segment_bytes)), None, dirty=set())
        self.copies.append(copy)
        return copy

    def write_pointer(self) -> None:
        """Say on the network file system where the recording lies until it is brought home."""
        if self.present_path == self.path:
            return
        pointer = {"schema": "hotloop.pointer/1", "host": socket.gethostname(), "path": self.present_path}
        with open(self.path + POINTER_SUFFIX, "w", encoding="utf-8") as file:
            json.dump(pointer, file)

    def is_deleted(self) -> bool:
        """Whether no name leads to the file any more."""
        return os.fstat(self._descriptor).st_nlink == 0

    def write(self, part: bytes, at: int) -> None:
        """Write ``part`` at an offset of the file, all of it."""
        if os.pwrite(self._descriptor, part, at) != len(part):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def forget(self) -> None:
        """Close the file as it is."""
        self.copies = []
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def leave(self, used_bytes: int, on_failure: Callable[[OSError], None]) -> None:
        """Close the file; a node-local one is brought to where it belongs first."""
        if self._descriptor < 0:
            return
        is_away = self.present_path != self.path
        if is_away and not _run_bounded(lambda: self._bring_home(used_bytes, on_failure), _COPY_BACK_S):
            return  # the copying thread still reads the file
        self.forget()

    def _node_local_path(self, mounts: str, network: str) -> tuple[str, str | None]:
        """A fresh place on this machine's own disk; the path as it is when there is none."""
        import tempfile  # only here: most runs never need it

        try:
            local = tempfile.gettempdir()
            kind = file_system_type(local, mounts)
            if kind is not None and not is_network_file_system(kind):
                return os.path.join(tempfile.mkdtemp(prefix="hotloop-", dir=local), os.path.basename(self.path)), kind
        except OSError:
            return self.path, network  # no such place: a slow recording is better than none
        return self.path, network

    def _create(self, path: str, mapped: bool) -> Segment:
        stem, extension = os.path.splitext(path)
        for attempt in range(100):  # a program that replaced itself by exec has the same pid
            self.present_path = path if attempt == 0 else f"{stem}.{attempt}{extension}"
            try:
                self._descriptor = os.open(self.present_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                break
            except FileExistsError:
                continue
        else:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        self.path = os.path.join(os.path.dirname(self.path), os.path.basename(self.present_path))
        self.mapped = mapped
        try:
            try:
                first = self.allocate(0)
            except OSError as error:
                if error.errno not in _NO_SPACE or self.segment_bytes <= MIN_SEGMENT_BYTES:
                    raise
                self.segment_bytes = MIN_SEGMENT_BYTES  # a small file is better than none
                first = self.allocate(0)
            header = FileHeader(segment_bytes=self.segment_bytes, properties={"mapped": self.mapped})
            first.view[: STATUS_OFFSETS[0]] = encode_header(header)
            if not self.mapped:
                os.pwrite(self._descriptor, first.view[:HEAD_BYTES], 0)
        except OSError:
            os.close(self._descriptor)
            self._descriptor = -1
            os.unlink(self.present_path)
            raise
        return first

    def _bring_home(self, used_bytes: int, on_failure: Callable[[OSError], None]) -> None:
        """Copy the node-local file to where it belongs; on failure it stays, and the pointer with it."""
        part = self.path + ".part"
        try:
            with open(part, "wb") as target:
                done = 0
                while done < used_bytes:
                    chunk = os.pread(self._descriptor, min(1 << 20, used_bytes - done), done)
                    if not chunk:
                        break
                    done += target.write(chunk)
            os.replace(part, self.path)
            os.unlink(self.path + POINTER_SUFFIX)
            os.unlink(self.present_path)
            os.rmdir(os.path.dirname(self.present_path))
        except OSError as error:
            on_failure(error)


def _populate(mapping: mmap.mmap) -> None:
    """Make the pages present, so that the training thread meets no page fault that has to wait for the disk."""
    try:
        mapping.madvise(_MADV_POPULATE_WRITE)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: a kernel before 5.14, where the pages come one by one
            raise


def _run_bounded(work: Callable[[], None], limit_s: float) -> bool:
    """Whether ``work`` ended within ``limit_s``: a hung network file system must not hold up the exit."""
    thread = threading.Thread(target=work, name="hotloop-copy", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no new threads this late in an interpreter's life
        work()
        return True
    thread.join(limit_s)
    return not thread.is_alive()
