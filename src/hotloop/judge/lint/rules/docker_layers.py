"""Checks of Dockerfiles: layers that are rebuilt without need or hold the same files twice, and files copied into
them."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from hotloop.core.findings import Severity
from hotloop.core.lint import Confidence, LintEdit, LintFinding, lint_rule
from hotloop.judge.lint.commands import BuildCommand, read_commands, read_install
from hotloop.judge.lint.formats.builds import (
    CODE,
    FOLDER,
    LISTS,
    MOST_SCRIPTS,
    UNKNOWN,
    DockerBuild,
    Layer,
    is_below,
    read_text,
)

WORK = {
    "install": (Severity.HIGH, "installs packages", "copy only the package lists, install, then copy the source"),
    "download": (Severity.HIGH, "downloads weights or files", "download them above the COPY of files that change"),
    "compile": (Severity.HIGH, "compiles", "copy only the files to compile, compile, then copy the source"),
    "system": (Severity.MEDIUM, "installs system packages", "install system packages above the COPY of the source"),
}
SLOW = re.compile(
    r"(?im)(^|[\s/\"'])(torch(?![\w-])|tensorflow|jax(lib)?(?![\w-])|vllm|sglang|flash[-_]attn|deepspeed|xformers"
    r"|paddlepaddle|mxnet|apex|sentence[-_]transformers|ultralytics|openai-whisper|lightning|pytorch)"
)
"""Packages of gigabytes, or that are compiled for minutes."""
RANKS = {Severity.HIGH: 0, Severity.MEDIUM: 1, Severity.LOW: 2}
FEW = 5
EDITED = re.compile(rf"{FOLDER.pattern}|[*?$]|(?i:train|main|app|run|serve|infer|model|tun|eval)\w*\.py$")
"""Folders, and files with a name of the programs that are edited."""
RUNS_CODE = re.compile(r"(python[\d.]*|bash|sh|chmod|\S+\.(sh|py)|\./\S+)( (?!-m (pip|venv)|-c)|$)")


@lint_rule(
    "source-before-install",
    "each edit repeats slow steps below a COPY",
    reads="dockerfile",
    each="chains",
    is_proof=True,
)
def source_before_install(build: DockerBuild, chain: Sequence[Layer]) -> Iterator[LintFinding]:
    """## What it does
    Looks for a `COPY`, `ADD` or bind mount that brings in files that change with the code, above a step that does not
    need these files: an install, a download of weights or data, or a compilation. `ONBUILD` triggers count too.

    ## Why it costs
    A layer is reused only if everything before it is unchanged. Each edit invalidates the cache from that point on, so
    each build repeats minutes of work and downloads gigabytes for torch or weights again.

    ## How to recognize it
    The rule compares the files that a step reads with the copied files, except those that `.dockerignore` excludes.
    Git's history shows how often the copied files change; without a history, the finding is `likely`. The severity is
    high if the repeated step compiles or downloads gigabytes, such as torch, and low for a few small packages.

    ## What to do
    Copy only the package lists (`uv sync --no-install-project`), install, download, and copy the source last.

    ## When it is wrong
    Ignore the finding if the step reads the source in a way that its command does not show.
    """
    stepped: set[int] = set()
    for at, copy in enumerate(chain):
        steps = chain[at + 1 :] if copy.copies else [copy] if copy.name == "RUN" and copy.sources else []
        open_steps = [step for step in steps if step.line not in stepped]
        found = {step.line: hit for step in open_steps if (hit := _find_repeated(build, copy, step)) is not None}
        stepped |= set(found)
        if found:
            kind, command, churn, confidence = min(
                found.values(), key=lambda hit: (list(WORK).index(hit[0]), hit[1].line)
            )
            severity, effect, advice = WORK[kind]
            if confidence is Confidence.LIKELY and not any(map(EDITED.search, copy.sources)):
                # how often single files change is unknown
                severity = Severity.LOW if kind == "system" else Severity.MEDIUM
            weights = [_weigh(build, step) for step in open_steps if step.line in found]
            severity = max(severity, min(weights, key=RANKS.__getitem__), key=RANKS.__getitem__)
            message = (
                f"{' '.join(copy.sources)[:60]} {churn}, and each change invalidates and repeats line {command.line}"
            )
            text = f"{message}, which {effect} ({command.plain[:60]}) again"
            yield copy.report(severity, text, advice, confidence=confidence)


def _weigh(build: DockerBuild, step: Layer) -> Severity:
    """The cost of a step that is repeated: low for a few small packages or a single file, medium for many packages, or
    unknown ones; high for what downloads gigabytes or compiles."""
    others = [command for kind, command in step.works if read_install(command) is None]
    texts = [command.plain for command in others if not re.match(r"(wget|curl|apt|apt-get|apk)\b", command.plain)]
    wanted = [line for _, lines in step.wanted for line in lines]
    is_whole = any(install.tool in ("conda", "poetry") or " sync" in install.command.plain for install in step.installs)
    is_unread = any(install.lists and len(lines) <= len(install.packages) for install, lines in step.wanted)
    is_unread |= any(install.projects or install.tool == "npm" for install in step.installs)
    large = [command for command in others if WEIGHTS.search(command.plain)]
    if texts or large or is_whole or SLOW.search("\n".join(wanted)):
        return Severity.HIGH
    return Severity.MEDIUM if is_unread or len(wanted) > FEW else Severity.LOW


WEIGHTS = re.compile(r"\S\.(pt|pth|ckpt|safetensors|onnx|gguf|bin|tar|tgz|zip|tar\.\w+)\b|hf download|huggingface-cli")


def _find_repeated(build: DockerBuild, copy: Layer, step: Layer) -> tuple[str, BuildCommand, str, Confidence] | None:
    """A slow command of the step that does not need the changing files of the copy."""
    codes = [one for one in step.commands if RUNS_CODE.match(one.plain) and one not in [work for _, work in step.works]]
    if any(not copy.files or one.locate(word) in copy.files for one in codes for word in one.words):
        return None  # runs copied code, and what that reads is unknown
    for kind, command in step.works:
        install = read_install(command)
        local = (
            [one for one in build.list_requirements(step, install) if re.match(r"-e|file:|\.", one)] if install else []
        )
        folders = [command.locate(one) for one in install.projects] if install else []
        folders += [command.folder] if kind == "compile" or local else []
        read = (*folders, *command.paths()) if kind != "system" else ()
        runs = [one.plain for each in build.chain(copy.stage) if each.name == "RUN" for one in each.commands]
        text = " ".join(one for one in runs if not re.match("chmod|chown|rm |cp |mv |mkdir", one))
        used = [path for path in copy.files if posixpath.basename(path) in text and CODE.search(path)]
        spared = {path for path in copy.files if any(is_below(path, one) for one in (*read, *used))}
        is_local = install is not None and bool(install.projects) and not (install.lists or install.packages)
        needs_all = bool(folders) and (len(spared) == len(copy.files) or is_local)
        if kind == "compile" and not install and "setup.py" not in command.plain:
            continue  # what a Makefile reads is unknown
        is_first = not any(
            kind == "install" for one in build.chain(copy.stage) if one.line < copy.line for kind, _ in one.works
        )
        project = build.read_file(step, posixpath.join(command.folder, "pyproject.toml")) or ""
        if any(one.strip("./") and one.strip("./") in project for one in copy.sources):
            continue  # a package of the workspace
        brings = install is not None and is_first and not {"--no-deps", "--no-build-isolation"} & set(install.options)
        churn = build.describe_churn(copy, () if needs_all else spared)
        if churn is not None and (not needs_all or (brings and not local)):
            return kind, command, churn[0], Confidence.LIKELY if needs_all else churn[1]
    return None


VOLATILE = re.compile(
    r"(?i)(\w+_)?(git|vcs|commit|github|source)_?(sha|commit|rev(ision)?|hash|ref"
    r"|branch|id|short_sha)\w*$|commit$|sha$|"
    r"(\w+_)?build_?(date|time|timestamp|number|num|id|sha|rev\w*)$|timestamp$"
    r"|revision$|.*image\.(revision|created)$"
)


@lint_rule(
    "volatile-above-install",
    "a value that differs in each build is set above installs",
    reads="dockerfile",
    each="chains",
)
def volatile_above_install(build: DockerBuild, chain: Sequence[Layer]) -> Iterator[LintFinding]:
    """## What it does
    Looks for `ARG`, `ENV` or `LABEL` with a commit, date or build number above installs, downloads or compilation
    steps.

    ## Why it costs
    An argument is part of the environment of each `RUN` below it, whether the step uses it or not. A new value
    invalidates all of these steps: each build installs everything again.

    ## How to recognize it
    The name suggests what the value is, and no step above the install uses it. A label invalidates steps only with the
    classic builder, so the finding is then `likely` and its severity is medium.

    ## What to do
    Move the instruction to the end of the stage.

    ## When it is wrong
    Ignore the finding if the value rarely changes.
    """
    for at, layer in enumerate(chain):
        for name, value in layer.pairs:
            steps = [one for one in chain[at + 1 :] if {kind for kind, _ in one.works} & {"install", "download"}]
            is_pin = layer.name == "ARG" and re.fullmatch(r"(?i)(?!unknown|dev|none|local|unset|n/?a)[\w./-]+", value)
            if not steps or not VOLATILE.match(name) or is_pin or (layer.name == "ENV" and "$" not in value):
                continue
            users = [
                one.line
                for one in chain[at + 1 :]
                if one.name == "RUN" and f"${name}" in one.instruction.script.replace("{", "")
            ]
            is_label = layer.name == "LABEL"
            if not users or users[0] > steps[0].line:
                yield layer.report(
                    Severity.MEDIUM if is_label else Severity.HIGH,
                    f"{layer.name} {name} differs in each build and invalidates the cache of everything "
                    f"below it: line "
                    f"{steps[0].line} runs again each time",
                    f"move {layer.name} {name} to the end of the stage, below the installs",
                    confidence=Confidence.LIKELY if is_label else Confidence.CERTAIN,
                )


SMALL, LARGE, HUGE = 20 << 20, 100 << 20, 1 << 30
HEAVY = re.compile(r"(?i)(^|/)(weights|checkpoints?|pretrained|ckpts?)/?$|\.(pt|pth|ckpt|safetensors" r"|onnx|gguf)$")
DATA = re.compile(
    r"(?i)(^|/)(data|datasets?|shards|raw|corpus|runs|wandb|outputs?|logs|checkpoints?"
    r"|ckpts?|lightning_logs|mlruns)(/|$)"
)


@lint_rule("large-files-in-image", "large files are copied late or needlessly", reads="dockerfile", each="chains")
def large_files_in_image(build: DockerBuild, chain: Sequence[Layer]) -> Iterator[LintFinding]:
    """## What it does
    Measures the files that are copied from the context: data, runs and checkpoints that `.dockerignore` or its
    exceptions (`!`) let through, and weights that are copied below code that changes.

    ## Why it costs
    Each build sends gigabytes to the builder, hashes them and copies them, and each node pulls them. Each edit to a
    file that is copied above, or each new log in the context, rebuilds the layer.

    ## How to recognize it
    The rule looks at files that exist now. The severity is `medium` from 100 MiB on and `high` from 1 GiB on. For a
    `COPY .` without a `.dockerignore`, it is `medium` if `.git` is large, and `low` otherwise.

    ## What to do
    Write a `.dockerignore` with `.git`, data, checkpoints, logs and virtual environments; copy weights above the code.

    ## When it is wrong
    Ignore the finding if the data belongs in the image, or if another folder is the build context.
    """
    context = build.context
    above: list[tuple[Layer, tuple[str, Confidence]]] = []
    for layer in chain:
        is_whole = "." in {posixpath.normpath(source.lstrip("/") or ".") for source in layer.sources} and bool(
            layer.files
        )
        data = [path for path in layer.files.values() if DATA.search(path) or is_whole] if layer.copies else []
        size, whole = (context.measure(data), context.measure(layer.files.values())) if context else (0, 0)
        severity = Severity.HIGH if max(size, whole) >= HUGE else Severity.MEDIUM
        largest = max(data, key=lambda path: context.measure([path]) if context else 0, default="")
        own_churn = build.describe_churn(layer)
        has_file = context is not None and context.ignores is not None
        why = "the .dockerignore lets it through" if has_file else "no .dockerignore filters the context"
        if context is not None and size >= LARGE:
            text = f"{size / 2**20:,.0f} MiB of data are sent and copied into the image, mostly {largest}; {why}"
            yield layer.report(
                severity, f"{text}: each node pulls them", "list .git, data, runs and checkpoints in .dockerignore"
            )
        elif is_whole and layer.copies and not has_file and context is not None:
            has_git = os.path.isdir(os.path.join(context.folder, ".git"))
            text = f"{why} that is sent and copied: logs, caches{' and .git' if has_git else ''} get into the image"
            severity = Severity.MEDIUM if has_git else Severity.LOW
            yield layer.report(severity, text, "list .git, data, runs and checkpoints in .dockerignore")
        elif (
            layer.copies
            and above
            and not layer.instruction.flag("link")
            and (any(map(HEAVY.search, layer.sources)) if not layer.files else whole >= LARGE and not own_churn)
        ):
            text = (
                f"{' '.join(layer.sources)} (large weights) is copied after "
                f"{' '.join(above[0][0].sources)[:40]} in line {above[0][0].line}, which "
                f"{above[0][1][0]}"
            )
            yield layer.report(
                severity,
                f"{text}: each edit rebuilds this layer",
                "copy large files above the code",
                confidence=Confidence.CERTAIN if whole else Confidence.LIKELY,
            )
        if layer.copies and own_churn is not None:
            above.append((layer, own_churn))


CACHES = {
    "pip": (".cache/pip", "PIP_CACHE_DIR", "--no-cache-dir", "PIP_NO_CACHE_DIR", r"pip[\d.]* cache purge"),
    "uv": (".cache/uv", "UV_CACHE_DIR", "--no-cache", "UV_NO_CACHE", r"uv cache clean"),
    "poetry": (".cache/pypoetry", "POETRY_CACHE_DIR", "--no-cache", "POETRY_NO_CACHE", r"poetry cache clear"),
}
"""Tool -> its cache, the variable that moves it, the option and the variable that turn it off, and the command that
empties it."""


@lint_rule("defeated-cache-mount", "a cache mount that the installer never uses", reads="dockerfile", each="layers")
def defeated_cache_mount(build: DockerBuild, layer: Layer) -> Iterator[LintFinding]:
    """## What it does
    Looks for a `RUN --mount=type=cache` in which the installer keeps its cache elsewhere, does not use a cache (because
    of `--no-cache-dir`, `PIP_NO_CACHE_DIR` or `UV_NO_CACHE`), empties the cache, or may not write to it.

    ## Why it costs
    Each time the layer is built, every package is downloaded again, which means gigabytes if CUDA is included.

    ## How to recognize it
    The rule compares the mount's target with the cache folder of the user who runs the command (`USER`, `HOME`,
    `PIP_CACHE_DIR`).

    ## What to do
    Mount the installer's own cache folder, and remove the setting that turns the cache off (`hotloop lint --fix`
    removes `--no-cache-dir`).

    ## When it is wrong
    Ignore the finding if a configuration file moves the cache.
    """
    mounts = [mount for mount in layer.instruction.mounts if mount["type"] == "cache"]
    targets = [posixpath.normpath((m.get("target") or m.get("dst") or "").replace("~", "/root")) for m in mounts]
    for install in [one for one in layer.installs if one.tool in CACHES and targets]:
        place, moved, option, variable, empties = CACHES[install.tool]
        variables = {**layer.variables, **{name: word.text for name, word in install.command.shell.assignments}}
        cache = install.options.get("--cache-dir") or variables.get(moved) or posixpath.join(layer.home, place)
        near = [
            one
            for one in targets
            if install.tool in one or one.endswith(".cache") or len(targets) == len(layer.installs) == 1
        ]
        is_hit = any(is_below(cache, target) for target in near)
        is_root = layer.user in ("root", "0")
        emptied = any(re.match(empties + r"|rm .*\.cache", one.plain) for one in layer.commands)
        off = option in install.options or variables.get(variable, "0").lower() not in ("0", "false", "no", "off")
        problem = f"{option} or {variable} keeps {install.tool} from using the cache mount" if off else ""
        if not problem and near and not is_hit and "$" not in layer.user + near[0]:
            problem = f"the cache mount is at {near[0]}, but the cache of {install.tool} (user {layer.user}) is {cache}"
        elif (
            not problem and is_hit and (emptied or (not is_root and not any({"uid", "mode"} & set(m) for m in mounts)))
        ):
            problem = (
                f"the cache mount is "
                f"{'emptied in the same RUN' if emptied else f'owned by root, and {layer.user} may not write to it'}"
            )
        if problem:
            yield LintFinding(
                severity=Severity.MEDIUM,
                line=layer.line,
                message=f"{problem}: every package is downloaded again each time this layer is built",
                advice=f"mount target={cache} (uid= for another user), and remove {option} and {variable}",
                edits=_remove(layer, option) if option in install.options else (),
            )
            return


def _remove(layer: Layer, option: str) -> tuple[LintEdit, ...]:
    return tuple(
        LintEdit(
            first_line=number, first_column=match.start() + 1, last_line=number, last_column=match.end() + 1, text=""
        )
        for number, line in layer.instruction.lines
        for match in re.finditer(rf" {option}(?=\s|$)", line)
    )


@lint_rule(
    "layer-copied-again", "chown or rm in a later layer does not shrink the image", reads="dockerfile", each="chains"
)
def layer_copied_again(build: DockerBuild, chain: Sequence[Layer]) -> Iterator[LintFinding]:
    """## What it does
    Looks for `chown -R` and `chmod -R` on an earlier layer's files, and for `rm` of files that it copied or downloaded.

    ## Why it costs
    Layers only add up. Changing the owner copies each file into the new layer: weights and environments are then in the
    image twice. A removed file is hidden, but it is still stored, pushed and pulled.

    ## How to recognize it
    A `COPY` or `RUN` above writes to the same path. The severity is `low` if the copied files are known and smaller
    than 20 MiB.

    ## What to do
    Use `COPY --chown=user:group` (or `--chmod`); remove the file in the `RUN` that creates it, or mount it.

    ## When it is wrong
    Ignore the finding if the files are small, or if other stages only copy folders from this stage.
    """
    for at, layer in enumerate(chain):
        for command in layer.commands if layer.name == "RUN" and chain is build.final else ():
            is_owner = re.match(r"(chown|chmod|chgrp) (.* )?(-\w*R|--recursive)\b", command.plain) is not None
            paths = [one for one in command.paths() if len(one) > 1][1 if is_owner else 0 :]
            written = [one for one in chain[:at] if any(_writes(one, path, is_owner) for path in paths)]
            weights = [
                one
                for layer in written
                for one in layer.sources
                if HEAVY.search(one) or ARCHIVE.search(one.rstrip("/"))
            ]
            size = (
                build.context.measure(path for one in written if one.copies for path in one.files.values())
                if build.context
                else 0
            )
            fetched = " ".join(one.instruction.script for one in written if one.name == "RUN")
            is_small = size < SMALL and all(one.copies for one in written) and (bool(size) or not weights)
            is_small &= not (is_owner and any(re.search(r"conda|venv|site-packages", one) for one in paths))
            is_small |= not is_owner and not size and (not ARCHIVE.search(command.plain) or "/archive/" in fetched)
            is_small |= is_owner and not size and not weights and not LARGE_FOLDER.search(command.plain)
            if written and (is_owner or command.name in ("rm", "unlink")) and "chmod -R +x" not in command.plain:
                shown = f" ({size / 2**20:,.0f} MiB)" if size >= SMALL else ""
                effect = (
                    "copies its files into a second layer: they are in the image twice"
                    if is_owner
                    else "only hides files that stay in the image"
                )
                yield layer.report(
                    Severity.LOW if is_small else Severity.HIGH if size >= 2 * HUGE else Severity.MEDIUM,
                    f"{command.plain[:60]} is in a different layer than line {written[0].line}{shown}, and {effect}",
                    "COPY --chown or --chmod"
                    if is_owner
                    else "remove it in the same RUN, or use a mount or another stage",
                    line=command.line,
                    confidence=Confidence.CERTAIN if shown else Confidence.LIKELY,
                )


LARGE_FOLDER = re.compile(r"conda|venv|site-packages|/env(s|\b)|cache|model|weights|checkpoint|\bdata|huggingface")
ARCHIVE = re.compile(r"\.(t?gz|tar\S*|zip|run|bin|pt|pth|7z|iso|xz|zst|bz2)\b|/\*?( |$)")


def _writes(layer: Layer, path: str, is_folder: bool) -> bool:
    """Whether a layer writes the path: by a copy, or by a download or install below it."""
    if layer.name in ("COPY", "ADD"):
        names = {layer.target, *(posixpath.join(layer.target, posixpath.basename(one)) for one in layer.sources)}
        return path in names or (
            is_folder and any(is_below(one, path) or is_below(path, layer.target) for one in names)
        )
    works = [command for kind, command in layer.works if kind != "system"]
    if is_folder:
        made = [one.folder for one in works if one.name in ("git", "wget", "curl", "huggingface-cli")]
        paths = [(one, name) for one in works for name in one.paths() if not LISTS.match(name)]
        named = [name for one, name in paths if read_install(one) is None or posixpath.dirname(name) != one.folder]
        return path != "/" and any(is_below(one, path) for one in [*made, *named])
    stem = posixpath.basename(path).strip("*")
    return len(stem) > 3 and any(
        re.search(rf"/?{re.escape(stem)}(\s|$)", one.plain) for one in works if one.name in ("wget", "curl", "aria2c")
    )


PRODUCT = re.compile(
    r"(?i)(^|/)(dist|build|target|out|bin|artifacts?|wheels?|release|tmp|cache)(/|$)"
    r"|\.(whl|jar|t?gz|zip|deb|so|tar|exe)$"
)
"""Files that are made before the image is built: their absence is not a problem."""


@lint_rule(
    "copy-without-source", "a COPY fails because the context lacks its source", reads="dockerfile", each="layers"
)
def copy_without_source(build: DockerBuild, layer: Layer) -> Iterator[LintFinding]:
    """## What it does
    Looks for a `COPY` or `ADD` whose source is outside the context (`../`), is excluded by `.dockerignore`, or does not
    exist in the context. Also looks for several sources with a target that does not end in `/`, and for packages that a
    pattern such as `**/data` drops from a copied folder although code in that folder imports them.

    ## Why it costs
    The build fails: the builder sees only the context, without the files that `.dockerignore` excludes.

    ## How to recognize it
    The rule applies the patterns to the files in the folder that contains the other sources. If a file is missing
    there, the finding is `likely`, because a step before the build may create the file.

    ## What to do
    Build with the parent folder as the context (`docker build -f sub/Dockerfile .`), add an exception (`!name`) to
    `.dockerignore`, or correct the path.

    ## When it is wrong
    Ignore the finding if the build is started with another folder as its context.
    """
    context = build.context
    others = {source for one in build.layers if one.copies for source in one.sources if not UNKNOWN.search(source)}
    if (
        layer.copies
        and len(layer.sources) > 1
        and not re.search(
            r"/$|/?\.$|\$",
            layer.instruction.exec_form[-1] if layer.instruction.exec_form else layer.arguments.split()[-1],
        )
    ):
        yield layer.report(
            Severity.HIGH,
            f"{layer.name} with several sources needs a folder, and its target does not end in /: the build fails",
            "end the target with /",
        )
    for source in layer.sources if layer.copies else ():
        inside = posixpath.normpath(source.lstrip("/") or ".")
        is_there = context is not None and os.path.lexists(
            os.path.join(context.folder, re.sub(r"^(\.\./)+", "", inside))
        )
        if inside.startswith(".."):
            effect = (
                "takes the file of that name in the context"
                if is_there
                else "the build fails, as the context has no such file"
            )
            yield layer.report(
                Severity.MEDIUM if is_there else Severity.HIGH,
                f"{source} is outside the build context, and the builder drops the ../: {effect}",
                "build with the parent folder as the context, or copy the files into it",
            )
        elif context is None or context.files is None or UNKNOWN.search(source):
            continue
        elif (
            is_there
            and context.ignores
            and inside != "."
            and not _is_empty_folder(os.path.join(context.folder, inside))  # a submodule that is not checked out
            and not any(is_below(path, inside) for path in (*context.files, ".git"))
        ):
            yield layer.report(
                Severity.HIGH,
                f"{source} is excluded by .dockerignore, so the context lacks it and the build fails",
                f"add !{inside} to .dockerignore, or narrow the pattern that excludes it",
            )
        elif is_there and (dropped := build.find_dropped(inside)):
            yield layer.report(
                Severity.HIGH,
                f"{dropped} is imported and excluded by .dockerignore: it is not in the image (ModuleNotFoundError)",
                f"add !{dropped} to .dockerignore, or narrow the pattern that excludes it (/data for **/data)",
            )
        elif (
            not is_there
            and not PRODUCT.search(inside)
            and not build.is_untracked(inside)
            and not (inside.startswith(".git") or "$" in layer.instruction.arguments)
            and not _is_brought(build, posixpath.basename(inside))
            and _know_context(context.folder, others)
        ):
            names = {part.lower() for path in context.files for part in path.split("/")}
            yield layer.report(
                Severity.HIGH if posixpath.basename(inside).lower() in names else Severity.LOW,
                f"{source} is not in the context {os.path.basename(context.folder)}/: the build fails",
                "correct the path, or create the file before the build",
                confidence=Confidence.LIKELY,
            )


def _is_brought(build: DockerBuild, name: str) -> bool:
    """Whether a script next to the Dockerfile puts a file into the context, or chooses another context."""
    folder = os.path.dirname(build.path) or os.curdir
    scripts = [one for one in os.listdir(folder) if one.endswith(".sh") or one == "Makefile"][:MOST_SCRIPTS]
    texts = [read_text(Path(folder, one)) or "" for one in scripts]
    return any(re.search(rf"docker build|buildx|\b(cp|mv|wget|curl|ln)\b.*{re.escape(name)}", text) for text in texts)


def _is_empty_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.listdir(path)


def _know_context(folder: str, sources: set[str]) -> bool:
    """Whether most of the copied files are in the folder, so that it is the context."""
    there = [one for one in sources if os.path.lexists(os.path.join(folder, one.lstrip("/")))]
    return len(there) > 1 and len(there) * 2 > len(sources)


AUTOMATIC = re.compile(
    r"\w*PATH$|(TARGET|BUILD)(PLATFORM|OS|ARCH|VARIANT)$|(?i:\w*_proxy)$|(PATH|HOME"
    r"|HOSTNAME|USER|PWD|SHELL|LANG|TERM|RANDOM|UID)$"
)
OF_BASES = re.compile(
    r"(?i)(cuda|nvidia|nvcr|pytorch|vllm|sglang)\S*\t(CUDA_(VERSION|HOME)|NV(IDIA)?_\w+|NCCL_VERSION|PYTORCH_VERSION)$"
    r"|python\S*\tPYTHON_VERSION$|(conda|mamba|jupyter)\S*\tCONDA_\w+$|spark\S*\tSPARK_HOME$|rocm\S*\tROCM_\w+$"
)
"""Base images, and variables that they set."""
BARE = re.compile(
    r"(^|/)(ubuntu|debian|alpine|centos|rockylinux|fedora|amazonlinux|python|cuda|pytorch)(/pytorch)?(:|$)"
)
"""Bases whose variables are known."""
SELF = re.compile(r"\b(\w{1,60})[= ]\S{0,200}?\$\{?\1\b")
MOST_TEXT = 100_000
USE = re.compile(r"(?<!\\)\$(?:(\w+)|\{(\w+)[}#%/])")


@lint_rule("undefined-variable", "a variable is empty where it is used", reads="dockerfile", each="chains")
def undefined_variable(build: DockerBuild, chain: Sequence[Layer]) -> Iterator[LintFinding]:
    """## What it does
    Looks for variables that are set elsewhere in the file but not where they are used: an `ARG` before the first `FROM`
    or of another stage, an `ENV` further down or in the same instruction, an `ARG` in `CMD` or `ENTRYPOINT`.

    ## Why it costs
    The variable is empty: a path, version or option is missing, and no error reports it.

    ## How to recognize it
    The file sets the name, but neither an `ARG` or `ENV` above the use in the same stage nor the shell command itself
    sets it.

    ## What to do
    Repeat `ARG NAME` in the stage, put `ENV` above the use, or keep an argument's value with `ENV NAME=$NAME`.

    ## When it is wrong
    Ignore the finding if the base image sets a variable of the same name.
    """
    somewhere = {name for one in build.layers if one.name in ("ARG", "ENV") for name, _ in one.pairs} | set(
        build.global_arguments
    )
    arguments: set[str] = set()
    kept: set[str] = set()
    for layer in chain:
        is_start = layer.name in ("CMD", "ENTRYPOINT")
        is_read = layer.name in ("COPY", "ADD", "WORKDIR", "USER", "ENV", "EXPOSE", "RUN") or (
            is_start and layer.instruction.exec_form is None
        )
        text = (
            re.sub(r"'[^']*'", "", layer.instruction.script)
            if layer.name == "RUN" or is_start
            else layer.instruction.arguments
        )
        own = set(re.findall(r"\b(\w+)=|\b(?:for|read|local) +(?:-\w+ )*(\w+)", text)) if layer.name == "RUN" else set()
        known = kept | (set() if is_start else arguments) | {name for pair in own for name in pair}
        used = [match[1] or match[2] for match in USE.finditer(text)] if is_read and "<<" not in text else []
        extended = set(SELF.findall(text[:MOST_TEXT])) if layer.name == "ENV" else set()
        base = build.dockerfile.lineage(layer.stage)[0].base
        lost = [
            name
            for name in used
            if name in somewhere - known - extended
            and not AUTOMATIC.match(name)
            and not OF_BASES.search(f"{base}\t{name}")
            and (name in build.global_arguments or name in arguments or BARE.search(base))
        ]
        if lost:
            why = (
                "an ARG before FROM is not visible in a stage unless ARG is repeated there"
                if lost[0] in build.global_arguments
                else "it is set below, in the same ENV or in another stage"
            )
            why = "an ARG does not exist when the container runs" if lost[0] in arguments else why
            name = rf"\$\{{?{lost[0]}\b"
            below = " ".join(one.instruction.script for one in chain if one.line > layer.line)
            is_idle = layer.name == "ENV" and not any(
                AUTOMATIC.match(one) or re.search(rf"\$\{{?{one}\b", below) for one, _ in layer.pairs
            )
            is_idle |= layer.name == "ENV" and lost[0] not in build.global_arguments
            shown = [one.name for one in layer.commands if lost[0] in one.shell.text]
            is_shown = layer.name == "RUN" and {*shown} <= {"echo", "printf"} and ">" not in text
            is_loose = layer.name == "RUN" and not re.search(rf"[=@/:-]\S*{name}|{name}\S*[/:]|(^|\s)\"?{name}", text)
            yield layer.report(
                Severity.LOW if is_loose or is_shown else Severity.MEDIUM if is_idle else Severity.HIGH,
                f"${lost[0]} is empty here: {why}",
                f"ARG {lost[0]} in this stage, or ENV {lost[0]}=... above",
                confidence=Confidence.LIKELY,
            )
        arguments |= {name for name, _ in layer.pairs} if layer.name == "ARG" else set()
        kept |= {name for name, _ in layer.pairs} if layer.name == "ENV" else set()


MADE = re.compile(r"/(usr|etc|lib\d*|bin|sbin|var|root|home|opt/(conda|venv|nvidia)|dev|go|uvx?" r"|install)(/|$)")
USERS = re.compile(r"(root|nobody|daemon|www-data|\d.*|ubuntu|node|jovyan|mambauser|.*\$.*)?$")
OFFICIAL = re.compile(r"(^|/)(ubuntu|debian|python|cuda|pytorch/pytorch)(:|$)")


@lint_rule(
    "unknown-name", "a stage, path or user is used that nothing above creates", reads="dockerfile", each="layers"
)
def unknown_name(build: DockerBuild, layer: Layer) -> Iterator[LintFinding]:
    """## What it does
    Looks for `COPY --from` of a stage that does not exist or comes later, or of a path that nothing in the stage
    creates; for a `USER` or `--chown` with a user that no `useradd` above creates; and for files that `pip install -r`
    reads but no `COPY` above has put there.

    ## Why it costs
    The build fails, or the container does not start.

    ## How to recognize it
    The rule goes by the names of stages and the text of the instructions above. It knows only for official base images
    that they lack a user.

    ## What to do
    Correct the name or the path, or move the instruction above its use.

    ## When it is wrong
    Ignore the finding if a named context of that name is given (`--build-context`), or a tool creates the path without
    naming it.
    """
    chain = [one for one in build.chain(layer.stage) if one.line < layer.line]
    name = (layer.instruction.flag("from") if layer.name == "COPY" else None) or ""
    stage = build.dockerfile.find_stage(name)
    is_image = re.search(r"[/:.@$]", name) is not None or (
        stage is None and len(build.stages) == 1 and not name.isdecimal()
    )
    problem = ""
    if name and not is_image and (stage is None or stage.index >= layer.stage.index):
        problem = (
            f"--from={name} names no stage above: the builder looks for an image of that name, and the build fails"
        )
    made = (
        " ".join(f"{one.arguments} {one.instruction.script} {one.workdir} {one.target}" for one in build.chain(stage))
        if stage
        else ""
    )
    bottom = build.dockerfile.lineage(stage)[0].base if stage else ""
    for source in layer.sources if stage is not None and not problem else ():
        parts = [part for part in posixpath.normpath(source).split("/") if part and not UNKNOWN.search(part)]
        if (
            parts
            and OFFICIAL.search(bottom)
            and not MADE.match(posixpath.join("/", source))
            and not any(part in made for part in parts)
        ):
            problem = f"no instruction of stage {name} creates {source}: COPY --from finds nothing, and the build fails"
    user = (
        layer.arguments.partition(":")[0].strip()
        if layer.name == "USER"
        else (layer.instruction.flag("chown") or "").partition(":")[0]
    )
    above = " ".join(f"{one.instruction.script} {one.arguments}" for one in chain if one.name == "RUN")
    base = build.dockerfile.lineage(layer.stage)[0].base
    if (
        OFFICIAL.search(base)
        and not USERS.match(user)
        and not re.search(rf"\b{re.escape(user)}\b|passwd|\.sh\b", above)
    ):
        problem = (
            f"no line above creates the user {user}: "
            f"{'the container does not start' if layer.name == 'USER' else 'the build fails'}"
        )
    context = build.context
    made_files = {path for one in (*chain, layer) for path in one.files}
    folders = [os.path.join(os.path.dirname(build.path), *[os.pardir] * up) for up in range(7)]
    lists = [(install.command, one) for install in layer.installs for one in install.lists]
    scripts = [(one, word) for one in layer.commands for word in one.words if word.endswith(".py")]
    there = made_files if layer.name != "RUN" else set(context.files or ()) if context else set()
    is_placed = any(one.name == "WORKDIR" for one in chain) or re.search(r"(^|/)(ubuntu|debian|python|cuda)(:|$)", base)
    is_fetched = re.search(r"git clone|\btar\b|unzip|curl|wget", f"{above} {layer.instruction.script}") is not None
    for command, word in (*lists, *(scripts if layer.name != "RUN" else ())) if is_placed and not is_fetched else ():
        path, short = command.locate(word), posixpath.basename(word)
        brought = any(one.instruction.flag("from") and is_below(path, one.target) for one in chain)
        is_known = short in map(posixpath.basename, there) and "$" not in path and not brought and short not in above
        roots = [one.target for one in chain if one.copies and "." in one.sources and is_below(path, one.target)]
        tails = [posixpath.relpath(path, root) for root in roots]
        is_known &= not any(os.path.exists(os.path.join(one, tail)) for tail in tails for one in folders)
        if is_known and path not in made_files and layer.instruction.script.count(short) < 2:
            problem = f"{path} does not exist when line {command.line} reads it (no COPY puts it there): it fails"
    if problem:
        yield layer.report(
            Severity.HIGH, problem, "correct the name or path, or create it above", confidence=Confidence.LIKELY
        )


def _keeps_modes(build: DockerBuild) -> bool:
    """Whether the files of the context have the modes of the repository: an unpacked archive has no executable."""
    context = build.context
    scripts = [path for path in (context.files or () if context else ()) if path.endswith((".sh", ".py"))]
    return context is not None and (
        os.path.isdir(os.path.join(context.folder, ".git"))
        or any(os.access(os.path.join(context.folder, path), os.X_OK) for path in scripts[:MOST_SCRIPTS])
    )


LONG = re.compile(
    r"(?i)train|torchrun|accelerate|deepspeed|distributed|python|uvicorn|gunicorn|vllm"
    r"|serve|worker|jupyter|ray\b|^\$@"
)
FETCHED = re.compile(
    r"(python[\d.]* -m )?pip[\d.]* (-\S+ )*install|uv (sync|pip)"
    r"|(poetry|npm|conda|mamba|apk) (-\S+ )*(install|ci|add|env)"
    r"|apt(-get)? .*(install|update)|(huggingface-cli|hf) download|wget |git (clone|pull)|curl .*(-o|-O|--output|-LO)\b"
    r"|(aws s3|gsutil|gcloud storage) (-\w+ )*(cp|sync|rsync) (-\S+ )*(s3|gs)://\w|gdown|python[\d.]* -m (spacy|nltk)"
)
SAVES = re.compile(
    r"(?i)train|torchrun|accelerate|deepspeed|finetune|fine_tune|\bfit\b|sft|distributed|worker|simulat|evolve|\$@"
)
"""Programs that have something to save when they end."""
INIT = re.compile(r"\b(tini|dumb-init|s6-overlay|supervisord|trap|systemd|catatonit)\b")


def _find_main(commands: Sequence[BuildCommand]) -> BuildCommand | None:
    """A script's last command (the one before a pipe), where no exec makes it process 1."""
    last = next((one for one in reversed(commands) if one.words and one.shell.after not in ("|", "|&")), None)
    is_piped = last is not None and last.shell.before in ("|", "|&")
    is_exec = last is not None and (not last.shell.words or last.shell.words[0].text == "exec") and not is_piped
    return last if last is not None and not is_exec and LONG.search(last.plain) else None


@lint_rule("shell-as-first-process", "process 1 is a shell that does not pass signals on", reads="dockerfile")
def shell_as_first_process(build: DockerBuild) -> Iterator[LintFinding]:
    """## What it does
    Looks for `CMD` and `ENTRYPOINT` in shell form or through `sh -c` without `exec`, and for entrypoint scripts in the
    context that start the training command without `exec`, are not executable, or have Windows line endings.

    ## Why it costs
    `docker stop` and Kubernetes send SIGTERM to process 1. A shell does not pass it on: the signal handler of the
    training process does not run, and after the grace period, all processes are killed without saving a checkpoint.

    ## How to recognize it
    dash, the `sh` of Debian and Ubuntu, stays process 1 while its command runs; so does bash in a script.

    ## What to do
    Write the command as a JSON array, or put `exec` before the last command (`exec python train.py "$@"`).

    ## When it is wrong
    Ignore the finding if an init program such as tini is the entry point, or if nothing needs to be saved at the end.
    """
    starts = {layer.name: layer for layer in build.final if layer.name in ("CMD", "ENTRYPOINT")}
    first = starts.get("ENTRYPOINT", starts.get("CMD"))
    if first is None or not first.commands or INIT.search(first.instruction.arguments):
        return
    words = first.instruction.exec_form
    command, main = first.commands[0], _find_main(first.commands)
    found = [
        (path, text)
        for word in command.words[:2]
        for path in (command.locate(word), f"/usr/local/bin/{word}")
        if (text := build.read_file(first, path)) is not None
    ]
    path, text = next(
        (pair for pair in found if not pair[0].endswith(".py") and re.match(r"#!.*sh\b|(?!#!)", pair[1])), ("", "")
    )
    name = posixpath.basename(path)
    inner = [
        one
        for one in read_commands(text, 1, first.workdir)
        if one.words and one.name not in ("echo", "wait", "exit", "set")
    ]
    if (
        (words is None or command.name in ("sh", "bash"))
        and main
        and len(first.commands) > (words is not None)
        and not path
    ):
        yield first.report(
            Severity.MEDIUM if SAVES.search(" ".join(main.words[:4])) else Severity.LOW,
            f"{first.name} in shell form: sh is process 1 (PID 1) and does not pass SIGTERM on to "
            f"{main.name}{' (before the pipe)' if main.shell.before else ''}: a save at the end cannot run",
            "use a JSON array (exec form), or exec before the last command, without a pipe",
        )
    ran = _find_main(inner) if not INIT.search(text) else None
    if ran is not None:
        yield first.report(
            Severity.MEDIUM if SAVES.search(" ".join(ran.words[:4])) else Severity.LOW,
            f"{name} starts {ran.plain[:40]} without exec: the shell stays process 1 "
            f"(PID 1) and does not pass SIGTERM on, so nothing is saved",
            f"exec {ran.plain[:40]} in {name} (line {ran.line}), without a pipe",
        )
    fetched = [
        one for one in inner if FETCHED.match(one.plain) and "if" not in one.shell.blocks and one.shell.after != "||"
    ]
    if fetched:
        yield first.report(
            Severity.MEDIUM,
            f"{name} runs {fetched[0].plain[:50]} at each start: every node repeats the download "
            f"at run time while its GPUs wait",
            "do it in the image (RUN), or on a persistent volume",
        )
    is_run = name and posixpath.basename(command.words[0]) == name
    source = next((one.files[path] for one in reversed(build.final) if path in one.files), "")
    is_open = (
        re.search(
            r"chmod|install -", " ".join(f"{one.instruction.script} {one.instruction.flags}" for one in build.final)
        )
        is not None
    )
    mode = os.stat(os.path.join(build.context.folder, source)).st_mode if build.context and is_run else 0o777
    is_open |= not mode & 0o111 and not _keeps_modes(build)
    problem = "has no #! line: exec format error" if not text.startswith("#!") and words else ""
    problem = "is not executable in the context: permission denied" if not mode & 0o111 and not is_open else problem
    problem = (
        "has Windows line endings: its interpreter is not found" if text.partition("\n")[0].endswith("\r") else problem
    )
    if is_run and problem:
        yield first.report(
            Severity.HIGH,
            f"{name} {problem}, and the container does not start",
            "chmod +x it, begin it with #!/bin/bash, save it with LF; or COPY --chmod=755",
        )
