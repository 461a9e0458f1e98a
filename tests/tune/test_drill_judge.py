"""The judge of a drill on runs that are made up: what each restart shows, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hotloop.change.tune.drill_judge import (
    Interrupted,
    Undisturbed,
    compare_losses,
    describe_undisturbed,
    find_interval,
    find_resumption,
    judge_moment,
    judge_signal,
)
from hotloop.change.tune.rehearsal import ObservedRun, ObservedSpan

S = 10**9
LOSSES = tuple(1.0 / (1 + step) for step in range(40))


def span(step: int, seconds: float | None = 0.5) -> ObservedSpan:
    begin_ns = step * S + S // 4
    end_ns = None if seconds is None else begin_ns + round(seconds * S)
    return ObservedSpan(begin_ns=begin_ns, end_ns=end_ns, step=step, mark="save", number=step)


def observe(losses: tuple[float | None, ...], **more: object) -> ObservedRun:
    run = ObservedRun(
        how="exited", exit_code=0, ended_ns=(len(losses) + 1) * S, losses=losses,
        step_ns=tuple((step + 1) * S for step in range(len(losses))),
    )  # fmt: skip
    return replace(run, **more)  # type: ignore[arg-type]


def cut(done: int, saves: tuple[ObservedSpan, ...] = (), **more: object) -> ObservedRun:
    """The first run of a pair, ended by a signal after so many steps."""
    known = {"exit_code": 143, "sent_ns": done * S + S // 2, "ended_ns": done * S + S, "saves": saves}
    return observe(LOSSES[:done], **{**known, **more})


def whole(saves: tuple[int, ...] = (10, 20, 30), repeats: str = "exact", band: float = 0.0) -> Undisturbed:
    run = observe(LOSSES, saves=tuple(span(step) for step in saves))
    return Undisturbed(run=run, repeats=repeats, band_ratio=band, interval=find_interval(run), grace_s=30.0)


def other(losses: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(loss * 1.037 for loss in losses)


SAVED = (span(10), span(20))
RESTARTS = {
    "resumes at the last save": (whole(), cut(25, SAVED), observe(LOSSES[20:]), "pass", "step 20, 5 lost"),
    "saves at the signal": (whole(()), cut(25, (span(25, 0.4),)), observe(LOSSES[25:]), "pass", "0 lost"),
    "starts again": (whole(), cut(25, SAVED), observe(LOSSES), "fail", "although there is a checkpoint: all 25"),
    "never saved": (whole(()), cut(25), observe(LOSSES), "fail", "nothing had been saved"),
    "warm-up of one that never saves": (whole(()), cut(0), observe(LOSSES), "pass", "0 lost"),
    "loses two intervals": (whole(), cut(25, SAVED), observe(LOSSES[5:]), "fail", "at most 10"),
    "forgets the optimizer": (
        whole(), cut(25, SAVED), observe(LOSSES[20:21] + other(LOSSES[21:])), "fail", "the optimizer",
    ),
    "other data": (whole(), cut(25, SAVED), observe(other(LOSSES[20:])), "fail", "the data differs"),
    "other seed": (whole(), cut(25, SAVED), observe(other(LOSSES)), "fail", "nothing was restored"),
    "crashes": (whole(), cut(25, SAVED), observe((), exit_code=1, last_line="EOFError"), "fail", "EOFError"),
    "trains nothing": (whole(), cut(25, SAVED), observe(()), "fail", "did not train"),
    "trains beyond the end": (
        whole(), cut(25, SAVED), observe((*LOSSES[20:], 0.1, 0.1)), "fail", "trained to step 42",
    ),
    "near losses": (
        whole(repeats="near", band=1e-3), cut(25, SAVED), observe(tuple(x * 1.0001 for x in LOSSES[20:])), "pass",
        "step 20",
    ),
    "counted": (whole(repeats="not"), cut(25, SAVED), observe(other(LOSSES[20:])), "pass", "step 20"),
    "counted from the start": (whole(repeats="not"), cut(25, SAVED), observe(other(LOSSES)), "fail", "beginning"),
    "counter without parameters": (
        whole(repeats="not"), cut(25, SAVED), observe(other(LOSSES[:20])), "fail", "no parameters",
    ),
    "no end to count to": (
        whole(repeats="not"), cut(25, SAVED), observe(other(LOSSES[20:30]), how="stopped", exit_code=None),
        "cannot tell", "could not be counted",
    ),
    "ignores SIGTERM": (
        whole(), cut(25, SAVED, how="overdue", exit_code=None), observe(LOSSES[20:]), "fail", "still running 30 s",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RESTARTS)
def test_what_a_restart_shows(name: str) -> None:
    undisturbed, first, again, verdict, said = RESTARTS[name]
    moment = judge_moment(undisturbed, Interrupted(signal="TERM", first=first, again=again))
    assert moment.verdict == verdict, moment.reasons
    assert said in moment.reasons[0]


def test_a_notice_after_which_it_saves_and_goes_on_is_survived() -> None:
    first = cut(25, (*SAVED, span(25)), how="overdue", exit_code=None)
    pair = Interrupted(signal="USR1", first=first, again=observe(LOSSES[25:]))
    moment = judge_moment(whole(), pair)
    assert (moment.verdict, moment.saved, moment.save_s) == ("pass", True, 0.5)
    assert judge_moment(whole(), replace(pair, signal="TERM")).verdict == "fail"


def test_torn_files_matter_where_the_restart_does_not_cope() -> None:
    pair = Interrupted(
        signal="KILL", first=cut(25, SAVED), again=observe(LOSSES[20:]), torn=("a.pt",), left_over=("b",)
    )
    moment = judge_moment(whole(), pair)
    assert moment.verdict == "pass"
    assert moment.notes == ("a.pt cannot be read; the restart continued without them", "left over: b")
    crashed = replace(pair, again=observe((), exit_code=1, last_line="EOFError"))
    assert judge_moment(whole(), crashed).verdict == "fail"


def test_nothing_is_held_against_a_cut_run_that_was_not_seen_to_save() -> None:
    seen = whole(())
    seen = replace(seen, run=replace(seen.run, how="timeout", exit_code=None))
    again = observe(LOSSES[:30], how="stopped", exit_code=None)
    assert judge_moment(seen, Interrupted(signal="KILL", first=cut(25), again=again)).verdict == "cannot tell"


def test_the_worst_moment_decides_and_a_missed_one_leaves_it_open() -> None:
    good = judge_moment(whole(), Interrupted(signal="TERM", first=cut(25, SAVED), again=observe(LOSSES[20:])))
    bad = judge_moment(whole(), Interrupted(signal="TERM", first=cut(25, SAVED), again=observe(LOSSES)))
    judged = judge_signal("TERM", [good, bad])
    assert (judged.verdict, judged.steps_lost) == ("fail", 25)
    assert judge_signal("TERM", [good]).verdict == "pass"
    assert judge_signal("TERM", [good], missed=["save"]).verdict == "cannot tell"
    assert judge_signal("TERM", []).verdict == "cannot tell"


def test_equal_losses_are_told_apart_by_their_number() -> None:
    flat = observe((0.5,) * 40)
    undisturbed = replace(whole(), run=flat)
    assert find_resumption(undisturbed, observe((0.5,) * 20), 25).step == 20


def test_how_losses_repeat_is_learned_from_the_steps_before_the_signal() -> None:
    run = observe(LOSSES, saves=(span(10), span(40)))
    pair = Interrupted(signal="TERM", first=cut(25, SAVED), again=observe(LOSSES[20:]))
    described = describe_undisturbed(run, [pair], 30.0)
    assert (described.repeats, described.interval) == ("exact", 10)  # a save at the end is no interval
    assert compare_losses([(1.0, 1.0001)] * 5)[0] == "near"
    assert compare_losses([(None, None)] * 5)[0] == "not"


def test_saves_that_are_irregular_may_be_rarer_than_seen() -> None:
    assert find_interval(observe(LOSSES, saves=(span(10), span(16)))) == 15
    assert find_interval(observe(LOSSES)) is None
