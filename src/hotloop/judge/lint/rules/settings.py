"""Checks of DeepSpeed, accelerate and Lightning settings, and of the fields of SkyPilot and dstack files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from hotloop.core.lint import LintFinding, lint_rule
from hotloop.judge.lint.checks import HIGH, LIKELY, LOW, MEDIUM, FieldCheck, ReadPlace, only, table_rule
from hotloop.judge.lint.field_tables import judge_fields
from hotloop.judge.lint.formats.settings import SettingsFile
from hotloop.judge.lint.script_words import find_direction
from hotloop.judge.lint.yaml_fields import Field

SPREADS = ("MULTI_GPU", "FSDP", "DEEPSPEED")
"""Kinds of accelerate's ``distributed_type`` that train on several GPUs."""


def when(path: str, is_faulty: Callable[[Field], object]) -> Callable[[Field], tuple[Field, ...]]:
    """The value at a path of the settings, if it is faulty."""
    return lambda root: only(root[path], is_faulty(root[path]))


@lint_rule(
    "unknown-setting",
    "a setting is unknown, missing, or of the wrong type",
    reads="deepspeed accelerate lightning skypilot dstack",
    each="tables",
)
def unknown_setting(file: SettingsFile, known: tuple[Field, str]) -> Iterator[LintFinding]:
    """## What it does
    Compares the fields of a SkyPilot or dstack file, of a DeepSpeed JSON file, of an accelerate YAML file and of
    Lightning's `trainer` section with the known fields.

    ## Why it costs
    The file is refused before anything starts, or DeepSpeed ignores the setting and trains with its default.

    ## How to recognize it
    The rule uses tables of fields that were taken from specific versions of the programs' sources. The finding is
    `likely` if no known name is close.

    ## What to do
    Write the intended name or value.

    ## When it is wrong
    Ignore the finding if the program is newer than the tables.
    """
    yield from judge_fields(*known)


def _offloads(root: Field, *devices: str) -> list[tuple[Field, int]]:
    """What ZeRO moves to these devices, with the stage that it needs."""
    parts = (("offload_optimizer", 1), ("offload_param", 3))
    found = [(root[f"zero_optimization.{name}"], stage) for name, stage in parts]
    return [(part, stage) for part, stage in found if part["device"].text in devices]


_SCHEDULERS = {
    "WarmupDecayLR": ("total_num_steps",),
    "WarmupCosineLR": ("total_num_steps",),
    "OneCycle": ("cycle_min_lr", "cycle_max_lr"),
}
"""Schedulers of DeepSpeed -> the parameters without a default."""


DEEPSPEED_SETTINGS = table_rule(
    "deepspeed-settings",
    "DeepSpeed settings contradict each other or cost time",
    """## What it does
    Compares the batch sizes, precision, ZeRO stage, offloading, buckets and profilers in a DeepSpeed JSON file.

    ## Why it costs
    DeepSpeed refuses the settings when it builds the engine, ignores settings that the stage does not support, or waits
    for the GPU in each step.

    ## How to recognize it
    The rule looks at literal values; it does not check `auto`, which the Trainer fills in.

    ## What to do
    Follow the advice of the finding, then lint the file again.

    ## When it is wrong
    Ignore the finding if the script changes the settings before it passes them to DeepSpeed.
    """,
    reads="deepspeed",
    each="documents",
    checks=(
        FieldCheck(
            at=lambda root: only(root["bf16.enabled"], root["bf16.enabled"].is_true and root["fp16.enabled"].is_true),
            severity=HIGH,
            message="fp16 and bf16 are both enabled: DeepSpeed refuses the settings",
            advice="enable one of them",
        ),
        FieldCheck(
            at=lambda root: only(
                root["train_batch_size"],
                root["train_micro_batch_size_per_gpu"].amount
                and root["train_batch_size"].amount
                % (root["train_micro_batch_size_per_gpu"].amount * (root["gradient_accumulation_steps"].amount or 1)),
            ),
            severity=HIGH,
            message=(
                "train_batch_size {text} is not a multiple of train_micro_batch_size_per_gpu x "
                "gradient_accumulation_steps: DeepSpeed refuses it for any number of GPUs (world size)"
            ),
            advice="leave train_batch_size out, or make it micro batch x accumulation x GPUs",
        ),
        FieldCheck(
            at=lambda root: [
                part for part, stage in _offloads(root, "cpu", "nvme") if root["zero_optimization.stage"].amount < stage
            ],
            severity=LOW,
            message="offloading needs a higher ZeRO stage (3 for parameters): it does nothing",
            advice="stage: 2 for offload_optimizer, 3 for offload_param",
        ),
        FieldCheck(
            at=lambda root: [part for part, _ in _offloads(root, "nvme") if not part["nvme_path"]],
            severity=HIGH,
            message="device: nvme needs nvme_path: the settings are refused",
            advice="nvme_path: a folder on a local disk",
        ),
        FieldCheck(
            at=lambda root: [
                part["pin_memory"] for part, _ in _offloads(root, "cpu", "nvme") if part["pin_memory"].text == "false"
            ],
            severity=MEDIUM,
            message="pin_memory: false: offloaded data is copied from pageable memory, at a fraction of the speed",
            advice="pin_memory: true",
        ),
        FieldCheck(
            at=lambda root: [
                field
                for field in root.all("wall_clock_breakdown|comms_logger")  # flops_profiler profiles one step
                if field.is_true or field["enabled"].is_true
            ],
            severity=MEDIUM,
            message=(
                "a DeepSpeed profiler is left on (wall_clock_breakdown, comms_logger): it waits for "
                "the GPU in each step"
            ),
            advice="false",
        ),
        FieldCheck(
            at=lambda root: only(
                root["scheduler.params.warmup_max_lr"],
                root["scheduler.type"].text in ("WarmupLR", "WarmupDecayLR")
                and root["optimizer.params.lr"].number is not None
                and root["scheduler.params.warmup_max_lr"].number not in (None, root["optimizer.params.lr"].number),
            ),
            severity=HIGH,
            message=(
                "warmup_max_lr {text} replaces the lr of the optimizer, which differs: training runs at another"
                " learning rate"
            ),
            advice="make warmup_max_lr equal to optimizer.params.lr",
        ),
        FieldCheck(
            at=lambda root: [
                root["scheduler.type"]
                for kind, names in _SCHEDULERS.items()
                if root["scheduler.type"].text == kind
                for name in names
                if not root["scheduler.params"][name]
            ][:1],
            severity=HIGH,
            message=(
                "{text} needs parameters that are missing (total_num_steps, cycle_min_lr, cycle_max_lr): "
                "DeepSpeed fails when it builds the scheduler"
            ),
            advice="add them to scheduler.params",
        ),
        FieldCheck(
            at=lambda root: [
                field
                for part in ("optimizer.params", "scheduler.params")
                for _, field in root[part].items
                if field.number is not None and field.node.style == '"'
            ],
            severity=HIGH,
            message='"{text}" in quotes is a text, not a number: the optimizer or scheduler fails, or compares texts',
            advice="remove the quotes",
        ),
        FieldCheck(
            at=lambda root: only(root["amp"], root["amp.enabled"].is_true and root["zero_optimization.stage"].amount),
            severity=HIGH,
            message="amp with ZeRO is refused: DeepSpeed supports only fp16 and bf16 there",
            advice="bf16: enabled, and remove amp",
        ),
        FieldCheck(
            at=lambda root: [
                field
                for field in root.all("train_batch_size|train_micro_batch_size_per_gpu|gradient_accumulation_steps")
                if root["elasticity.enabled"].is_true
                and not root["elasticity.ignore_non_elastic_batch_info"].is_true
                and field.number
            ][:1],
            severity=HIGH,
            message="elasticity with a batch size of its own ({text}) is refused: elasticity computes the batch sizes",
            advice="remove the batch sizes, or ignore_non_elastic_batch_info: true",
        ),
        FieldCheck(
            at=lambda root: only(
                root["data_types.grad_accum_dtype"],
                root["data_types.grad_accum_dtype"].text in ("fp16", "bf16")
                and root["gradient_accumulation_steps"].amount >= 8,
            ),
            severity=MEDIUM,
            message="gradients are accumulated in {text} over many micro batches: small ones are rounded away",
            advice="grad_accum_dtype: fp32",
        ),
        FieldCheck(
            at=when("checkpoint.use_node_local_storage", lambda field: field.is_true),
            severity=MEDIUM,
            message=(
                "use_node_local_storage: each node keeps its shards of the checkpoint on its own disk: on other"
                " nodes, the run cannot be resumed"
            ),
            advice="use_node_local_storage: false, with a shared file system",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=when("fp16.loss_scale", lambda field: field.amount > 0),
            severity=MEDIUM,
            message="a fixed loss_scale of {text}: gradients overflow or vanish in fp16, as the scale never adapts",
            advice="loss_scale: 0 (dynamic)",
        ),
        FieldCheck(
            at=lambda root: [
                field
                for field in root.all("zero_optimization.reduce_bucket_size|allgather_bucket_size|sub_group_size")
                if 0 < field.amount < 1e6
            ],
            severity=MEDIUM,
            message="a bucket or group of {text} elements: the work is done in thousands of tiny parts",
            advice="5e8 for buckets, 1e9 for sub_group_size; 2e8 where memory is short",
        ),
        FieldCheck(
            at=lambda root: only(
                root["scheduler.params.warmup_num_steps"],
                0 < root["scheduler.params.total_num_steps"].amount <= root["scheduler.params.warmup_num_steps"].amount,
            ),
            severity=MEDIUM,
            message="warm-up ({text} steps) takes the whole schedule: the rate does not reach its top, or never falls",
            advice="warmup_num_steps far below total_num_steps",
        ),
        FieldCheck(
            at=lambda root: only(
                root["zero_optimization.stage3_gather_16bit_weights_on_model_save"],
                root["zero_optimization.stage"].amount == 3
                and root["zero_optimization.stage3_gather_16bit_weights_on_model_save"].text == "false",
            ),
            severity=MEDIUM,
            message="weights are not gathered when the model is saved: only shards of ZeRO are written",
            advice="stage3_gather_16bit_weights_on_model_save: true, or zero_to_fp32.py after the run",
            confidence=LIKELY,
        ),
    ),
)


def _machines(root: Field) -> float:
    return root["num_machines"].number or 1


STATED_GPUS = re.compile(
    r"(?i)\b(\d+) ?x? ?(?:[\w-]+ )?(?:GPUs?|[AHBLV]\d{2,3}s?)(?: GPUs?)? (?:each|per|on each|a (?:node|machine))"
)
"""GPUs of each machine in a comment: "8 H100 each", "4 GPUs per node"."""


ACCELERATE_SETTINGS = table_rule(
    "accelerate-settings",
    "accelerate settings contradict each other",
    """## What it does
    Compares the machines, processes, ranks, addresses, and the FSDP and DeepSpeed sections in an accelerate YAML file.

    ## Why it costs
    Machines wait for each other forever, GPUs stay idle, or a setting that should save memory does nothing.

    ## How to recognize it
    The rule looks at literal values. The finding is `likely` if an option of `accelerate launch` may replace the value.

    ## What to do
    Follow the advice of the finding, then lint the file again.

    ## When it is wrong
    Ignore the finding if you pass other values to `accelerate launch`.
    """,
    reads="accelerate",
    each="documents",
    about=lambda file, root: [(root, file.notes, root["distributed_type"].text or "")],
    checks=(
        FieldCheck(
            at=lambda root, notes, kind: only(
                root["num_processes"],
                root["num_processes"].amount > 1 and root["num_processes"].amount % _machines(root),
            ),
            severity=HIGH,
            message=(
                "num_processes {text} is the total over all machines, not a multiple of num_machines: the launch is "
                "refused, or some machines get none"
            ),
            advice="num_processes: machines x GPUs per machine",
        ),
        FieldCheck(
            at=lambda root, notes, kind: only(
                root["num_processes"],
                kind != "NO"
                and (stated := STATED_GPUS.search(notes))
                and 0 < root["num_processes"].amount < _machines(root) * int(stated[1]),
            ),
            severity=HIGH,
            message=(
                "num_processes {text} is the total over all machines, and a comment mentions more GPUs: the others "
                "stay idle"
            ),
            advice="num_processes: machines x GPUs per machine",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda root, notes, kind: only(
                root["num_processes"], _machines(root) > 1 and root["num_processes"].amount == _machines(root)
            ),
            severity=MEDIUM,
            message="num_processes {text} is the total over all machines: each machine uses one GPU",
            advice="num_processes: machines x GPUs per machine",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda root, notes, kind: only(
                root["main_process_ip"],
                _machines(root) > 1
                and kind != "MULTI_CPU"
                and not root["mpirun_config"]
                and "main_process_ip" not in notes
                and root["main_process_ip"].text in ("localhost", "127.0.0.1", "0.0.0.0"),
            ),
            severity=HIGH,
            message="main_process_ip is local with several machines: each waits for the others on itself",
            advice="main_process_ip: the address of the first machine (or --main_process_ip)",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda root, notes, kind: only(root["machine_rank"], root["machine_rank"].amount >= _machines(root)),
            severity=HIGH,
            message="machine_rank {text} is not below num_machines: the rendezvous never completes",
            advice="machine_rank from 0 to num_machines - 1",
        ),
        FieldCheck(
            at=lambda root, notes, kind: only(
                root["gpu_ids"],
                "," in (root["gpu_ids"].text or "")
                and _machines(root) == 1
                and root["num_processes"].amount != len((root["gpu_ids"].text or "").split(",")),
            ),
            severity=HIGH,
            message="the number of gpu_ids {text} differs from num_processes: ranks share a GPU, or GPUs stay idle",
            advice="num_processes equal to the number of gpu_ids",
        ),
        FieldCheck(
            at=lambda root, notes, kind: only(
                root["num_processes"],
                kind == "NO"
                and root["num_processes"].amount > 1
                and not re.search(r"(?i)single|(one|1)_?gpu|cpu", notes),
            ),
            severity=HIGH,
            message="num_processes {text} with distributed_type: NO: one GPU trains and the others stay idle",
            advice="distributed_type: MULTI_GPU",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda root, notes, kind: only(root["distributed_type"], root["use_cpu"].is_true and kind in SPREADS),
            severity=HIGH,
            message="use_cpu: true with distributed_type {text}: training runs on the CPU",
            advice="use_cpu: false",
        ),
        FieldCheck(
            at=lambda root, notes, kind: only(
                root["fsdp_config"],
                kind not in ("FSDP", "MULTI_GPU") and root["fsdp_config"].items and root["num_processes"].number != 1,
            ),
            severity=HIGH,
            message="fsdp_config without distributed_type: FSDP does nothing: each GPU holds the entire model",
            advice="distributed_type: FSDP",
        ),
        FieldCheck(
            at=lambda root, notes, kind: only(
                root["deepspeed_config"], kind not in ("DEEPSPEED", "") and root["deepspeed_config"].items
            ),
            severity=HIGH,
            message="deepspeed_config without distributed_type: DEEPSPEED does nothing: there is no ZeRO",
            advice="distributed_type: DEEPSPEED",
        ),
        FieldCheck(
            at=lambda root, notes, kind: only(
                root["deepspeed_config.deepspeed_config_file"],
                root["deepspeed_config.zero_stage"]
                or root["deepspeed_config.gradient_accumulation_steps"]
                or root["mixed_precision"].text in ("fp16", "bf16"),
            ),
            severity=HIGH,
            message=(
                "{text} next to settings that belong in it (zero_stage, gradient_accumulation_steps, "
                "mixed_precision): accelerate refuses both together"
            ),
            advice="set them only in the JSON file",
        ),
        FieldCheck(
            at=lambda root, notes, kind: [
                root[f"deepspeed_config.offload_{part}_device"]
                for part, stage in (("param", 3), ("optimizer", 1))
                if root[f"deepspeed_config.offload_{part}_device"].text in ("cpu", "nvme")
                and root["deepspeed_config.zero_stage"].amount < stage
            ],
            severity=LOW,
            message="offloading to {text} needs a higher zero_stage (3 for parameters): it does nothing",
            advice="zero_stage: 3, or no offloading",
        ),
        FieldCheck(
            at=lambda root, notes, kind: only(
                root["fsdp_config.fsdp_auto_wrap_policy"] or root["fsdp_config"],
                kind == "FSDP"
                and root["fsdp_config"].items
                and (
                    root["fsdp_config.fsdp_auto_wrap_policy"].text in (None, "NO_WRAP")
                    or (
                        root["fsdp_config.fsdp_auto_wrap_policy"].text == "SIZE_BASED_WRAP"
                        and not root["fsdp_config.fsdp_min_num_params"].amount
                    )
                ),
            ),
            severity=HIGH,
            message=(
                "no wrapping (fsdp_auto_wrap_policy): the model is one unit that each GPU gathers in full: no memory "
                "is saved and nothing overlaps"
            ),
            advice="fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, or SIZE_BASED_WRAP with fsdp_min_num_params",
        ),
        FieldCheck(
            at=lambda root, notes, kind: only(
                root["fsdp_config.fsdp_cpu_ram_efficient_loading"],
                root["fsdp_config.fsdp_cpu_ram_efficient_loading"].is_true
                and root["fsdp_config.fsdp_sync_module_states"].text == "false",
            ),
            severity=HIGH,
            message=(
                "fsdp_cpu_ram_efficient_loading needs fsdp_sync_module_states: the other ranks train with random "
                "weights, or it is refused"
            ),
            advice="fsdp_sync_module_states: true",
        ),
        FieldCheck(
            at=lambda root, notes, kind: [
                field
                for field in root.all("fsdp_config.fsdp_sharding_strategy")
                if field.text in ("NO_SHARD", "3") and root["num_processes"].number != 1
            ],
            severity=MEDIUM,
            message="{text}: each GPU holds the entire model and its optimizer",
            advice="fsdp_sharding_strategy: FULL_SHARD",
        ),
    ),
)


def _checkpoints(root: Field) -> list[Field]:
    """Arguments of the callbacks that save."""
    return [
        callback["init_args"]
        for callback in root["callbacks"].elements
        if "ModelCheckpoint" in (callback["class_path"].text or "")
    ]


def _is_part(field: Field) -> bool:
    """Whether a limit leaves batches out; 1.0 is all of them, and a large number is the length of an epoch."""
    return 0 < field.amount < 1000 and field.text not in ("1.0", "1.")


LIGHTNING_SETTINGS = table_rule(
    "lightning-settings",
    "Lightning Trainer settings waste time or lose the result",
    """## What it does
    Reads the debugging switches, checkpoints, precision and strategy in the `trainer:` section of a LightningCLI or
    Hydra YAML file.

    ## Why it costs
    A switch that is left on ends training early, prevents saving, or slows down every step.

    ## How to recognize it
    The rule looks at literal values. The finding is `likely` if the value may be intended.

    ## What to do
    Remove the switch, and pass it on the command line for the one run that needs it.

    ## When it is wrong
    Ignore the finding if the file is for debugging only.
    """,
    reads="lightning",
    each="documents",
    checks=(
        FieldCheck(
            at=when("fast_dev_run", lambda field: field.is_true or field.amount > 0),
            severity=HIGH,
            message="fast_dev_run: {text} is left on: training ends after a few batches and saves nothing",
            advice="remove fast_dev_run",
        ),
        FieldCheck(
            at=when("overfit_batches", lambda field: field.amount > 0),
            severity=HIGH,
            message="overfit_batches: {text} is left on: the model sees the same batches in every epoch",
            advice="remove overfit_batches",
        ),
        FieldCheck(
            at=when("limit_train_batches", _is_part),
            severity=HIGH,
            message="limit_train_batches: {text} is left on: most of the data is never seen",
            advice="remove limit_train_batches",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=when(
                "limit_val_batches", lambda field: _is_part(field) and (field.amount < 0.1 or 1 <= field.amount < 5)
            ),
            severity=MEDIUM,
            message=(
                "limit_val_batches: {text}: the validation that chooses the best checkpoint sees a fraction of its data"
            ),
            advice="remove limit_val_batches",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda root: only(
                root["max_epochs"],
                root["max_epochs"].text == "-1"
                and (root["max_steps"].text or "-1") == "-1"
                and not root["max_time"]
                and "EarlyStopping" not in " ".join(root.texts("callbacks.*.class_path")),
            ),
            severity=HIGH,
            message="max_epochs: -1 without max_steps, max_time or EarlyStopping: training never ends",
            advice="max_steps, or a number of epochs",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda root: [
                field
                for field in (
                    root["check_val_every_n_epoch"],
                    *(saved["every_n_epochs"] for saved in _checkpoints(root)),
                )
                if 0 < root["max_epochs"].amount < field.amount
            ],
            severity=HIGH,
            message="every {text} epochs is more than max_epochs: it never validates or saves",
            advice="a number below max_epochs",
        ),
        FieldCheck(
            at=lambda root: only(
                root["limit_val_batches"],
                root["limit_val_batches"].text in ("0", "0.0")
                and any(re.search("val", name) for name in root.texts("callbacks.*.init_args.monitor")),
            ),
            severity=HIGH,
            message=(
                "limit_val_batches: 0 runs no validation, but a callback monitors its metric: it fails, or "
                "saves nothing"
            ),
            advice="remove limit_val_batches",
        ),
        FieldCheck(
            at=lambda root: [
                root["logger"]
                for path in root.texts("callbacks.*.class_path")
                if root["logger"].text == "false" and "LearningRateMonitor" in path
            ],
            severity=HIGH,
            message="LearningRateMonitor needs a logger, and logger is {text}: MisconfigurationException at the start",
            advice="remove the callback, or set a logger",
        ),
        FieldCheck(
            at=when("detect_anomaly", lambda field: field.is_true),
            severity=MEDIUM,
            message="detect_anomaly is left on: each backward pass checks every gradient, at several times the cost",
            advice="detect_anomaly: false",
        ),
        FieldCheck(
            at=when("profiler", lambda field: field.text == "pytorch" or "PyTorch" in (field["class_path"].text or "")),
            severity=LOW,
            message="a profiler is left on: it costs time in every step",
            advice="remove profiler",
        ),
        FieldCheck(
            at=when("enable_checkpointing", lambda field: field.text is not None and not field.is_true),
            severity=HIGH,
            message="enable_checkpointing: false: nothing is saved, and the result is lost with the process",
            advice="enable_checkpointing: true",
        ),
        FieldCheck(
            at=lambda root: only(
                root["precision"],
                root["precision"].text in ("32", "32-true", "64", "64-true")
                and root["accelerator"].text in ("gpu", "cuda", "auto"),
            ),
            severity=LOW,
            message=(
                "precision: {text}: matmuls leave the tensor cores' half precision unused, at a fraction of the speed "
                "and twice the memory"
            ),
            advice="precision: bf16-mixed",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=when("precision", lambda field: field.text in ("16-true", "fp16-true")),
            severity=MEDIUM,
            message="precision: {text} keeps the weights in half precision: small updates are rounded away",
            advice="precision: bf16-mixed or 16-mixed",
        ),
        FieldCheck(
            at=lambda root: only(
                root["strategy"],
                "find_unused_parameters_true" in (root["strategy"].text or "")
                or root["strategy.init_args.find_unused_parameters"].is_true,
            ),
            severity=MEDIUM,
            message="find_unused_parameters: DDP walks the graph in every step, although often every parameter is used",
            advice="strategy: ddp",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda root: only(
                root["strategy"],
                (root["strategy"].text or "").startswith(("ddp", "fsdp", "deepspeed"))
                and root["accelerator"].text == "cpu",
            ),
            severity=HIGH,
            message="accelerator: cpu with strategy {text}: no GPU is used",
            advice="accelerator: gpu",
        ),
        FieldCheck(
            at=when("use_distributed_sampler", lambda field: field.text is not None and not field.is_true),
            severity=LOW,
            message=(
                "use_distributed_sampler: false: unless the data module shards the data itself, every rank trains on "
                "all of it"
            ),
            advice="remove it, or shard in the data module",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda root: [
                saved["save_top_k"]
                for saved in _checkpoints(root)
                if saved["save_top_k"].text == "0" and not saved["save_last"].is_true
            ],
            severity=HIGH,
            message="save_top_k: 0 saves no checkpoint: the result is lost",
            advice="save_top_k: 1, or save_last: true",
        ),
        FieldCheck(
            at=lambda root: [
                saved["save_top_k"]
                for saved in _checkpoints(root)
                if saved["save_top_k"].text == "-1" and saved["every_n_train_steps"]
            ],
            severity=MEDIUM,
            message="save_top_k: -1 keeps every checkpoint: the disk fills up, and training ends",
            advice="save_top_k: 3 and save_last: true",
        ),
        FieldCheck(
            at=lambda root: [
                saved["save_top_k"]
                for saved in _checkpoints(root)
                if saved["save_top_k"].amount > 1 and not saved["monitor"]
            ],
            severity=HIGH,
            message="save_top_k: {text} needs monitor: ModelCheckpoint refuses it (MisconfigurationException)",
            advice="monitor: val_loss",
        ),
        FieldCheck(
            at=lambda root: [
                saved["mode"] or saved["monitor"]
                for saved in root.all("callbacks.*.init_args")
                if find_direction(saved["monitor"].text) not in ("", saved["mode"].text or "min")
            ],
            severity=HIGH,
            message="the mode of this monitor has the wrong direction: the worst checkpoint is kept, or training stops",
            advice="mode: max for scores and accuracies, min for losses and errors",
        ),
    ),
)


SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(TB|TiB|GB|GiB)\b")


def _stated_gb(notes: str) -> float:
    """The largest amount of data that a comment states, in GB."""
    return max((float(size[1]) * (1000 if size[2][0] == "T" else 1) for size in SIZE.finditer(notes)), default=0.0)


SKYPILOT_SETTINGS = table_rule(
    "skypilot-settings",
    "SkyPilot task settings waste money or are refused",
    """## What it does
    Looks at storage modes, mounts that hide folders, disk sizes and commands that never end.

    ## Why it costs
    The machine does not come up, its disk fills, or you pay for it while nothing runs.

    ## How to recognize it
    The rule looks at literal values in the task.

    ## What to do
    Follow the advice of the finding, then lint the file again.

    ## When it is wrong
    Ignore the finding if the value is given on the command line.
    """,
    reads="skypilot",
    each="documents",
    about=lambda file, task: [(task, _stated_gb(file.notes))],
    checks=(
        FieldCheck(
            at=lambda task, stated_gb: [
                value
                for path, value in task["file_mounts"].items
                if re.match(r"(/|/usr|/etc|/bin|/root|/home|/var|/opt|~|~/|/lib)/?$", path)
            ],
            severity=HIGH,
            message="a mount over a system folder hides its files: the machine does not come up",
            advice="mount it at a separate folder, such as /data",
        ),
        FieldCheck(
            at=lambda task, stated_gb: [
                mode
                for mode in task.all("file_mounts.*.mode")
                if mode.text == "COPY" and 0 < (task["resources.disk_size"].number or 256) < stated_gb
            ][:1],
            severity=HIGH,
            message=(
                "mode COPY downloads the bucket onto disk_size, which is smaller than the data that a comment "
                "states: the launch fails"
            ),
            advice="mode: MOUNT, or a larger disk_size",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda task, stated_gb: [
                ReadPlace(task["run"].first_line + (task["run"].text or "").count("\n", 0, use.start()), f"${use[1]}")
                for use in re.finditer(r"\$\{?(\w+)\}?(?!:?-)", task["run"].text or "")
                if re.search(rf"(?m)^\s*export {use[1]}=", task["setup"].text or "")
                and not re.search(rf"(?m)\b{use[1]}=|for {use[1]} |bashrc|profile", task["run"].text or "")
                and use[1] not in (*dict(task["envs"].items), *dict(task["secrets"].items), "PATH", "HOME")
                and "bashrc" not in (task["setup"].text or "")
            ][:1],
            severity=HIGH,
            message="{text} is exported in setup, which is another shell: it is empty in run",
            advice="put it under envs, or export it in run",
        ),
        FieldCheck(
            at=lambda task, stated_gb: only(
                task["run"],
                re.search(r"(?m)^\s*(uv venv|python\S* -m venv|virtualenv |conda create)", task["setup"].text or "")
                and re.search(r"(?m)^\s*(exec )?(torchrun|python3?|accelerate|deepspeed)\s", task["run"].text or "")
                and not re.search(r"activate|uv run|conda run|PATH=|(^|\s)(source|\.) ", task["run"].text or "")
                and not re.search(r"bashrc|profile|--system|PATH=", task["setup"].text or ""),
            ),
            severity=HIGH,
            message=(
                "setup creates an environment, but run does not activate it: run is another shell, whose Python"
                " lacks the packages"
            ),
            advice="source the environment's bin/activate in run",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda task, stated_gb: only(task["resources.disk_size"], 0 < task["resources.disk_size"].amount < 30),
            severity=MEDIUM,
            message="disk_size {text} GB: the image alone takes most of it, and the first checkpoint fills the disk",
            advice="disk_size: 256 or more",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda task, stated_gb: [
                mode for mode in task.all("file_mounts.*.mode") if mode.text not in ("MOUNT", "COPY", "MOUNT_CACHED")
            ],
            severity=HIGH,
            message="there is no storage mode {text}: the file is refused",
            advice="MOUNT, COPY or MOUNT_CACHED",
        ),
        FieldCheck(
            at=lambda task, stated_gb: only(
                task["run"],
                re.search(r"sleep infinity|tail -f /dev/null", task["run"].text or "")
                and task["resources.accelerators"],
            ),
            severity=HIGH,
            message="run never ends: you pay for the GPUs until somebody stops it",
            advice="remove the sleep, and set resources.autostop",
            confidence=LIKELY,
        ),
    ),
)


def _is_network(volume: Field) -> bool:
    source = (volume.text or "").rpartition(":")[0]
    return (
        bool(source or volume["name"].text)
        and not source.startswith("/")
        and "dstack." not in (volume.text or volume["name"].text or "")
    )


DSTACK_SETTINGS = table_rule(
    "dstack-settings",
    "dstack settings are refused or end the run early",
    """## What it does
    Looks for images that are combined with a Python version, and checks utilization policies, idle durations and
    volumes that several nodes share.

    ## Why it costs
    The run is refused, it ends while it loads its data, or you pay for its instances while they are idle.

    ## How to recognize it
    The rule looks at literal values in the file.

    ## What to do
    Follow the advice of the finding, then lint the file again.

    ## When it is wrong
    Ignore the finding if a profile or an option of `dstack apply` sets other values.
    """,
    reads="dstack",
    each="documents",
    checks=(
        FieldCheck(
            at=lambda task: only(task["image"], task["python"] and task["image"]),
            severity=HIGH,
            message="image and python are mutually exclusive: the file is refused",
            advice="keep one of them",
        ),
        FieldCheck(
            at=when(
                "utilization_policy.time_window",
                lambda window: re.fullmatch(r"[1-4]m|\d+s|[0-9]{1,2}", window.text or ""),
            ),
            severity=HIGH,
            message=(
                "utilization_policy ends the run after {text} below its GPU utilization: loading data or compiling "
                "takes longer"
            ),
            advice="time_window: 30m or more",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=when("utilization_policy.min_gpu_utilization", lambda least: least.amount > 60),
            severity=HIGH,
            message="utilization_policy ends a run below {text} % GPU utilization: validation and saves are below it",
            advice="min_gpu_utilization: 10",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=when("idle_duration", lambda idle: re.fullmatch(r"(\d+w|[2-9]\d*d|1\dd|off|-1)", idle.text or "")),
            severity=MEDIUM,
            message="idle_duration {text}: you pay for idle GPUs that long after the run",
            advice="idle_duration: 5m",
        ),
        FieldCheck(
            at=lambda task: only(
                task["volumes"],
                task["nodes"].amount > 1 and any(_is_network(each) for each in task["volumes"].elements),
            ),
            severity=HIGH,
            message="a network volume attaches to one instance: the task's other nodes cannot use it",
            advice="one volume per node (name-${{{{ dstack.node_rank }}}}), or a bucket",
            confidence=LIKELY,
        ),
    ),
)
