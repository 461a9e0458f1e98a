"""Looks at ranks -> the cause that makes a training slow, or none."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from hotloop.agent.replay.stack_reader import PythonCall
from hotloop.evidence.snapshot import slowness
from hotloop.evidence.snapshot.family import RANK, Member
from hotloop.evidence.snapshot.proc import Process
from hotloop.evidence.snapshot.source import ProcessSource
from hotloop.evidence.snapshot.waits import COMPUTING, Wait
from hotloop.evidence.snapshot.watch import Look, Watched

SCRIPT = """
def evaluate(model): pass
def make(step): pass
def main():
    load_index()
    for batch in loader:
        make(batch)
        loss(batch).backward()
        evaluate(model)
        for x in val_loader: model(x)
main()
"""
LIBRARY = {
    "F": ("torch.nn.modules.module", "_call_impl"), "B": ("torch.autograd.graph", "_engine_run_backward"),
    "L": ("torch.utils.data.dataloader", "__next__"),
}  # fmt: skip
USERS = {"o": (3, "make"), "V": (2, "evaluate")}
WAITS = {"c": Wait("collective", "all_reduce"), "p": Wait("collective", "recv"), "s": Wait("sleep")}


def watched(file: Path, text: str, rank: int = 0, cpu_s: float = 1.0) -> Watched:
    """One look for each letter: F forward, B backward, L torch's loader, V evaluate, o code of one's own, c and p
    exchanges, s sleep."""
    process = Process(pid=os.getpid(), parent=1, name="python", command=(), started_ticks=0)
    one = Watched(member=Member(process=process, role=RANK, rank=rank), watched_s=8.0, cpu_s=cpu_s, main_cpu_s=cpu_s)
    for letter in text:
        calls = [PythonCall(str(file), 8 if letter in "cp" else 7, "main", "__main__", True)]
        if letter in USERS:
            calls.insert(0, PythonCall(str(file), *USERS[letter], "__main__", True))
        if letter in LIBRARY:
            module, function = LIBRARY[letter]
            calls.insert(0, PythonCall("/lib/torch.py", 1, function, module, False))
        one.looks.append(Look(tuple(calls), WAITS.get(letter, Wait(COMPUTING)), (letter,), 0))
    return one


@dataclass(frozen=True)
class Case:
    id: str
    ranks: tuple[str, ...]
    cause: str | None
    cpu_s: tuple[float, ...] = (1.0, 1.0)
    repeats: int = 3


CASES = (
    Case("model", ("FBFBFBFBFB",), None),
    Case("own-code-with-gradients", ("ooooBBooooBBooooBB",), None),
    Case("outside", ("ooooooFBooooooFBooooooFB",), slowness.OUTSIDE),
    Case("outside-once", ("FBFBFBFBoooooooooooooooooo",), None, repeats=1),
    Case("validates-often", ("VVVVVFBVVVVVFBVVVVVFB",), slowness.VALIDATION),
    Case("validates-once", ("FBFBVVVVVVVVVVVVVVVVVVVVV",), None, repeats=1),
    Case("sleeps", ("sssFBsssFBsss",), slowness.WAITS),
    Case("torch-loader", ("LLFBLLFBLLFB",), None),
    Case("straggler", ("FFFFBFFFFBFFFFB", "ccccBccccBccccB"), slowness.STRAGGLER, (7.0, 1.0)),
    Case("late-by-other-programs", ("FFFFBFFFFBFFFFB", "ccccBccccBccccB"), None),
    Case("one-long-wait", ("FFFFFFFFFFFFFFBFB", "ccccccccccccccBFB"), None, (7.0, 1.0), 1),
    Case("server", ("FFFFBFFFFBFFFFB", "ppppBppppBppppB"), None, (7.0, 1.0)),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_only_what_returns_makes_a_training_slow(tmp_path: Path, case: Case) -> None:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    ranks = [watched(file, text * case.repeats, rank, case.cpu_s[rank]) for rank, text in enumerate(case.ranks)]
    source = ProcessSource(os.getpid())
    causes = slowness.weigh_causes(
        ranks, ranks, {os.getpid(): []}, source, slowness.Phases(source), lambda one, look: False
    )
    assert next((cause.kind for cause in causes if cause.is_slow), None) == case.cause


@pytest.mark.parametrize(
    ("line", "state", "validates"),
    [(5, "before", False), (7, "inside", False), (10, "inside", True), (11, None, False)],
)
def test_a_line_is_before_or_in_the_loop_that_trains(
    tmp_path: Path, line: int, state: str | None, validates: bool
) -> None:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    source = ProcessSource(os.getpid())
    assert source.trains_at(str(file), line) == state
    assert source.loops_to_validate(str(file), line) == validates
