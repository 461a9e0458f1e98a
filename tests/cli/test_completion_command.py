"""hotloop completion: the scripts, sourced by the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hotloop.cli import main
from hotloop.cli.completion_command import list_completions
from hotloop.cli.parser import build_parser, list_commands

BASH = """source {script}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _hotloop; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSH = """compdef() {{ [[ $1 == _hotloop && $2 == hotloop ]] || print WRONG }}
compadd() {{ shift; print -l -- $@ }}
_files() {{ print FILES }}
_describe() {{ local one="$@[-1]"; [[ -n "${{(P)one}}" ]] && print -l -- "${{(@P)one}}" }}
source {script}
words=({words}); CURRENT=$#words; _hotloop
"""
FISH = 'source {script}; complete -C "{words}"'
SUMMARY = next(list_completions(build_parser()))[1]
"""Command -> what its help says of it."""


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Path:
    shell = request.param
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    assert main(["completion", shell]) == 0
    path = tmp_path / f"hotloop.{shell}"
    path.write_text(capsys.readouterr().out)
    return path


def run(shell: str, text: str, folder: Path) -> list[str]:
    words = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["-N"]}[shell]
    done = subprocess.run([shell, *words, "-c", text], cwd=folder, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize("script", ["bash"], indirect=True)
def test_bash_completes_commands_options_and_values(script: Path) -> None:
    def complete(*words: str) -> list[str]:
        return run("bash", BASH.format(script=script, words=" ".join(f"'{word}'" for word in words)), script.parent)

    assert set(complete("hotloop", "")) == set(list_commands())
    assert complete("hotloop", "la") == ["launch"]
    assert complete("hotloop", "lint", "--fa") == ["--fail-on"]
    assert complete("hotloop", "lint", "--fail-on", "") == ["high", "medium", "low", "info"]
    assert complete("hotloop", "report", "--format", "m") == ["markdown"]
    assert complete("hotloop", "lint", "--json", "") == []  # bash completes files then
    assert complete("hotloop", "lint", "tr") == []
    assert set(complete("hotloop", "bench", "")) == {"train", "loader", "scaling", "comm"}
    assert complete("hotloop", "bench", "comm", "--backend", "") == ["gloo", "nccl"]
    assert complete("hotloop", "bench", "comm", "--si") == ["--sizes"]
    assert complete("hotloop", "completion", "z") == ["zsh"]
    assert complete("hotloop", "run", "--", "python", "--na") == []


@pytest.mark.parametrize("script", ["zsh"], indirect=True)
def test_zsh_completes_them_with_their_summaries(script: Path) -> None:
    def complete(*words: str) -> list[str]:
        return run("zsh", ZSH.format(script=script, words=" ".join(f"'{word}'" for word in words)), script.parent)

    assert run("zsh", f"zsh -n {script}", script.parent) == []
    assert f"lint:{SUMMARY['lint']}" in complete("hotloop", "")
    assert complete("hotloop", "lint", "--fail-on", "") == ["high", "medium", "low", "info"]
    assert "--fix" in [line.partition(":")[0] for line in complete("hotloop", "lint", "--fi")]
    assert complete("hotloop", "lint", "--json", "") == ["FILES"]
    assert complete("hotloop", "lint", "") == ["FILES"]
    assert complete("hotloop", "bench", "comm", "--backend", "") == ["gloo", "nccl"]
    assert complete("hotloop", "run", "--", "python", "") == ["FILES"]


@pytest.mark.parametrize("script", ["fish"], indirect=True)
def test_fish_completes_them_with_their_summaries(script: Path) -> None:
    def complete(words: str) -> list[str]:
        return run("fish", FISH.format(script=script, words=words), script.parent)

    assert run("fish", f"fish -n {script}", script.parent) == []
    assert complete("hotloop lau") == [f"launch\t{SUMMARY['launch']}"]
    assert [line.split("\t")[0] for line in complete("hotloop lint --fail-on ")] == ["high", "info", "low", "medium"]
    assert [line.split("\t")[0] for line in complete("hotloop lint --fi")] == ["--fix"]
    assert [line.split("\t")[0] for line in complete("hotloop bench comm --backend ")] == ["gloo", "nccl"]


def test_every_option_of_every_command_is_listed() -> None:
    parser = build_parser()
    found = {path: {name for names, *_ in flags for name in names} for path, _, flags in list_completions(parser)}
    assert set(found) == {"", *list_commands(), *(f"bench {kind}" for kind in ("train", "loader", "scaling", "comm"))}
    assert {"--fix", "--diff", "--save-seconds", "--sarif", "-q", "--help"} <= found["lint"]
    assert "--trace" in found["run"]
    assert "--trace" not in found["lint"]


def test_alone_it_shows_three_things_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out = capsys.readouterr().out
    assert [line.split("  ")[1] for line in out.splitlines() if line.startswith("  hotloop ")] == [
        "hotloop run -- python train.py",
        "hotloop tune -- python train.py",
        "hotloop lint .",
    ]
    assert out.endswith("All commands: hotloop --help\n")
