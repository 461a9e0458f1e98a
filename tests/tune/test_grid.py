"""Declared grids: what a file may say, how the command is started, and what is told of every configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotloop.change.apply import TECHNIQUES, check_strategy
from hotloop.change.tune.matrix import (
    Configuration,
    GridError,
    change_command,
    declare_candidates,
    load_matrix,
    measure_declared,
    parse_grid,
)
from hotloop.change.tune.trials import OOM, Ran
from hotloop.change.tune.tuner import BaselineFailed, Campaign, describe_reference
from hotloop.core.applied import AppliedTechnique
from hotloop.core.findings import Numerics
from hotloop.core.measurement import Measurement
from hotloop.core.strategy import Strategy
from hotloop.core.tuning import Trial, TrialVerdict
from tests.tune.records import LOSSES, Machine, best_id, failed, measurement, ok, trials_of
from tests.tune.records import applied as record_of

HEAD = 'schema = "hotloop.matrix/1"\n'
TWO = HEAD + '[[configuration]]\nname = "a"\n[[configuration]]\nname = "b"\n'


def check(strategy: Strategy) -> Strategy:
    return check_strategy(strategy, TECHNIQUES)


def parse(text: str) -> tuple[Configuration, ...]:
    return parse_grid(text, check, source="m.toml")


# -- the file ----------------------------------------------------------------------------------------------------------


def test_a_grid_keeps_its_order_and_everything_that_it_says() -> None:
    first, second = parse(
        TWO
        + """
        ranks = 2
        arguments = ["--batch-size", "8"]
        variables = {OMP_NUM_THREADS = "1"}
        numerics = "reordered"
        [configuration.techniques.bf16-autocast]
        [configuration.techniques.loader-workers]
        num_workers = 2
        """
    )
    assert (first.name, first.launch, bool(first.strategy)) == ("a", {}, False)
    assert second.strategy.name == "b"
    assert [choice.technique for choice in second.strategy.choices] == ["bf16-autocast", "loader-workers"]
    assert second.launch == {
        "ranks": 2,
        "arguments": ["--batch-size", "8"],
        "variables": {"OMP_NUM_THREADS": "1"},
    }
    assert second.numerics is Numerics.REORDERED


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[configuration", "not TOML"),
        ('schema = "x"', "the first line must be"),
        (HEAD + "configurations = []", "unknown key 'configurations'; did you mean 'configuration'?"),
        (HEAD + "configuration = 3", "configuration is 3; write [[configuration]] tables"),
        (HEAD + '[[configuration]]\nname = "a"', "1 configurations; write 2 to 64"),
        (HEAD + "[[configuration]]\n[[configuration]]\n", "configuration 1: name is 'None'"),
        (TWO + 'technique = "x"', "configuration 2 (b): unknown key 'technique'; did you mean 'techniques'?"),
        (TWO + '[[configuration]]\nname = "a"', "configuration 3: the name 'a' is already used"),
        (TWO + '[[configuration]]\nname = "baseline"', "only the first one may be called"),
        (TWO + '[[configuration]]\nname = "a\\u001b[31m"', "write a name of 1 to 60 printable characters"),
        (TWO + "ranks = 0", "configuration 2 (b): Expected `int` >= 1 - at `$.ranks`"),
        (TWO + "ranks = true", "got `bool` - at `$.ranks`"),
        (TWO + 'arguments = "--x"', "got `str` - at `$.arguments`"),
        (TWO + "variables = {A = 1}", "got `int` - at `$.variables[...]`"),
        (TWO + 'variables = {"A B" = "1"}', "at `key` in `$.variables`"),
        (TWO + 'variables = {HOTLOOP_FOLDER = "1"}', "hotloop sets it to load itself"),
        (TWO + 'numerics = "fine"', "Invalid enum value 'fine' - at `$.numerics`"),
        (TWO + "techniques = 3", "configuration 2 (b): Expected `object`, got `int` - at `$.techniques`"),
        (TWO + "[configuration.techniques.bf16]", "unknown technique 'bf16'"),
        (TWO + "[configuration.techniques.accumulation]\nmicro_batches = 0", "micro_batches is 0: the minimum is 1"),
        (
            TWO + "[configuration.techniques.fsdp2]\n[configuration.techniques.zero-optimizer]",
            "fsdp2 and zero-optimizer conflict",
        ),
    ],
)
def test_a_wrong_grid_is_one_line_that_names_the_key(text: str, said: str) -> None:
    with pytest.raises(GridError) as caught:
        parse(text)
    assert said in str(caught.value)
    assert str(caught.value).startswith("m.toml: ")
    assert "\n" not in str(caught.value).removeprefix("m.toml: not TOML")


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GridError, match="cannot read the matrix"):
        load_matrix(str(tmp_path / "none.toml"), check)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(GridError, match="not UTF-8"):
        load_matrix(str(tmp_path / "binary.toml"), check)


def test_the_preset_is_valid() -> None:
    rows = load_matrix("preset", check)
    assert [check(one.strategy).name for one in rows] == ["baseline", "bf16", "bf16 + accumulation", "fsdp2", "zero-1"]


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("torchrun t.py --nproc-per-node 9", "torchrun --nproc-per-node 4 t.py --nproc-per-node 9"),
        ("torchrun --nproc_per_node 2 t.py", "torchrun --nproc_per_node 4 t.py"),
        (
            "/usr/bin/torchrun --standalone --nproc-per-node=2 -m a.b",
            "/usr/bin/torchrun --standalone --nproc-per-node=4 -m a.b",
        ),
        (
            "python -m torch.distributed.run --nnodes 1 t.py",
            "python -m torch.distributed.run --nproc-per-node 4 --nnodes 1 t.py",
        ),
        ("accelerate launch --num_processes 2 t.py", "accelerate launch --num_processes 4 t.py"),
        ("accelerate launch t.py", "accelerate launch --num_processes 4 t.py"),
    ],
)
def test_ranks_are_set_where_the_launcher_reads_them(words: str, expected: str) -> None:
    assert change_command(words.split(), Configuration(name="a", ranks=4)) == (tuple(expected.split()), "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("python t.py torchrun", "no launcher"),
        ("accelerate config", "no launcher"),
        ("torchrun --nnodes=2 --nproc-per-node 2 t.py", "spans 2 nodes"),
    ],
)
def test_a_command_whose_ranks_cannot_be_set_stays_as_it_is(words: str, said: str) -> None:
    command, why_not = change_command(words.split(), Configuration(name="a", ranks=4, arguments=("--x",)))
    assert command == tuple(words.split())
    assert said in why_not


def test_arguments_follow_the_command() -> None:
    command, why_not = change_command(("python", "t.py"), Configuration(name="a", arguments=("--lr", "1")))
    assert (command, why_not) == (("python", "t.py", "--lr", "1"), "")


# -- what is told ------------------------------------------------------------------------------------------------------


def row(step_ns: float = 1e6, **changes: Any) -> Measurement:
    return replace(measurement(step_ns, rank_peak_bytes=1000, rank_count=1, exchanges=False), **changes)


class Rows(Machine):
    """Answers each configuration with a measurement of its own, times a little noise."""

    def __init__(self, answers: Mapping[str | None, Ran]) -> None:
        super().__init__()
        self.answers, self.names = answers, list[str | None]()

    def run(self, strategy: Strategy, number: int) -> Ran:
        self.now_s += 10.0
        self.names.append(strategy.name)
        ran = self.answers[strategy.name]
        if ran.measured is None:
            return ran
        return ok(replace(ran.measured, step_ns=ran.measured.step_ns * self.random.lognormvariate(0, 0.01)))


def measure(
    text: str, answers: Mapping[str | None, Ran], observed: Measurement | None = None
) -> tuple[Campaign, dict[str, Trial], Rows]:
    rows = parse(text)
    machine = Rows(answers)
    campaign = machine.campaign(check=check)
    measure_declared(campaign, declare_candidates(rows, dict(TECHNIQUES.items())), rows, [observed or row()])
    return campaign, trials_of(campaign), machine


def rows_of(*rows: str) -> str:
    return HEAD + '[[configuration]]\nname = "first"\n' + "".join(f"[[configuration]]\n{row}\n" for row in rows)


def applied(technique: str, status: str, detail: str = "", numerics: str = "lossy") -> tuple[AppliedTechnique, ...]:
    return (record_of(technique, status, detail, numerics),)


def test_every_configuration_ends_with_a_verdict_of_its_own() -> None:
    text = rows_of(
        'name = "bf16"\ntechniques.bf16-autocast = {}',
        'name = "fsdp2"\ntechniques.fsdp2 = {}',
        'name = "full"\ntechniques.gc-freeze = {}',
        'name = "same"',
    )
    campaign, found, machine = measure(
        text,
        {
            None: ok(row()),
            "bf16": ok(row(5e5, applied=applied("bf16-autocast", "applied"))),
            "fsdp2": ok(row(applied=applied("fsdp2", "not applicable", "held by the optimizer"))),
            "full": failed(OOM),
            "same": ok(row()),
        },
    )
    assert {name: trial.verdict for name, trial in found.items()} == {
        "bf16": TrialVerdict.FASTER,
        "fsdp2": TrialVerdict.NOT_APPLICABLE,
        "full": TrialVerdict.FAILED,
        "same": TrialVerdict.CANNOT_TELL,
    }
    assert (found["fsdp2"].speedup_ratio, found["fsdp2"].n) == (None, 0)
    assert machine.names.count("fsdp2") == 1
    assert found["bf16"].speedup_ratio == pytest.approx(2.0, rel=0.05)
    assert found["bf16"].measured["samples_per_s"] == pytest.approx(16e3, rel=0.05)
    reference = describe_reference(campaign, "first")
    assert reference is not None
    assert reference.measured["samples_per_s"] == pytest.approx(8e3, rel=0.05)
    assert best_id(campaign) == "bf16"


def test_nothing_is_left_out_of_a_grid_because_others_promise_more() -> None:
    names = [f"r{i}" for i in range(6)]
    answers: dict[str | None, Ran] = {name: ok(row()) for name in names}
    _, found, machine = measure(rows_of(*(f'name = "{name}"' for name in names)), {None: ok(row()), **answers})
    assert min(machine.names.count(name) for name in names) >= 4
    assert not any("left out" in trial.reason for trial in found.values())


def test_ranks_that_do_not_exchange_are_no_speed_up() -> None:
    text = rows_of('name = "two"\nranks = 2', 'name = "ddp"\nranks = 2', 'name = "one"\nranks = 2')
    _, found, _ = measure(
        text,
        {
            None: ok(row()),
            "two": ok(row(samples_per_step=16.0, rank_count=2)),
            "ddp": ok(row(samples_per_step=16.0, rank_count=2, exchanges=True)),
            "one": ok(row(rank_count=1)),
        },
    )
    assert found["two"].verdict is TrialVerdict.CANNOT_TELL
    assert found["two"].speedup_ratio is None
    assert found["ddp"].verdict is TrialVerdict.FASTER
    assert found["ddp"].unit == "sample"


def test_steps_whose_size_is_unknown_are_not_compared() -> None:
    text = rows_of('name = "half"\narguments = ["--batch-size", "4"]', 'name = "same"')
    unseen = row(samples_per_step=None)
    _, found, machine = measure(text, {None: ok(unseen), "same": ok(unseen)}, observed=unseen)
    assert found["half"].verdict is TrialVerdict.CANNOT_TELL
    assert "half" not in machine.names
    assert found["same"].speedup_ratio is not None


def test_another_launch_widens_the_class_of_the_numbers_unless_the_grid_says_better() -> None:
    plain, told, threads = declare_candidates(
        parse(
            rows_of(
                'name = "a"\narguments = ["x"]\ntechniques.fused-optimizer = {}',
                'name = "b"\narguments = ["x"]\nnumerics = "exact"',
                'name = "c"\nvariables = {OMP_NUM_THREADS = "2"}',
            )
        ),
        dict(TECHNIQUES.items()),
    )
    assert (plain.numerics, plain.least_numerics) == (Numerics.RESAMPLED, Numerics.RESAMPLED)
    assert told.numerics is Numerics.EXACT
    assert threads.numerics is Numerics.REORDERED
    other = tuple(x + 0.01 for x in LOSSES)
    text = rows_of('name = "b"\narguments = ["x"]\nnumerics = "exact"', 'name = "a"\narguments = ["x"]')
    _, found, _ = measure(
        text,
        {None: ok(row()), "a": ok(row(5e5, losses=other)), "b": ok(row(5e5, losses=other))},
    )
    assert found["b"].verdict is TrialVerdict.REJECTED
    assert "should be exact" in found["b"].reason
    assert found["a"].quality["status"] == "passed"


def test_a_first_configuration_that_fails_is_an_error() -> None:
    with pytest.raises(BaselineFailed, match="oom, why"):
        measure(rows_of('name = "a"'), {None: failed(OOM)})
