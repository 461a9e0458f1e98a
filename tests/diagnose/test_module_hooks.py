import pytest

from hotloop.core.findings import Severity, Where
from hotloop.judge.diagnose.lines import loop_places
from hotloop.judge.diagnose.rules.module_hooks import module_hooks

from .build_analysis import find, make_analysis, make_line

LOOP = Where(file="train.py", line=30, function="main")
HOOK = Where(file="watch.py", line=4, function="watch")


def in_hook(line: int, share_ratio: float, function: str = "watch") -> object:
    where = Where(file="watch.py", line=line, function=function)
    return make_line(line, share_ratio, "x.std().item()", file="watch.py", function=function, stack=(LOOP, where))


def test_a_hook_that_was_registered_is_named() -> None:
    lines = {"forward_ns": (in_hook(6, 0.5), make_line(40, 0.5, "return self.net(x)", function="forward"))}
    one = find(module_hooks, make_analysis(forward=0.6, backward=0.3, lines=lines, hooks_where=(HOOK,)))
    assert one.cost_ratio == pytest.approx(0.3, rel=0.1)
    assert (one.phase, one.severity) == ("forward", Severity.HIGH)
    assert [(where.file, where.line) for where in one.where] == [("watch.py", 6)]


@pytest.mark.parametrize(("function", "is_told"), [("hook", True), ("backward", False), ("forward", False)])
def test_the_users_frames_below_the_backward_are_hooks_but_for_functions_of_autograd(
    function: str, is_told: bool
) -> None:
    call = make_line(30, 0.5, "loss.backward()", leaf="torch.autograd.graph:_engine_run_backward")
    analysis = make_analysis(lines={"backward_ns": (call, in_hook(6, 0.5, function))})
    one = module_hooks.judge(analysis)
    assert (one is not None) is is_told
    assert loop_places(analysis.lead) == {("train.py", "main")}


def test_functions_of_a_model_are_no_hooks() -> None:
    lines = {"forward_ns": (in_hook(6, 1.0),)}
    assert module_hooks.judge(make_analysis(lines=lines)) is None
    elsewhere = Where(file="watch.py", line=7, function="watch")  # another function of that name, further down
    assert module_hooks.judge(make_analysis(lines=lines, hooks_where=(elsewhere,))) is None
