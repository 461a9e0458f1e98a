"""Words that no command, option or id has: one line that says what was probably meant, and exit code 2."""

from __future__ import annotations

import pytest

from hotloop.cli import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("rnu", "train.py"), "unknown command 'rnu'; did you mean 'run'?"),
        (("train.py",), "unknown command 'train.py'; to watch a training: hotloop run train.py"),
        (("report", "--htlm", "x"), "unknown option '--htlm'; did you mean '--html'?"),
        (("check", "a", "--base-line=b"), "unknown option '--base-line'; did you mean '--baseline'?"),
        (("report", "--xyzzy"), "unknown option '--xyzzy'; see hotloop --help"),
        (("report", "a", "b"), "unexpected: b; see hotloop --help"),
        (("tune", "--search", "gredy", "x"), "--search: unknown 'gredy'; did you mean 'greedy'?"),
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
    assert capsys.readouterr().err == f"hotloop: {said}\n"


def test_help_is_a_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(("help", "diff"))
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: hotloop diff")
