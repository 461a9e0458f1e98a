"""What a command starts: launcher, script, processes, nodes, addresses."""

from __future__ import annotations

import shlex

import pytest

from hotloop.judge.lint.launch_lines import read_launch


@pytest.mark.parametrize(
    ("command", "launcher", "script", "processes", "nodes", "address", "step"),
    [
        ("torchrun --nproc_per_node=8 train.py --lr 1", "torchrun", "train.py", 8, None, "", ""),
        ("python3 -u -m torch.distributed.run --nnodes 2 -m a.b", "torchrun", "a.b", None, 2, "", ""),
        ("python -m torch.distributed.launch --nproc-per-node gpu t.py", "torchrun", "t.py", None, None, "", ""),
        ("torchrun --standalone --nnodes 1:4 t.py", "torchrun", "t.py", None, 1, "", ""),
        ("srun -N 2 -n2 -l env A=1 torchrun --rdzv_endpoint=h:29500 t.py",
         "torchrun", "t.py", None, None, "h:29500", "srun"),
        ("accelerate launch --multi_gpu --num_processes 16 --num_machines 2 --main_process_ip h t.py",
         "accelerate", "t.py", 8, 2, "h", ""),
        ("deepspeed --num_gpus 4 --num_nodes 2 --master_addr h t.py -m x", "deepspeed", "t.py", 4, 2, "h", ""),
        ("OMP_NUM_THREADS=4 numactl -N 0 python -u -W ignore t.py", "python", "t.py", None, None, "", ""),
        ("mpirun -np 8 -x A --mca btl tcp python t.py", "python", "t.py", None, None, "", "mpirun"),
        ("singularity exec --nv image.sif python -m package.train", "python", "package.train", None, None, "", ""),
        ("timeout --signal=TERM 23h ./train.py", "python", "./train.py", None, None, "", ""),
    ],
)  # fmt: skip
def test_what_a_command_starts(
    command: str, launcher: str, script: str, processes: int | None, nodes: int | None, address: str, step: str
) -> None:
    line = read_launch(shlex.split(command))
    assert line is not None
    assert (line.launcher, line.script, line.processes_per_node, line.nodes) == (launcher, script, processes, nodes)
    assert (line.address, line.step) == (address, step)


@pytest.mark.parametrize(
    "command", ["", "python", "python -c 'print()'", "srun hostname", "accelerate config", "env A=1"]
)
def test_what_starts_no_script(command: str) -> None:
    assert read_launch(shlex.split(command)) is None


def test_what_stands_around_a_launcher() -> None:
    line = read_launch(shlex.split("srun -c 8 --mpi=none A=1 torchrun --nproc-per-node=$N t.py --out '$OUT'"))
    assert line is not None
    assert (line.step_options, line.variables) == ({"cpus-per-task": "8", "mpi": "none"}, {"A": "1"})
    assert line.arguments == ("--out", "$OUT")
