import pytest

from hotloop.core.analysis import Line, RunStart
from hotloop.core.findings import Finding, Severity
from hotloop.judge.diagnose.rules.slow_start import slow_start

from .build_analysis import find, make_analysis, make_excluded, make_line

LEFT_OUT = make_excluded(warmup_count=1, warmup_ns=1_000_000_000, steady_ns=9_000_000_000)


def judge(before_s: float, *lines: Line) -> Finding | None:
    start = RunStart(before_ns=round(before_s * 1e9), first_step_ns=0, lines=lines)
    answer = slow_start.judge(make_analysis(start=start, excluded=LEFT_OUT))
    assert answer is None or isinstance(answer, Finding)
    return answer


def test_a_start_that_reads_all_samples_is_told_with_its_line() -> None:
    one = judge(10.0, make_line(31, 0.8, "power[t] = 0", function="__getitem__"))
    assert one is not None
    assert (one.cost_ratio, one.base, one.saving) == (pytest.approx(0.5), "run", None)
    assert (one.evidence["cause"], [where.line for where in one.where]) == ("reading-samples", [31])
    assert one.severity is Severity.MEDIUM


@pytest.mark.parametrize(
    ("leaf", "cause"),
    [
        ("multiprocessing.connection:wait", "reading-samples"),
        ("importlib._bootstrap:_find_spec", "importing"),
        ("torch._dynamo.config:<module>", "importing"),
        ("torch.distributed.rendezvous:_wait", "waiting-for-ranks"),
        ("torch._inductor.codecache:load", "compiling"),
        ("ssl:read", "downloading"),
        ("tokenizers.pre:split", "tokenizing"),
        ("train:make_index", "your-code"),
    ],
)
def test_causes_by_the_innermost_frame(leaf: str, cause: str) -> None:
    one = judge(9.0, make_line(9, 1.0, "x = make()", function="prepare", leaf=leaf))
    assert one is not None
    assert one.evidence["cause"] == cause
    assert (one.severity is Severity.INFO) is (cause in ("importing", "compiling", "your-code"))


def test_a_start_that_waits_for_its_own_processes_reads_no_samples() -> None:
    line = make_line(9, 1.0, "spaces = remotes[0].recv()", function="__init__", leaf="multiprocessing.connection:_recv")
    one = judge(9.0, line)
    assert one is not None
    assert one.evidence["cause"] == "waiting-for-processes"


def test_a_line_that_imports_is_an_import_whatever_runs_in_it() -> None:
    one = judge(9.0, make_line(9, 1.0, "from transformers import Trainer", function="<module>", leaf="re:compile"))
    assert one is not None
    assert one.evidence["cause"] == "importing"


@pytest.mark.parametrize(("before_s", "is_told"), [(0.9, False), (1.9, False), (2.1, True), (0.5, False)])
def test_what_every_start_takes_is_not_told(before_s: float, is_told: bool) -> None:
    assert (judge(before_s, make_line(9, 1.0, "x = make()", function="prepare")) is not None) is is_told


def test_a_long_start_is_told_however_long_the_run() -> None:
    long_run = make_excluded(warmup_count=1, warmup_ns=1_000_000_000, steady_ns=900_000_000_000)
    start = RunStart(before_ns=11_000_000_000, first_step_ns=0)
    one = find(slow_start, make_analysis(start=start, excluded=long_run))
    assert (one.severity, one.evidence["cause"]) == (Severity.INFO, "unknown")
    assert slow_start.judge(make_analysis(excluded=long_run)) is None
