"""Looks at ranks -> the cause that makes a training slow, or none."""

from __future__ import annotations

import os
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
def evaluate(model): model.eval()
def evaluate_actions(model): pass
def make(step): pass
def main():
    load_index()
    for batch in loader:
        make(batch)
        loss(batch).backward()
        evaluate(model)
        with no_grad():
            for x in val_loader: model(x)
main()
"""
LIBRARY = {
    "F": ("torch.nn.modules.module", "_call_impl"), "B": ("torch.autograd.graph", "_engine_run_backward"),
    "L": ("torch.utils.data.dataloader", "__next__"),
}  # fmt: skip
USERS = {"o": (4, "make"), "V": (2, "evaluate"), "A": (3, "evaluate_actions")}
WAITS = {"c": Wait("collective", "all_reduce"), "p": Wait("collective", "recv"), "s": Wait("sleep")}


def watched(file: Path, text: str, rank: int = 0, cpu_s: float = 1.0) -> Watched:
    """One look for each letter: F forward, B backward, L torch's loader, V evaluate, A evaluate_actions, o code of the
    user's, c and p exchanges, s sleep."""
    process = Process(pid=os.getpid(), parent=1, name="python", command=(), started_ticks=0)
    one = Watched(member=Member(process=process, role=RANK, rank=rank), watched_s=8.0, cpu_s=cpu_s, main_cpu_s=cpu_s)
    for letter in text:
        calls = [PythonCall(str(file), 9 if letter in "cp" else 8, "main", "__main__", True)]
        if letter in USERS:
            calls.insert(0, PythonCall(str(file), *USERS[letter], "__main__", True))
        if letter in LIBRARY:
            module, function = LIBRARY[letter]
            calls.insert(0, PythonCall("/lib/torch.py", 1, function, module, False))
        one.looks.append(Look(tuple(calls), WAITS.get(letter, Wait(COMPUTING)), (letter,)))
    return one


CASES: dict[str, tuple[tuple[str, ...], str | None, tuple[float, ...]]] = {
    "model": (("FBFBFBFBFB" * 3,), None, (1.0,)),
    "own-code-with-gradients": (("ooooBB" * 9,), None, (1.0,)),
    "outside": (("ooooooFB" * 9,), slowness.OUTSIDE, (1.0,)),
    "outside-once": (("FBFBFBFBoooooooooooooooooo",), None, (1.0,)),
    "validates-often": (("VVVVVFB" * 9,), slowness.VALIDATION, (1.0,)),
    "validates-once": (("FBFBVVVVVVVVVVVVVVVVVVVVV",), None, (1.0,)),
    "evaluates-with-gradients": (("AAAAABB" * 9,), None, (1.0,)),
    "sleeps": (("sssFB" * 9,), slowness.WAITS, (1.0,)),
    "torch-loader": (("LLFB" * 9,), None, (1.0,)),
    "straggler": (("FFFFB" * 9, "ccccB" * 9), slowness.STRAGGLER, (7.0, 1.0)),
    "late-by-other-programs": (("FFFFB" * 9, "ccccB" * 9), None, (1.0, 1.0)),
    "one-long-wait": (("FFFFFFFFFFFFFFBFB", "ccccccccccccccBFB"), None, (7.0, 1.0)),
    "server": (("FFFFB" * 9, "ppppB" * 9), None, (7.0, 1.0)),
}
"""The looks at each rank, the cause, and the CPU seconds of each rank."""


@pytest.mark.parametrize("case", CASES)
def test_only_what_returns_makes_a_training_slow(tmp_path: Path, case: str) -> None:
    texts, wanted, cpu_s = CASES[case]
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    ranks = [watched(file, text, rank, cpu_s[rank]) for rank, text in enumerate(texts)]
    causes = slowness.weigh_causes(
        ranks, ranks, {os.getpid(): []}, slowness.Phases(ProcessSource(os.getpid())), lambda one, look: False
    )
    assert next((cause.kind for cause in causes if cause.is_slow), None) == wanted


@pytest.mark.parametrize(
    ("line", "is_before", "validates"), [(6, True, False), (8, False, False), (12, False, True), (13, False, False)]
)
def test_a_line_is_before_the_loop_that_trains_or_validates(
    tmp_path: Path, line: int, is_before: bool, validates: bool
) -> None:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    source = ProcessSource(os.getpid())
    assert source.is_before_training(str(file), line) == is_before
    assert source.validates_at(str(file), line, "main") == validates
