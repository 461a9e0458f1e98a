"""For each rule of what jobs start a text in which it finds something, and a near one in which it does not."""

from __future__ import annotations

from .texts import change

JOB = """apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  completionMode: Indexed
  completions: 2
  parallelism: 2
  template:
    spec:
      restartPolicy: Never
      subdomain: train
      terminationGracePeriodSeconds: 120
      containers:
        - name: train
          image: registry.example.org/train:1
          command: [bash, -c]
          args:
            - exec torchrun --nnodes=2 --nproc-per-node=8 --node-rank=$JOB_COMPLETION_INDEX
              --master-addr=train-0.train --master-port=29500 train.py --ckpt /ckpt --resume latest
          env: [{name: WANDB_MODE, value: online}]
          resources: {limits: {nvidia.com/gpu: 8, cpu: "96", memory: 900Gi}}
          volumeMounts: [{name: shm, mountPath: /dev/shm}, {name: ckpt, mountPath: /ckpt}]
      volumes:
        - {name: shm, emptyDir: {medium: Memory, sizeLimit: 64Gi}}
        - {name: ckpt, persistentVolumeClaim: {claimName: ckpt}}
"""
"""A training on two nodes in which nothing is wrong."""
DASH = change(JOB, "registry.example.org/train:1", "pytorch/pytorch:2.5.1")
SPOT = change(JOB, "      subdomain", "      nodeSelector: {cloud.google.com/gke-spot: 'true'}\n      subdomain")

CASES: dict[str, tuple[str, str]] = {
    "lone-nodes": (change(JOB, "--nnodes=2 ", ""), JOB),
    "processes-and-gpus": (change(JOB, "--nproc-per-node=8", "--nproc-per-node=4"), JOB),
    "few-cpus": (change(JOB, 'cpu: "96"', 'cpu: "4"'), JOB),
    "swallowed-signal": (change(JOB, "- exec torchrun", "- cd /app && torchrun"), JOB),
    "lost-task-exit-code": (change(JOB, "--resume latest", "--resume latest 2>&1 | tee log"), JOB),
    "bash-in-sh": (
        change(change(DASH, "[bash, -c]", "[sh, -c]"), "- exec torchrun", "- source /venv/bin/activate; exec torchrun"),
        change(change(DASH, "[bash, -c]", "[sh, -c]"), "- exec torchrun", "- . /venv/bin/activate; exec torchrun"),
    ),
    "lost-checkpoints": (change(JOB, "persistentVolumeClaim: {claimName: ckpt}", "emptyDir: {}"), JOB),
    "spot-without-retry": (change(SPOT, "  parallelism: 2", "  parallelism: 2\n  backoffLimit: 0"), SPOT),
    "early-deadline": (
        change(
            JOB,
            "  parallelism: 2",
            "  parallelism: 2\n  # the training takes about 30 hours\n  activeDeadlineSeconds: 3600",
        ),
        change(
            JOB,
            "  parallelism: 2",
            "  parallelism: 2\n  # the training takes about 30 hours\n  activeDeadlineSeconds: 172800",
        ),
    ),
    "left-over-variable": (change(JOB, "WANDB_MODE, value: online", "CUDA_LAUNCH_BLOCKING, value: '1'"), JOB),
    "plain-secret": (
        change(JOB, "WANDB_MODE, value: online", "HF_TOKEN, value: hf_Wq8sLkd93nNsoPwx"),
        change(JOB, "WANDB_MODE, value: online", "HF_TOKEN, value: <your token>"),
    ),
    "small-shared-memory": (change(JOB, "{name: shm, mountPath: /dev/shm}, ", ""), JOB),
}
