"""What `hotloop run --record` and `hotloop upload` refuse before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotloop.cli import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--record", "", "--", "true"], "the URL is empty"),
        (["run", "--record", "a\nb", "--", "true"], "'a\\nb': a URL or folder without line breaks"),
        (["upload", "last"], "the following arguments are required: URL"),
        (["upload", "last", "--wait", "-3", "store"], "--wait -3.0: give seconds from 0 on"),
        (["upload", "--wait", "nan", "last", "store"], "--wait nan: give seconds from 0 on"),
    ],
)
def test_bad_words_are_one_line(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code = main(words)
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
