"""ImageReport: how long a Dockerfile's builds take, as is and with each fix; the contract hotloop.image/1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

from .errors import InvariantError
from .findings import Skipped

IMAGE_SCHEMA = "hotloop.image/1"
"""Version of the contract. Fields are added, never changed."""

SCENARIOS = {"cold": "cold", "code": "code edit", "requirements": "requirements edit"}
"""What is built: without any cached layer; again after a code file changed; again after a requirements file did."""

AS_IS, TOGETHER = "as-is", "together"
"""Ids of the variants that are not a single fix."""

DAYS_A_MONTH = 30

Verdict = Literal["baseline", "proven", "no-gain", "contents-differ", "failed", "not-built"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioTimes:
    """One variant in one scenario. ``samples_ns`` has one wall time per build, and is empty if nothing was built.

    ``cached_count`` of ``steps_count`` steps came from the cache in the last build.
    """

    samples_ns: tuple[int, ...] = ()
    steps_count: int | None = None
    cached_count: int | None = None

    @property
    def median_ns(self) -> int | None:
        return round(median(self.samples_ns)) if self.samples_ns else None

    @property
    def spread_ns(self) -> int:
        """Longest less shortest build; 0 for a single build, whose spread is unknown."""
        return max(self.samples_ns) - min(self.samples_ns) if self.samples_ns else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageContents:
    """How a variant's image differs from that of the unchanged file: ``left_out`` are files that the fix is meant to
    leave out, ``differences`` are all others; both are excerpts, with their counts. Files that also differ between two
    builds of the unchanged file are ``unstable_count``."""

    files_count: int
    left_out: tuple[str, ...] = ()
    left_out_count: int = 0
    differences: tuple[str, ...] = ()
    differences_count: int = 0
    unstable_count: int = 0

    @property
    def are_same(self) -> bool:
        """Whether every file is there with the same bytes, type, mode and owner, except those that are meant to go."""
        return not self.differences_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The Dockerfile as is, with one fix, or with all proven fixes together.

    ``saved_ns_a_month`` is None if nothing is known about how often files change. ``needs_consent``: files leave the
    image, so `--fix` writes it only if the user names it.
    """

    id: str
    title: str
    verdict: Verdict
    fixes: tuple[str, ...] = ()
    reason: str = ""
    times: Mapping[str, ScenarioTimes]
    contents: ImageContents | None = None
    saved_ns_a_month: int | None = None
    needs_consent: bool = False
    diff: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedFile:
    """The file that a scenario edits. ``commits_count`` is how many commits of the report's days are such an edit; None
    if git does not know."""

    path: str
    commits_count: int | None

    def a_month(self, days: float | None) -> float | None:
        """Rebuilds per month after such an edit, one per commit, if commits were counted over this many days."""
        return None if self.commits_count is None or not days else self.commits_count / days * DAYS_A_MONTH


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageReport:
    """Measurements of `hotloop image`. ``builder`` is None if nothing could be built, and ``reason`` says why.

    ``days`` is the time over which git's commits were counted; None if there is no history. ``stopped`` says what ended
    the measurement before everything was built.
    """

    tool_version: str
    dockerfile: str
    context: str
    builder: str | None
    reason: str = ""
    context_bytes: int
    days: float | None
    edits: Mapping[str, EditedFile]
    variants: tuple[Variant, ...]
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    stopped: str = ""
    next: str | None = None

    def __post_init__(self) -> None:
        if not self.variants or self.variants[0].id != AS_IS:
            raise InvariantError("the first variant of an image report is the file as it is")

    @property
    def baseline(self) -> Variant:
        return self.variants[0]
