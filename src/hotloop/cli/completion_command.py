"""hotloop completion: the script that completes commands, options and their values in a shell."""

from __future__ import annotations

import argparse
import shlex
import sys

from hotloop.cli.options import option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    Flag = tuple[list[str], str, list[str] | None]
    """Names and summary of an option; its values (None if it takes none, empty if anything may follow)."""
    Completed = tuple[str, dict[str, str], list[Flag]]
    """A command ('' for hotloop itself, 'bench comm' for a benchmark), the words that may follow with their summaries
    (subcommands, or values of an argument), and its options."""


ORDER, SUMMARY = 20, "print the script that completes hotloop's commands in bash, zsh or fish"
ABOUT = {
    "description": "Print the script that completes hotloop's commands, options and their values in a shell. To use "
    "it, add this to ~/.bashrc: eval \"$(hotloop completion bash)\"; to ~/.zshrc, after compinit: eval \"$(hotloop "
    "completion zsh)\"; in fish: hotloop completion fish > ~/.config/fish/completions/hotloop.fish"
}  # fmt: skip
OPTIONS = (option("shell", choices=("bash", "zsh", "fish"), help="the shell"),)
# Of `key` (the command, with its benchmark) and the words before the cursor, in bash and in zsh.
FIND_KEY = """    case " {nested} " in *" $key "*) [ "$at" -gt 2 ] && key="$key $second" ;; esac
    [ "$at" -eq 1 ] && key=
"""
BASH = """_hotloop() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} at=$COMP_CWORD words= flags= one
    local key=${{COMP_WORDS[1]}} second=${{COMP_WORDS[2]}}
    for one in "${{COMP_WORDS[@]:0:COMP_CWORD}}"; do [ "$one" = -- ] && return; done
{find_key}    case "$key|$before" in
{values}    *) case "$key" in
{names}        esac
        case "$word" in -*) words=$flags ;; esac ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _hotloop hotloop
"""
ZSH = """#compdef hotloop
_hotloop() {{
    local key=$words[2] second=$words[3] before=$words[CURRENT-1] at=$((CURRENT-1))
    local -a names flags
    (( ${{words[(I)--]}} && ${{words[(I)--]}} < CURRENT )) && {{ _files; return }}
{find_key}    case "$key|$before" in
{values}    esac
    case "$key" in
{names}    esac
    if [[ $words[CURRENT] == -* ]]; then _describe -o option flags; else _describe value names || _files; fi
}}
if [[ $funcstack[1] == _hotloop ]]; then _hotloop "$@"; else compdef _hotloop hotloop; fi
"""


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.cli.parser import build_parser

    found = list(list_completions(build_parser()))
    sys.stdout.write(write_fish(found) if arguments.shell == "fish" else write_posix(found, arguments.shell))
    return 0


def list_completions(parser: Any, path: str = "") -> Iterator[Completed]:
    """What may follow each command of the parser: itself first, then its subcommands."""
    words: dict[str, str] = {}
    flags: list[Flag] = []
    inner: dict[str, Any] = {}
    for action in parser._actions:
        values = list(map(str, action.choices or getattr(action.type, "names", ())))
        if isinstance(action, argparse._SubParsersAction):
            inner = dict(action.choices)
            words = {one.dest: one.help or "" for one in action._choices_actions}
        elif action.option_strings:
            text = parser._get_formatter()._expand_help(action) if action.help else ""
            flags.append((list(action.option_strings), text.partition(". ")[0], None if action.nargs == 0 else values))
        else:
            words |= dict.fromkeys(values, "")
    yield path, words, flags
    for name, one in inner.items():
        yield from list_completions(one, f"{path} {name}".strip())


def write_posix(found: Sequence[Completed], shell: str) -> str:
    """The script for bash or zsh: both look up the command and the word before the cursor in case statements."""
    values, names = "", ""
    for path, words, flags in found:
        for options, _, known in flags:
            if known is not None:
                pattern = "|".join(shlex.quote(f"{path}|{name}") for name in options)
                if shell == "zsh":
                    act = f"compadd -- {shlex.join(known)}; return" if known else "_files; return"
                else:
                    act = f"words={shlex.quote(' '.join(known))}" if known else "return"
                values += f"    {pattern}) {act} ;;\n"
        listed = {name: text for options, text, _ in flags for name in options}
        shown = [_list_words(one, shell) for one in (words, listed)]
        names += (
            f"        {shlex.quote(path)}) {'names' if shell == 'zsh' else 'words'}={shown[0]} flags={shown[1]} ;;\n"
        )
    nested = " ".join(sorted({path.split()[0] for path, *_ in found if " " in path}))
    return (ZSH if shell == "zsh" else BASH).format(find_key=FIND_KEY.format(nested=nested), values=values, names=names)


def _list_words(words: dict[str, str], shell: str) -> str:
    if shell == "bash":
        return shlex.quote(" ".join(words))
    return f"({' '.join(shlex.quote(name + ':' * bool(text) + text) for name, text in words.items())})"


def write_fish(found: Sequence[Completed]) -> str:
    """The script for fish: a line for each command and each option, under the condition that its command was typed."""
    lines = []
    for path, words, flags in found:
        condition = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in path.split())
        start = f"complete -c hotloop -n '{condition or '__fish_use_subcommand'}'"
        lines += [f"{start} -f -a {name} -d {_quote_fish(text)}" for name, text in words.items()]
        for names, text, values in flags:
            spelled = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in names)
            value = "" if values is None else f" -x -a '{' '.join(values)}'" if values else " -r"
            lines.append(f"{start} {spelled}{value} -d {_quote_fish(text)}")
    return "\n".join(lines) + "\n"


def _quote_fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
