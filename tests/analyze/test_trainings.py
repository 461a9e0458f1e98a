import pytest

from hotloop.evidence.analyze.trainings import analyze_run

from .synthetic import FakeRecording, Rows, recording, steps


def plain(count: int = 50, **fields: int) -> Rows:
    rows = steps([fields] * count)
    return rows


def ranks_of(world_size: int, first_pid: int = 100, count: int = 50, **process) -> list[FakeRecording]:
    return [
        recording(plain(count), rank=r, local_rank=r, world_size=world_size, pid=first_pid + r, **process)
        for r in range(world_size)
    ]


def test_ranks_of_one_launch_are_one_training_sorted_by_rank():
    assert analyze_run([recording(Rows())]) == ()
    (training,) = analyze_run([*reversed(ranks_of(4)), recording(Rows(), pid=7)])
    assert [r.rank for r in training.analysis.ranks] == [0, 1, 2, 3]
    assert training.analysis.units_per_step == 64.0
    assert training.health == ()


def test_two_trainings_one_after_the_other_are_two_the_largest_first():
    first = recording(plain(30), pid=1, anchor_wall_s=1000.0)
    second = recording(plain(90), pid=2, anchor_wall_s=2000.0)
    assert [t.analysis.lead.steps for t in analyze_run([first, second])] == [90, 30]


def test_two_launches_of_several_ranks_stay_apart():
    trainings = analyze_run([*ranks_of(2, 100), *ranks_of(2, 200, 80, anchor_wall_s=5000.0)])
    assert [[r.pid for r in t.analysis.ranks] for t in trainings] == [[200, 201], [100, 101]]


def test_two_launches_at_the_same_time_are_told_by_their_launcher():
    a, b = ranks_of(2, 100, ppid=10), ranks_of(2, 200, ppid=20)
    trainings = analyze_run([a[0], b[0], b[1], a[1]])
    assert sorted([r.pid for r in t.analysis.ranks] for t in trainings) == [[100, 101], [200, 201]]


def apart(first_pid: int, anchor_wall_s: float, restart: int) -> list[FakeRecording]:
    """Two ranks of torchrun that never wait for each other: one begins its few steps when the other has ended."""
    found = []
    for rank in (0, 1):
        rows = Rows(clock_ns=rank * 1_000_000_000)
        for _ in range(20):
            rows.step()
        launch = {"anchor_wall_s": anchor_wall_s, "restart": restart, "ppid": 9, "run_id": "job"}
        found.append(recording(rows, rank=rank, local_rank=rank, world_size=2, pid=first_pid + rank, **launch))
    return found


def test_ranks_that_train_one_after_the_other_are_of_one_attempt():
    (training,) = analyze_run([*apart(100, 1000.0, 0), *apart(200, 1010.0, 1)])
    assert [(r.rank, r.pid) for r in training.analysis.ranks] == [(0, 200), (1, 201)]
    assert [one.ranks_count for one in training.attempts] == [2, 2]


def test_the_newest_restart_counts_and_health_tells_of_the_earlier_ones():
    attempts = [
        *ranks_of(2, 100, 40),
        *ranks_of(2, 200, 10, restart=1, anchor_wall_s=2000.0),
        *ranks_of(2, 300, 20, restart=2, anchor_wall_s=3000.0),
    ]
    (training,) = analyze_run(attempts)
    assert [(r.pid, r.restart) for r in training.analysis.ranks] == [(300, 2), (301, 2)]
    assert any("2 earlier attempts" in h.message for h in training.health)


def test_a_restart_with_another_world_size_is_the_same_training():
    attempts = [*ranks_of(4, 100), *ranks_of(2, 200, restart=1, anchor_wall_s=2000.0)]
    (training,) = analyze_run(attempts)
    assert len(training.analysis.ranks) == 2


def test_hogwild_processes_are_one_training_without_ranks():
    children = [recording(plain(), rank=None, pid=100 + i, ppid=50) for i in range(3)]
    (training,) = analyze_run(children)
    assert [r.rank for r in training.analysis.ranks] == [None, None, None]
    assert (training.analysis.unit, training.analysis.units_per_step) == ("sample", 16.0)


def test_a_parent_that_trains_beside_its_hogwild_children_is_one_of_them():
    children = [recording(plain(), rank=None, pid=100 + i, ppid=50) for i in range(2)]
    (training,) = analyze_run([recording(plain(), rank=0, pid=50), *children])
    assert [r.rank for r in training.analysis.ranks] == [None, None, None]


def test_rankless_processes_one_after_the_other_are_trainings_of_their_own():
    trainings = analyze_run(
        [recording(plain(), rank=None, pid=100 + i, ppid=50, anchor_wall_s=1000.0 + 100 * i) for i in range(2)]
    )
    assert len(trainings) == 2


def test_single_processes_side_by_side_are_trainings_of_their_own():
    assert len(analyze_run([recording(plain(), rank=0, pid=1), recording(plain(), rank=0, pid=2)])) == 2


@pytest.mark.parametrize(
    ("each", "unit", "count"),
    [
        (lambda i: {"tokens": 512}, "token", 512.0),
        (lambda i: {"samples": (1, 10, 100, 1000)[i % 4]}, "step", 1.0),
        (lambda i: {"samples": 3 if i % 20 == 19 else 16}, "sample", pytest.approx(15.35, abs=0.02)),
    ],
)
def test_the_unit_is_what_is_counted_and_does_not_vary(each, unit, count):
    (training,) = analyze_run([recording(steps(each(i) for i in range(100)))])
    assert (training.analysis.unit, training.analysis.units_per_step) == (unit, count)


def test_an_accelerator_is_known_from_where_the_model_lives():
    model = {"kind": "model", "id": 0, "parameters": 5, "device": "cuda:1"}
    (training,) = analyze_run([recording(plain(), model)])
    assert training.analysis.accelerator
    assert training.analysis.lead.device_type == "cuda"


def test_processes_started_by_hand_share_the_cores_of_their_host():
    children = [recording(plain(), rank=None, pid=100 + i, ppid=50, local_world_size=None) for i in range(3)]
    spawned = ranks_of(2, 200, local_world_size=None, host="far")
    found = {
        t.analysis.lead.host: [r.local_world_size for r in t.analysis.ranks] for t in analyze_run(children + spawned)
    }
    assert found == {"box": [3, 3, 3], "far": [2, 2]}
    (training,) = analyze_run(ranks_of(4, local_world_size=4)[:3])
    assert [r.local_world_size for r in training.analysis.ranks] == [4, 4, 4]
    assert any("3 of 4 ranks" in h.message for h in training.health)
