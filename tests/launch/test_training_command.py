"""What a user types -> what runs on each node."""

import pytest

from hotloop.ahead.launch.training_command import read_command
from hotloop.core.errors import UsageError


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("torchrun --nproc-per-node 8 train.py --lr 1", "torchrun train.py --lr 1"),
        ("torchrun --standalone --nnodes=1 --nproc_per_node=gpu -m pkg.train", "torchrun -m pkg.train"),
        ("torchrun --rdzv-backend c10d --rdzv-endpoint h:1 --max-restarts=3 t.py", "torchrun --max-restarts=3 t.py"),
        ("/opt/bin/torchrun --log-dir logs t.py --nnodes 4", "/opt/bin/torchrun --log-dir logs t.py --nnodes 4"),
        ("python train.py --lr 1", "python -m torch.distributed.run train.py --lr 1"),
        (".venv/bin/python3.11 -m pkg.train", ".venv/bin/python3.11 -m torch.distributed.run -m pkg.train"),
        ("python -u train.py", "python -m torch.distributed.run --no-python python -u train.py"),
        ("python -m torch.distributed.run --nnodes 2 t.py", "python -m torch.distributed.run t.py"),
        ("train.py --lr 1", "torchrun train.py --lr 1"),
        ("./start.sh", "torchrun --no-python ./start.sh"),
        (
            "CUDA_VISIBLE_DEVICES=0 A= python t.py B=1",
            "env CUDA_VISIBLE_DEVICES=0 A= python -m torch.distributed.run t.py B=1",
        ),
        ("env A=1 torchrun --nnodes 2 t.py", "env A=1 torchrun t.py"),
        ("env -u A python t.py", "torchrun --no-python env -u A python t.py"),
        ("A=1 hotloop run -- B=2 torchrun t.py", "env A=1 B=2 hotloop run -- torchrun t.py"),
        ("./a=b.sh", "torchrun --no-python ./a=b.sh"),
        (
            "hotloop run --live -- torchrun --nproc-per-node 2 t.py",
            "hotloop run --live -- torchrun t.py",
        ),
    ],
)
def test_the_layout_is_left_to_the_launcher(typed: str, words: str) -> None:
    assert read_command(typed.split()).words == tuple(words.split())


def test_a_strategy_puts_hotloop_in_front() -> None:
    command = read_command(["python", "t.py"], "fast.toml")

    assert command.words[:5] == ("hotloop", "run", "--strategy", "fast.toml", "--")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no training command"),
        (["A=1"], "no training command"),
        (["env", "A=1"], "no training command"),
        (["PET_NNODES=3", "python", "t.py"], "PET_NNODES=3: the launcher itself sets this variable"),
        (["accelerate", "launch", "t.py"], "accelerate starts ranks"),
        (["torchrun", "--nproc-per-nod", "8", "t.py"], "did you mean 'nproc-per-node'"),
        (["torchrun", "--max-restarts"], "--max-restarts needs a value"),
        (["torchrun", "--nnodes", "2"], "torchrun without a script"),
        (["python"], "python without a script"),
        (["hotloop", "tune", "--", "python", "t.py"], "hotloop tune cannot be launched"),
        (["hotloop", "run", "python", "t.py"], "needs -- before the training command"),
        (["hotloop", "run", "--name=a", "--", "python", "t.py"], "remove --name"),
        (["python", "t.py", "\udcff"], "not UTF-8 text"),
    ],
)
def test_what_makes_no_sense_is_one_error(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_command(words)
