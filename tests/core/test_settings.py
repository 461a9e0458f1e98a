"""Settings of a project: where they are found, what is refused, and what they change."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotloop.cli import main
from hotloop.core.errors import UsageError
from hotloop.core.findings import Severity
from hotloop.core.settings import Settings, load_settings
from tests.recordings import record

PYPROJECT = """
[tool.hotloop]
fail_on = "high"
ignore = ["kept-graph"]
targets = { mfu = 0.4 }
exclude = ["legacy"]
per_file_ignores = { "examples/*" = ["missing-zero-grad"] }
"""
FAULTY = """import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in batches:
    loss = model(batch).sum()
    loss.backward()
    optimizer.step()
    total += loss
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    for name in ("train.py", "legacy/train.py", "examples/train.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(FAULTY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_nearest_file_counts(project: Path) -> None:
    settings = load_settings()
    assert (settings.fail_on, settings.ignore, settings.targets) == (Severity.HIGH, ("kept-graph",), {"mfu": 0.4})
    assert load_settings(project / "legacy").file == project / "pyproject.toml"
    (project / "legacy" / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert load_settings(project / "legacy").file == project / "pyproject.toml"
    (project / "hotloop.toml").write_text('fail_on = "low"\n')
    assert load_settings(project / "legacy").fail_on is Severity.LOW
    assert settings.add_targets(["busy=0.9"]) == ["mfu=0.4", "busy=0.9"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("fail-on = 'high'", "unknown key 'fail-on'; did you mean 'fail_on'?"),
        ("exlude = []", "unknown key 'exlude'; did you mean 'exclude'?"),
        ("fail_on = 'serious'", "'serious' - at `$.fail_on`"),
        ("ignore = 'input-bound'", "got `str` - at `$.ignore`"),
        ("targets = 3", "got `int` - at `$.targets`"),
        ("file = 'x'", "unknown key 'file'"),
        ("x = ", "cannot read the settings"),
    ],
)
def test_a_mistake_is_refused_with_its_key(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "hotloop.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        load_settings(tmp_path)
    assert told in str(caught.value)
    assert str(tmp_path / "hotloop.toml") in str(caught.value)


def test_lint_leaves_out_files_and_rules(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "."]) == 1
    out = capsys.readouterr().out
    assert "read: 2 training scripts" in out
    assert "train.py:7" in out
    assert "legacy" not in out
    assert "examples/train.py:7" not in out
    assert "[kept-graph]" not in out
    assert main(["lint", "-q", "examples"]) == 0
    (project / "pyproject.toml").write_text('[tool.hotloop]\nignore = ["missing-zero-grad"]\n')
    assert main(["lint", "-q", "--fail-on", "high", "train.py"]) == 0
    assert main(["lint", "-q", "train.py"]) == 1  # kept-graph is medium


def test_config_shows_each_value_with_its_source(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 0
    source = project / "pyproject.toml"
    assert capsys.readouterr().out.splitlines() == [
        f'fail_on = "high"  ({source})',
        f'ignore = ["kept-graph"]  ({source})',
        f'targets = {{"mfu": 0.4}}  ({source})',
        f'exclude = ["legacy"]  ({source})',
        f'per_file_ignores = {{"examples/*": ["missing-zero-grad"]}}  ({source})',
    ]
    source.write_text('[tool.hotloop]\nignore = ["input-bond"]\n')
    assert main(["config"]) == 2
    assert "did you mean 'input-bound'?" in capsys.readouterr().err
    source.write_text("")
    assert main(["config"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == 'fail_on = "medium"  (default)'


def test_a_rule_that_is_off_is_not_judged_in_a_report(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = record(project / "run", [4.0] * 100)
    assert main(["report", str(run)]) == 0
    assert "turned off by the settings" not in capsys.readouterr().out
    (project / "pyproject.toml").write_text('[tool.hotloop]\nignore = ["full-precision"]\n')
    from hotloop import read_report

    off = [one for one in read_report(run).skipped if one.reason.startswith("turned off")]
    assert [one.rule for one in off] == ["full-precision"]


def test_a_foreign_file_without_settings_is_none_of_ours(tmp_path: Path) -> None:
    for text in ("", "tool = 3", "[tool", "[tool.hotloop-size]\nsrc = 3\n"):
        (tmp_path / "pyproject.toml").write_text(text)
        assert load_settings(tmp_path) == Settings()
