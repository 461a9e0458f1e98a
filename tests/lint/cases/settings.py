"""For each rule of settings a text in which it finds something, and one that is near and in which it does not."""

from __future__ import annotations

from .texts import change

DEEPSPEED = """{
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 2,
  "train_batch_size": 64,
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 2, "overlap_comm": true, "reduce_bucket_size": 5e8}
}
"""
ACCELERATE = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
num_machines: 2
num_processes: 16
machine_rank: 0
main_process_ip: node-0
main_process_port: 29500
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_sharding_strategy: FULL_SHARD
"""
LIGHTNING = """seed_everything: 1
trainer:
  accelerator: gpu
  devices: 8
  precision: bf16-mixed
  max_epochs: 10
model: {class_path: project.Model}
data: {class_path: project.Data}
"""
SKYPILOT = """resources: {accelerators: A100:8, disk_size: 512}
file_mounts:
  /data: {source: gs://data, mode: MOUNT}
run: |
  torchrun --nproc-per-node=8 train.py
"""
DSTACK = """type: task
image: registry.example.org/train:1
commands: [torchrun --nproc-per-node=8 train.py --out s3://bucket]
resources: {gpu: A100:8, shm_size: 64GB}
"""

CASES: dict[str, tuple[str, str]] = {
    "unknown-setting": (change(DEEPSPEED, "accumulation_steps", "acumulation_steps"), DEEPSPEED),
    "deepspeed-settings": (change(DEEPSPEED, '"train_batch_size": 64', '"train_batch_size": 60'), DEEPSPEED),
    "accelerate-settings": (change(ACCELERATE, "node-0", "localhost"), ACCELERATE),
    "lightning-settings": (change(LIGHTNING, "max_epochs: 10", "max_epochs: 10\n  fast_dev_run: true"), LIGHTNING),
    "skypilot-settings": (change(SKYPILOT, "  /data:", "  /root:"), SKYPILOT),
    "dstack-settings": (change(DSTACK, "commands:", "python: '3.12'\ncommands:"), DSTACK),
}
D = ("deepspeed", "deepspeed-settings", "high", DEEPSPEED)
STEPPED = change(
    DEEPSPEED,
    '"bf16"',
    '"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},\n  "scheduler": {"type": "WarmupDecayLR",'
    ' "params": {"warmup_max_lr": 1e-4, "total_num_steps": 900}},\n  "bf16"',
)
S = ("deepspeed", "deepspeed-settings", "high", STEPPED)
RUN = change(SKYPILOT, "run: |\n", "setup: |\n  uv venv env\nrun: |\n  source env/bin/activate\n")
ROWS = [
    # kind, rule, severity, sound text, old, new
    (*S, '"warmup_max_lr": 1e-4', '"warmup_max_lr": 1e-3'),
    (*S, ', "total_num_steps": 900', ""),
    (*S, '"lr": 1e-4', '"lr": "1e-4"'),
    (*D, '"bf16"', '"amp": {"enabled": true},\n  "bf16"'),
    (*D, '"bf16"', '"elasticity": {"enabled": true},\n  "bf16"'),
    ("lightning", "lightning-settings", "high", LIGHTNING, "max_epochs: 10", "max_epochs: -1"),
    (
        "lightning",
        "lightning-settings",
        "high",
        LIGHTNING,
        "  max_epochs",
        "  check_val_every_n_epoch: 20\n  max_epochs",
    ),
    ("skypilot", "skypilot-settings", "high", RUN, "  source env/bin/activate\n", ""),
    ("skypilot", "skypilot-settings", "high", f"# 2 TB of data\n{SKYPILOT}", "mode: MOUNT", "mode: COPY"),
    (
        "skypilot",
        "skypilot-settings",
        "high",
        change(RUN, "uv venv", "export A=1\n  uv venv"),
        "8 train.py",
        "8 train.py $A",
    ),
]
