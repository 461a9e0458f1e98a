"""The Trainer: the same bits after every kind of stop, the same samples on other ranks, and clear refusals."""

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from hotloop import CheckpointError, Checkpoints, HotloopError, Preempted, Trainer, read_marker
from hotloop.core.strategy import Choice, Strategy

sys.path.insert(0, str(Path(__file__).parent))
from small import Losses, Noisy, make_loader, make_trainer

SCRIPT = Path(__file__).parent / "small.py"


@pytest.fixture(autouse=True)
def _generators() -> Iterator[None]:
    """A fit seeds the process's generators; the other tests keep theirs."""
    kept, python = torch.get_rng_state(), random.getstate()
    yield
    torch.set_rng_state(kept)
    random.setstate(python)


def start_phases(folder: Path, phases: list[list[Any]]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), json.dumps(phases)], cwd=folder, capture_output=True, text=True, timeout=300
    )


def run_phases(folder: Path, phases: list[list[Any]]) -> list[list[dict[str, Any]]]:
    """What each phase's ranks left behind; every phase has to end as it should."""
    ended = start_phases(folder, phases)
    ends = {"stop_at": 75, "kill_at": -9}
    stops = [next((ends[key] for one in phase if (key := str(one).partition("=")[0]) in ends), 0) for phase in phases]
    codes = [json.loads(line) for line in ended.stdout.splitlines()]
    assert codes == [[code] * phase[0] for code, phase in zip(stops, phases, strict=True)], ended.stderr
    return [
        [json.loads((folder / f"{name}.{rank}").read_text()) for rank in range(ranks) if code != -9]
        for code, (ranks, _, name, *_) in zip(stops, phases, strict=True)
    ]


def run_whole(folder: Path, **options: Any) -> dict[int, float]:
    callback = Losses()
    make_trainer(callback, checkpoint=folder, **options).fit(make_loader(), epochs=3)
    return callback.losses


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("stop_at", [1, 11, 16])
def test_a_signal_saves_this_step_and_the_next_run_continues_with_the_same_bits(
    tmp_path: Path, stop_at: int, number: int
) -> None:
    whole = run_whole(tmp_path / "whole")
    first, second = Losses(stop_at, number), Losses()
    before = signal.getsignal(number)
    with pytest.raises(Preempted) as raised:
        make_trainer(first, checkpoint=tmp_path / "cut").fit(make_loader(), make_loader(9), epochs=3)
    assert (raised.value.code, raised.value.step, raised.value.signal_number) == (75, stop_at, number)
    assert signal.getsignal(number) is before
    marker = read_marker(tmp_path / "cut")
    assert marker is not None
    assert (marker["step"], marker["checkpoint"]) == (stop_at, f"step-{stop_at:08d}")
    random.seed(99)
    torch.manual_seed(99)
    result = make_trainer(second, checkpoint=tmp_path / "cut").fit(make_loader(), make_loader(9), epochs=3)
    assert result.resumed_from == tmp_path / "cut" / f"step-{stop_at:08d}"
    assert read_marker(tmp_path / "cut") is None
    assert first.losses | second.losses == whole
    assert not set(first.losses) & set(second.losses)


def test_a_loader_of_its_own_order_continues_too(tmp_path: Path) -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            data = Noisy(40)
            data.noise = 0.1
            yield from (data[i] for i in torch.randperm(40).tolist())

    def train(callback: Losses, folder: Path) -> None:
        make_trainer(callback, checkpoint=folder).fit(DataLoader(Stream(), batch_size=4), epochs=3)

    whole, first, second = Losses(), Losses(13), Losses()
    train(whole, tmp_path / "whole")
    with pytest.raises(Preempted):
        train(first, tmp_path / "cut")
    train(second, tmp_path / "cut")
    assert first.losses | second.losses == whole.losses


def test_accumulation_takes_the_same_steps_as_one_batch(tmp_path: Path) -> None:
    one, two = Losses(), Losses()
    make_trainer(one, dropout=0.0).fit(make_loader(45, 8, noise=0.0), epochs=2)
    make_trainer(two, dropout=0.0, accumulate=2).fit(make_loader(45, 4, noise=0.0), epochs=2)
    assert {step: sorted(samples) for step, samples in one.samples.items()} == {
        step: sorted(samples) for step, samples in two.samples.items()
    }
    assert len(one.samples[6]) == 5
    for step, loss in one.losses.items():
        assert two.losses[step] == pytest.approx(loss, rel=1e-4)


def test_a_batch_in_parts_takes_the_same_steps_as_a_whole_one(tmp_path: Path) -> None:
    strategy = Strategy(choices=(Choice(technique="accumulation", settings={"micro_batches": 3}),))
    one, two = Losses(), Losses()
    make_trainer(one, dropout=0.0).fit(make_loader(45, 8, noise=0.0), epochs=2)
    make_trainer(two, dropout=0.0, strategy=strategy).fit(make_loader(45, 8, noise=0.0), epochs=2)
    assert len(two.losses) == len(one.losses) == 12
    for step, loss in one.losses.items():
        assert two.losses[step] == pytest.approx(loss, rel=1e-4)


def test_two_ranks_then_one_then_two_take_the_same_samples(tmp_path: Path) -> None:
    whole, *parts = run_phases(
        tmp_path,
        [
            [2, "whole", "whole"],
            [2, "cut", "a", "max_steps=4"],
            [1, "cut", "b", "max_steps=9"],
            [2, "cut", "c"],
        ],
    )
    seen, losses = {}, {}
    for part in parts:
        for step in part[0]["samples"]:
            assert step not in seen
            seen[step] = sorted({sample for rank in part for sample in rank["samples"][step]})
            losses[step] = sum(rank["losses"][step] for rank in part) / len(part)
    assert seen == {
        step: sorted({sample for rank in whole for sample in rank["samples"][step]}) for step in whole[0]["samples"]
    }
    for step, loss in losses.items():
        assert loss == pytest.approx(sum(rank["losses"][step] for rank in whole) / 2, rel=1e-4)
    for rank in (0, 1):  # at equal world size: the same bits
        assert parts[0][rank]["losses"] == {step: whole[rank]["losses"][step] for step in parts[0][rank]["losses"]}


def test_a_sharded_model_resumes_with_equal_bits_and_on_other_ranks(tmp_path: Path) -> None:
    """Trains as copied models do; resumed on as many ranks to the bit, then on one, and on two again."""
    copied, whole, *parts = run_phases(
        tmp_path,
        [
            [2, "copied", "copied", "technique=", "accumulate=2"],
            [2, "whole", "whole", "technique=fsdp2", "accumulate=2"],
            [2, "cut", "a", "technique=fsdp2", "accumulate=2", "stop_at=4"],
            [2, "cut", "b", "technique=fsdp2", "accumulate=2", "max_steps=7"],
            [1, "cut", "c", "technique=fsdp2", "accumulate=4", "max_steps=10"],
            [2, "cut", "d", "technique=fsdp2", "accumulate=2"],
        ],
    )
    assert sum(rank["parameters_count"] for rank in whole) == copied[0]["parameters_count"]
    assert max(rank["parameters_count"] for rank in whole) < 0.6 * copied[0]["parameters_count"]
    mean = {step: sum(rank["losses"][step] for rank in whole) / 2 for step in whole[0]["losses"]}
    assert mean == pytest.approx(
        {step: sum(rank["losses"][step] for rank in copied) / 2 for step in copied[0]["losses"]}, rel=1e-4
    )
    for part in parts[:2]:  # the same ranks: the same bits
        for rank in (0, 1):
            assert part[rank]["losses"] == {step: whole[rank]["losses"][step] for step in part[rank]["losses"]}
    steps = [step for part in parts for step in part[0]["losses"]]
    assert sorted(steps, key=int) == list(mean)
    for part in parts[2:]:
        for step in part[0]["losses"]:
            assert sum(rank["losses"][step] for rank in part) / len(part) == pytest.approx(mean[step], rel=1e-4)
            assert {s for rank in part for s in rank["samples"][step]} == {
                s for rank in whole for s in rank["samples"][step]
            }


def test_ranks_that_cannot_share_out_the_model_are_refused(tmp_path: Path) -> None:
    phases = [[2, "none", "none", "technique=fsdp2", "cpu_offload=1"]]
    ended = start_phases(tmp_path, phases)
    assert ended.stdout.split() == ["[1,", "1]"]
    assert not (tmp_path / "none").exists()  # and not trained on each rank apart


def test_an_optimizer_shared_out_over_ranks_is_saved_whole_and_resumed_on_one_too(tmp_path: Path) -> None:
    sharded = ("technique=zero-optimizer", "accumulate=2")
    whole, first, second, alone = run_phases(
        tmp_path,
        [
            [2, "whole", "whole", *sharded],
            [2, "cut", "a", *sharded, "stop_at=4"],
            [2, "cut", "b", *sharded, "max_steps=7"],
            [1, "cut", "c", "technique=", "accumulate=4", "max_steps=10"],
        ],
    )
    for part in (first, second):
        for rank in (0, 1):
            assert part[rank]["losses"] == {step: whole[rank]["losses"][step] for step in part[rank]["losses"]}
    for step, loss in alone[0]["losses"].items():
        assert loss == pytest.approx(sum(rank["losses"][step] for rank in whole) / 2, rel=1e-4)


def test_running_statistics_are_those_of_an_uninterrupted_training(tmp_path: Path) -> None:
    whole, _, rest = run_phases(
        tmp_path, [[2, "whole", "whole", "norm=1"], [2, "cut", "a", "norm=1", "stop_at=4"], [2, "cut", "b", "norm=1"]]
    )
    for rank in (0, 1):
        assert rest[rank]["buffers"] == whole[rank]["buffers"]


def test_a_signal_for_every_process_leaves_the_workers_alive(tmp_path: Path) -> None:
    """As Slurm sends it: to the rank and to each of its loader workers."""
    whole, first, rest = run_phases(
        tmp_path,
        [
            [2, "whole", "whole"],
            [2, "cut", "a", "workers=2", "stop_at=5"],
            [2, "cut", "b", "workers=2"],
        ],
    )
    for rank in (0, 1):
        assert first[rank]["losses"] | rest[rank]["losses"] == whole[rank]["losses"]


def test_the_smaller_last_step_of_a_sharded_model_has_as_many_parts_on_every_rank(tmp_path: Path) -> None:
    plain, parts = run_phases(
        tmp_path,
        [
            [2, "plain", "plain", "technique=fsdp2", "count=11"],
            [2, "parts", "parts", "technique=fsdp2", "count=11", "parts=2"],
        ],
    )
    for rank in (0, 1):
        assert parts[rank]["losses"] == pytest.approx(plain[rank]["losses"], rel=1e-4)


def test_going_back_to_an_older_checkpoint_needs_a_folder_of_its_own(tmp_path: Path) -> None:
    kept = Checkpoints(folder=tmp_path, every_steps=3)
    make_trainer(Losses(), checkpoint=kept).fit(make_loader(), epochs=1)
    before = sorted(path.name for path in tmp_path.iterdir())
    back = Checkpoints(folder=tmp_path, every_steps=3, resume=tmp_path / "step-00000006")
    with pytest.raises(
        CheckpointError, match=r"holds step-00000011, which is later than .*step-00000006 and would be mixed .* another"
    ):
        make_trainer(Losses(), checkpoint=back).fit(make_loader(), epochs=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    elsewhere = Checkpoints(folder=tmp_path / "again", every_steps=3, resume=tmp_path / "step-00000006")
    result = make_trainer(Losses(), checkpoint=elsewhere).fit(make_loader(), epochs=1)
    assert (result.resumed_from, result.steps_count) == (tmp_path / "step-00000006", 11)


def test_a_damaged_newest_checkpoint_costs_no_whole_one(tmp_path: Path) -> None:
    kept = Checkpoints(folder=tmp_path, every_steps=3, keep=1)
    make_trainer(Losses(), checkpoint=kept).fit(make_loader(), epochs=1, max_steps=6)
    (tmp_path / "step-00000099").mkdir()
    with pytest.warns(UserWarning, match="step-00000099"):
        make_trainer(Losses(), checkpoint=kept).fit(make_loader(), epochs=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000011", "step-00000099"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"precision": "int3"}, "precision='int3'"),
        ({"accumulate": 0}, "accumulate=0"),
        ({"clip_norm": -1.0}, "clip_norm=-1.0"),
        ({"checkpoint": Checkpoints(folder="x", keep=0)}, "keep=0"),
        ({"checkpoint": Checkpoints(folder="x", on_error="hope")}, "on_error='hope'"),
        ({"strategy": Strategy(choices=(Choice(technique="fused-optimiser"),))}, "did you mean 'fused-optimizer'"),
        ({"strategy": "missing.toml"}, "missing.toml"),
    ],
)
def test_what_makes_no_sense_is_refused_before_training(options: Any, said: str) -> None:
    with pytest.raises(HotloopError) as raised:
        make_trainer(Losses(), **options)
    assert said in str(raised.value)


def test_another_model_order_or_batch_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    make_trainer(Losses(), checkpoint=tmp_path).fit(make_loader(), epochs=1)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def refuse(loader: Any, said: str, **options: Any) -> Trainer:
        trainer = make_trainer(Losses(), checkpoint=tmp_path, **options)
        with pytest.raises(CheckpointError) as raised:
            trainer.fit(loader, epochs=2)
        assert said in str(raised.value)
        return trainer

    other = refuse(make_loader(), "0.weight has shape [16, 8] and torch.float32 there, [12, 8]", width=12)
    assert other.optimizer.state_dict()["state"] == {}
    refuse(make_loader(), "'seed': 0", seed=1)
    refuse(make_loader(48), "'samples_count': 44")
    refuse(make_loader(batch_size=5), "keep_global_batch=False")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files


def test_a_strategy_is_applied_and_reported(tmp_path: Path) -> None:
    strategy = Strategy(choices=(Choice(technique="fused-optimizer"),))
    trainer = make_trainer(Losses(), strategy=strategy, precision="bf16", checkpoint=tmp_path)
    result = trainer.fit(make_loader(), epochs=1)
    assert {(one.technique, one.status) for one in result.records} == {
        ("bf16-autocast", "applied"),
        ("fused-optimizer", "applied"),
    }
    assert trainer.optimizer.defaults["fused"] is True
    state = json.loads((tmp_path / "step-00000011" / "state.json").read_text())
    assert set(state["strategy"]["techniques"]) == {"bf16-autocast", "fused-optimizer"}


def test_validation_weighs_samples_and_draws_from_nobody(tmp_path: Path) -> None:
    trainer = make_trainer(Losses(), dropout=0.0)
    data = make_loader(10, batch_size=4, noise=0.0)
    kept = torch.get_rng_state()
    loss = trainer.validate(data)
    assert torch.equal(torch.get_rng_state(), kept)
    x = data.dataset.inputs
    with torch.no_grad():
        assert loss == pytest.approx(torch.nn.functional.mse_loss(trainer.model(x).squeeze(1), x.sum(1)).item())
