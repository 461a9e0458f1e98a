"""A context and a builder -> the ImageReport: the file as it is, each fix alone, the proven fixes together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hotloop.core.build_context import History, Ignore, list_ignored, read_history, scan_context
from hotloop.core.errors import UsageError
from hotloop.core.findings import Skipped
from hotloop.core.image import (
    AS_IS,
    SCENARIOS,
    TOGETHER,
    EditedFile,
    ImageContents,
    ImageReport,
    ScenarioTimes,
    Variant,
    Verdict,
)

from .builder import Build, Builder, FoundFile, Source, compare_contents
from .context import copy_context
from .edits import bump, choose_edits, edit_file
from .fix import Rewrite, draw_diff
from .fixes import FIXES
from .program import BuildFailed, LimitReached, Limits, open_workspace, remove_abandoned
from .recipe import BuildRecipe, count_rerun

SHORT_S = 60.0
"""Scenarios whose build takes at most this long are built BUILDS times, others once."""
BUILDS = 3
MARGIN_RATIO, MARGIN_NS = 0.05, 100_000_000
"""A difference counts if it exceeds the spread of either side and these differences between repeated builds of one
file."""
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ImageRequest:
    """What to measure. ``edit`` and ``requirements`` are paths in the context, chosen if they are None.
    ``limit_bytes`` is how much of the disk of ``work`` the builds may use."""

    context: Path
    dockerfile: Path
    builder: Builder
    work: Path
    tool_version: str
    build_args: Mapping[str, str] = field(default_factory=dict)
    edit: str | None = None
    requirements: str | None = None
    limit_s: float
    least_free_bytes: int
    with_left_out: bool = False
    """Whether to write fixes that leave files out of the image too."""


@dataclass(frozen=True, kw_only=True)
class MeasuredImage:
    """The report, and the recipe that is proven to be faster; None if there is none."""

    report: ImageReport
    before: BuildRecipe
    proven: BuildRecipe | None


class NotBuildable(Exception):
    """Nothing can be built here; the text gives the reason and the remedy."""


def measure_image(request: ImageRequest, tell: Progress) -> MeasuredImage:
    """Build and compare, within the limits.

    Raises UsageError if the Dockerfile is refused, does not build, or does not build even once within the limits.
    """
    recipe, history = _read_recipe(request)
    edits = choose_edits(recipe, history, request.edit, request.requirements)
    run = _Run(request, recipe, history, edits, tell)
    try:
        return run.measure()
    except NotBuildable as error:
        return run.describe_unbuilt(str(error))


def _read_recipe(request: ImageRequest) -> tuple[BuildRecipe, History | Skipped]:
    try:
        text = request.dockerfile.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise UsageError(f"{request.dockerfile}: {reason}; give the Dockerfile with --file") from error
    ignore = find_ignore(request.context, request.dockerfile)
    ignore_text = ignore.read_text(encoding="utf-8") if ignore.is_file() else ""
    history = read_history(request.context)
    ignored = list_ignored(request.context) if isinstance(history, History) else None
    context = scan_context(request.context, Ignore.read(ignore_text), ignored)
    recipe = BuildRecipe(text=text, ignore_text=ignore_text, context=context, build_args=request.build_args)
    try:
        if not recipe.stages:
            raise UsageError("it has no FROM")
    except UsageError as error:
        raise UsageError(f"{request.dockerfile}: {error}") from error
    return recipe, history


def find_ignore(context: Path, dockerfile: Path) -> Path:
    """The .dockerignore in effect: the one named like the Dockerfile, else the context's."""
    own = dockerfile.with_name(f"{dockerfile.name}.dockerignore")
    return own if own.is_file() else context / ".dockerignore"


@dataclass(frozen=True, kw_only=True)
class ImageVariant:
    """A fix's rewrite, or that of several fixes together."""

    id: str
    title: str
    fixes: tuple[str, ...]
    rewrite: Rewrite


class _Run:
    """One measurement: the steps of ``measure`` in order, and their common state."""

    def __init__(
        self,
        request: ImageRequest,
        recipe: BuildRecipe,
        history: History | Skipped,
        edits: Mapping[str, EditedFile],
        tell: Progress,
    ) -> None:
        self._request, self._recipe, self._history, self._edits, self._tell = request, recipe, history, edits, tell
        self._edited = {"cold": None, **{scenario: edit.path for scenario, edit in edits.items()}}
        self._builder = request.builder
        self._days = history.days if isinstance(history, History) else None
        self._limits = Limits(
            deadline_s=time.monotonic() + request.limit_s,
            least_free_bytes=request.least_free_bytes,
            folder=request.work,
        )
        self._context = Path()
        self._files: dict[str, FoundFile] = {}
        self._built: dict[str, FoundFile] = {}
        self._beside: Mapping[str, ScenarioTimes] = {}
        """The last builds of the file as it is."""
        self._unstable: set[str] = set()
        """Files that differ between builds of the file as it is."""
        self._number = 0

    def measure(self) -> MeasuredImage:
        try:
            name = self._builder.describe()
        except UsageError as error:
            raise NotBuildable(str(error)) from error
        remove_abandoned(self._request.work)
        with open_workspace(self._request.work) as (folder, lock):
            self._context = folder / "context"
            copy_context(self._recipe.context, self._context, self._limits.least_free_bytes)
            try:
                self._tell(f"preparing {name}")
                self._prepare(folder, lock)
                variants, skipped, proven, stopped = self._build_all()
            finally:
                self._builder.close()
        return self._describe(name, variants, skipped, proven, stopped=stopped)

    def _prepare(self, folder: Path, lock: int) -> None:
        try:
            self._builder.prepare(self._recipe.bases, folder, lock, self._limits)
        except BuildFailed as error:
            raise NotBuildable(
                f"a base image is missing and cannot be pulled: {error}; pull it or build it first"
            ) from error

    def _build_all(self) -> tuple[list[Variant], list[Skipped], BuildRecipe | None, str]:
        variants = [self._build_baseline()]
        candidates, skipped = _find_candidates(self._recipe)
        proven: BuildRecipe | None = None
        try:
            for candidate in candidates:
                variants.append(self._try(candidate, variants))
            proven = self._combine(self._recipe, candidates, variants)
        except LimitReached:
            built = {variant.id for variant in variants}
            left = [one for one in candidates if one.id not in built]
            variants += [_unbuilt(one, "--limit-s was over") for one in left]
            return variants, skipped, proven or self._best_single(candidates, variants), "--limit-s is over"
        return variants, skipped, proven, ""

    def _build_baseline(self) -> Variant:
        try:
            times = self._build_scenarios(AS_IS, self._recipe)
        except BuildFailed as error:
            raise UsageError(
                f"{self._request.dockerfile} does not build: {error}; fix the build, then measure"
            ) from error
        except LimitReached:
            raise UsageError(
                f"the first builds did not end within --limit-s {self._request.limit_s:.0f}; give a longer limit"
            ) from None
        self._beside = times
        return Variant(id=AS_IS, title="as it is", verdict="baseline", times=times)

    def _build_scenarios(self, name: str, recipe: BuildRecipe, *, builds: int = BUILDS) -> dict[str, ScenarioTimes]:
        """Builds of all scenarios in a new store. The files of the cold image are kept in ``self._built``."""
        self._builder.open_variant(name)
        found: dict[str, list[Build]] = {}
        source = Source(
            context=self._context,
            dockerfile=recipe.text,
            dockerignore=recipe.ignore_text,
            build_args=recipe.build_args,
        )

        def build(scenario: str) -> float:
            done = found.setdefault(scenario, [])
            self._tell(f"{name}: {SCENARIOS[scenario]}, build {len(done) + 1}")
            os.sync()  # an earlier build's pending writes must not slow a later build
            done.append(self._builder.build(source, self._limits, is_cold=scenario == "cold"))
            return done[-1].wall_ns * 1e-9

        for _ in range(builds):
            is_long = build("cold") > SHORT_S
            self._built = self._builder.list_files(self._limits)
            if recipe is self._recipe:
                self._learn_unstable()
            if is_long:
                break
        for scenario, edit in self._edits.items():
            path = self._context / edit.path
            with edit_file(path):
                for _ in range(builds):
                    self._number += 1
                    bump(path, self._number)
                    if build(scenario) > SHORT_S:
                        break
        return {
            scenario: ScenarioTimes(
                samples_ns=tuple(build.wall_ns for build in found[scenario]),
                steps_count=found[scenario][-1].steps_count,
                cached_count=found[scenario][-1].cached_count,
            )
            for scenario in SCENARIOS
            if scenario in found
        }

    def _learn_unstable(self) -> None:
        """Compare this image of the unchanged file with its first image."""
        self._files = self._files or self._built
        both = {*self._files, *self._built}
        self._unstable |= {path for path in both if self._files.get(path) != self._built.get(path)}

    def _try(self, candidate: ImageVariant, variants: list[Variant]) -> Variant:
        """Build a candidate, and then the file as it is: the machine may be slower than when that was first built.
        The candidate is compared with the builds just before and after it; the later builds are added to the first of
        ``variants``.
        """
        recipe = candidate.rewrite.recipe
        try:
            times = self._build_scenarios(candidate.id, recipe)
        except BuildFailed as error:
            failed = _unbuilt(candidate, f"the changed file does not build: {error}")
            return replace(failed, verdict="failed", diff=self._draw(recipe))
        after = self._built
        beside = self._build_scenarios(AS_IS, self._recipe, builds=1)
        near, self._beside = merge_times(self._beside, beside), beside
        variants[0] = replace(variants[0], times=merge_times(variants[0].times, beside))
        contents = compare_contents(
            self._files,
            after,
            left_out=find_left_out(self._recipe, recipe),
            caches=candidate.rewrite.caches,
            unstable=self._unstable,
        )
        saved_ns_a_month = self._count_month(near, times)
        verdict, reason = judge(near, times, contents, saved_ns_a_month)
        return replace(
            _unbuilt(candidate, reason),
            verdict=verdict,
            times=times,
            contents=contents,
            needs_consent=bool(contents.left_out_count and find_left_out(self._recipe, recipe)),
            saved_ns_a_month=saved_ns_a_month,
            diff=self._draw(recipe),
        )

    def _combine(
        self, recipe: BuildRecipe, candidates: Sequence[ImageVariant], variants: list[Variant]
    ) -> BuildRecipe | None:
        """Build the proven fixes together and return the recipe to write: a combination only if it was itself
        proven."""
        won = [one for one in variants if one.verdict == "proven"]
        to_write = [one for one in won if self._request.with_left_out or not one.needs_consent]
        answer: BuildRecipe | None = None
        for name, wanted in ((TOGETHER, won), ("to-write", to_write)):
            fixes = tuple(one.id for one in wanted)
            same = next((one for one in variants if one.fixes == fixes), None)
            rewrite = combine(recipe, fixes)
            if not fixes or rewrite is None:
                continue
            if same is None:
                title = "all proven fixes together" if name == TOGETHER else "the proven fixes that leave nothing out"
                same = self._try(ImageVariant(id=name, title=title, fixes=fixes, rewrite=rewrite), variants)
                variants.append(same)
            if wanted is to_write and same.verdict == "proven":
                answer = rewrite.recipe
        return answer or self._best_single(candidates, variants)

    def _best_single(self, candidates: Sequence[ImageVariant], variants: Sequence[Variant]) -> BuildRecipe | None:
        """The proven fix that may be written and whose rebuilds save the most."""
        rewrites = {one.id: one.rewrite.recipe for one in candidates}
        allowed = [
            one
            for one in variants
            if one.verdict == "proven" and one.id in rewrites and (self._request.with_left_out or not one.needs_consent)
        ]
        best = min(allowed, key=lambda one: sum(each.median_ns or 0 for each in one.times.values()), default=None)
        return rewrites[best.id] if best is not None else None

    def _count_month(self, before: Mapping[str, ScenarioTimes], after: Mapping[str, ScenarioTimes]) -> int | None:
        parts = [
            rate * count_saved_ns(before[scenario], after[scenario])
            for scenario, edit in self._edits.items()
            if (rate := edit.a_month(self._days)) is not None and scenario in before and scenario in after
        ]
        return round(sum(parts)) if parts else None

    def _draw(self, recipe: BuildRecipe) -> str:
        context = self._request.context
        ignore = find_ignore(context, self._request.dockerfile)
        names = [
            path.relative_to(context).as_posix() if path.is_relative_to(context) else path.name
            for path in (self._request.dockerfile, ignore)
        ]
        return draw_diff(self._recipe, recipe, *names)

    def describe_unbuilt(self, reason: str) -> MeasuredImage:
        """The report from the text alone: which steps an edit repeats, without times."""
        candidates, skipped = _find_candidates(self._recipe)
        variants = [Variant(id=AS_IS, title="as it is", verdict="baseline", times=self._count_steps(self._recipe))]
        for one in candidates:
            times = self._count_steps(one.rewrite.recipe)
            variants.append(replace(_unbuilt(one, ""), times=times, diff=self._draw(one.rewrite.recipe)))
        return self._describe(None, variants, skipped, None, reason=reason)

    def _count_steps(self, recipe: BuildRecipe) -> dict[str, ScenarioTimes]:
        count = len(recipe.steps)
        return {
            scenario: ScenarioTimes(steps_count=count, cached_count=count - count_rerun(recipe, path))
            for scenario, path in self._edited.items()
        }

    def _describe(
        self,
        builder: str | None,
        variants: Sequence[Variant],
        skipped: Sequence[Skipped],
        proven: BuildRecipe | None,
        *,
        reason: str = "",
        stopped: str = "",
    ) -> MeasuredImage:
        report = ImageReport(
            tool_version=self._request.tool_version,
            dockerfile=str(self._request.dockerfile),
            context=str(self._request.context),
            builder=builder,
            reason=reason,
            context_bytes=sum(self._recipe.admitted.values()),
            days=self._days,
            edits=self._edits,
            variants=tuple(variants),
            skipped=(*skipped, *([self._history] if isinstance(self._history, Skipped) else [])),
            stopped=stopped,
            next=f"hotloop image {self._request.context} --fix" if proven is not None else None,
        )
        return MeasuredImage(report=report, before=self._recipe, proven=proven)


def _find_candidates(recipe: BuildRecipe) -> tuple[list[ImageVariant], list[Skipped]]:
    """The fixes that apply, and the reasons why others do not."""
    found: list[ImageVariant] = []
    skipped: list[Skipped] = []
    for fix in FIXES.values():
        answer = fix.rewrite(recipe)
        if isinstance(answer, Skipped):
            skipped.append(replace(answer, rule=fix.id))
        else:
            found.append(ImageVariant(id=fix.id, title=fix.title, fixes=(fix.id,), rewrite=answer))
    return found, skipped


def _unbuilt(candidate: ImageVariant, reason: str) -> Variant:
    return Variant(
        id=candidate.id,
        title=candidate.title,
        verdict="not-built",
        fixes=candidate.fixes,
        reason=reason,
        times={},
    )


def combine(recipe: BuildRecipe, fixes: Sequence[str]) -> Rewrite | None:
    """The recipe with these fixes, one after the other; None if one no longer applies."""
    caches: tuple[str, ...] = ()
    for name in sorted(fixes):
        answer = FIXES[name].rewrite(recipe)
        if isinstance(answer, Skipped):
            return None
        recipe, caches = answer.recipe, (*caches, *answer.caches)
    return Rewrite(recipe=recipe, caches=caches)


def find_left_out(before: BuildRecipe, after: BuildRecipe) -> frozenset[str]:
    """Paths of the image, without the leading slash, that only the recipe without the fix copies from the context."""
    there, kept = ({path for step in one.steps for path in step.files} for one in (before, after))
    return frozenset(path.lstrip("/") for path in there - kept)


def merge_times(first: Mapping[str, ScenarioTimes], more: Mapping[str, ScenarioTimes]) -> dict[str, ScenarioTimes]:
    """The times of ``first`` with the builds of both."""
    return {
        scenario: replace(one, samples_ns=(*one.samples_ns, *more[scenario].samples_ns))
        for scenario, one in first.items()
    }


def count_saved_ns(before: ScenarioTimes, after: ScenarioTimes) -> int:
    """The time that a rebuild saves (negative: loses); 0 if repeated builds differ by as much."""
    if before.median_ns is None or after.median_ns is None:
        return 0
    saved_ns = before.median_ns - after.median_ns
    margin_ns = max(before.spread_ns, after.spread_ns, MARGIN_RATIO * before.median_ns, MARGIN_NS)
    return saved_ns if abs(saved_ns) > margin_ns else 0


def judge(
    before: Mapping[str, ScenarioTimes],
    after: Mapping[str, ScenarioTimes],
    contents: ImageContents,
    saved_ns_a_month: int | None = None,
) -> tuple[Verdict, str]:
    """A fix is proven if it is faster in a scenario, slower in none, and leaves the image's contents unchanged.

    A scenario may be slower if a month's rebuilds, by git's history, still take less time.
    """
    if not contents.are_same:
        return (
            "contents-differ",
            f"files with different contents: {contents.differences_count}; the first: {contents.differences[0]}",
        )
    saved_ns = {scenario: count_saved_ns(before[scenario], after[scenario]) for scenario in before if scenario in after}
    slower = [SCENARIOS[scenario] for scenario, one in saved_ns.items() if one < 0]
    if not any(one > 0 for one in saved_ns.values()):
        return "no-gain", "no scenario is faster by more than the difference between repeated builds"
    reason = f"slower: {', '.join(slower)}" if slower else ""
    return "proven" if not slower or (saved_ns_a_month or 0) > 0 else "no-gain", reason
