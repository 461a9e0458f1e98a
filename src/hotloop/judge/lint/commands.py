"""A script or exec form -> commands without their wrappers, and what each command installs, downloads or compiles."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .shell import ShellCommand, parse_shell

# fmt: off
WRAPPERS = frozenset((
    "sudo", "env", "exec", "nice", "time", "nohup", "command", "stdbuf", "gosu", "su-exec", "tini", "dumb-init",
    "timeout", "xvfb-run",
))
"""Programs that start the command after them."""
VALUES = frozenset((
    "-i", "--index-url", "--extra-index-url", "-f", "--find-links", "-t", "--target", "--prefix", "--root", "-c",
    "--trusted-host", "--platform", "--python-version", "--no-binary", "-n", "--only-binary", "--timeout", "--retries",
    "--src", "--config-settings", "-C", "--constraint", "--global-option", "-w", "--wheel-dir", "--cache-dir", "--name",
    "-p", "--channel", "-r", "--requirement", "--file", "--python", "--extra", "--group", "--default-timeout", "-o",
    "--index", "--torch-backend", "-e", "--editable", "--package", "--only", "--with", "--without", "--no-group",
    "--no-install-package", "--override", "--index-strategy", "--build-option", "--progress-bar", "--default-index",
))
"""Options of installers whose next word is their value."""
# fmt: on
INSTALLERS = {
    "pip": r"(install|wheel|download)\b",
    "uv": r"sync\b|pip (install|sync)|add\b|tool install",
    "conda": r"(install|create|env create|env update|update -f)\b",
    "apt": r"(install|upgrade|dist-upgrade|build-dep)\b",
    "apk": "add",
    "dnf": r"install\b",
    "poetry": r"(install|sync)\b",
    "pdm": r"(install|sync)\b",
    "pipenv": r"(install|sync)\b",
    "npm": r"(ci|install)\b",
}
"""Tool -> the subcommands that install."""
ALIASES = {"apt-get": "apt", "mamba": "conda", "micromamba": "conda", "microdnf": "dnf", "yum": "dnf"}
SYSTEM = ("apt", "apk", "dnf")
TEXT = r"(raw\.githubusercontent|LICENSE|\.(txt|py|sh|asc|gpg|key|pub|repo|list|json|ya?ml|md|pem|deb)\b|install\b)"
"""Parts of addresses of small files: a script, a key, a license."""
FETCHES = re.compile(
    rf"(huggingface-cli|hf) download|git clone|git lfs (pull|fetch)|(gdown|axel) |"
    rf"(wget|aria2c|curl) (?!.*{TEXT}).*(https?:|\$)|"
    r"(aws s3|gsutil|gcloud storage|s3cmd|rclone|mc|azcopy) (cp|sync|get|copy)|kaggle (datasets|competitions|models) |"
    r"python[\d.]* -c [\s\S]*(from_pretrained|snapshot_download|hf_hub_download|load_dataset|hub\.load|download)|"
    r"python[\d.]* -m (spacy download|nltk\.downloader)|python[\d.]* \S*(download|fetch|warm_?up)\w*\.py|"
    r"modelscope download|ollama pull|dvc pull"
)
COMPILES = re.compile(r"(make|ninja|cmake --build|nvcc|cargo build|bazel build|npm run)\b|python[\d.]* \S*setup\.py ")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildCommand:
    """A command of a shell: ``words`` without wrappers such as sudo or ``conda run``; ``folder`` is where it starts."""

    shell: ShellCommand
    words: tuple[str, ...]
    folder: str

    @property
    def name(self) -> str:
        return posixpath.basename(self.words[0]) if self.words else ""

    @property
    def line(self) -> int:
        return self.shell.line

    @property
    def plain(self) -> str:
        """Name and arguments as one text, for patterns."""
        return " ".join((self.name, *self.words[1:]))

    def locate(self, name: str) -> str:
        """The absolute path of a file that the command names."""
        return posixpath.normpath(posixpath.join(self.folder, name))

    def paths(self) -> list[str]:
        """Absolute paths that its words may mean."""
        words = self.words[0 if "/" in self.words[0] else 1 :] if self.words else ()
        values = [word.partition("=")[2] if word.startswith("-") else word for word in words]
        return [self.locate(one.partition("[")[0]) for one in values if one and not re.search(r"://|\s|^-", one)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """One install command. ``packages`` are as written, ``lists`` are files that name packages, ``projects`` are local
    folders; ``is_synced`` if a project's file lists the packages, as for uv sync and poetry."""

    tool: str
    packages: tuple[str, ...]
    lists: tuple[str, ...]
    projects: tuple[str, ...]
    options: Mapping[str, str]
    is_synced: bool
    command: BuildCommand


def read_commands(text: str, first_line: int, folder: str) -> Iterator[BuildCommand]:
    """The commands of a script in order, including those of a script that it passes to ``bash -c``."""
    for one in parse_shell(text, first_line).commands:
        found = BuildCommand(shell=one, words=_unwrap([word.text for word in one.words]), folder=folder)
        yield found
        if found.name in ("cd", "pushd") and found.words[1:] and "subshell" not in one.blocks:
            folder = found.locate(found.words[1])
        inner = re.match(r"(?:ba|da|z|a)?sh (?:-\w+ )*-\w*c ", found.plain)
        script = next((word for word in found.words[1:] if not word.startswith("-")), "") if inner else ""
        for each in parse_shell(script, one.line).commands if script else ():
            yield BuildCommand(shell=each, words=_unwrap([word.text for word in each.words]), folder=folder)


def _unwrap(words: Sequence[str]) -> tuple[str, ...]:
    left = list(words)
    while left:
        is_run = left[1:2] == ["run"] and left[0] in ("conda", "mamba", "micromamba", "uv", "poetry", "pipenv", "pdm")
        if posixpath.basename(left[0]) not in WRAPPERS and not is_run:
            break
        del left[: 2 if is_run or left[0] in ("gosu", "su-exec") else 1]
        while left and re.match(r"-|[A-Za-z_]\w*=|[\d.]+[smh]?$", left[0]):
            del left[: 2 if re.fullmatch(r"-[npug]|--(name|prefix|user|cwd)", left[0]) else 1]
    return tuple(left)


def read_install(command: BuildCommand) -> Install | None:
    """What a command installs; None if it does not install.

    >>> [found] = map(read_install, read_commands("python -m pip install -r a.txt torch==2.5.1 -e .", 1, "/"))
    >>> found.tool, found.packages, found.lists, found.projects
    ('pip', ('torch==2.5.1',), ('a.txt',), ('.',))
    """
    words = command.words[2:] if re.match(r"python[\d.]* -m (pip|uv|poetry) ", command.plain) else command.words
    name = re.sub(r"[\d.]+$", "", posixpath.basename(words[0])) if words else ""
    tool = ALIASES.get(name, name)
    at = next((at for at, word in enumerate(words) if at and not word.startswith("-")), len(words))
    verb = re.match(INSTALLERS.get(tool, "(?!)"), " ".join(words[at : at + 2]))
    if verb is None:
        return None
    options: dict[str, str] = {}
    found: dict[str, list[str]] = {"lists": [], "packages": [], "projects": []}
    given = iter((*words[1:at], *words[at + len(verb.group().split()) :]))
    for word in given:
        option, equals, value = word.partition("=")
        if tool != "apt" and re.match(r"-[rce][^-]", word):
            option, equals, value = word[:2], "=", word[2:]
        if word.startswith("-"):
            value = value if equals else next(given, "") if word in VALUES and tool not in SYSTEM else ""
            options[option] = f"{options.get(option, '')} {value}".strip()
        kind = {"-r": "lists", "--requirement": "lists", "-e": "projects", "--editable": "projects"}.get(option, "")
        if tool == "conda" and option in ("-f", "--file"):
            kind = "lists"
        elif not word.startswith("-"):
            is_local = tool in ("pip", "uv") and re.match(r"\.|[^:@]*/[^:@]*$", word) is not None
            kind, value = "projects" if is_local else "packages", word
        if kind:
            kind = "packages" if "://" in value and kind == "projects" else kind
            found[kind].append(value.partition("[")[0] if kind == "projects" else value)
    is_synced = tool in ("poetry", "pdm", "pipenv", "npm") or verb.group() == "sync"
    own = ["."] if is_synced and not {"--no-install-project", "--no-root", "--no-self"} & set(options) else []
    return Install(
        tool=tool,
        packages=tuple(found["packages"]),
        lists=tuple(found["lists"]),
        projects=(*found["projects"], *own),
        options=options,
        is_synced=is_synced,
        command=command,
    )


def describe_work(command: BuildCommand) -> str:
    """The slow work of a command: ``install``, ``system`` (the distribution's packages), ``download``, ``compile``;
    empty if there is none."""
    install = read_install(command)
    if install is not None:
        return "system" if install.tool in SYSTEM else "install"
    return "download" if FETCHES.match(command.plain) else "compile" if COMPILES.match(command.plain) else ""
