"""A builder without a program: it caches by text and content as builders do, and its steps last what a table says."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hotloop.ahead.image.builder import Build, Builder, FoundFile, Source
from hotloop.ahead.image.program import BuildFailed, Limits
from hotloop.ahead.image.recipe import BuildRecipe, BuildStep
from hotloop.core.build_context import Ignore, scan_context

SECOND_NS = 1_000_000_000
CACHED_NS, AROUND_NS, COPY_NS = 20_000_000, 200_000_000, 150_000_000


class FakeBuilder(Builder):
    """``run_s`` gives the seconds of a RUN by a word of its script; ``fetching_s`` the part that a filled cache mount
    saves. ``is_absent``: no base image can be pulled. ``without`` are instructions that are no step, as in BuildKit.
    ``noise_ns`` is added to build number n (from 0)."""

    id = "fake"

    def __init__(
        self,
        run_s: Mapping[str, float],
        fetching_s: Mapping[str, float] | None = None,
        *,
        is_absent: bool = False,
        noise_ns: Callable[[int], int] = lambda number: 0,
        extra_files: Callable[[BuildRecipe], Mapping[str, str]] = lambda recipe: {},
        without: Sequence[str] = (),
    ) -> None:
        self.run_s, self.fetching_s, self.is_absent, self.noise_ns = run_s, fetching_s or {}, is_absent, noise_ns
        self.extra_files = extra_files
        self.without = without
        self.layers: set[str] = set()
        self.filled: set[str] = set()
        self.builds: list[tuple[str, bool]] = []
        self.variant = ""
        self.is_closed = False
        self.last: BuildRecipe | None = None

    def describe(self) -> str:
        return "fake 1.0"

    def prepare(self, images: Sequence[str], folder: Path, lock: int, limits: Limits) -> None:
        if self.is_absent:
            raise BuildFailed(f"{images[0]}: connection refused")

    def open_variant(self, name: str) -> None:
        self.variant, self.layers, self.filled = name, set(), set()

    def build(self, source: Source, limits: Limits, *, is_cold: bool) -> Build:
        limits.check_time()
        if is_cold:
            self.layers, self.filled = set(), set()
        context = scan_context(source.context, Ignore.read(source.dockerignore), None)
        self.last = BuildRecipe(
            text=source.dockerfile, ignore_text=source.dockerignore, context=context, build_args=source.build_args
        )
        costs_ns: list[int] = []
        cached_count = 0
        for stage in self.last.stages:
            chain = ""
            for step in stage:
                chain = self._hash(chain, step, context.root)
                is_cached = chain in self.layers or step.instruction.name == "FROM"
                self.layers.add(chain)
                if step.instruction.name not in self.without:
                    costs_ns.append(self._measure(step, is_cached))
                    cached_count += is_cached
        noise_ns = self.noise_ns(len(self.builds))
        self.builds.append((self.variant, is_cold))
        wall_ns = sum(costs_ns) + AROUND_NS + noise_ns
        return Build(wall_ns=wall_ns, steps_count=len(costs_ns), cached_count=cached_count)

    def _hash(self, chain: str, step: BuildStep, root: Path) -> str:
        words = [chain, step.instruction.name, step.instruction.script, str(step.instruction.flags)]
        contents = b"".join(path.encode() + (root / path).read_bytes() for path in sorted(step.reads))
        return hashlib.sha256("\0".join(words).encode() + contents).hexdigest()

    def _measure(self, step: BuildStep, is_cached: bool) -> int:
        """ns of a step."""
        script = step.instruction.script
        if step.instruction.name != "RUN":
            return COPY_NS if step.takes_context and not is_cached else CACHED_NS
        if "fail" in script:
            raise BuildFailed("exit status 1")
        cost_s = next((one for word, one in self.run_s.items() if word in script), 0.0)
        if step.cache_mounts and step.cache_mounts <= self.filled:
            cost_s -= next((one for word, one in self.fetching_s.items() if word in script), 0.0)
        if is_cached:
            return CACHED_NS
        self.filled |= step.cache_mounts
        return round(cost_s * SECOND_NS)

    def list_files(self, limits: Limits) -> dict[str, FoundFile]:
        assert self.last is not None
        root = self.last.context.root
        texts = {
            path: str((root / source).read_bytes()) for step in self.last.steps for path, source in step.files.items()
        }
        texts |= {
            "/usr/" + re.sub(r"/|\s--no-cache-dir", "", step.instruction.script): ""
            for step in self.last.steps
            if step.instruction.name == "RUN"
        }
        texts |= self.extra_files(self.last)
        return {path.lstrip("/"): FoundFile("-", 0o644, "0:0", text) for path, text in texts.items()}

    def close(self) -> None:
        self.is_closed = True
