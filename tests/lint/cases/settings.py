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
COMPOSE = """services:
  store:
    image: postgres:17
    volumes: [db:/var/lib/postgresql/data]
    ports: ["5432:5432"]
  prepare:
    image: registry.example.org/train:1
    command: [python, prepare.py]
    volumes: [shards:/shards]
  train:
    image: registry.example.org/train:1
    command: [torchrun, --nproc-per-node=2, train.py, --out, /runs]
    environment: {STORE: "http://store:5432"}
    depends_on:
      prepare: {condition: service_completed_successfully}
    volumes: [shards:/shards, ./runs:/runs]
    restart: on-failure
    shm_size: 16gb
    deploy: {resources: {reservations: {devices: [{count: 2, capabilities: [gpu]}]}}}
volumes: {db: , shards: }
"""
CASES["compose-services"] = (change(COMPOSE, "service_completed_successfully", "service_started"), COMPOSE)
C = ("compose", "compose-services", "high", COMPOSE)
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
    (*C, "image: registry.example.org/train:1\n    command: [python", "restart: always\n    command: [python"),
    (*C, "prepare: {condition: service_completed_successfully}", "store: {condition: service_healthy}"),
    (*C, "prepare: {condition", "prepared: {condition"),
    (*C, "volumes: {db: , shards: }", "volumes: {db: }"),
    (*C, "restart: on-failure", "restart: always"),
    (*C, "    deploy: {resources: {reservations: {devices: [{count: 2, capabilities: [gpu]}]}}}\n", ""),
    (*C, "{count: 2, capabilities: [gpu]}", "{count: 2}"),
    (*C, "{count: 2, ", "{count: 2, device_ids: ['0'], "),
    (*C, "http://store:5432", "http://localhost:5432"),
    (*C, "    shm_size", "    healthcheck: {test: [curl, localhost]}\n    shm_size"),
    (*C, "--out, /runs", "--out, $STORE"),
    (*C, "    restart: on", "    container_name: train\n    scale: 2\n    restart: on"),
    ("compose", "compose-services", "medium", COMPOSE, "    volumes: [db:/var/lib/postgresql/data]\n", ""),
    ("compose", "compose-services", "medium", COMPOSE, "--out, /runs", "--out, /runs, --save-on-sigterm"),
    ("compose", "processes-and-gpus", "high", COMPOSE, "count: 2", "count: 8"),
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
