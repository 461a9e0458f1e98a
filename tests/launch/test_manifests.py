"""Every manifest fits its table, says what was asked, and hands the command's words on as they were typed."""

import json
import re
import shlex
import shutil
import subprocess
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.ahead.launch import TARGETS
from hotloop.ahead.launch.request import CLOUDS, LaunchRequest, Volume
from hotloop.ahead.launch.target import NODE_SCRIPT
from hotloop.ahead.launch.training_command import read_command
from hotloop.core.errors import UsageError
from hotloop.core.manifest_fields import find_field_faults
from hotloop.core.manifest_tables import TABLES

from .build_request import make_request

KUBERNETES = ("trainjob", "jobset", "job")
YAML = (*KUBERNETES, "skypilot", "dstack")
FULL: dict[str, Any] = {
    "cloud": CLOUDS["azure"],
    "volume": Volume(claim="runs", path="/storage"),
    "shm": "16Gi",
    "interface": "eth1",
    "queue": "team",
    "rdma": "rdma/ib",
    "cpus": 96,
}
WORDS = st.lists(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12), max_size=4)
HARD = (
    "a b",
    "it's",
    '"x"',
    "$HOME $(id) ${X} $$",
    "a\nb\n",
    "END_OF_NODE",
    "`id`",
    "\\",
    "*",
    "",
    "ü \U0001f600",
    "-n",
)


def read(target: str, request: LaunchRequest) -> list[Any]:
    TARGETS[target].check(request)
    return list(yaml.safe_load_all(TARGETS[target].write(request)))


@pytest.mark.parametrize("target", YAML)
@pytest.mark.parametrize("fields", [{}, FULL, {"nodes": 1}, {"gpus_per_node": 0, "processes_per_node": 2}])
def test_every_manifest_fits_its_table(target: str, fields: dict[str, Any]) -> None:
    for document in read(target, make_request(**fields)):
        assert list(find_field_faults(document, TABLES.get(document.get("kind"), target))) == []


def find_pod(target: str, documents: list[Any]) -> Any:
    spec = documents[-1]["spec"]
    if target == "job":
        return spec["template"]["spec"]
    if target == "jobset":
        return spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    patch = spec["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]
    return patch["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("target", KUBERNETES)
def test_a_pod_has_grace_shared_memory_and_its_place_on_spot_nodes(target: str) -> None:
    pod = find_pod(target, read(target, make_request(**FULL)))

    assert pod["terminationGracePeriodSeconds"] == 18
    assert pod["tolerations"][0]["key"] == "kubernetes.azure.com/scalesetpriority"
    assert pod["volumes"][0]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
    assert pod["containers"][0]["volumeMounts"][1] == {"name": "storage", "mountPath": "/storage"}
    assert pod["containers"][0]["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]


@pytest.mark.parametrize("target", [*YAML, "slurm"])
def test_no_variable_of_nccl_is_set_without_a_reason(target: str) -> None:
    one_process = TARGETS[target].write(make_request(nodes=1, gpus_per_node=1, processes_per_node=1))
    lines = [line.strip() for line in TARGETS[target].write(make_request(**FULL)).splitlines()]
    where = [at for at, line in enumerate(lines) if "NCCL_" in line and not line.startswith("#")]

    assert "NCCL_" not in one_process
    assert {re.findall(r"NCCL_\w+", lines[at])[0] for at in where} == {"NCCL_DEBUG", "NCCL_SOCKET_IFNAME"}
    assert all(lines[at - 1].startswith("# ") for at in where)


def expand(word: str) -> str:
    """What Kubernetes makes of a word, where no variable is defined: $$ is $, everything else stays."""
    return re.sub(r"\$(\$|\([^)]*\)|)", lambda found: "$" if found[1] == "$" else found[0], word)


def words_of(target: str, request: LaunchRequest) -> list[str]:
    """The training's words as its node gets them."""
    text = TARGETS[target].write(request)
    if target == "slurm":
        return shlex.split(text.partition('start \\\n  "$node" ')[2].partition(" &\nstep=$!")[0])
    document = list(yaml.safe_load_all(text))[-1]
    if target == "skypilot":
        return shlex.split(document["run"].partition('exec sh -c "$node" node ')[2])
    if target == "dstack":
        return shlex.split(document["commands"][0].partition('exec sh -c "$node" node ')[2])
    container = document["spec"]["trainer"] if target == "trainjob" else find_pod(target, [document])["containers"][0]
    assert [expand(word) for word in container["command"]] == ["sh", "-c", NODE_SCRIPT, "node"]
    return [expand(word) for word in container["args"]]


@pytest.mark.parametrize("target", [*YAML, "slurm"])
@settings(max_examples=60, deadline=None)
@given(WORDS)
def test_words_of_any_kind_survive(target: str, words: list[str]) -> None:
    if target == "dstack" and any("${{" in word for word in words):
        return
    request = make_request("torchrun", "train.py", *words)

    assert words_of(target, request) == ["torchrun", "train.py", *words]


@pytest.mark.parametrize("target", ["slurm", "skypilot", "dstack"])
def test_a_shell_hands_hard_words_on(target: str, tmp_path: Any) -> None:
    """The script itself, with srun and the training replaced by a program that prints its words."""
    show = tmp_path / "show.py"
    show.write_text("import json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    request = make_request("python", *HARD)
    text = TARGETS[target].write(request)
    if target == "slurm":
        (tmp_path / "srun").write_text('#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\nexec "$@"\n')
        (tmp_path / "srun").chmod(0o755)
        (tmp_path / "scontrol").write_text("#!/bin/sh\n")
        (tmp_path / "scontrol").chmod(0o755)
    else:
        document = yaml.safe_load(text)
        text = document["run"] if target == "skypilot" else document["commands"][0]
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {shutil.which("python3")} {show} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SLURM_JOB_ID": "1",
        "SLURM_NODEID": "0",
        "SLURM_JOB_NODELIST": "",
    }
    environment |= {"SKYPILOT_NODE_IPS": "h", "SKYPILOT_NUM_NODES": "1", "SKYPILOT_NODE_RANK": "0"}
    done = subprocess.run(
        ["bash"], input=text, capture_output=True, text=True, env=environment, timeout=20, check=False
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == list(request.command.words[1:])


def test_slurm_sets_what_is_asked_and_nothing_twice() -> None:
    text = TARGETS["slurm"].write(make_request(time="4:00:00", cpus=96, slurm_options=("partition=gpu",)))
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", text, re.M))

    assert options["signal"] == "B:TERM@18"
    assert (options["nodes"], options["gres"], options["cpus-per-task"]) == ("2", "gpu:8", "96")
    assert (options["time"], options["partition"], options["requeue"]) == ("4:00:00", "gpu", "")
    assert text.count("--cpus-per-task=96") == 2, "srun does not inherit it from sbatch"


@pytest.mark.parametrize(
    ("time", "save_s", "is_enough"),
    [
        ("1:00:00", 3000.0, False),
        ("1", None, False),
        ("0:30", 1.0, True),
        ("1", 1.0, True),  # as in benchmarks/slurm_proof.py
        ("1", 2.5, True),
        ("1", 3.0, False),
        ("10:29", None, True),
        ("10", None, False),
        ("3:21:00", 3000.0, True),
        ("0", 3000.0, True),
        ("0-3:20", 3000.0, False),
        ("1-0", 3000.0, True),
    ],
)
def test_slurm_refuses_a_time_in_which_the_training_never_gets_on(
    time: str, save_s: float | None, is_enough: bool
) -> None:
    request = make_request(time=time, save_s=save_s)
    if is_enough:
        assert f"#SBATCH --time={time}\n" in TARGETS["slurm"].write(request)
        return
    with pytest.raises(
        UsageError, match=rf"--time {time} .* comes {request.notice_s} s before the end.*give --time \d"
    ):
        TARGETS["slurm"].write(request)


SLURM_OPTIONS = (
    "nodes=4", "signal=USR1@3", "Bad=1", "a=b\n#SBATCH --x", "partition", "partition=", "hold=", "time=1", "no-requeue",
    "cpus-per-task=4", "sig=USR1@3", "ntasks=9",
)  # fmt: skip
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *(("slurm", {"slurm_options": (option,)}, "--slurm-option") for option in SLURM_OPTIONS),
    *(("slurm", {"name": name}, "--name") for name in ("-x", "../x", "a b", "a/b", "%j")),
    *(("job", {"name": name}, "--name") for name in ("Train", "1st", "a_b", "x" * 60)),
    *(("slurm", {"rdma": name}, "--rdma .*: give ") for name in ("nvidia.com/gpu", "cpu")),
    ("slurm", {"queue": "a b"}, "--queue .*: give "),
    ("slurm", {"shm": "\u0663Gi"}, "--shm .*: give "),
    ("slurm", {"time": "\u0663"}, "--time .*: give "),
    ("slurm", {"save_s": 40_000.0}, "at most 65535 s before the end"),
    ("job", {"image": None}, "needs --image"),
    ("jobset", {"image": None}, "needs --image"),
    ("skypilot", {"gpu": None}, "give --gpu"),
    ("dstack", {"gpu": None}, "give --gpu"),
    ("dstack", {"command": read_command(["torchrun", "t.py", "${{ env.X }}"])}, "dstack would replace"),
]


@pytest.mark.parametrize(("target", "fields", "message"), REFUSED)
def test_what_a_cluster_would_refuse_or_misread_is_one_error(target: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(target, make_request(**fields))
