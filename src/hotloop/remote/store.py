"""An fsspec URL -> named objects below it, with errors of one line that hold no secret."""

from __future__ import annotations

import importlib.util
import random
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from hotloop.core.errors import RecordingError, UsageError
from hotloop.core.redact import redact_text

R = TypeVar("R")

ATTEMPTS = 5
FIRST_WAIT_S = 0.2
"""Between two attempts at one object, doubled each time, times a random 0.5 to 1."""
_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "http", "https"})
"""Stores without folders; of a bucket that does not exist, none is made."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_PACKAGES = {"gcsfs": "gcsfs", "s3fs": "s3fs", "adlfs": "adlfs"}


class StoreError(RecordingError):
    """An object could not be written or read, after all attempts."""


def protocol_of(url: str) -> str:
    """``s3`` of ``s3://bucket/run``; ``file`` of a path."""
    match = _SCHEME.match(url)
    return match[1].lower() if match else "file"


def check_driver(url: str) -> None:
    """Raises UsageError, with the command that installs it, where fsspec or the driver of ``url`` is missing.

    Nothing is imported but fsspec's list of drivers: a training waits for it.
    """
    shown = redact_text(url)
    try:
        from fsspec.registry import known_implementations  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        raise UsageError(f"{shown} needs fsspec, which is not installed; run: pip install 'hotloop[remote]'") from None
    protocol = protocol_of(url)
    if protocol not in known_implementations:
        raise UsageError(f"{shown}: fsspec knows no {protocol}://; give a URL such as s3://bucket/run, or a folder")
    package = str(known_implementations[protocol]["class"]).partition(".")[0]
    if importlib.util.find_spec(package) is None:
        raise UsageError(
            f"{shown} needs {package}, which is not installed; run: pip install 'hotloop[remote]' "
            f"{_PACKAGES.get(package, package)}"
        )


class RemoteStore:
    """Objects below one URL, by names relative to it. Methods try several times, then raise StoreError."""

    def __init__(self, url: str, *, attempts: int = ATTEMPTS) -> None:
        check_driver(url)
        from fsspec.core import url_to_fs  # type: ignore[import-untyped,import-not-found,unused-ignore]

        self.shown = redact_text(url.rstrip("/"))
        self._attempts = attempts
        try:
            self._system, root = url_to_fs(url.rstrip("/"), use_listings_cache=False, skip_instance_cache=True)
        except Exception as error:  # every driver has its own errors, and none of them is ours
            raise StoreError(f"{self.shown} cannot be opened: {describe_error(error)}") from error
        if hasattr(self._system, "retries"):
            self._system.retries = (
                1  # of s3fs and gcsfs, with long waits: an attempt here ends in time, and there are more
            )
        self._root = str(root).rstrip("/")
        self._has_folders = protocol_of(url) not in _OBJECT_STORES
        self._made: set[str] = set()

    def put(self, name: str, content: bytes) -> None:
        """Write an object, replacing the previous one."""
        self._make_folder(name)
        self._try("written", name, lambda path: self._system.pipe_file(path, content))

    def create(self, name: str, content: bytes) -> None:
        """Write an object unless there is one already. Who needs to know reads it afterwards: an attempt whose answer
        was lost may have written it. Stores that cannot do so replace it."""
        self._make_folder(name)

        def write(path: str) -> None:
            try:
                self._system.pipe_file(path, content, mode="create")
            except FileExistsError:
                return
            except TypeError:  # a driver that cannot do so
                self._system.pipe_file(path, content)
            except Exception as error:
                if "PreconditionFailed" not in repr(error) and "pre-condition" not in str(error).lower():
                    raise

        self._try("written", name, write)

    def get(self, name: str, most_bytes: int, read: Callable[[bytes], R]) -> R | None:
        """The result of ``read`` on the object; None where there is none. What it refuses with a RecordingError, and an
        object that is larger than ``most_bytes``, is fetched again like what could not be fetched at all."""

        def fetch(path: str) -> R | None:
            try:
                content: bytes = self._system.cat_file(path, start=0, end=most_bytes + 1)
            except FileNotFoundError:
                return None
            if len(content) > most_bytes:
                raise RecordingError(f"{self.shown}/{name} is refused: it has more than {most_bytes:,} bytes")
            return read(content)

        return self._try("read", name, fetch)

    def list_names(self, folder: str) -> tuple[str, ...]:
        """The names directly in a folder, in order; empty where there is none."""

        def read(path: str) -> list[Any]:
            try:
                found: list[Any] = self._system.ls(path, detail=False)
            except FileNotFoundError:
                return []
            return found

        return tuple(sorted({str(one).rstrip("/").rpartition("/")[2] for one in self._try("listed", folder, read)}))

    def remove(self, name: str) -> None:
        def remove(path: str) -> None:
            try:
                self._system.rm_file(path)
            except FileNotFoundError:
                return

        self._try("removed", name, remove)

    def _make_folder(self, name: str) -> None:
        folder = name.rpartition("/")[0]
        if self._has_folders and folder not in self._made:
            self._try("made", folder, lambda path: self._system.makedirs(path, exist_ok=True))
            self._made.add(folder)

    def _try(self, what: str, name: str, call: Callable[[str], R]) -> R:
        wait_s = FIRST_WAIT_S
        for attempt in range(self._attempts):
            try:
                return call(f"{self._root}/{name}".rstrip("/"))
            except Exception as error:  # as above
                text = f"{self.shown}/{name}".rstrip("/") + f" cannot be {what}: {describe_error(error)}"
                if attempt + 1 == self._attempts:
                    if isinstance(error, RecordingError):
                        raise
                    raise StoreError(text) from error
            time.sleep(wait_s * random.uniform(0.5, 1.0))
            wait_s *= 2
        raise AssertionError("unreachable: the last attempt returns or raises")


def describe_error(error: BaseException) -> str:
    """One short line without secrets."""
    plain = "".join(sign if sign.isprintable() else " " for sign in str(error))
    words = redact_text(" ".join(plain.split()))[:200].rstrip(" .")
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
