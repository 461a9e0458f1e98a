"""Recipe: a Dockerfile with its .dockerignore and context, and the files of the context that each step reads."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from hotloop.core.build_context import BuildContext, Ignore, match_sources
from hotloop.core.dockerfile import Dockerfile, DockerStage, Instruction, expand_variables, parse_dockerfile


@dataclass(frozen=True, kw_only=True)
class BuildStep:
    """One instruction of a stage, with the state when it begins.

    ``files`` maps paths of the image to the context paths that a COPY or ADD puts there. ``reads`` are all context
    files whose change makes the builder run the step again; ``from_stages`` are the stages from which it copies files.
    """

    stage: DockerStage
    position: int
    instruction: Instruction
    workdir: str
    user: str
    variables: Mapping[str, str]
    files: Mapping[str, str]
    reads: frozenset[str]
    from_stages: tuple[int, ...]

    @property
    def takes_context(self) -> bool:
        return self.instruction.name in ("COPY", "ADD") and self.instruction.flag("from") is None

    @property
    def cache_mounts(self) -> frozenset[str]:
        return frozenset(
            posixpath.normpath(one.get("target") or one.get("dst") or "")
            for one in self.instruction.mounts
            if one["type"] == "cache"
        )


@dataclass(frozen=True, kw_only=True)
class BuildRecipe:
    """The input of a build."""

    text: str
    ignore_text: str
    context: BuildContext
    build_args: Mapping[str, str]

    def with_texts(self, text: str | None = None, ignore_text: str | None = None) -> BuildRecipe:
        return replace(
            self,
            text=self.text if text is None else text,
            ignore_text=self.ignore_text if ignore_text is None else ignore_text,
        )

    def read_copied(self, there: Mapping[str, str], path: str) -> str | None:
        """Text of a copied file by its path in the image; ``there`` maps these paths to paths in the context."""
        source = there.get(path)
        return None if source is None else (self.context.root / source).read_text(encoding="utf-8", errors="replace")

    @cached_property
    def dockerfile(self) -> Dockerfile:
        return parse_dockerfile(self.text)

    @cached_property
    def admitted(self) -> dict[str, int]:
        """Context files and their sizes, without those that .dockerignore excludes."""
        return self.context.admit(Ignore.read(self.ignore_text))

    @cached_property
    def stages(self) -> tuple[tuple[BuildStep, ...], ...]:
        """The steps of every stage that the last stage needs."""
        needed: set[int] = set()
        found = [self._read_stage(stage) for stage in self.dockerfile.stages]
        open_stages = [len(found) - 1] if found else []
        while open_stages:
            index = open_stages.pop()
            if index not in needed:
                needed.add(index)
                open_stages += [one for step in found[index] for one in step.from_stages]
        return tuple(steps for index, steps in enumerate(found) if index in needed)

    @property
    def steps(self) -> tuple[BuildStep, ...]:
        return tuple(step for stage in self.stages for step in stage)

    @property
    def bases(self) -> tuple[str, ...]:
        """Images that the builder needs, by name, without duplicates."""
        values = dict(self.build_args)
        for one in self.dockerfile.instructions:
            if one.name == "FROM":
                break
            values |= _read_variables(one, expand_variables(one.arguments, values), self.build_args)
        names = [
            expand_variables(stage[0].instruction.arguments.split()[0], values)
            for stage in self.stages
            if self.dockerfile.find_stage(stage[0].stage.base) in (None, stage[0].stage)
        ]
        names += [
            name
            for step in self.steps
            for name in _images_of(step.instruction)
            if self.dockerfile.find_stage(name) is None
        ]
        return tuple(dict.fromkeys(name for name in names if name != "scratch"))

    def _read_stage(self, stage: DockerStage) -> tuple[BuildStep, ...]:
        workdir, user, variables = "/", "root", dict(self.build_args)
        found: list[BuildStep] = []
        for position, one in enumerate(stage.instructions):
            expanded = expand_variables(one.arguments, variables)
            step = BuildStep(
                stage=stage,
                position=position,
                instruction=one,
                workdir=workdir,
                user=user,
                variables=dict(variables),
                files={},
                reads=frozenset(),
                from_stages=self._find_stages(stage, one),
            )
            found.append(self._with_files(step, expanded))
            if one.name == "WORKDIR":
                workdir = posixpath.normpath(posixpath.join(workdir, expanded.strip("\"'")))
            elif one.name == "USER":
                user = expanded
            elif one.name in ("ENV", "ARG"):
                variables |= _read_variables(one, expanded, self.build_args)
        return tuple(found)

    def _find_stages(self, stage: DockerStage, one: Instruction) -> tuple[int, ...]:
        if one.name == "FROM":
            lineage = self.dockerfile.lineage(stage)
            return (lineage[-2].index,) if len(lineage) > 1 else ()
        stages = (self.dockerfile.find_stage(name) for name in _images_of(one))
        return tuple(one.index for one in stages if one is not None and one is not stage)

    def _with_files(self, step: BuildStep, expanded: str) -> BuildStep:
        one = step.instruction
        if step.takes_context and not one.heredocs:
            words = list(one.exec_form or _split(expanded))
            sources = [word for word in words[:-1] if "://" not in word]
            matched = match_sources(sources, self.admitted)
            target = posixpath.join(step.workdir, words[-1]) if words else step.workdir
            is_folder = len(words) > 2 or target.endswith("/") or posixpath.normpath(target) == step.workdir
            files = {
                posixpath.normpath(posixpath.join(target, inner) if is_folder or not is_named else target): path
                for path, (inner, is_named) in matched.items()
            }
            return replace(step, files=files, reads=frozenset(matched))
        bound = [
            mount.get("source") or mount.get("src") or "."
            for mount in one.mounts
            if mount["type"] == "bind" and not mount.get("from")
        ]
        return replace(step, reads=frozenset(match_sources(bound, self.admitted)) if bound else frozenset())


def _images_of(one: Instruction) -> tuple[str, ...]:
    """Stages or images from which an instruction copies files."""
    given = one.flag("from") if one.name == "COPY" else None
    return (*([given] if given else ()), *(mount["from"] for mount in one.mounts if mount.get("from")))


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _read_variables(one: Instruction, expanded: str, build_args: Mapping[str, str]) -> dict[str, str]:
    words = _split(expanded)
    if one.name == "ENV" and words and "=" not in words[0]:
        return {words[0]: " ".join(words[1:])}
    pairs = (word.partition("=") for word in words)
    return {
        name: build_args.get(name, value) if one.name == "ARG" else value
        for name, equals, value in pairs
        if equals or name in build_args
    }


def count_rerun(recipe: BuildRecipe, edited: str | None) -> int:
    """How many steps a builder repeats after the file changed; without a file: all.

    Steps that copy files from a stage with such a step count too, although the bytes may turn out the same.
    """
    count = 0
    changed: set[int] = set()
    for steps in recipe.stages:
        is_stale = edited is None
        for step in steps:
            is_stale |= edited in step.reads or not changed.isdisjoint(step.from_stages)
            count += is_stale
        if is_stale:
            changed.add(steps[0].stage.index)
    return count
