"""The script of a RUN -> whether it only installs packages, and which paths of the image it reads to do so."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Sequence

# fmt: off
SYSTEM = frozenset((
    "apt", "apt-get", "apk", "dnf", "microdnf", "yum", "zypper", "conda", "mamba", "micromamba", "curl", "wget",
))
# fmt: on
"""Programs that install from elsewhere."""
# fmt: off
HARMLESS = frozenset((
    "echo", "mkdir", "true", "ldconfig", "useradd", "groupadd", "update-alternatives", "set",
))
# fmt: on
"""Programs that read no file of the context."""
CACHE_FOLDERS = ("/var/", "/tmp/", "/root/.cache", "/opt/conda/pkgs")
ENVIRONMENT_FILES = ("-f", "--file")
REQUIREMENTS = ("-r", "--requirement", "-c", "--constraint")
EDITABLE = ("-e", "--editable")
JOINTS = ("&&", ";")
PIP = re.compile(r"(?:.*/)?pip(?:3(?:\.\d+)?)?$")
PYTHON = re.compile(r"(?:.*/)?python(?:3(?:\.\d+)?)?$")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
# fmt: off
VALUES = frozenset((
    "-i", "--index-url", "--extra-index-url", "-f", "--find-links", "-t", "--target", "--prefix", "--root",
    "--trusted-host", "--platform", "--proxy", "--python-version", "--implementation", "--abi", "--no-binary",
    "--only-binary", "--timeout", "--retries", "--progress-bar", "--src", "--config-settings", "-C",
    "--global-option", "-w", "--wheel-dir", "--cache-dir", "--log", "--report", "--upgrade-strategy",
))
# fmt: on
"""Options of pip whose next word is their value."""


def split_commands(script: str) -> list[list[str]] | None:
    """The words of each command of a chain; None for a script with pipes, redirections, substitutions or blocks.

    >>> split_commands("apt-get update && pip install 'a b'")
    [['apt-get', 'update'], ['pip', 'install', 'a b']]
    >>> split_commands("cat a | sh") is None
    True
    """
    if re.search(r"`|\$\(|<<|\n", script):
        return None
    lexer = shlex.shlex(script, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    try:
        for word in lexer:
            if word in JOINTS:
                commands.append([])
            elif word and set(word) <= set("();<>|&"):
                return None
            else:
                commands[-1].append(word)
    except ValueError:
        return None
    return [_without_assignments(words) for words in commands if words]


def _without_assignments(words: Sequence[str]) -> list[str]:
    at = 1 if words[:1] == ["env"] else 0
    while at < len(words) and ASSIGNMENT.match(words[at]):
        at += 1
    return list(words[at:])


def read_pip(words: Sequence[str]) -> Sequence[str] | None:
    """The words after ``pip install`` or ``pip wheel``, however pip is called; None for another command."""
    if words and PIP.match(words[0]):
        rest = words[1:]
    elif len(words) > 2 and PYTHON.match(words[0]) and words[1:3] == ["-m", "pip"]:
        rest = words[3:]
    elif words[:2] == ["uv", "pip"]:
        rest = words[2:]
    else:
        return None
    plain = [at for at, word in enumerate(rest) if not word.startswith("-")]
    return rest[plain[0] + 1 :] if plain and rest[plain[0]] in ("install", "wheel") else None


def find_needs(script: str, workdir: str) -> tuple[str, ...] | None:
    """Absolute paths of the image from which this RUN reads its packages: requirements files, local packages.

    None if the script does, or may do, more than install packages.

    >>> find_needs("apt-get update && apt-get install -y gcc && pip install -r requirements.txt ./ops", "/app")
    ('/app/requirements.txt', '/app/ops')
    >>> find_needs("python setup.py build", "/app") is None
    True
    """
    commands = split_commands(script)
    if not commands:
        return None
    needs: list[str] = []
    is_package = False
    for words in commands:
        pip = read_pip(words)
        found = _needs_of_pip(pip) if pip is not None else _needs_of_other(words)
        if found is None:
            return None
        is_package |= pip is not None or (bool(words) and posixpath.basename(words[0]) in SYSTEM)
        needs += found
    paths = (posixpath.normpath(posixpath.join(workdir, need)) for need in needs)
    return tuple(dict.fromkeys(paths)) if is_package else None


def _needs_of_pip(words: Sequence[str]) -> list[str] | None:
    needs: list[str] = []
    given = iter(words)
    for word in given:
        name, equals, value = word.partition("=")
        if name in EDITABLE:
            return None  # an editable package is linked to its source folder
        if name in REQUIREMENTS:
            needs.append(value if equals else next(given, ""))
        elif word in VALUES:
            next(given, "")
        elif re.match(r"-[rc].", word):
            needs.append(word[2:])
        elif (word.startswith(".") or "/" in word) and not any(sign in word for sign in ("://", " @ ")):
            needs.append(word.partition("[")[0])
    return needs


def _needs_of_other(words: Sequence[str]) -> list[str] | None:
    """None for a command that is neither known to install packages nor known to be harmless."""
    program = posixpath.basename(words[0]) if words else "true"
    if program in ("conda", "mamba", "micromamba"):
        return [words[at + 1] for at, word in enumerate(words[:-1]) if word in ENVIRONMENT_FILES]
    if program == "rm":
        is_cache = all(word.startswith(("-", *CACHE_FOLDERS)) for word in words[1:])
        return [] if is_cache else None
    if PYTHON.match(program) and list(words[1:3]) == ["-m", "venv"]:
        return []
    if PIP.match(program) or program == "uv":
        return [] if words[1:] in (["cache", "purge"], ["check"]) else None
    return [] if program in SYSTEM or program in HARMLESS else None


def read_requirement_files(path: str, read: Callable[[str], str | None]) -> frozenset[str] | None:
    """The file and those that it includes, by their texts from ``read`` (None: missing).

    None if a file names a local package.

    >>> sorted(read_requirement_files("r/a.txt", {"r/a.txt": "-r b.txt", "r/b.txt": "x"}.get))
    ['r/a.txt', 'r/b.txt']
    """
    found: set[str] = set()
    left = [path]
    while left:
        one = left.pop()
        text = None if one in found else read(one)
        if text is None:
            continue
        found.add(one)
        for name, value in _read_lines(text):
            if name in REQUIREMENTS:
                left.append(posixpath.normpath(posixpath.join(posixpath.dirname(one), value)))
            elif name in EDITABLE or name.startswith(("./", "../", "/", "file:")):
                return None
    return frozenset(found)


def _read_lines(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        words = re.split(r"[\s=]+", line.split(" #")[0].strip(), maxsplit=1)
        if words[0] and not words[0].startswith("#"):
            yield words[0], words[1].strip() if len(words) > 1 else ""
