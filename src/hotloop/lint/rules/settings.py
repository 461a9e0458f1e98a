"""The static checks of DeepSpeed, accelerate and Lightning settings, and of the fields of SkyPilot and dstack files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from typing import Any

from hotloop.core.findings import Severity
from hotloop.core.lint import Confidence, LintFinding, lint_rule
from hotloop.core.manifest_fields import find_field_faults
from hotloop.core.manifest_tables import known_fields, read_types
from hotloop.lint.checks import FieldCheck, only, run_checks
from hotloop.lint.yaml_fields import Field, read_value

HIGH, MEDIUM, LOW = Severity.HIGH, Severity.MEDIUM, Severity.LOW
LIKELY = Confidence.LIKELY
REMOVED = frozenset(
    [
        "gpus",
        "auto_select_gpus",
        "num_processes",
        "tpu_cores",
        "ipus",
        "resume_from_checkpoint",
        "amp_backend",
        "amp_level",
        "progress_bar_refresh_rate",
        "weights_save_path",
        "checkpoint_callback",
        "replace_sampler_ddp",
        "track_grad_norm",
        "multiple_trainloader_mode",
        "auto_lr_find",
        "auto_scale_batch_size",
        "truncated_bptt_steps",
        "terminate_on_nan",
        "flush_logs_every_n_steps",
        "reload_dataloaders_every_epoch",
        "distributed_backend",
        "stochastic_weight_avg",
        "prepare_data_per_node",
    ]
)
"""Arguments of Lightning 1's Trainer that Lightning 2 refuses."""


def when(path: str, is_faulty: Callable[[Field], object]) -> Callable[..., tuple[Field, ...]]:
    """The value at a path of the settings, where it is faulty."""
    return lambda settings: only(settings.root[path], is_faulty(settings.root[path]))


def _faults(root: Field, table: str) -> Iterator[LintFinding]:
    for fault in find_field_faults(read_value(root), table):
        field, name = root.at(fault.path), str(fault.path[-1]) if fault.path else ""
        is_near = difflib.get_close_matches(
            name, known_fields(read_types(table).get(fault.owner, {})), n=1, cutoff=0.84
        )
        is_refused = table in ("skypilot", "dstack") or (table in ("accelerate", "lightning") and fault.owner == "root")
        if (
            not re.search(r"[$<{]", field.text or "")
            and not name.startswith("_")
            and fault.path[:1] not in (("envs",), ("secrets",))
        ):
            yield LintFinding(
                severity=HIGH if is_near or is_refused or not fault.owner else LOW,
                line=field.line,
                message=f"{fault.text[:200]}: the file is refused, or the setting does nothing",
                advice=fault.reason.partition("; ")[2] or "see the documentation of the format",
                confidence=LIKELY if fault.owner and not is_near else Confidence.CERTAIN,
            )


@lint_rule(
    "unknown-setting",
    "a setting is unknown, missing, or of another type",
    reads="deepspeed accelerate lightning skypilot dstack",
)
def unknown_setting(file: Any) -> Iterator[LintFinding]:
    """## What it does
    Compares the fields of a SkyPilot or dstack file, of DeepSpeed's JSON, accelerate's YAML and Lightning's trainer
    with those that exist.

    ## Why it costs
    The file is refused before anything starts, or DeepSpeed passes the setting over and trains with its default.

    ## How to tell
    The tables of fields are noted from the sources, with their version. `likely` where no known name is near.

    ## What to do
    Write the name or the value that is meant.

    ## When it is wrong
    If the program is newer than the tables.
    """
    for root, table in file.tables:
        yield from _faults(root, table)


def _number(settings: Any, path: str) -> float:
    return settings.root[path].number or 0.0


def _is_on(settings: Any, path: str) -> bool:
    return bool(settings.root[path].is_true)


def _stage(settings: Any) -> float:
    return _number(settings, "zero_optimization.stage")


def _is_offloaded(settings: Any, part: str) -> bool:
    return settings.root[f"zero_optimization.{part}.device"].text in ("cpu", "nvme")


DEEPSPEED_CHECKS = (
    FieldCheck(
        at=lambda one: only(
            one.root["bf16.enabled"],
            (_is_on(one, "bf16.enabled") or _is_on(one, "bfloat16.enabled")) and _is_on(one, "fp16.enabled"),
        ),
        severity=HIGH,
        message="fp16 and bf16 are both enabled: DeepSpeed refuses the settings",
        advice="enable one of them",
    ),
    FieldCheck(
        at=lambda one: only(
            one.root["train_batch_size"],
            _number(one, "train_batch_size")
            and _number(one, "train_micro_batch_size_per_gpu")
            and _number(one, "train_batch_size")
            % (_number(one, "train_micro_batch_size_per_gpu") * (_number(one, "gradient_accumulation_steps") or 1)),
        ),
        severity=HIGH,
        message=(
            "train_batch_size {text} is no multiple of train_micro_batch_size_per_gpu x "
            "gradient_accumulation_steps: DeepSpeed refuses it for any number of GPUs (world size)"
        ),
        advice="leave train_batch_size out, or make it micro batch x accumulation x GPUs",
    ),
    FieldCheck(
        at=lambda one: only(
            one.root["zero_optimization.offload_param"], _is_offloaded(one, "offload_param") and _stage(one) < 3
        ),
        severity=HIGH,
        message="offload_param works at stage 3 alone: the parameters stay on the GPU, or the settings are refused",
        advice="stage: 3, or remove offload_param",
    ),
    FieldCheck(
        at=lambda one: only(
            one.root["zero_optimization.offload_optimizer"], _is_offloaded(one, "offload_optimizer") and _stage(one) < 1
        ),
        severity=HIGH,
        message="offload_optimizer needs ZeRO stage 1, 2 or 3: nothing is offloaded at stage 0",
        advice="stage: 2",
    ),
    FieldCheck(
        at=lambda one: [
            value
            for name, value in one.root["zero_optimization"].items
            if name.startswith("stage3_") and _stage(one) < 3 and "gather" not in name
        ][:1],
        severity=LOW,
        message="settings of stage 3 at a lower stage do nothing",
        advice="stage: 3, or remove them",
    ),
    FieldCheck(
        at=lambda one: only(
            one.root["zero_optimization.stage"],
            _stage(one) == 3
            and not _is_on(one, "zero_optimization.stage3_gather_16bit_weights_on_model_save")
            and not _is_on(one, "zero_optimization.gather_16bit_weights_on_model_save")
            and one.root["zero_optimization.stage3_gather_16bit_weights_on_model_save"],
        ),
        severity=LOW,
        message=(
            "without stage3_gather_16bit_weights_on_model_save the Trainer saves no weights that can be loaded by "
            "themselves"
        ),
        advice="stage3_gather_16bit_weights_on_model_save: true, or zero_to_fp32.py after the training",
    ),
    FieldCheck(
        at=when("zero_optimization.stage", lambda field: field.number is not None and field.number not in (0, 1, 2, 3)),
        severity=HIGH,
        message="there is no ZeRO stage {text}: the settings are refused",
        advice="stage: 0, 1, 2 or 3",
    ),
    FieldCheck(
        at=when("zero_optimization.overlap_comm", lambda field: field.text == "false"),
        severity=LOW,
        message="overlap_comm: false: gradients are reduced after the backward pass, not during it",
        advice="overlap_comm: true",
    ),
    FieldCheck(
        at=lambda one: [
            field
            for field in (
                one.root["wall_clock_breakdown"],
                one.root["flops_profiler.enabled"],
                one.root["comms_logger.enabled"],
            )
            if field.is_true
        ],
        severity=MEDIUM,
        message=(
            "a profiler of DeepSpeed is left on (wall_clock_breakdown, flops_profiler, comms_logger): it waits for "
            "the GPU in each step"
        ),
        advice="false",
    ),
    FieldCheck(
        at=lambda one: [
            field
            for part in ("offload_optimizer", "offload_param")
            for field in [one.root[f"zero_optimization.{part}.pin_memory"]]
            if field.text == "false" and _is_offloaded(one, part)
        ],
        severity=MEDIUM,
        message="pin_memory: false: what is offloaded is copied from pageable memory, at a fraction of the bandwidth",
        advice="pin_memory: true",
    ),
    FieldCheck(
        at=lambda one: [
            one.root[f"zero_optimization.{part}"]
            for part in ("offload_optimizer", "offload_param")
            if one.root[f"zero_optimization.{part}.device"].text == "nvme"
            and not one.root[f"zero_optimization.{part}.nvme_path"]
        ],
        severity=HIGH,
        message="device: nvme needs nvme_path: the settings are refused",
        advice="nvme_path: a folder on a local disk",
    ),
    FieldCheck(
        at=when("fp16.loss_scale", lambda field: (field.number or 0) > 0),
        severity=MEDIUM,
        message="a fixed loss_scale of {text}: gradients overflow or vanish in fp16 without anything that adapts it",
        advice="loss_scale: 0 (dynamic)",
    ),
    FieldCheck(
        at=lambda one: only(
            one.root["activation_checkpointing.cpu_checkpointing"],
            _is_on(one, "activation_checkpointing.cpu_checkpointing")
            and not _is_on(one, "activation_checkpointing.partition_activations"),
        ),
        severity=MEDIUM,
        message="cpu_checkpointing without partition_activations does nothing",
        advice="partition_activations: true",
    ),
    FieldCheck(
        at=when("zero_optimization.sub_group_size", lambda field: 0 < (field.number or 0) < 1e6),
        severity=MEDIUM,
        message="sub_group_size {text}: the optimizer steps in thousands of tiny groups",
        advice="sub_group_size: 1e9",
    ),
    FieldCheck(
        at=lambda one: [
            field
            for name in ("reduce_bucket_size", "allgather_bucket_size")
            for field in [one.root[f"zero_optimization.{name}"]]
            if 0 < (field.number or 0) < 1e6
        ],
        severity=MEDIUM,
        message="a bucket of {text} elements: gradients are reduced in many small messages",
        advice="5e8, or 2e8 where memory is short",
    ),
    FieldCheck(
        at=when("gradient_clipping", lambda field: field.text is not None and field.number == 0),
        severity=LOW,
        message="gradient_clipping: 0 turns clipping off",
        advice='1.0, or "auto" where the Trainer clips',
    ),
)


@lint_rule("deepspeed-settings", "settings of DeepSpeed contradict each other or cost time", reads="deepspeed")
def deepspeed_settings(file: Any) -> Iterator[LintFinding]:
    """## What it does
    Compares batch sizes, precision, ZeRO stage, offloading, buckets and profilers of a DeepSpeed JSON file.

    ## Why it costs
    DeepSpeed refuses the settings when the engine is made, passes over what the stage does not have, or waits for the
    GPU in each step.

    ## How to tell
    Literal values; `auto` is filled in by the Trainer and not judged.

    ## What to do
    What the finding says; then lint the file again.

    ## When it is wrong
    If the script changes the settings before it passes them on.
    """
    yield from run_checks(DEEPSPEED_CHECKS, file)


def _kind(settings: Any) -> str:
    return (settings.root["distributed_type"].text or "").upper()


def _machines(settings: Any) -> float:
    return settings.root["num_machines"].number or 1


ACCELERATE_CHECKS = (
    FieldCheck(
        at=lambda one: only(
            one.root["num_processes"], _machines(one) > 1 and 0 < _number(one, "num_processes") < _machines(one)
        ),
        severity=HIGH,
        message="num_processes {text} is the total over all machines, and less than num_machines: some have none",
        advice="num_processes: machines x GPUs of each",
    ),
    FieldCheck(
        at=lambda one: only(
            one.root["num_processes"],
            _machines(one) > 1
            and _number(one, "num_processes") > _machines(one)
            and _number(one, "num_processes") % _machines(one),
        ),
        severity=HIGH,
        message=(
            "num_processes {text} is the total over all machines, and no multiple of num_machines: the launch is "
            "refused"
        ),
        advice="num_processes: machines x GPUs of each",
    ),
    FieldCheck(
        at=lambda one: only(
            one.root["num_processes"],
            _machines(one) > 1 and _number(one, "num_processes") == _machines(one) and not one.root["gpu_ids"]["x"],
        ),
        severity=MEDIUM,
        message="num_processes {text} is the total over all machines: each machine uses one GPU",
        advice="num_processes: machines x GPUs of each",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=lambda one: only(
            one.root["main_process_ip"] or one.root["num_machines"],
            _machines(one) > 1
            and not one.root["mpirun_config"]
            and _kind(one) != "MULTI_CPU"
            and (one.root["main_process_ip"].text or "localhost") in ("localhost", "127.0.0.1", "0.0.0.0"),
        ),
        severity=HIGH,
        message="main_process_ip is missing or local with several machines: each waits for the others at itself",
        advice="main_process_ip: the address of the first machine (or --main_process_ip)",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=lambda one: only(one.root["machine_rank"], _number(one, "machine_rank") >= _machines(one)),
        severity=HIGH,
        message="machine_rank {text} is not below num_machines: the rendezvous never completes",
        advice="machine_rank from 0 to num_machines - 1",
    ),
    FieldCheck(
        at=lambda one: only(
            one.root["gpu_ids"],
            "," in (one.root["gpu_ids"].text or "")
            and _machines(one) == 1
            and _number(one, "num_processes") != len((one.root["gpu_ids"].text or "").split(",")),
        ),
        severity=HIGH,
        message="gpu_ids {text} are another number than num_processes: ranks share a GPU, or GPUs stay idle",
        advice="num_processes equal to the number of gpu_ids",
    ),
    FieldCheck(
        at=lambda one: only(
            one.root["num_processes"],
            _kind(one) in ("MULTI_GPU", "FSDP", "DEEPSPEED")
            and one.root["num_processes"].text == "1"
            and _machines(one) == 1,
        ),
        severity=LOW,
        message="one process: nothing is distributed",
        advice="num_processes: the number of GPUs (or --num_processes)",
    ),
    FieldCheck(
        at=lambda one: only(one.root["num_processes"], _kind(one) == "NO" and _number(one, "num_processes") > 1),
        severity=HIGH,
        message="num_processes {text} with distributed_type: NO: one GPU trains and the others stay idle",
        advice="distributed_type: MULTI_GPU",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=lambda one: only(
            one.root["distributed_type"],
            one.root["use_cpu"].is_true and _kind(one) in ("MULTI_GPU", "FSDP", "DEEPSPEED"),
        ),
        severity=HIGH,
        message="use_cpu: true with distributed_type {text}: the training runs on the CPU",
        advice="use_cpu: false",
    ),
    FieldCheck(
        at=lambda one: only(
            one.root["fsdp_config"], _kind(one) not in ("FSDP", "MULTI_GPU") and one.root["fsdp_config"].items
        ),
        severity=HIGH,
        message="fsdp_config without distributed_type: FSDP does nothing: each GPU holds the whole model",
        advice="distributed_type: FSDP",
    ),
    FieldCheck(
        at=lambda one: only(
            one.root["deepspeed_config"], _kind(one) not in ("DEEPSPEED", "") and one.root["deepspeed_config"].items
        ),
        severity=HIGH,
        message="deepspeed_config without distributed_type: DEEPSPEED does nothing: there is no ZeRO",
        advice="distributed_type: DEEPSPEED",
    ),
    FieldCheck(
        at=lambda one: only(
            one.root["deepspeed_config.deepspeed_config_file"],
            one.root["deepspeed_config.deepspeed_config_file"].text
            and (
                one.root["deepspeed_config.zero_stage"]
                or one.root["deepspeed_config.gradient_accumulation_steps"]
                or one.root["mixed_precision"].text in ("fp16", "bf16")
            ),
        ),
        severity=HIGH,
        message=(
            "{text} beside settings that belong into it (zero_stage, gradient_accumulation_steps, "
            "mixed_precision): accelerate refuses both together"
        ),
        advice="set them in the JSON file alone",
    ),
    FieldCheck(
        at=lambda one: [
            field
            for part in ("offload_param_device", "offload_optimizer_device")
            for field in [one.root[f"deepspeed_config.{part}"]]
            if field.text in ("cpu", "nvme")
            and _number(one, "deepspeed_config.zero_stage") < (3 if "param" in part else 1)
        ],
        severity=HIGH,
        message="offloading to {text} needs a higher zero_stage (3 for parameters): it does nothing, or is refused",
        advice="zero_stage: 3, or none",
    ),
    FieldCheck(
        at=lambda one: only(
            one.root["deepspeed_config.zero3_init_flag"],
            _is_on(one, "deepspeed_config.zero3_init_flag") and _number(one, "deepspeed_config.zero_stage") < 3,
        ),
        severity=LOW,
        message="zero3_init_flag at a stage below 3 does nothing",
        advice="zero3_init_flag: false",
    ),
    FieldCheck(
        at=lambda one: only(
            one.root["fsdp_config"],
            _kind(one) == "FSDP"
            and one.root["fsdp_config"].items
            and one.root["fsdp_config.fsdp_auto_wrap_policy"].text in (None, "NO_WRAP"),
        ),
        severity=HIGH,
        message=(
            "no fsdp_auto_wrap_policy: the model is one unit, gathered whole on each GPU: no memory is saved and "
            "nothing overlaps"
        ),
        advice="fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
    ),
    FieldCheck(
        at=lambda one: only(
            one.root["fsdp_config.fsdp_cpu_ram_efficient_loading"],
            _is_on(one, "fsdp_config.fsdp_cpu_ram_efficient_loading")
            and one.root["fsdp_config.fsdp_sync_module_states"].text == "false",
        ),
        severity=HIGH,
        message=(
            "fsdp_cpu_ram_efficient_loading needs fsdp_sync_module_states: the other ranks train with random "
            "weights, or it is refused"
        ),
        advice="fsdp_sync_module_states: true",
    ),
    FieldCheck(
        at=when("fsdp_config.fsdp_sharding_strategy", lambda field: field.text in ("NO_SHARD", "3")),
        severity=MEDIUM,
        message=(
            "fsdp_sharding_strategy {text}: nothing is sharded, and each GPU holds the whole model and its optimizer"
        ),
        advice="FULL_SHARD, or distributed_type: MULTI_GPU",
    ),
    FieldCheck(
        at=when("fsdp_config.fsdp_offload_params", lambda field: field.is_true),
        severity=LOW,
        message="fsdp_offload_params: each step moves the parameters over PCIe and runs the optimizer on the CPU",
        advice="false, where the model fits",
    ),
    FieldCheck(
        at=when("fsdp_config.fsdp_backward_prefetch", lambda field: field.text == "NO_PREFETCH"),
        severity=MEDIUM,
        message="fsdp_backward_prefetch: NO_PREFETCH: gathering does not overlap with the backward pass",
        advice="BACKWARD_PRE",
    ),
    FieldCheck(
        at=when("debug", lambda field: field.is_true),
        severity=LOW,
        message="debug: true checks the shapes on all ranks before each collective",
        advice="debug: false",
    ),
)


@lint_rule("accelerate-settings", "settings of accelerate contradict each other", reads="accelerate")
def accelerate_settings(file: Any) -> Iterator[LintFinding]:
    """## What it does
    Compares machines, processes, ranks, addresses, FSDP and DeepSpeed parts of an accelerate YAML file.

    ## Why it costs
    Machines wait for each other for ever, GPUs stay idle, or the part that was to save memory does nothing.

    ## How to tell
    Literal values. `likely` where an option of `accelerate launch` may replace the value.

    ## What to do
    What the finding says; then lint the file again.

    ## When it is wrong
    If `accelerate launch` is given other values.
    """
    yield from run_checks(ACCELERATE_CHECKS, file)


LIGHTNING_CHECKS = (
    FieldCheck(
        at=when("fast_dev_run", lambda field: field.is_true or (field.number or 0) > 0),
        severity=HIGH,
        message="fast_dev_run: {text} is left on: the training ends after some batches and saves nothing",
        advice="remove fast_dev_run",
    ),
    FieldCheck(
        at=when("overfit_batches", lambda field: (field.number or 0) > 0),
        severity=HIGH,
        message="overfit_batches: {text} is left on: the model sees the same batches in every epoch",
        advice="remove overfit_batches",
    ),
    FieldCheck(
        at=when("limit_train_batches", lambda field: field.number is not None and field.text not in ("1.0", "1.")),
        severity=HIGH,
        message="limit_train_batches: {text} is left on: most of the data is never seen",
        advice="remove limit_train_batches",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=when(
            "limit_val_batches",
            lambda field: (field.number or 0) > 0 and field.text not in ("1.0", "1.") and (field.number or 0) < 5,
        ),
        severity=MEDIUM,
        message=(
            "limit_val_batches: {text}: the validation that chooses the best checkpoint sees a fraction of its data"
        ),
        advice="remove limit_val_batches",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=when("detect_anomaly", lambda field: field.is_true),
        severity=MEDIUM,
        message="detect_anomaly is left on: each backward pass checks every gradient, at several times the cost",
        advice="detect_anomaly: false",
    ),
    FieldCheck(
        at=when("profiler", lambda field: field.text in ("advanced", "pytorch", "simple") or field["class_path"].text),
        severity=MEDIUM,
        message="a profiler is left on: it takes time in every step",
        advice="remove profiler",
    ),
    FieldCheck(
        at=when("deterministic", lambda field: field.is_true),
        severity=MEDIUM,
        message="deterministic: true takes slower kernels, and refuses those that have none",
        advice="deterministic: false, where runs need not be equal bit by bit",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=when("barebones", lambda field: field.is_true),
        severity=HIGH,
        message="barebones: true turns checkpoints and logging off: the result is lost",
        advice="remove barebones",
    ),
    FieldCheck(
        at=when("enable_checkpointing", lambda field: field.text is not None and not field.is_true),
        severity=HIGH,
        message="enable_checkpointing: false: nothing is saved, and the result is lost with the process",
        advice="enable_checkpointing: true",
    ),
    FieldCheck(
        at=lambda one: [
            field
            for each in one.root["callbacks"].elements
            for field in [each["init_args.save_top_k"]]
            if field.text == "0"
        ],
        severity=HIGH,
        message="save_top_k: 0 saves no checkpoint: the result is lost",
        advice="save_top_k: 1, or save_last: true",
    ),
    FieldCheck(
        at=lambda one: [
            field
            for each in one.root["callbacks"].elements
            for field in [each["init_args.save_top_k"]]
            if field.text == "-1"
            and (each["init_args.every_n_train_steps"] or each["init_args.every_n_epochs"].number == 1)
        ],
        severity=MEDIUM,
        message="save_top_k: -1 keeps every checkpoint: the disk fills up, and the training ends",
        advice="save_top_k: 3 and save_last: true",
    ),
    FieldCheck(
        at=lambda one: [
            each["init_args.save_top_k"]
            for each in one.root["callbacks"].elements
            if (each["init_args.save_top_k"].number or 0) > 1
            and not each["init_args.monitor"]
            and "ModelCheckpoint" in (each["class_path"].text or "")
        ],
        severity=HIGH,
        message="save_top_k: {text} needs monitor: ModelCheckpoint refuses it (MisconfigurationException)",
        advice="monitor: val_loss",
    ),
    FieldCheck(
        at=lambda one: only(
            one.root["precision"],
            one.root["precision"].text in ("32", "32-true", "64", "64-true")
            and one.root["accelerator"].text in ("gpu", "cuda", "auto"),
        ),
        severity=MEDIUM,
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
        at=lambda one: only(
            one.root["strategy"],
            "find_unused_parameters_true" in (one.root["strategy"].text or "")
            or one.root["strategy.init_args.find_unused_parameters"].is_true,
        ),
        severity=MEDIUM,
        message="find_unused_parameters: the graph is walked in every step, though often every parameter is used",
        advice="strategy: ddp",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=lambda one: only(
            one.root["strategy"],
            (one.root["strategy"].text or "") in ("dp", "ddp_spawn", "ddp_notebook", "ddp2", "horovod"),
        ),
        severity=MEDIUM,
        message="strategy: {text} is slower than ddp, or refused by Lightning 2",
        advice="strategy: ddp",
    ),
    FieldCheck(
        at=lambda one: only(
            one.root["num_nodes"],
            _number(one, "num_nodes") > 1
            and one.root["devices"].text == "1"
            and one.root["strategy"].text in (None, "auto"),
        ),
        severity=MEDIUM,
        message="num_nodes: {text} with one device each: check that the other GPUs of the nodes are meant to stay idle",
        advice="devices: auto",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=lambda one: only(
            one.root["strategy"],
            (one.root["strategy"].text or "").startswith(("ddp", "fsdp", "deepspeed"))
            and one.root["accelerator"].text == "cpu",
        ),
        severity=HIGH,
        message="accelerator: cpu with strategy {text}: no GPU is used",
        advice="accelerator: gpu",
    ),
    FieldCheck(
        at=when("use_distributed_sampler", lambda field: field.text is not None and not field.is_true),
        severity=MEDIUM,
        message=(
            "use_distributed_sampler: false: unless the data module shards the data itself, every rank trains on "
            "all of it"
        ),
        advice="remove it, or shard in the data module",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=when(
            "val_check_interval",
            lambda field: (
                0 < (field.number or 1) < 0.05 or ((field.text or "").isdecimal() and 0 < (field.number or 0) < 50)
            ),
        ),
        severity=MEDIUM,
        message="val_check_interval: {text}: the validation runs so often that it takes most of the time",
        advice="val_check_interval: 0.25 or 1.0",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=when("log_every_n_steps", lambda field: field.text == "1"),
        severity=LOW,
        message="log_every_n_steps: 1 waits for the GPU in every step",
        advice="log_every_n_steps: 50",
    ),
    FieldCheck(
        at=when("reload_dataloaders_every_n_epochs", lambda field: field.text == "1"),
        severity=MEDIUM,
        message="the loaders and their workers are made anew in every epoch",
        advice="0, with persistent_workers=True",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=when("max_epochs", lambda field: field.text == "-1"),
        severity=LOW,
        message="max_epochs: -1 trains without an end",
        advice="set max_epochs or max_steps",
    ),
    FieldCheck(
        at=lambda one: [value for name, value in one.root.items if name in REMOVED and one.table],
        severity=HIGH,
        message=(
            "the Trainer of Lightning 2 does not know an argument of Lightning 1 that is set to {text} here: it is "
            "refused"
        ),
        advice=(
            "accelerator and devices for gpus, ckpt_path for resume_from_checkpoint, use_distributed_sampler, "
            "enable_progress_bar"
        ),
    ),
)


@lint_rule("lightning-settings", "settings of Lightning's Trainer cost time or the result", reads="lightning")
def lightning_settings(file: Any) -> Iterator[LintFinding]:
    """## What it does
    Reads the `trainer:` part of a YAML file of LightningCLI or Hydra: switches of debugging, checkpoints, precision,
    strategy, and how often it validates.

    ## Why it costs
    A switch that is left on ends the training early, keeps it from saving, or slows every step.

    ## How to tell
    Literal values. `likely` where a value may be meant.

    ## What to do
    Remove the switch, and pass it on the command line for the one run that needs it.

    ## When it is wrong
    If the file is for debugging only.
    """
    yield from run_checks(LIGHTNING_CHECKS, file)


SKYPILOT_CHECKS = (
    FieldCheck(
        at=lambda one: [
            value
            for path, value in one["file_mounts"].items
            if re.match(r"(/|/usr|/etc|/bin|/root|/home|/var|/opt|~|~/|/lib)/?$", path)
        ],
        severity=HIGH,
        message="a mount over a folder of the system hides what is there: the machine does not come up",
        advice="mount it at a folder of its own, such as /data",
    ),
    FieldCheck(
        at=lambda one: [value for name, value in one["envs"].items if value.text is None],
        severity=LOW,
        message="a variable without a value has to be given by --env, else the launch is refused",
        advice="give it a value, or --env NAME",
    ),
    FieldCheck(
        at=lambda one: only(
            one["run"],
            re.search(
                r"(?m)^\s*(pip3? install|uv (sync|pip install)|conda (create|install)|apt(-get)? install|git clone)\b",
                one["run"].text or "",
            )
            and not one["setup"],
        ),
        severity=LOW,
        message="packages are installed in run, again after each recovery and by each exec",
        advice="install them in setup",
    ),
    FieldCheck(
        at=lambda one: [field for field in (one["resources.disk_size"],) if 0 < (field.number or 0) < 30],
        severity=MEDIUM,
        message="disk_size {text} GB: the image alone takes most of it, and the first checkpoint fills the disk",
        advice="disk_size: 256 or more",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=lambda one: [
            value["mode"]
            for _, value in one["file_mounts"].items
            if value["mode"].text and value["mode"].text not in ("MOUNT", "COPY", "MOUNT_CACHED")
        ],
        severity=HIGH,
        message="there is no storage mode {text}: the file is refused",
        advice="MOUNT, COPY or MOUNT_CACHED",
    ),
    FieldCheck(
        at=lambda one: only(
            one["run"],
            re.search(r"sleep infinity|tail -f /dev/null", one["run"].text or "") and one["resources.accelerators"],
        ),
        severity=HIGH,
        message="run never ends: the GPUs are paid for until somebody looks",
        advice="remove the sleep, and set resources.autostop",
        confidence=LIKELY,
    ),
)


@lint_rule(
    "skypilot-settings", "settings of a SkyPilot task cost money or are refused", reads="skypilot", each="documents"
)
def skypilot_settings(file: Any, document: Field) -> Iterator[LintFinding]:
    """## What it does
    Looks at storage modes, folders that are mounted over, disk sizes, variables without a value and installs in `run`.

    ## Why it costs
    The machine does not come up, its disk fills, or it is paid for while nothing runs.

    ## How to tell
    Literal values of the task.

    ## What to do
    What the finding says; then lint the file again.

    ## When it is wrong
    If the value is given on the command line.
    """
    yield from run_checks(SKYPILOT_CHECKS, document)


DSTACK_CHECKS = (
    FieldCheck(
        at=lambda one: only(one["image"], one["python"] and one["image"]),
        severity=HIGH,
        message="image and python exclude each other: the file is refused",
        advice="keep one of them",
    ),
    FieldCheck(
        at=lambda one: [
            field
            for field in (one["utilization_policy.time_window"],)
            if re.fullmatch(r"[1-4]m|\d+s|[0-9]{1,2}", field.text or "")
        ],
        severity=HIGH,
        message=(
            "utilization_policy ends the run after {text} below the GPU utilization: loading data or compiling "
            "takes longer"
        ),
        advice="time_window: 30m or more",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=lambda one: only(
            one["utilization_policy.min_gpu_utilization"],
            (one["utilization_policy.min_gpu_utilization"].number or 0) > 60,
        ),
        severity=HIGH,
        message="utilization_policy ends a run below {text} % of GPU utilization: validation and saves are below that",
        advice="min_gpu_utilization: 10",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=lambda one: only(
            one["idle_duration"], re.fullmatch(r"(\d+w|[2-9]\d*d|1\dd|off|-1)", one["idle_duration"].text or "")
        ),
        severity=MEDIUM,
        message="idle_duration {text}: idle GPUs are paid for that long after the run",
        advice="idle_duration: 5m",
    ),
    FieldCheck(
        at=lambda one: only(
            one["volumes"],
            (one["nodes"].number or 1) > 1 and any(_is_network(each) for each in one["volumes"].elements),
        ),
        severity=HIGH,
        message="a network volume attaches to one instance: the other nodes of the task cannot be made with it",
        advice="one volume per node (name-${{{{ dstack.node_rank }}}}), or a bucket",
        confidence=LIKELY,
    ),
)


def _is_network(entry: Field) -> bool:
    source = (entry.text or "").rpartition(":")[0]
    return (
        bool(source or entry["name"].text)
        and not source.startswith("/")
        and "dstack." not in (entry.text or entry["name"].text or "")
    )


@lint_rule("dstack-settings", "settings of a dstack run are refused or end it early", reads="dstack", each="documents")
def dstack_settings(file: Any, document: Field) -> Iterator[LintFinding]:
    """## What it does
    Looks at images with a Python version, utilization policies, idle durations and volumes of several nodes.

    ## Why it costs
    The run is refused, ends while it loads its data, or its instances are paid for while they are idle.

    ## How to tell
    Literal values of the file.

    ## What to do
    What the finding says; then lint the file again.

    ## When it is wrong
    If a profile or an option of `dstack apply` gives other values.
    """
    yield from run_checks(DSTACK_CHECKS, document)
