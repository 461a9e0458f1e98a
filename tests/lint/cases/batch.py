"""For each rule of batch scripts a text in which it finds something, and one that is near and in which it does not."""

from __future__ import annotations

from .texts import BATCH

CASES: dict[str, tuple[str, str]] = {
    "ignored-sbatch-line": (
        BATCH.format(nodes=1, more="set -e\n#SBATCH --time=1:00:00"),
        BATCH.format(nodes=1, more="cat > job.sh <<EOF\n#SBATCH --time=1:00:00\nEOF"),
    ),
    "unexpanded-variable": (
        BATCH.format(nodes=1, more="#SBATCH --output=$HOME/%j.out"),
        BATCH.format(nodes=1, more="#SBATCH --output=logs/%j.out # $HOME"),
    ),
    "launcher-per-task": (
        BATCH.format(nodes=2, more="#SBATCH --ntasks-per-node=8\nsrun \\\n  torchrun --nproc-per-node 8 train.py"),
        BATCH.format(nodes=2, more="#SBATCH --ntasks-per-node=1\nsrun torchrun --nproc-per-node 8 train.py"),
    ),
    "launch-on-one-node": (
        BATCH.format(nodes=2, more="torchrun --nproc-per-node 8 train.py"),
        BATCH.format(nodes=2, more="srun torchrun --nproc-per-node 8 train.py"),
    ),
    "loopback-master": (
        BATCH.format(nodes=2, more="export MASTER_ADDR=localhost\nsrun python train.py"),
        BATCH.format(nodes=1, more="export MASTER_ADDR=localhost\nsrun python train.py"),
    ),
    "undelivered-signal": (
        BATCH.format(nodes=1, more="#SBATCH --signal=B:USR1@120\nsrun python train.py"),
        BATCH.format(nodes=1, more="#SBATCH --signal=USR1@120\nsrun python train.py"),
    ),
    "trap-behind-foreground": (
        BATCH.format(nodes=1, more="#SBATCH --signal=B:USR1@120\ntrap 'touch stop' USR1\nsrun python train.py"),
        BATCH.format(nodes=1, more="#SBATCH --signal=B:USR1@120\ntrap 'touch stop' USR1\nsrun python train.py &\nwait"),
    ),
    "late-signal": (
        BATCH.format(nodes=1, more="#SBATCH --signal=TERM@30\nsrun python train.py"),
        BATCH.format(nodes=1, more="#SBATCH --signal=TERM@300\nsrun python train.py"),
    ),
    "one-core-per-task": (
        "#!/bin/bash\n#SBATCH --gres=gpu:2\npython train.py\n",
        "#!/bin/bash\n#SBATCH --gres=gpu:2\n#SBATCH -c 8\npython train.py\n",
    ),
    "cores-not-passed-on": (
        BATCH.format(nodes=1, more="srun python train.py"),
        BATCH.format(nodes=1, more="export SRUN_CPUS_PER_TASK=8\nsrun python train.py"),
    ),
    "refused-option": (
        BATCH.format(nodes=1, more="#SBATCH --cpu-per-task=4"),
        BATCH.format(nodes=1, more="#SBATCH --job=a -N1 -n 4 --container-image=a --tres-per-task=cpu:1 # a comment"),
    ),
}
