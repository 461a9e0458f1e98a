"""Faults of batch scripts by family: directives, what runs where, signals, arrays, exit codes, quotes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotloop.judge.lint import lint_paths
from hotloop.judge.lint.files import SourceFile, Surroundings
from hotloop.judge.lint.fixes import make_repairs
from hotloop.judge.lint.formats.batch import Batch, parse_batch

from .cases.batch import BACK, EACH, FOUR, SIGNAL, SRUN, job
from .test_rules import lint_text

HEAD = 'HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
RESUMED = f"{FOUR} --resume latest --output-dir out"
SUBMIT = "#!/bin/bash\nfor i in 1 2; do\n{}\ndone\n"


def parse(text: str) -> Batch:
    batch = parse_batch(SourceFile(path="job.sh", kind="sbatch", data=text.encode(), text=text), Surroundings())
    assert batch is not None
    return batch


@pytest.mark.parametrize(
    ("text", "rule", "severity"),
    [
        (job(FOUR, "--time=24h"), "refused-option", "high"),
        (job(FOUR, "--mem=64G", "--mem-per-cpu=4G"), "refused-option", "high"),
        (job(FOUR, "--gres=gpus:4"), "refused-option", "high"),
        (job(FOUR, "--dependency=afterok=12"), "refused-option", "high"),
        ("#SBATCH -c 8\n" + FOUR, "refused-option", "high"),
        (job(FOUR, "--mem=64"), "wrong-unit", "high"),
        (job(FOUR, "--time=48:00"), "wrong-unit", "high"),
        (job(FOUR, "--time=24-00:00:00"), "wrong-unit", "high"),
        (job(f"#SBTACH --mem=64G\n{FOUR}"), "ignored-sbatch-line", "high"),
        (job(FOUR, "--output=~/logs/%j.out"), "unexpanded-variable", "high"),
        (job(FOUR, "--array=0-3", "--output=train.log"), "lost-log", "medium"),
        (job(FOUR, "--ntasks=1", nodes=2), "contradictory-options", "high"),
        (job(f"{FOUR} --num_workers 32"), "one-core-per-task", "medium"),
        (job(FOUR, cpus=2), "one-core-per-task", "medium"),
        (job(f"trap 'kill -USR1 $pid; wait $pid' USR1\n{BACK}wait $pid", "--signal=USR1@300"),
         "undelivered-signal", "high"),
        (job(f"trap 'kill -USR1 $pid; wait $pid' USR2\n{BACK}wait $pid", SIGNAL), "undelivered-signal", "high"),
        (job(f"{SRUN} bash -c 'cd /a; python train.py; date'", "--signal=USR1@300"), "undelivered-signal", "high"),
        (job(f"trap 'touch SAVE; sleep 400' USR1\n{BACK}wait $pid", SIGNAL), "late-signal", "high"),
        (job(f"# a save takes 6 minutes\ntrap 'touch SAVE; wait' USR1\n{BACK}wait $pid", SIGNAL),
         "late-signal", "high"),
        (job(f"trap 'kill -TERM $pid; wait' USR1\n{SRUN} python train.py &\npid=$!\nwait", SIGNAL),
         "save-cut-by-trap", "high"),
        (job(f"{RESUMED}\nscontrol requeue $SLURM_JOB_ID", "--requeue"), "restart-from-scratch", "high"),
        (job(f"rm -rf out\n{RESUMED}", "--requeue"), "restart-from-scratch", "high"),
        (job(f"{SRUN} bash -c \"RANK=$SLURM_PROCID python train.py\"", "--ntasks-per-node=4"),
         "rank-of-batch-shell", "high"),
        (job("cat > a.sh <<EOF\nRANK=$SLURM_PROCID python train.py\nEOF", nodes=2), "rank-of-batch-shell", "high"),
        (job(f"{SRUN} bash -c 'MASTER_ADDR=$(hostname) python train.py'", nodes=2), "loopback-master", "high"),
        (job(f"export MASTER_ADDR=$SLURM_JOB_NODELIST\n{SRUN} python train.py", nodes=2), "loopback-master", "high"),
        (job(f"{SRUN} {FOUR}", nodes=2), "missing-node-rank", "high"),
        (job(f"{SRUN} torchrun --nnodes=2 --nproc-per-node=4 train.py", nodes=2), "missing-node-rank", "high"),
        (job("torchrun train.py --nproc-per-node=4"), "missing-node-rank", "high"),
        (job(f"WORLD_SIZE=$SLURM_NNODES\n{SRUN} python train.py", "--ntasks-per-node=4", nodes=2),
         "missing-node-rank", "high"),
        (job(f"MASTER_PORT=$((10000 + SLURM_JOB_ID))\n{SRUN} python train.py"), "fixed-port", "high"),
        (job(FOUR, gpus=2), "idle-gpus", "high"),
        (job(f"N=2\nPROCS=$((N * 4))\n{FOUR.replace('=4', '=$PROCS')}"), "idle-gpus", "high"),
        (job(f"CUDA_VISIBLE_DEVICES=0,1 {FOUR}"), "idle-gpus", "high"),
        (job("for lr in 1 2; do\n  python train.py --lr $lr\ndone"), "idle-gpus", "high"),
        (job("ARGS=(\n  --nproc-per-node=2 # half\n)\ntorchrun \"${ARGS[@]}\" train.py"), "idle-gpus", "medium"),
        (job(f"{SRUN} -n1 python train.py &\nsrun -n1 python train.py &\nwait", "--ntasks=2"), "shared-gpu", "high"),
        (job(f"L=(a b)\n{FOUR} --name ${{L[$SLURM_ARRAY_TASK_ID]}}", "--array=1-2"), "array-shares-folder", "high"),
        (job(FOUR, "--array=1-2"), "array-shares-folder", "high"),
        (job(f"{FOUR} --output_dir /tmp/run"), "first-node-only", "high"),
        (job(f"python preprocess.py\n{FOUR}"), "gpus-wait-for-cpu-work", "medium"),
        (job(f"{FOUR} || true"), "lost-exit-code", "medium"),
        (job(f"{FOUR}\nrsync -a out /data"), "lost-exit-code", "medium"),
        (job(f"set -e\n{FOUR}\nif [ $? -ne 0 ]; then date; fi"), "lost-exit-code", "medium"),
        (job("X = 1\n" + FOUR), "unexported-variable", "low"),
        (job("X = 1\n" + FOUR + " --x $X"), "unexported-variable", "high"),
        (job(f"set -e\n#SBATCH --hint=nomultithread\n{FOUR}"), "ignored-sbatch-line", "low"),
        (job(FOUR, "--output=a.out", "--output=b.out"), "contradictory-options", "low"),
        (SUBMIT.format('sbatch --array=0-3 --wrap "python train.py $SLURM_ARRAY_TASK_ID"'), "literal-variable", "high"),
        (SUBMIT.format("id=$(sbatch --parsable --dependency=afterok:$id a.sbatch)"), "broken-dependency", "high"),
        (job(f"source env/bin/activate\nmodule load python\n{FOUR}"), "unusable-activation", "high"),
        (job(f"export PATH=/opt/bin\n{FOUR}"), "costly-setting", "high"),
        (job(f"export NCCL_SOCKET_IFNAME=lo\n{HEAD}{EACH}", nodes=2), "costly-setting", "high"),
        (job("srun --pty python train.py"), "batch-job-misuse", "high"),
        (job(f"cd $RUN\nrm -rf *\n{FOUR}"), "unsafe-removal", "high"),
        (job(f"{FOUR} --seed $SLURM_ARRAY_TASK_ID > train.log", "--array=0-7"), "array-shares-folder", "medium"),
        (job(f"rm -rf out/a\n{FOUR} --seed $SLURM_ARRAY_TASK_ID --out out/a", "--array=1-7"),
         "array-shares-folder", "high"),
        (job(f"N=$SLURM_ARRAY_TASK_ID\n{FOUR} $(sed -n \"${{N}}p\" list)", "--array=0-7"),
         "array-shares-folder", "medium"),
        (job(f"{FOUR} $(awk -v n=$SLURM_ARRAY_TASK_ID 'NR==n' list)", "--array=0-7"), "array-shares-folder", "medium"),
        (job(f"{FOUR} $(head -n $SLURM_ARRAY_TASK_ID list | tail -n 1)", "--array=0-7"),
         "array-shares-folder", "medium"),
        (job(f"rm -rf /scratch/run/ckpt\n{FOUR} --resume --checkpoints /scratch/run/ckpt", "--requeue"),
         "restart-from-scratch", "high"),
        (job(f"set -e\nmkdir run\n{RESUMED}", "--requeue"), "restart-from-scratch", "high"),
        (job(f"OUT=runs/$(date +%s)\n{FOUR} --resume --output-dir $OUT", "--requeue"), "restart-from-scratch", "high"),
        (job("python train.py --device cuda:0"), "idle-gpus", "high"),
        (job("python train.py --gpus 1"), "idle-gpus", "high"),
        (job(f"{SRUN} python train.py --device cuda:0", "--ntasks=4"), "gpu-of-another-task", "high"),
        (job(f"{SRUN} bash -c 'CUDA_VISIBLE_DEVICES=$SLURM_LOCALID python train.py'", "--ntasks=4",
             "--gpu-bind=single:1"), "gpu-of-another-task", "high"),
        (job(f"{SRUN} bash -c 'pip install -e . && python train.py'", "--ntasks=4"),
         "gpus-wait-for-cpu-work", "medium"),
        (job("pip install -r r.txt\npython train.py --name $SLURM_ARRAY_TASK_ID", "--array=0-3", gpus=1),
         "gpus-wait-for-cpu-work", "medium"),
        (job(f"mkdir -p logs\n{FOUR}", "--output=logs/%j.out"), "lost-log", "medium"),
        (job(f"export NCCL_P2P_LEVEL=LOC\n{FOUR}"), "costly-setting", "medium"),
        ("#!/bin/bash\na=$(sbatch a.sh)\nscancel $a\n", "broken-dependency", "high"),
        ("#!/bin/bash\na=$(sbatch --parsable a.sh)\nsbatch --dependency=$a b.sh\n", "broken-dependency", "high"),
        (job(FOUR.replace("--nproc", "--max-restarts=$SLURM_RESTARTCOUNT --nproc")), "unset-slurm-variable", "high"),
    ],
)  # fmt: skip
def test_the_fault_is_found_at_its_cost(text: str, rule: str, severity: str, tmp_path: Path) -> None:
    found = [(one.rule, one.severity.value) for one in lint_text(text, "sbatch", tmp_path)]
    assert (rule, severity) in found


SOUND = [
    job(f"RUN=runs/$SLURM_JOB_ID\nrm -f $RUN/stop\n{FOUR} --resume last --out $RUN --stop-file $RUN/stop", "--requeue",
        "--open-mode=append"),
    job(f"set -euo pipefail\nsource env/bin/activate\n{HEAD}{EACH} --resume last", "--requeue",
        "--open-mode=a", nodes=2),
    job(f"{SRUN} bash -c 'RANK=$SLURM_PROCID python train.py'", "--ntasks-per-node=4"),
    job(f"{HEAD}export LAUNCH=\"torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend c10d --rdzv-endpoint $HEAD:29500 "
        f"--node-rank $SLURM_NODEID\"\n{SRUN} bash -c \"$LAUNCH train.py\"", nodes=2),
    job(f"{HEAD}declare -a ARGS=(\n--nproc-per-node=4\n--nnodes=$SLURM_NNODES\n--rdzv-backend=c10d\n"
        f"--rdzv-endpoint=$(hostname)\n)\n{SRUN} torchrun \"${{ARGS[@]}}\" train.py", nodes=2),
    job(f"L=(a b c)\n{FOUR} --name ${{L[$SLURM_ARRAY_TASK_ID]}} --out $SLURM_JOB_ID", "--array=0-2%2", "--time=90"),
    job("for i in 0 1 2 3; do\n  CUDA_VISIBLE_DEVICES=$i python train.py --seed $i &\n  pids+=($!)\ndone\n"
        'code=0\nfor pid in "${pids[@]}"; do wait $pid || code=1; done\nexit $code'),
    job(f"stop() {{\n  kill -USR1 $pid\n  wait $pid\n  exit 0\n}}\ntrap stop USR1\n{BACK}wait $pid\nexit $?", SIGNAL),
    job(f"{SRUN} bash -c \"RANK=\\$SLURM_PROCID python train.py\"", "--ntasks-per-node=4", "--signal=USR2@600"),
    job(f"trap 'rm -rf $TMP' EXIT TERM\n{SRUN} python train.py", "--ntasks=4"),
    job(f"stop() {{\n  kill $mon\n  kill -USR1 $pid\n  wait $pid\n  kill $pid\n}}\ntrap stop USR1\n{SRUN} "
        "python train.py &\npid=$!\nwatch.sh & mon=$!\nwait $pid\nexit $?", SIGNAL, "--ntasks=4"),
    job("for i in 0 1; do srun --exclusive -N1 -n1 --gpus=1 python train.py --seed $i & done\nwait", "--ntasks=4"),
    job("for i in 0 1; do srun -n1 -c8 --gpus=1 python train.py --seed $i & done\nwait", "--ntasks=4"),
    job(f"sed -i \"s/SEED/$SLURM_ARRAY_TASK_ID/\" a.yaml\n{FOUR} $(sed -n \"$((SLURM_ARRAY_TASK_ID + 1))p\" list)",
        "--array=0-7"),
    job(f"{SRUN} bash -c 'if [ $SLURM_LOCALID -eq 0 ]; then pip install -e .; fi; python train.py'", "--ntasks=4"),
    job(f"source $SLURM_TMPDIR/env/bin/activate\npip install -r r.txt\n{FOUR} --seed $SLURM_ARRAY_TASK_ID"
        .replace("=4", "=1"), "--array=0-3", gpus=1),
    job(f"{SRUN} python train.py --device cuda:0", "--ntasks=4", "--gpus-per-task=1"),
    job(f"if [ ${{SLURM_RESTART_COUNT:-0}} -eq 0 ]; then rm -rf run/ckpt; fi\nmkdir -p run/ckpt\n{FOUR} --resume "
        "--out run/ckpt", "--requeue"),
    job(f"sbatch --dependency=afterok:$SLURM_JOB_ID evaluate.sbatch\n{FOUR} --device cuda"),
    job(f"export PATH=/opt/bin:/usr/bin:/bin\n{FOUR}"),
    "#!/bin/bash\n#SBATCH --array=<fill in>\n#SBATCH --mem=0\nhostname\n",
]  # fmt: skip


@pytest.mark.parametrize("text", SOUND)
def test_a_sound_script_has_no_serious_finding(text: str, tmp_path: Path) -> None:
    found = lint_text(text, "sbatch", tmp_path)
    assert [(one.rule, one.message) for one in found if one.severity.value != "low"] == []


REPAIRED = [
    job(f"set -e\n#SBATCH --mem=8G\n#SBATCH --time=1:00:00\n{FOUR}"),
    job(f"#SBTACH --mem=8G\n{FOUR}"),
    job("torchrun --standalone \\ \n  --nproc-per-node=4 train.py"),
]


@pytest.mark.parametrize("text", REPAIRED)
def test_a_repaired_script_lints_clean(text: str, tmp_path: Path) -> None:
    path = tmp_path / "job.sbatch"
    path.write_text(text)
    report, read = lint_paths([str(path)], "0")
    assert any(one.edits for one in report.findings)
    (repair,) = make_repairs(report.findings, read)
    assert lint_text(repair.after.decode(), "sbatch", tmp_path) == []


def test_what_a_helper_script_starts_runs_in_each_task(tmp_path: Path) -> None:
    (tmp_path / "node.sh").write_text("#!/bin/bash\nexport MASTER_ADDR=$(hostname)\npython train.py\n")
    found = lint_text(job(f"{SRUN} bash node.sh", nodes=2), "sbatch", tmp_path)
    assert "loopback-master" in {one.rule for one in found}


@pytest.mark.parametrize(
    ("option", "seconds"),
    [("90", 5400), ("90:30", 5430), ("1:00:00", 3600), ("1-12", 129600), ("1-12:30", 131400), ("1d", None)],
)
def test_a_time_limit_in_seconds(option: str, seconds: int | None) -> None:
    assert parse(job("hostname", f"--time={option}")).limit_s == seconds


@pytest.mark.parametrize(
    ("options", "gpus"),
    [("--gres=gpu:a100:4", 4), ("--gres=gpu", 1), ("--gpus=8 -N 2", 4), ("--gpus-per-task=2 -n 2", 4), ("--mem=1G", 0),
     ("--gpus-per-node=h100:8", 8), ("--gres=gpu:4,tmp:9", 4)],
)  # fmt: skip
def test_the_gpus_of_a_node(options: str, gpus: int) -> None:
    assert parse(f"#!/bin/bash\n#SBATCH {options}\nhostname\n").gpus_per_node == gpus


def test_the_script_and_the_folder_beside_a_job_count(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        'parser.add_argument("--output-dir", default="runs/a")\ntorch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n'
        'parser.add_argument("--num-workers", type=int, default=24)\n'
    )
    (tmp_path / "logs").mkdir()
    text = job(f"mkdir -p logs\n{FOUR} --lr $SLURM_ARRAY_TASK_ID", "--output=logs/%A_%a.out", "--array=1-4")
    found = {one.rule for one in lint_text(text, "sbatch", tmp_path)}
    assert {"array-shares-folder", "one-core-per-task"} <= found
    assert "lost-log" not in found
    bound = job(f"{SRUN} python train.py", "--ntasks=4", "--gpus-per-task=1")
    assert "gpu-of-another-task" in {one.rule for one in lint_text(bound, "sbatch", tmp_path)}


def test_a_value_with_two_plain_variables_is_one_word(tmp_path: Path) -> None:
    """The grammar sees two words in A=$B/c/$D/e: the folder would seem to be the same in all tasks."""
    text = "#!/bin/bash\n#SBATCH --array=0-3\n#SBATCH --gpus=1\nI=$SLURM_ARRAY_TASK_ID\nOUT=$ROOT/a/$I/b\n"
    for folder, expected in (("$OUT", set()), ("$ROOT/a", {"array-shares-folder"})):
        script = f"{text}python train.py --output-dir {folder} --lr $I\n"
        assert {one.rule for one in lint_text(script, "sbatch", tmp_path)} & {"array-shares-folder"} == expected


def test_hostile_scripts_take_bounded_time(tmp_path: Path) -> None:
    for text in (
        "A=" + "x" * 900_000 + "\npython a.py " + "$A" * 5000,
        "A=$A$A\n" * 2000, "$A/" * 300_000, "X=${X:-" * 3000, "$((" * 5000, "(" * 20000, "torchrun " + "$A " * 20000,
        "A=" + "x" * 1_000_000, "python train.py --x $A &\n" * 4000, "bash -c '" * 300,
        "L=(" + "a " * 100_000 + ")\n", "\\\n" * 20000,
    ):  # fmt: skip
        lint_text(f"#!/bin/bash\n#SBATCH --array=0-9\n{text}", "sbatch", tmp_path)
