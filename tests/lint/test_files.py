"""Which files are read, what is said of those that are not, and what hostile ones do: nothing."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotloop.cli import main
from hotloop.core.errors import UsageError
from hotloop.core.lint import LintFinding, LintReport
from hotloop.judge.lint import LINT_RULES, lint_paths
from hotloop.judge.lint.fixes import make_repairs

from .cases import CASES
from .cases.texts import KEPT, LOOP, change, pod


def lint(path: Path) -> LintReport:
    return lint_paths([str(path)], "0")[0]


def reasons(report: LintReport) -> list[str]:
    return [one.reason for one in report.unread]


def test_files_are_found_by_name_and_by_what_they_hold(tmp_path: Path) -> None:
    names = ("train.py", "Dockerfile", "gpu.Dockerfile", "Dockerfile.dev", "job.sh", "job", "pods.yaml")
    texts = (
        LOOP,
        "FROM a",
        "FROM a",
        "FROM a",
        CASES["unexpanded-variable"][0],
        CASES["unexpanded-variable"][0],
        pod(),
    )
    for name, text in zip(names, texts, strict=True):
        (tmp_path / name).write_text(text)
    for name in ("run.sh", "config.yaml", "notes.md", "Dockerfile.md", ".dockerignore"):
        (tmp_path / name).write_text("#SBATC\nkind: none\n")
    for folder in (".git", "node_modules", "env"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "other.py").write_text(KEPT)
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    report = lint(tmp_path)
    counts = {kind: count for kind, count in report.files.items() if count}
    assert counts == {"python": 1, "dockerfile": 3, "sbatch": 2, "kubernetes": 1}
    assert report.unread == ()


def test_comments_turn_findings_off(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    for comment, kept, count in (
        ("# hotloop: ignore[kept-graph]", 0, 1),
        ("# hotloop: ignore[item-each-step, kept-graph]", 0, 1),
        ("# hotloop: ignore", 0, 1),
        ("# hotloop: ignore[item-each-step]", 1, 0),
    ):
        path.write_text(KEPT.replace("+= loss", f"+= loss  {comment}"))
        report = lint(path)
        assert (len(report.findings), report.suppressed_count) == (kept, count)
    path.write_text(
        KEPT.replace("        total", "        # hotloop: ignore[kept-graph]\n        # why\n        total")
    )
    assert lint(path).suppressed_count == 1


def test_a_path_that_is_not_there_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no such file or folder; give the paths of scripts"):
        lint(Path("/nowhere/at/all"))


def test_a_folder_without_files_has_nothing_to_say(tmp_path: Path) -> None:
    assert sum(lint(tmp_path).files.values()) == 0


def test_hostile_files_are_one_clear_line_each(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("import torch; x = [" + "1," * 500_000 + "]")
    (tmp_path / "deep.py").write_text("import torch\nx = " + "(" * 50_000 + ")" * 50_000)
    (tmp_path / "minus.py").write_text("import torch\nx = " + "-" * 100_000 + "1")
    (tmp_path / "chain.py").write_text("import torch\nx = a" + ".b" * 90_000)
    (tmp_path / "bytes.py").write_bytes(b"import torch\n\xff\xfe")
    (tmp_path / "zero.py").write_bytes(b"import torch\n\0")
    (tmp_path / "two.py").write_text("import torch\nprint 'x'\n")
    with (tmp_path / "big.py").open("wb") as file:
        file.truncate(100 << 20)
    (tmp_path / "pods.yaml").write_text("apiVersion: v1\nkind: Pod\nx: " + "[" * 30_000)
    (tmp_path / "dashes.yaml").write_text("apiVersion: v1\nkind: Pod\nx:\n  " + "- " * 30_000)
    (tmp_path / "broken.yaml").write_text("apiVersion: v1\nkind: Pod\nx: [\n")
    (tmp_path / "helm.yaml").write_text("apiVersion: v1\nkind: {{ .Kind }}\n")
    (tmp_path / "Dockerfile").write_text("apiVersion: v1\n")
    (tmp_path / "loop").symlink_to(".")
    os.mkfifo(tmp_path / "pipe.py")
    report = lint(tmp_path)
    said = {os.path.basename(one.file): one.reason for one in report.unread}
    assert said["big.py"] == "100 MiB; the limit is 2 MiB"
    assert said["bytes.py"] == "not UTF-8 (byte 13)"
    assert said["two.py"].startswith("not Python 3 (line 2: Missing parentheses")
    assert said["Dockerfile"] == "a Dockerfile that cannot be built (line 1: unknown instruction 'apiVersion:')"
    assert said["helm.yaml"] == "a template with {{ }}; lint its rendered output"
    assert said["broken.yaml"].startswith("not YAML (line 4")
    assert {"deep.py", "minus.py", "zero.py", "pods.yaml", "dashes.yaml"} <= set(said)
    assert all("\n" not in reason and len(reason) < 200 for reason in said.values())
    assert report.findings == ()


def test_a_rule_that_fails_is_a_note_and_the_other_findings_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(script: object) -> list[LintFinding]:
        raise IndexError("list index\nout of range")

    failing = replace(LINT_RULES["wrong-best"], judge=fail)
    monkeypatch.setattr("hotloop.judge.lint.LINT_RULES", {**LINT_RULES, "wrong-best": failing})
    (tmp_path / "train.py").write_text(KEPT)
    report = lint(tmp_path)
    assert [one.rule for one in report.findings] == ["kept-graph"]
    assert [(one.failed, one.reason) for one in report.unread] == [
        (False, "the rule wrong-best failed on it (IndexError('list index\\nout of range'))")
    ]
    assert main(["lint", str(tmp_path / "train.py"), "--fail-on", "high"]) == 0
    assert "the rule wrong-best failed on it" in " ".join(capsys.readouterr().out.split())


def test_an_empty_value_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(change(LOOP, "loader =", "model.head = head = None\nx = x.y = x.y\nloader ="))
    assert lint(tmp_path).unread == ()


@pytest.mark.parametrize(
    ("name", "is_low"),
    [
        ("tests/a.py", True),
        ("benchmarks/a.py", True),
        ("bench.py", True),
        ("src/loader_benchmark.py", True),
        ("profiling/a.py", True),
        ("latest/a.py", False),
        ("contest/a.py", False),
        ("workbench/a.py", False),
    ],
)
def test_runs_that_are_short_cost_little(
    name: str, is_low: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(KEPT)
    assert [one.severity.value for one in lint(Path(name)).findings] == ["low" if is_low else "medium"]


def test_aliases_of_yaml_are_not_expanded(tmp_path: Path) -> None:
    lines = ["a0: &a0 {containers: [{name: x}]}"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 40)]
    (tmp_path / "bomb.yaml").write_text("apiVersion: v1\nkind: Pod\n" + "\n".join(lines))
    began = time.monotonic()
    assert lint(tmp_path).files["kubernetes"] == 1
    assert time.monotonic() - began < 5


def test_a_file_that_was_named_and_is_none_of_them_is_said_so(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    assert reasons(lint(path))[0].startswith("not a file that lint reads (Dockerfile, ")


PIECES = st.sampled_from([text for pair in CASES.values() for text in pair])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=PIECES,
    cut=st.tuples(st.integers(0, 400), st.integers(0, 400)),
    name=st.sampled_from(["a.py", "Dockerfile", "a.sbatch", "a.yaml"]),
)
def test_any_torn_text_is_judged_or_refused(text: str, cut: tuple[int, int], name: str, tmp_path: Path) -> None:
    first, last = sorted(cut)
    torn = text[:first] + text[last:]
    path = tmp_path / name
    path.write_text(torn)
    report = lint(path)
    assert all(1 <= one.line <= torn.count("\n") + 1 for one in report.findings)
    assert all("\n" not in reason for reason in reasons(report))


def test_a_thousand_files_take_seconds(tmp_path: Path) -> None:
    for at in range(1000):
        (tmp_path / f"train_{at}.py").write_text(KEPT)
    began = time.process_time()
    assert len(lint(tmp_path).findings) == 1000
    assert time.process_time() - began < 10


def test_a_script_in_the_encoding_that_it_names_is_read_and_repaired(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(b"# -*- coding: latin-1 -*-\nname = '\xe9'\n" + CASES["missing-zero-grad"][0].encode())
    report, read = lint_paths([str(path)], "0")
    assert report.unread == ()
    (repair,) = make_repairs(report.findings, read)
    assert b"name = '\xe9'\n" in repair.after


def test_a_named_file_that_cannot_be_read_fails_and_one_for_no_rule_does_not(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nprint 'x'\n")
    (tmp_path / "notes.md").write_text("notes\n")
    assert main(["lint", "-q", str(tmp_path / "train.py")]) == 2
    assert main(["lint", "-q", str(tmp_path / "notes.md")]) == 0
    assert main(["lint", "-q", str(tmp_path)]) == 0
    assert main(["lint", "-q", "--exit-zero", str(tmp_path / "train.py")]) == 0


def test_what_a_loop_does_once_is_not_done_in_each_step_and_a_place_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "from torch.utils.data import DataLoader\nimport torch\n"
        "def train(model, data, optimizer):\n"
        "    loader = DataLoader(data, shuffle=True)\n"
        "    for x in loader:\n        optimizer.zero_grad(); model(x).backward(); optimizer.step()\n"
        "    else:\n        print('done')\n"
        "    for x in loader:\n        optimizer.zero_grad(); model(x).backward(); optimizer.step()\n"
    )
    assert [(one.rule, one.line) for one in lint(path).findings] == [("workerless-loader", 4)]
