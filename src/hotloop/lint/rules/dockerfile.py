"""The static checks of Dockerfiles."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hotloop.core.dockerfile import DockerStage, Instruction
from hotloop.core.findings import Severity
from hotloop.core.lint import LintEdit, LintFinding, lint_rule
from hotloop.lint.formats.builds import DockerBuild, copies_everything, installs, list_pip_installs


@lint_rule(
    "defeated-cache-mount",
    "a cache is mounted for an installer that is told not to use it",
    reads="dockerfile",
    each="stages",
)
def defeated_cache_mount(build: DockerBuild, stage: DockerStage) -> Iterator[LintFinding]:
    """## What it does
    Looks for a `RUN` with a cache mount for pip whose command says `--no-cache-dir`, or whose stage sets
    `PIP_NO_CACHE_DIR`.

    ## Why it costs
    The mount stays empty. Each time the layer is made, every package is downloaded again.

    ## How to tell
    Both stand in the Dockerfile, and the mount's target is pip's cache.

    ## What to do
    Remove `--no-cache-dir` (`hotloop lint --fix` does) or the variable: what lies in a cache mount is not in the image.

    ## When it is wrong
    If the variable is unset again inside the command.
    """
    for one in stage.instructions:
        if not any(m["type"] == "cache" and "pip" in m.get("target", m.get("dst", "")) for m in one.mounts):
            continue
        if not list_pip_installs(one):
            continue
        variable = _find_variable(build, stage, one)
        if "--no-cache-dir" in one.arguments:
            yield _describe(one, "--no-cache-dir leaves the mounted cache empty", "remove it", _remove(one))
        elif variable is not None:
            text = f"PIP_NO_CACHE_DIR (line {variable}) leaves the mounted cache empty"
            yield _describe(one, text, "unset it for this stage", ())


def _describe(one: Instruction, message: str, advice: str, edits: tuple[LintEdit, ...]) -> LintFinding:
    return LintFinding(severity=Severity.LOW, line=one.first_line, message=message, advice=advice, edits=edits)


def _find_variable(build: DockerBuild, stage: DockerStage, before: Instruction) -> int | None:
    for one in (one for each in build.dockerfile.lineage(stage) for one in each.instructions):
        if one.name == "ENV" and one.first_line < before.first_line:
            set_to = re.search(r"PIP_NO_CACHE_DIR[= ]\"?(\w+)", one.arguments)
            if set_to and set_to.group(1).lower() in ("1", "true", "yes", "on"):
                return one.first_line
    return None


def _remove(one: Instruction) -> tuple[LintEdit, ...]:
    return tuple(
        LintEdit(
            first_line=number,
            first_column=match.start() + 1,
            last_line=number,
            last_column=match.end() + 1,
            text="",
        )
        for number, line in one.lines
        for match in re.finditer(r" --no-cache-dir(?=\s|$)", line)
    )


COMPILES = re.compile(
    r"(?i)nvcc|deepspeed|flash[-_]?attn|apex|setup\.py|--no-build-isolation|CUDA_HOME|ninja|make\b|cutlass|triton"
)


@lint_rule("development-image", "the image that runs holds CUDA's compilers and headers", reads="dockerfile")
def development_image(build: DockerBuild) -> Iterator[LintFinding]:
    """## What it does
    Looks for a last stage on a `-devel` image of CUDA or PyTorch.

    ## Why it costs
    Compilers, headers and static libraries are several gigabytes that each node pulls before the first step.

    ## How to tell
    The base's tag ends in `-devel` or has it before the system's name, and nothing in the stage compiles CUDA code.
    How long a pull takes depends on the network, so this is never above `low`.

    ## What to do
    Build what needs compiling in a first stage, and copy it into one on the `-runtime` image of the same version.

    ## When it is wrong
    If something compiles for CUDA while it runs, as some extensions of DeepSpeed do.
    """
    stage = build.final
    if stage is None:
        return
    lowest = build.dockerfile.lineage(stage)
    base = lowest[0].base
    image = base.rpartition("/")[2]
    if "-devel" not in image or not re.search(r"cuda|pytorch", base):
        return
    text = "\n".join(one.script for each in lowest for one in each.instructions)
    if not COMPILES.search(text):
        yield LintFinding(
            severity=Severity.LOW,
            line=lowest[0].first_line,
            message=f"{image} brings compilers and headers into the image that runs",
            advice="compile in a first stage; run on the -runtime image of the same version",
        )


COMPOUND = re.compile(r"&&|\|\||;|\|")
TRAINS = re.compile(r"(?i)train|torchrun|accelerate\s+launch|deepspeed|torch\.distributed|finetune|pretrain")


@lint_rule(
    "shell-as-first-process", "a shell that passes no signals on is the container's first process", reads="dockerfile"
)
def shell_as_first_process(build: DockerBuild) -> Iterator[LintFinding]:
    """## What it does
    Looks for a training that an image starts by several shell commands in `CMD` or `ENTRYPOINT`, without `exec`.

    ## Why it costs
    `docker stop` and Kubernetes send SIGTERM to process 1. A shell does not pass it on, and as process 1 it ignores it:
    the training's handler does not run, and after the grace period everything is killed without a checkpoint.

    ## How to tell
    The instruction is in shell form, or runs `sh -c`, with `&&`, `;` or `|`. Some shells replace themselves by their
    last command, so this is never above `low`.

    ## What to do
    Give the command as a JSON array, or put `exec` before the last command.

    ## When it is wrong
    If an init such as tini is the entry point, or nothing is to be saved at the end.
    """
    if build.final is None:
        return
    commands = [one for one in build.final.instructions if one.name in ("CMD", "ENTRYPOINT")]
    for one in commands[-1:]:
        words = one.exec_form
        text = one.arguments if words is None else words[2] if len(words) > 2 and words[1] in ("-c", "-lc") else ""
        if COMPOUND.search(text) and TRAINS.search(text) and not re.search(r"\b(exec|tini|dumb-init)\b", text):
            yield LintFinding(
                severity=Severity.LOW,
                line=one.first_line,
                message="the shell is process 1 and passes no SIGTERM on: a save at the end cannot run",
                advice="use a JSON array, or exec before the last command",
            )


@lint_rule(
    "source-before-install", "every edit of the source installs all packages again", reads="dockerfile", each="stages"
)
def source_before_install(build: DockerBuild, stage: DockerStage) -> Iterator[LintFinding]:
    """## What it does
    Looks for `COPY . ...` in front of an instruction that installs packages.

    ## Why it costs
    A layer is reused only if everything before it is unchanged. Any edit of any file of the context runs the
    installation again: minutes and gigabytes for torch.

    ## How to tell
    In one stage the whole context is copied before a `pip install`, `conda env create`, `apt-get install` or the like.
    How long it takes is measured by a build, so this is never above `low`.

    ## What to do
    Copy only the list of packages (`COPY requirements.txt .`), install, and copy the source after that.

    ## When it is wrong
    If the installation needs the whole source, as `pip install .` does: then install its dependencies first.
    """
    copy = next((one for one in stage.instructions if copies_everything(one)), None)
    late = [one for one in stage.instructions if copy and one.first_line > copy.first_line and installs(one)]
    if copy is not None and late:
        yield LintFinding(
            severity=Severity.LOW,
            line=copy.first_line,
            message=f"any edit of the source repeats the installation in line {late[0].first_line}",
            advice="copy the list of packages alone, install, then copy the source",
        )


UPDATE = re.compile(r"\bapt(-get)?\s+(-\S+\s+)*update\b")
INSTALL = re.compile(r"\bapt(-get)?\s+(-\S+\s+)*(install|upgrade|dist-upgrade|build-dep)\b")


@lint_rule(
    "stale-package-lists", "apt-get update and install stand in different layers", reads="dockerfile", each="stages"
)
def stale_package_lists(build: DockerBuild, stage: DockerStage) -> Iterator[LintFinding]:
    """## What it does
    Looks for `apt-get update` in a `RUN` of its own, with `apt-get install` in a later one.

    ## Why it costs
    The layer with the lists is reused for months. When the other one changes, its packages are no longer on the mirror
    and the build fails, or an old version is installed.

    ## How to tell
    A `RUN` updates and does not install, and a later one of the stage installs without updating.

    ## What to do
    `RUN apt-get update && apt-get install -y ... && rm -rf /var/lib/apt/lists/*`, in one instruction.

    ## When it is wrong
    If builds never use a cache.
    """
    runs = [one for one in stage.instructions if one.name == "RUN"]
    alone = [one for one in runs if UPDATE.search(one.script) and not INSTALL.search(one.script)]
    for update in alone[:1]:
        later = [one for one in runs if one.first_line > update.first_line and INSTALL.search(one.script)]
        if later and not UPDATE.search(later[0].script):
            yield LintFinding(
                severity=Severity.LOW,
                line=update.first_line,
                message=f"line {later[0].first_line} installs by lists that this layer may have kept for months",
                advice="update and install in one RUN",
            )


PINNED = re.compile(r"(?<![\w.-])torch\s*==\s*([\d.]+(?:\+cu\d+)?)")
BASE = re.compile(r"(?:^|/)pytorch/pytorch:(\d+\.\d+(?:\.\d+)?)(?:-cuda(\d+)\.(\d+))?")
NVIDIA = re.compile(r"nvcr\.io/nvidia/pytorch:")


@lint_rule("torch-twice", "the image holds two installations of torch", reads="dockerfile", each="stages")
def torch_twice(build: DockerBuild, stage: DockerStage) -> Iterator[LintFinding]:
    """## What it does
    Looks for a pinned `pip install torch==X` above a base or layer that already has another version of torch.

    ## Why it costs
    Layers are never made smaller: the first installation stays in the image, gigabytes that nobody uses, and both are
    downloaded. On NVIDIA's images the build that was tuned for them is replaced as well.

    ## How to tell
    The base's tag (`pytorch/pytorch:2.1.0-...`, `nvcr.io/nvidia/pytorch:...`), or an earlier `RUN` of the same image,
    names a torch that is not the pinned one, or one for another CUDA (`+cu117` on `-cuda11.6-`).

    ## What to do
    Choose the base by its version of torch, or begin with a plain CUDA runtime image; install torch once.

    ## When it is wrong
    If the earlier layer is in a stage from which nothing but files is copied; such stages are not compared.
    """
    if any(other.base.lower() == stage.name for other in build.stages if stage.name):
        return  # judged with the stage that is built on it
    yield from _judge(build, stage)


def _judge(build: DockerBuild, stage: DockerStage) -> Iterator[LintFinding]:
    lineage = build.dockerfile.lineage(stage)
    base = lineage[0].base
    named = BASE.search(base)
    known = "NVIDIA's own build" if NVIDIA.search(base) else None
    if named:
        known = f"{named[1]}+cu{named[2]}{named[3]}" if named[2] else named[1]
    where = "the base image"
    for one in (one for each in lineage for one in each.instructions):
        if one.name == "RUN" and re.search(r"uninstall\b[^;&|]*\btorch\b", one.script):
            continue
        texts = [text for text in list_pip_installs(one) if "--target" not in text]
        versions = {match.group(1) for text in texts for match in PINNED.finditer(text)}
        if len(versions) != 1:
            known = known if not versions else None  # a command that chooses among several
            continue
        version = versions.pop()
        if known is not None and not _same(known, version):
            yield LintFinding(
                severity=Severity.MEDIUM,
                line=one.first_line,
                message=f"torch {version} comes on top of {known} in {where}: the image holds both",
                advice="choose a base with this torch, or one without any, and install torch once",
            )
            return
        known, where = version, f"line {one.first_line}"


def _same(one: str, other: str) -> bool:
    """Whether two versions agree as far as both are given: their numbers, and the CUDA they are built for."""
    (a, _, cuda_a), (b, _, cuda_b) = one.partition("+"), other.partition("+")
    numbers_agree = all(x == y for x, y in zip(a.split("."), b.split("."), strict=False))
    return numbers_agree and (not cuda_a or not cuda_b or cuda_a == cuda_b)


LARGE = re.compile(r"(?<![\w-])(torch|tensorflow|vllm|deepspeed)(?![\w-])|-r\s|--requirement|-e\s|\s\.(\[|\s|$)")


@lint_rule("uncached-install", "each new layer downloads its packages again", reads="dockerfile", each="stages")
def uncached_install(build: DockerBuild, stage: DockerStage) -> Iterator[LintFinding]:
    """## What it does
    Looks for `pip install` of torch or of a whole list of packages without a cache mount.

    ## Why it costs
    When the list changes by one line, the layer is made anew and all packages, gigabytes with CUDA, are downloaded
    again.

    ## How to tell
    The `RUN` has no `--mount=type=cache`. What it costs is measured by a build, so this is `info`.

    ## What to do
    `RUN --mount=type=cache,target=/root/.cache/pip pip install -r requirements.txt`, without `--no-cache-dir`.

    ## When it is wrong
    If builds always start on a fresh machine, where a cache mount is empty.
    """
    for one in stage.instructions:
        if any(m["type"] == "cache" for m in one.mounts):
            continue
        if any(LARGE.search(f" {text}") for text in list_pip_installs(one)):
            yield LintFinding(
                severity=Severity.INFO,
                line=one.first_line,
                message="a change of this layer downloads all of its packages again",
                advice="RUN --mount=type=cache,target=/root/.cache/pip, without --no-cache-dir",
            )


LARGE_BYTES = 1 << 30


@lint_rule(
    "unfiltered-context",
    "the whole folder is sent to the builder and copied, .git and data included",
    reads="dockerfile",
)
def unfiltered_context(build: DockerBuild) -> Iterator[LintFinding]:
    """## What it does
    Looks for `COPY . ...` where the context has no `.dockerignore`, and measures what is sent.

    ## Why it costs
    Logs, checkpoints, data and `.git` are sent to the builder and become part of the image; each change of one of them
    makes the layer and all later ones anew.

    ## How to tell
    No `.dockerignore` lies in the nearest folder that has everything which the Dockerfile copies. `medium` from 1 GiB
    of files that are there now, else `low`.

    ## What to do
    Write a `.dockerignore` with `.git`, data, checkpoints, logs and virtual environments, or copy named folders.

    ## When it is wrong
    If the build is started with another folder as its context.
    """
    copies = [one for stage in build.stages for one in stage.instructions if copies_everything(one)]
    if not copies or build.context is None:
        return
    measured = build.context.measure()
    size_bytes, largest = measured or (0, "")
    if build.context.ignores is not None and size_bytes < LARGE_BYTES:
        return
    shown = f": {size_bytes / 2**30:.1f} GiB now, most of it in {largest}" if size_bytes >= LARGE_BYTES else ""
    why = "no .dockerignore filters" if build.context.ignores is None else "the .dockerignore leaves much of"
    yield LintFinding(
        severity=Severity.MEDIUM if size_bytes >= LARGE_BYTES else Severity.LOW,
        line=copies[0].first_line,
        message=f"{why} what is sent and copied{shown}",
        advice="list .git, data, checkpoints and logs in .dockerignore, or copy named folders",
    )
