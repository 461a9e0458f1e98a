"""Words that no command, option or id has: one line that says what was probably meant, and exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hotloop import __version__
from hotloop.cli import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("rnu", "train.py"), "unknown command 'rnu'; did you mean 'run'?"),
        (("train.py",), "unknown command 'train.py'; to watch a training script: hotloop run train.py"),
        (("report", "--htlm", "x"), "unknown option '--htlm'; did you mean '--html'?"),
        (("check", "a", "--base-line=b"), "unknown option '--base-line'; did you mean '--baseline'?"),
        (("report", "--xyzzy"), "unknown option '--xyzzy'; see hotloop --help"),
        (("tune", "--json", "x", "y"), "unknown option '--json'; see hotloop --help"),
        (("run", "--trace-ranks", "0", "true"), "--trace-ranks 0 needs --trace PLAN, such as --trace 5:2:3"),
        (("run", "--trace-ranks", "x", "true"), "--trace-ranks 'x': write ranks such as 0,1 or 0-3, or all"),
        (("report", "a", "b"), "unexpected: b; see hotloop --help"),
        (("tune", "--goal", "sped", "x"), "--goal: unknown 'sped'; did you mean 'speed'?"),
        (("tune", "--format", "markdwn", "x"), "argument --format: unknown 'markdwn'; did you mean 'markdown'?"),
        (
            ("run", "--format", "junit", "x"),
            "argument --format: unknown 'junit'; known: html, json, markdown, terminal",
        ),
        (("launch", "--spot"), "--spot: expected one of aws, gcp, azure; see hotloop launch --help"),
        (("diff", "a"), "the following arguments are required: B; see hotloop diff --help"),
        (("rule", "input-bond"), "unknown id 'input-bond'; did you mean 'input-bound'?"),
        (("rule", "fused-optimiser"), "unknown id 'fused-optimiser'; did you mean 'fused-optimizer'?"),
    ],
)
def test_an_unknown_word_is_answered_in_one_line(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(words)
    except SystemExit as ended:
        code = int(str(ended.code))
    assert code == 2
    said += f"; see hotloop {words[0]} --help" if said.startswith("argument") else ""
    assert capsys.readouterr().err == f"hotloop: {said}\n"


def test_a_training_starts_without_loading_the_renderers() -> None:
    code = "import sys; from hotloop.cli.parser import build_parser; build_parser(['run']).parse_args(['run', 'x'])"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    loaded = done.stdout.split()
    assert "hotloop.cli.run_command" in loaded
    assert [name for name in loaded if name.startswith("hotloop.show.report")] == []


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "hotloop", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"hotloop {__version__}\n"
    done = subprocess.run([sys.executable, "-m", "hotloop", "rnu"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "hotloop: unknown command 'rnu'; did you mean 'run'?\n")


@pytest.mark.parametrize(
    "words", [["run", "true"], ["report"], ["serve"], ["lint", "."], ["tune", "true"], ["doctor"], ["rule"]]
)
def test_a_folder_that_was_deleted_is_one_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(words) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "hotloop: the current folder no longer exists; cd to another one\n")
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
