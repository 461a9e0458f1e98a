"""The sbatch script on two real slurmd: what reaches the ranks, and which jobs are not queued again.

The training is pretended (pretend.py). That a stopped job resumes is benchmarks/slurm_proof.py's, with torch.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotloop.ahead.launch import TARGETS

from .build_request import make_request
from .slurm_cluster import SlurmCluster, lacks_slurm, slurm_cluster
from .test_manifests import HARD

pytestmark = pytest.mark.skipif(lacks_slurm(), reason="two slurmd need root, slurmctld, slurmd and munged")
PRETEND = Path(__file__).with_name("pretend.py")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm") / "cluster") as running:
        yield running


def submit(cluster: SlurmCluster, folder: Path, steps: int, *words: str) -> int:
    request = make_request(
        "torchrun", str(PRETEND), str(folder), str(steps), *words, gpus_per_node=0, processes_per_node=2, cpus=1
    )
    torchrun = folder / "torchrun"
    torchrun.write_text(f'#!/bin/sh\nexec {sys.executable} {PRETEND} torchrun "$@"\n')
    torchrun.chmod(0o755)
    script = folder / "train.sbatch"
    script.write_text(TARGETS["slurm"].write(request).replace('"$node" torchrun ', f'"$node" {torchrun} '))
    return cluster.submit(script)


def wait_for_ranks(folder: Path, what: str) -> None:
    end = time.monotonic() + 30
    while not all((folder / f"{what}.{rank}").exists() for rank in range(4)):
        assert time.monotonic() < end, sorted(one.name for one in folder.iterdir())
        time.sleep(0.05)


def test_every_rank_gets_the_words_as_they_were_typed(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, 1, *HARD)

    assert cluster.wait_for(job, ("COMPLETED", "FAILED"))["JobState"] == "COMPLETED"
    assert all(json.loads((tmp_path / f"words.{rank}").read_text()) == list(HARD) for rank in range(4))


def test_a_training_that_fails_by_itself_is_not_queued_again(cluster: SlurmCluster, tmp_path: Path) -> None:
    request = make_request("torchrun", "--no-python", "false", gpus_per_node=0, processes_per_node=1, cpus=1)
    script = tmp_path / "train.sbatch"
    script.write_text(TARGETS["slurm"].write(request).replace("torchrun --no-python ", ""))
    end = cluster.wait_for(cluster.submit(script), ("COMPLETED", "FAILED"))

    assert (end["JobState"], end["Restarts"]) == ("FAILED", "0")


def test_a_cancelled_job_does_not_come_back(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, 400)
    wait_for_ranks(tmp_path, "started")
    cluster.run("scancel", str(job))
    cluster.wait_for(job, ("CANCELLED",))
    time.sleep(3)
    end = cluster.show(job)

    assert (end["JobState"], end["Restarts"]) == ("CANCELLED", "0")
