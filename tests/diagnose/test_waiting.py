"""Loops without a DataLoader: which blocking call they take their batch from."""

import pytest

from hotloop.core.findings import Finding
from hotloop.judge.diagnose.loading import find_wait
from hotloop.judge.diagnose.rules.input_bound import input_bound
from hotloop.judge.diagnose.rules.preprocessing_in_loop import preprocessing_in_loop

from .build_analysis import find, make_analysis, make_line, saving_of

NO_LOADER = {"batches": 0, "micro_batches": 0}


@pytest.mark.parametrize(
    ("text", "leaf", "cause"),
    [
        ("return self.q.get()", "threading:wait", "slow-producer"),
        ("batch = future.result()", "concurrent.futures._base:result", "slow-producer"),
        ("batch = pipe.recv()", "multiprocessing.connection:_recv", "slow-process"),
        ("data = sock.recv(n)", "socket:readinto", "slow-machine"),
        ("time.sleep(pause)", "feed:next_batch", "waits-on-purpose"),
    ],
)
def test_a_loop_that_waits_for_its_batch(text: str, leaf: str, cause: str) -> None:
    lines = {"other_ns": (make_line(9, 1.0, text, function="next_batch", leaf=leaf),)}
    analysis = make_analysis(other=0.4, lines=lines, fields=NO_LOADER)
    one = find(input_bound, analysis)
    assert (one.evidence["cause"], one.cost_ratio) == (cause, pytest.approx(0.4))
    assert [where.line for where in one.where] == [9]
    assert not isinstance(preprocessing_in_loop.judge(analysis), Finding)


def test_work_on_a_batch_is_no_wait() -> None:
    lines = {"other_ns": (make_line(9, 1.0, "return torch.stack(rows)", function="next_batch"),)}
    assert input_bound.judge(make_analysis(other=0.4, lines=lines, fields=NO_LOADER)) is None


TAKES = make_line(9, 1.0, "item = q.get()", function="__iter__", file="batcher.py", leaf="queue:get")
MAKES = make_line(30, 0.9, "pieces = merge(word)", function="encode", file="batcher.py", leaf="__main__:encode")
DRAWS = make_line(30, 0.9, "choices(adj, k=k)", function="encode", file="batcher.py", leaf="random:choices")
READS = make_line(31, 0.9, "x = np.load(path)", function="read", file="batcher.py", leaf="numpy.lib:load")


@pytest.mark.parametrize(
    ("line", "at_work", "takes", "is_told"),
    [(MAKES, 0.9, TAKES, True), (MAKES, 0.2, TAKES, False), (READS, 0.9, TAKES, False), (DRAWS, 0.9, None, True)],
)
def test_a_thread_that_holds_the_lock(line: object, at_work: float, takes: object, is_told: bool) -> None:
    lines = {"other_ns": (takes,)} if takes is not None else {}
    rank = make_analysis(other=0.01, lines=lines, fields=NO_LOADER, thread_lines=(line,), threads_at_work=at_work).lead
    one = find_wait(rank)
    assert isinstance(one, Finding) == is_told
    if one is not None:
        assert [(where.file, where.function) for where in one.where] == [("batcher.py", "encode")]
        assert one.evidence["cause"] == "thread-holds-lock"


def test_a_producer_on_the_training_s_cores_slows_its_computation_too() -> None:
    lines = {"other_ns": (make_line(9, 1.0, "self.ready.get()", function="take", leaf="multiprocessing.queues:get"),)}
    crowd = {"torch_threads": 2, "cores": 2, "idle_cores": (0.05, 2)}
    judged = make_analysis(other=0.06, forward=0.5, backward=0.39, lines=lines, fields=NO_LOADER, **crowd)
    one = find_wait(judged.lead)
    assert isinstance(one, Finding)
    assert (saving_of(one).mid_ratio, saving_of(one).high_ratio) == (
        pytest.approx(0.8 * 0.06 + 0.3 * 0.94, abs=0.01),
        pytest.approx(0.06 + 0.6 * 0.94, abs=0.01),
    )
    alone = find_wait(make_analysis(other=0.06, lines=lines, fields=NO_LOADER, **crowd | {"idle_cores": (1.0, 2)}).lead)
    assert isinstance(alone, Finding)
    assert saving_of(alone).high_ratio == pytest.approx(0.06)
