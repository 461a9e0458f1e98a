"""A project's settings: ``[tool.hotloop]`` in pyproject.toml, or hotloop.toml, here or in the nearest folder above."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from .decode import decode
from .errors import RecordingError, UsageError, suggest_known
from .findings import Severity

KEYS = ("fail_on", "ignore", "targets", "exclude", "per_file_ignores")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a command does where its options say nothing else. ``file`` has the keys in ``given`` (None: no file).

    Patterns are as in a shell (``*`` matches ``/``, too), relative to the file's folder; a folder's fits all in it.
    """

    file: Path | None = None
    given: tuple[str, ...] = ()
    fail_on: Severity = Severity.MEDIUM
    """The lowest severity with which lint exits with 1."""
    ignore: tuple[str, ...] = ()
    """Ids of rules that are turned off, in reports and in lint."""
    targets: Mapping[str, float] = field(default_factory=dict)
    """The lowest utilization wanted: name (as in ``--target``) -> share, 0..1."""
    exclude: tuple[str, ...] = ()
    """Patterns of files that lint does not read."""
    per_file_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Pattern of files -> ids of lint's rules that are turned off in them."""

    def add_targets(self, words: Sequence[str]) -> list[str]:
        """The words of ``--target`` after those of the settings, so that the words count."""
        return [*(f"{name}={ratio}" for name, ratio in self.targets.items()), *words]

    def excludes(self, path: str) -> bool:
        """Whether lint leaves out the file."""
        return any(self._matches(path, pattern) for pattern in self.exclude)

    def turns_off(self, rule: str, path: str) -> bool:
        """Whether this rule of lint is off in the file."""
        files = self.per_file_ignores.items()
        return rule in self.ignore or any(rule in rules and self._matches(path, pattern) for pattern, rules in files)

    def _matches(self, path: str, pattern: str) -> bool:
        place, folder = Path(path).resolve(), (self.file or Path(path)).resolve().parent
        relative = place.relative_to(folder) if place.is_relative_to(folder) else place
        return any(fnmatch(str(one), pattern.rstrip("/")) for one in (relative, *relative.parents))


def load_settings(folder: Path | None = None) -> Settings:
    """The settings for ``folder`` (default: this one): of the nearest file above it; the default without one.

    Raises UsageError with the file and the key if a value is not what the key needs.
    """
    places = ((folder or Path.cwd()).resolve() / "any").parents
    for file in (place / name for place in places for name in ("hotloop.toml", "pyproject.toml")):
        content = _read(file)
        if content is not None:
            for key in content:
                if key not in KEYS:
                    raise UsageError(f"{file}: unknown key {key!r}{suggest_known(key, KEYS)}")
            try:
                return replace(decode(Settings, content, str(file)), file=file, given=tuple(content))
            except RecordingError as error:
                raise UsageError(str(error)) from None
    return Settings()


def _read(file: Path) -> Any:
    """None if there is no such file, or no settings in it."""
    is_ours = file.name == "hotloop.toml"
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
        return content if is_ours else content.get("tool", {}).get("hotloop")
    except (OSError, ValueError, RecursionError, AttributeError) as error:
        # A pyproject.toml that nobody can read is refused by whoever needs it.
        if is_ours and not isinstance(error, FileNotFoundError):
            raise UsageError(f"{file}: cannot read the settings: {error}") from None
        return None
