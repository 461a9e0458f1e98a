"""What no other rule names: the script's own code, with its lines, and the four parts of a step."""

from typing import Any

import pytest

from hotloop.core.analysis import Line
from hotloop.core.findings import Finding, Severity, Where
from hotloop.judge.diagnose import find_problems
from hotloop.judge.diagnose.own_code import own_code
from hotloop.judge.diagnose.verdict import explain_step, warn_of_unknown

from .build_analysis import make_analysis, make_line, saving_of

LOOP = Where(file="train.py", line=30, function="main")


def below(line: int, share_ratio: float, text: str, function: str = "count", **overrides: Any) -> Line:
    where = Where(file="spans.py", line=line, function=function)
    return make_line(
        line,
        share_ratio,
        text,
        function=function,
        file="spans.py",
        stack=(LOOP, where),
        **overrides,
    )


def host_code_of(**shares: Any) -> list[Finding]:
    findings, _ = find_problems(make_analysis(**shares))
    return [one for one in findings if one.rule == "host-code"]


BACKWARD = (make_line(30, 1.0, "loss.backward()", leaf="torch.autograd.graph:_engine_run_backward"),)


def test_code_after_the_step_is_one_finding_of_the_function_that_the_loop_calls() -> None:
    lines = {
        "other_ns": (below(22, 0.6, "hit += len(a & b)"), below(7, 0.4, "start = i", "spans")),
        "backward_ns": BACKWARD,
    }
    first, second = host_code_of(other=0.3, lines=lines)
    assert first.cost_ratio == pytest.approx(0.18)
    assert [(where.file, where.line) for where in first.where] == [("spans.py", 22)]
    assert second.cost_ratio == pytest.approx(0.12)
    assert (saving_of(first).low_ratio, saving_of(first).mid_ratio) == (0.0, pytest.approx(0.09))
    assert first.severity is Severity.INFO
    assert first.evidence["callers"] == ["train.py:30 in main"]


def test_inside_the_forward_only_lines_that_run_python_count() -> None:
    lines = {
        "forward_ns": (
            below(5, 0.5, "key = name.lower()", "keys", is_python=True),
            below(9, 0.5, "x = torch.relu(x)", "forward"),
        ),
        "backward_ns": BACKWARD,
    }
    (one,) = host_code_of(forward=0.4, backward=0.5, lines=lines)
    assert one.cost_ratio == pytest.approx(0.2, rel=0.05)
    assert one.phase == "forward"
    assert [where.line for where in one.where] == [5]


def test_what_another_finding_names_and_what_every_loop_does_is_not_told_again() -> None:
    lines = {
        "other_ns": (make_line(62, 0.7, "print(loss.item())"), make_line(63, 0.3, "optimizer.zero_grad()")),
        "backward_ns": BACKWARD,
    }
    assert host_code_of(other=0.3, lines=lines) == []


def test_a_finding_of_any_phase_has_the_lines_that_it_names() -> None:
    lines = {"other_ns": (below(5, 1.0, "gc.collect()", "tidy"),), "backward_ns": BACKWARD}
    analysis = make_analysis(other=0.6, lines=lines)
    where = (Where(file="spans.py", line=5, function="tidy"),)
    named = Finding(rule="gc-pause", title="", evidence={}, cost_ns=round(0.6 * analysis.step_ns), where=where)
    assert own_code(analysis.lead, (named,)) == ()
    parts = explain_step(analysis.lead, (named,))
    assert parts is not None
    assert parts.named_ratio == pytest.approx(0.6, abs=1e-6)


def test_the_cost_of_a_finding_without_lines_comes_out_of_all_phases() -> None:
    lines = {"other_ns": (below(5, 1.0, "hit += len(a & b)"),), "backward_ns": BACKWARD}
    analysis = make_analysis(other=0.6, lines=lines)
    named = Finding(rule="gc-pause", title="", evidence={}, cost_ns=round(0.2 * analysis.step_ns))
    parts = explain_step(analysis.lead, (named,))
    assert parts is not None
    assert parts.named_ratio == pytest.approx(0.2, abs=1e-6)
    assert parts.your_code_ratio < 0.6


def test_little_code_is_not_told() -> None:
    lines = {"other_ns": (below(22, 1.0, "hit += len(a & b)"),), "backward_ns": BACKWARD}
    assert host_code_of(other=0.04, lines=lines) == []


def test_the_parts_of_a_step_sum_to_one_and_silence_is_told() -> None:
    lines = {"other_ns": (below(22, 0.5, "hit += len(a & b)"),), "backward_ns": BACKWARD}
    analysis = make_analysis(other=0.2, after_backward=0.1, lines=lines)
    time_ns = {"backward": round(0.05 * analysis.step_ns)}
    named = Finding(rule="slow-link", title="", evidence={}, cost_ratio=0.05, time_ns=time_ns)
    parts = explain_step(analysis.lead, (named,))
    assert parts is not None
    assert parts.named_ratio == pytest.approx(0.05, abs=1e-6)
    assert parts.your_code_ratio == pytest.approx(0.1, abs=1e-6)
    assert parts.unknown_ratio == pytest.approx(0.2, abs=1e-6)  # half of one gap, all of the other
    assert parts.model_ratio + parts.named_ratio + parts.your_code_ratio + parts.unknown_ratio == pytest.approx(1.0)
    assert [one.level for one in warn_of_unknown(parts, analysis.lead)] == ["warning"]
    assert warn_of_unknown(explain_step(make_analysis().lead, ()), make_analysis().lead) == ()
    assert own_code(make_analysis().lead, ()) == ()
