"""For each rule of batch scripts a text in which it finds something, and one that is near and in which it does not."""

from __future__ import annotations

from .texts import BATCH


def job(more: str, *options: str, nodes: int = 1, gpus: int = 4, cpus: int = 32) -> str:
    """A batch script of these options and commands."""
    asked = [f"--nodes={nodes}", f"--gpus-per-node={gpus}", f"--cpus-per-task={cpus}", *options]
    return "\n".join(["#!/bin/bash", *(f"#SBATCH {option}" for option in asked), more, ""])


FOUR = "torchrun --standalone --nproc-per-node=4 train.py"
SRUN = "export SRUN_CPUS_PER_TASK=32\nsrun"
EACH = f"{SRUN} torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d --rdzv-endpoint=$HEAD:29500 train.py"
SIGNAL = "--signal=B:USR1@300"
BACK = f"{FOUR} &\npid=$!\n"

CASES: dict[str, tuple[str, str]] = {
    "ignored-sbatch-line": (
        BATCH.format(nodes=1, more="set -e\n#SBATCH --time=1:00:00"),
        BATCH.format(nodes=1, more="cat > job.sh <<EOF\n#SBATCH --time=1:00:00\nEOF"),
    ),
    "unexpanded-variable": (
        BATCH.format(nodes=1, more="#SBATCH --output=$HOME/%j.out"),
        BATCH.format(nodes=1, more="#SBATCH --output=logs/%j.out # $HOME"),
    ),
    "refused-option": (
        BATCH.format(nodes=1, more="#SBATCH --cpu-per-task=4"),
        BATCH.format(nodes=1, more="#SBATCH --job=a -N1 -n 4 --container-image=a --tres-per-task=cpu:1 # a comment"),
    ),
    "wrong-unit": (job(FOUR, "--time=24"), job(FOUR, "--time=24:00:00", "--mem=64G")),
    "lost-log": (job(FOUR, "--requeue"), job(FOUR, "--requeue", "--open-mode=append")),
    "contradictory-options": (
        job(FOUR, "--ntasks=4", "--ntasks-per-node=4", nodes=2),
        job(FOUR, "--ntasks=8", "--ntasks-per-node=4", nodes=2),
    ),
    "one-core-per-task": (
        "#!/bin/bash\n#SBATCH --gres=gpu:2\npython train.py\n",
        "#!/bin/bash\n#SBATCH --gres=gpu:2\n#SBATCH -c 8\npython train.py\n",
    ),
    "rank-of-batch-shell": (
        job(f"export RANK=$SLURM_PROCID\n{SRUN} python train.py", "--ntasks-per-node=4"),
        job(f"{SRUN} bash -c 'RANK=$SLURM_PROCID python train.py'", "--ntasks-per-node=4"),
    ),
    "launch-on-one-node": (
        BATCH.format(nodes=2, more="torchrun --nproc-per-node 8 train.py"),
        BATCH.format(nodes=2, more="srun torchrun --nproc-per-node 8 train.py"),
    ),
    "launcher-per-task": (
        BATCH.format(nodes=2, more="#SBATCH --ntasks-per-node=8\nsrun \\\n  torchrun --nproc-per-node 8 train.py"),
        BATCH.format(nodes=2, more="#SBATCH --ntasks-per-node=1\nsrun torchrun --nproc-per-node 8 train.py"),
    ),
    "loopback-master": (
        BATCH.format(nodes=2, more="export MASTER_ADDR=localhost\nsrun python train.py"),
        BATCH.format(nodes=1, more="export MASTER_ADDR=localhost\nsrun python train.py"),
    ),
    "missing-node-rank": (job(EACH.replace("--rdzv-backend=c10d ", ""), nodes=2), job(EACH, nodes=2)),
    "fixed-port": (
        job(FOUR.replace("--standalone", "--master-port=29501"), "--array=1-4"),
        job(FOUR, "--array=1-4"),
    ),
    "idle-gpus": (job(FOUR.replace("=4", "=2")), job(FOUR)),
    "shared-gpu": (
        job("python train.py --lr 1 &\npython train.py --lr 2 &\nwait"),
        job("for i in 0 1; do CUDA_VISIBLE_DEVICES=$i python train.py --lr $i & done\nwait"),
    ),
    "array-shares-folder": (
        job(f"{FOUR} --seed $SLURM_ARRAY_TASK_ID --output-dir out", "--array=0-7"),
        job(f"OUT=out/$SLURM_ARRAY_TASK_ID\n{FOUR} --seed $SLURM_ARRAY_TASK_ID --output-dir $OUT", "--array=0-7"),
    ),
    "first-node-only": (
        job(f"cp -r /data/set $TMPDIR/\n{EACH}", nodes=2),
        job(f"srun --ntasks-per-node=1 cp -r /data/set $TMPDIR/\n{EACH}", nodes=2),
    ),
    "gpus-wait-for-cpu-work": (job(f"pip install -r requirements.txt\n{FOUR}"), job(f"module load cuda\n{FOUR}")),
    "container-without-gpus": (
        job(f"singularity exec torch.sif {FOUR}"),
        job(f"singularity exec --nv torch.sif {FOUR}"),
    ),
    "undelivered-signal": (
        BATCH.format(nodes=1, more="#SBATCH --signal=B:USR1@120\nsrun python train.py"),
        BATCH.format(nodes=1, more="#SBATCH --signal=USR1@120\nsrun python train.py"),
    ),
    "trap-behind-foreground": (
        BATCH.format(nodes=1, more="#SBATCH --signal=B:USR1@120\ntrap 'touch stop' USR1\nsrun python train.py"),
        BATCH.format(nodes=1, more="#SBATCH --signal=B:USR1@120\ntrap 'touch stop' USR1\nsrun python train.py &\nwait"),
    ),
    "save-cut-by-trap": (
        job(f"trap 'kill -USR1 $pid' USR1\n{BACK}wait $pid", SIGNAL),
        job(f"trap 'kill -USR1 $pid; wait $pid' USR1\n{BACK}wait $pid", SIGNAL),
    ),
    "late-signal": (
        BATCH.format(nodes=1, more="#SBATCH --signal=TERM@30\nsrun python train.py"),
        BATCH.format(nodes=1, more="#SBATCH --signal=TERM@300\nsrun python train.py"),
    ),
    "restart-from-scratch": (job(FOUR, "--requeue"), job(f"{FOUR} --resume auto", "--requeue")),
    "broken-dependency": (
        "#!/bin/bash\nfirst=$(sbatch a.sbatch)\nsbatch --dependency=afterok:$first b.sbatch\n",
        "#!/bin/bash\nfirst=$(sbatch --parsable a.sbatch)\nsbatch --dependency=afterok:$first b.sbatch\n",
    ),
    "endless-chain": (
        job(f'sbatch "$SLURM_SUBMIT_DIR/$0"\n{FOUR} --resume'),
        job(f'[ -e DONE ] || sbatch "$0"\n{FOUR} --resume'),
    ),
    "gpu-of-another-task": (
        job(f"{SRUN} bash -c 'python train.py --device cuda:$SLURM_LOCALID'", "--ntasks=4", "--gpus-per-task=1"),
        job(f"{SRUN} bash -c 'python train.py --device cuda:$SLURM_LOCALID'", "--ntasks=4"),
    ),
    "lost-exit-code": (
        job(f"{FOUR} 2>&1 | tee log.txt"),
        job(f"set -o pipefail\n{FOUR} 2>&1 | tee log.txt"),
    ),
    "unwaited-background": (job(f"nohup {FOUR} &\necho started"), job(f"{FOUR} &\nwait")),
    "unset-slurm-variable": (
        job(FOUR.replace("=4", "=$SLURM_GPUS_PER_TASK")),
        job(FOUR.replace("=4", "=$SLURM_GPUS_PER_NODE")),
    ),
    "unexported-variable": (
        job(f"OMP_NUM_THREADS=8\n{FOUR}"),
        job(f"OMP_NUM_THREADS=8 {FOUR}\nMASTER_PORT=1\nexport MASTER_PORT"),
    ),
    "literal-variable": (
        job(f"LR=0.1\n{FOUR} --lr '$LR'"),
        job(f"LR=0.1\n{FOUR} --lr \"$LR\" --cost '$5'\nawk '{{print $LR}}' file"),
    ),
    "broken-continuation": (
        job(f"{FOUR} --lr 1 \\\n  # a comment\n  --epochs 3"),
        job(f"{FOUR} --lr 1 \\\n  --epochs 3"),
    ),
    "unusable-activation": (
        job(f"conda activate torch\n{FOUR}"),
        job(f"source /opt/conda/etc/profile.d/conda.sh\nconda activate torch\n{FOUR}"),
    ),
    "costly-setting": (job(f"export CUDA_LAUNCH_BLOCKING=1\n{FOUR}"), job(f"export CUDA_LAUNCH_BLOCKING=0\n{FOUR}")),
    "lost-environment": (
        job(f"{SRUN} python train.py", "--export=NONE"),
        job(f"unset SLURM_EXPORT_ENV\n{SRUN} python train.py", "--export=NONE"),
    ),
    "batch-job-misuse": (job(f"cd $(dirname $0)\n{FOUR}"), job(f"cd $SLURM_SUBMIT_DIR\n{FOUR}")),
    "unsafe-removal": (job(f"rm -rf $SCRATCH_DIR/*\n{FOUR}"), job(f"rm -rf ${{SCRATCH_DIR:?}}/*\n{FOUR}")),
}
MONITOR = "nvidia-smi --query-gpu=utilization.gpu --format=csv -l 30 > gpu.csv &\nmonitor=$!\n"
LATEST = "set -euo pipefail\nLATEST=$(ls runs/step_*.pt 2>/dev/null | {} || true)\n"
PART = 'sbatch --dependency=afterany:$SLURM_JOB_ID "$0"\n'
LOCAL = "apptainer exec {} --bind /scratch/$SLURM_JOB_ID:/data img.sif python train.py --output-dir /data/run\n"
COPY = "rsync -a /scratch/$SLURM_JOB_ID/run/ /store/run/\n"
GRID = "A=(1 2 3 4)\nB=(5 6)\nX=${{A[$((SLURM_ARRAY_TASK_ID {} 4))]}}\nY=${{B[$((SLURM_ARRAY_TASK_ID % 2))]}}\n"
CHAIN = "for i in 1 2 3; do\n  prev=$(sbatch --parsable --dependency={}:$prev \\\n    train.sbatch)\ndone\n"
CASES |= {
    "endless-wait": (job(f"{MONITOR}{FOUR} &\nwait"), job(f"{MONITOR}{FOUR} &\npid=$!\nwait $pid\nkill $monitor")),
    "stopped-script": (
        job(LATEST.format("tail -n 1") + FOUR),
        job(LATEST.format("sort -V | tail -n 1") + FOUR),
    ),
    "costly-request": (
        job(EACH, "--constraint='a100|h100'", nodes=2),
        job(EACH, "--constraint='[a100|h100]'", nodes=2),
    ),
    "lost-by-tasks": (
        job(f"RUN=/runs/a\n{SRUN} bash -c 'python train.py --out $RUN'"),
        job(f"export RUN=/runs/a\n{SRUN} bash -c 'python train.py --out $RUN'"),
    ),
    "chained-jobs": (
        job(f"[ -e DONE ] || sbatch $0\n{FOUR}"),
        job(f"[ -e DONE ] || {PART}{FOUR}"),
    ),
}
ROWS = [
    # kind, rule, severity, sound text, old, new
    ("sbatch", "endless-wait", "high", job(f"{MONITOR}{FOUR}"), "gpu.csv &", "gpu.csv"),
    (
        "sbatch",
        "endless-wait",
        "high",
        job("srun ray start --address=$HEAD --block &\nwait", nodes=2),
        " --block &",
        "",
    ),
    ("sbatch", "stopped-script", "high", job(LATEST.format("sort -V | tail -n 1") + FOUR), " || true", ""),
    ("sbatch", "stopped-script", "high", job(f"set -e\ni=0\ni=$((i + 1))\n{FOUR}"), "i=$((i + 1))", "((i++))"),
    ("sbatch", "stopped-script", "high", job(f"timeout 11h {FOUR}", "--time=12:00:00"), "11h", "12h"),
    ("sbatch", "costly-request", "high", job(FOUR, "--constraint='a100'"), "a100", "a100&h100"),
    (
        "sbatch",
        "costly-request",
        "high",
        job(FOUR.replace("=4", "=1"), "--partition=dgx", gpus=1),
        "--partition=dgx",
        "--partition=dgx --exclusive",
    ),
    (
        "sbatch",
        "lost-by-tasks",
        "medium",
        job(f"srun --ntasks-per-node=1 rsync -a /data /local/data\n{SRUN} python train.py", "--ntasks-per-node=4"),
        "srun --ntasks-per-node=1 rsync",
        "srun rsync",
    ),
    (
        "sbatch",
        "chained-jobs",
        "high",
        job(f"{FOUR} --resume latest --output-dir runs/main\n[ -e DONE ] || {PART}"),
        "runs/main",
        "runs/$SLURM_JOB_ID",
    ),
    (
        "sbatch",
        "chained-jobs",
        "high",
        job(f"for i in 1 2; do\nsbatch --job-name=run --dependency=singleton a.sbatch\ndone\n{FOUR}"),
        "name=run",
        "name=run-$i",
    ),
    ("sbatch", "container-without-gpus", "high", job(LOCAL.format("--nv") + COPY, gpus=1), "exec --nv", "exec"),
    (
        "sbatch",
        "first-node-only",
        "medium",
        job(LOCAL.format("--nv") + COPY, gpus=1),
        COPY,
        f"{COPY}rm -rf /scratch/$SLURM_JOB_ID\n",
    ),
    (
        "sbatch",
        "array-shares-folder",
        "high",
        job(GRID.format("/").replace("/ 4", "/ 2") + f"{FOUR} --lr $X --wd $Y", "--array=0-7"),
        "ID / 2",
        "ID % 4",
    ),
    (
        "sbatch",
        "array-shares-folder",
        "high",
        job(f"{FOUR} --seed $SLURM_ARRAY_TASK_ID --out runs/$SLURM_ARRAY_TASK_ID", "--array=0-7"),
        "--seed $SLURM_ARRAY_TASK_ID",
        "--seed 42",
    ),
    (
        "sbatch",
        "array-shares-folder",
        "high",
        job(f"export CUDA_VISIBLE_DEVICES=0\n{FOUR} --seed $SLURM_ARRAY_TASK_ID", "--array=0-7"),
        "DEVICES=0",
        "DEVICES=$SLURM_ARRAY_TASK_ID",
    ),
    ("sbatch", "broken-dependency", "high", job(CHAIN.format("afterany")), "afterany", "afterok"),
    (
        "sbatch",
        "lost-environment",
        "high",
        job("export ROOT=/data\nsbatch --export=ALL,A=1 --wrap 'python train.py $ROOT'"),
        "ALL,",
        "",
    ),
    (
        "sbatch",
        "loopback-master",
        "high",
        job(f"{SRUN} bash -c 'torchrun --nnodes=2 --rdzv-id=run --rdzv-endpoint=$HEAD:1 train.py'", nodes=2),
        "rdzv-id=run",
        "rdzv-id=$RANDOM",
    ),
]
