"""A planned run -> the strategy file that applies it: techniques where they exist, comments where they do not."""

from __future__ import annotations

from hotloop.core.findings import Value
from hotloop.core.hardware import Hardware
from hotloop.core.strategy import Choice, Strategy, describe_library_choices, strategy_to_toml
from hotloop.core.workload import PlannedRun, Workload

LARGEST_ACCUMULATION = 65_536
"""Numbers of micro-batches per step that the technique accepts."""

LIBRARY_TECHNIQUES = ("accumulation", "fsdp2", "zero-optimizer")
"""They need hotloop's Trainer or API; an unedited script does not give them the objects that they change."""

TORCH_AXES = {
    "tp": "torchtitan --parallelism.tensor_parallel_degree",
    "pp": "torchtitan --parallelism.pipeline_parallel_degree",
    "cp": "torchtitan --parallelism.context_parallel_degree",
    "ep": "torchtitan --parallelism.expert_parallel_degree",
}
MEGATRON_AXES = {
    "tp": "--tensor-model-parallel-size",
    "pp": "--pipeline-model-parallel-size",
    "cp": "--context-parallel-size",
    "ep": "--expert-model-parallel-size",
}


def plan_strategy(workload: Workload, hardware: Hardware) -> tuple[Strategy, tuple[str, ...]]:
    """The techniques that the run's settings call for, and a comment for each setting that no technique applies."""
    run = workload.run
    if run.framework == "megatron":
        return Strategy(name="planned"), (*_describe_launch(workload, hardware), *_megatron_flags(workload))
    chosen: dict[str, dict[str, Value]] = {}
    comments = [*_describe_launch(workload, hardware)]
    for add in (_add_sharding, _add_precision, _add_activations, _add_offload, _add_accumulation, _add_rest):
        comments += add(workload, hardware, chosen)
    library = [name for name in LIBRARY_TECHNIQUES if name in chosen]
    if library:
        comments.append(describe_library_choices(library))
    choices = tuple(Choice(technique=name, settings=settings) for name, settings in chosen.items())
    return Strategy(choices=choices, name="planned"), tuple(comments)


def draw_strategy(strategy: Strategy, comments: tuple[str, ...]) -> str:
    """The file: its comments first, each on its own line."""
    lines = (f"# {''.join(c if c.isprintable() else ' ' for c in one)}\n" for one in comments)
    return "".join(lines) + strategy_to_toml(strategy)


def _describe_launch(workload: Workload, hardware: Hardware) -> list[str]:
    gpus, per_node = workload.gpus, min(workload.gpus, hardware.gpus_per_node)
    run, samples = workload.run, workload.run.micro_batch * workload.micro_batches
    return [
        f"launch: torchrun --nnodes {-(-gpus // per_node)} --nproc-per-node {per_node} ({gpus} x {hardware.name})",
        f"batch: the loader of each data-parallel rank gives {samples} sequences of {workload.model.seq} tokens per "
        "step "
        f"(global batch {run.global_batch})",
    ]


def _megatron_flags(workload: Workload) -> list[str]:
    run = workload.run
    flags = [
        f"--micro-batch-size {run.micro_batch}",
        f"--global-batch-size {run.global_batch}",
        *(f"{flag} {getattr(run, axis)}" for axis, flag in MEGATRON_AXES.items() if getattr(run, axis) > 1),
    ]
    flags += ["--sequence-parallel"] if run.tp > 1 and run.sequence_parallel else []
    flags += [] if run.precision == "fp32" else [{"fp16": "--fp16", "fp8": "--bf16 --fp8-format hybrid"}.get(
        run.precision, "--bf16"
    )]  # fmt: skip
    flags += {
        "none": [],
        "selective": ["--recompute-granularity selective"],
        "full": ["--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"],
    }[run.recompute]
    flags += [] if run.sharding == "ddp" else ["--use-distributed-optimizer"]
    if run.pipeline_chunks > 1:
        layers = -(-workload.model.layers // run.pp // run.pipeline_chunks)
        flags.append(f"--num-layers-per-virtual-pipeline-stage {layers}")
    return ["no technique changes Megatron-LM's own loop; its arguments:", *flags]


def _add_sharding(workload: Workload, hardware: Hardware, chosen: dict[str, dict[str, Value]]) -> list[str]:
    run = workload.run
    comments = [
        f"run.{axis} = {getattr(run, axis)}: no technique splits a model this way; {flag} {getattr(run, axis)}"
        for axis, flag in TORCH_AXES.items()
        if getattr(run, axis) > 1
    ]
    if workload.data_ranks * run.cp == 1:
        return comments
    if run.sharding == "ddp":
        return [*comments, "run.sharding = ddp: the script wraps its model in DistributedDataParallel"]
    if run.sharding == "hsdp":
        nodes = workload.gpus // hardware.gpus_per_node
        mesh = f'init_device_mesh("cuda", ({nodes}, {hardware.gpus_per_node}))'
        return [*comments, f"run.sharding = hsdp: no technique shards within a node; fully_shard(mesh={mesh})"]
    if run.sharding in ("fsdp", "zero3"):
        chosen["fsdp2"] = {}
        if run.sharding == "zero3":
            comments.append("run.sharding = zero3: fsdp2 shards the same states; in DeepSpeed's file, it is stage 3")
        return comments
    chosen["zero-optimizer"] = {}
    if run.precision != "fp32":
        comments.append(
            f"run.sharding = {run.sharding}: zero-optimizer keeps weights and gradients in float32, 4 + 4 + 8 / ranks "
            "bytes per parameter; the plan counts DeepSpeed's 16-bit copies"
        )
    if run.sharding == "zero2":
        comments.append(
            'run.sharding = zero2: no technique shards only gradients; DeepSpeed {"zero_optimization": {"stage": 2}}'
        )
    return comments


def _add_precision(workload: Workload, hardware: Hardware, chosen: dict[str, dict[str, Value]]) -> list[str]:
    precision = workload.run.precision
    half = {"bf16": "bfloat16", "fp8": "bfloat16", "fp16": "float16"}.get(precision)
    comments = []
    if precision == "fp32" and "tf32" in hardware.peak_flops:
        chosen["matmul-precision"] = {"precision": "high"}
        comments.append("run.precision = fp32: the plan assumes TF32 products")
    elif precision == "pure-bf16":
        if "zero-optimizer" in chosen or "fsdp2" in chosen:
            comments.append("run.precision = pure-bf16: model.to(torch.bfloat16) before the model is sharded")
        else:
            chosen["bf16-parameters"] = {"weights": "nearest", "state": "bfloat16"}
    elif half is not None and "fsdp2" in chosen:
        chosen["fsdp2"] = {"param_dtype": half, "reduce_dtype": "float32"}
        if precision == "fp16":
            comments.append("run.precision = fp16: no technique scales the loss of sharded gradients; GradScaler")
    elif half is not None:
        chosen["fp16-autocast" if precision == "fp16" else "bf16-autocast"] = {}
    if precision == "fp8":
        comments.append(
            "run.precision = fp8: no technique computes in 8 bits; torchao.float8.convert_to_float8_training"
        )
    return comments


def _add_activations(workload: Workload, hardware: Hardware, chosen: dict[str, dict[str, Value]]) -> list[str]:
    recompute = workload.run.recompute
    if recompute == "none":
        return []
    chosen["activation-checkpointing"] = {} if recompute == "full" else {"policy": "matmuls"}
    if recompute == "full":
        return []
    return [
        "run.recompute = selective: the technique keeps every product; the plan keeps every second one, like torchtitan"
    ]


def _add_offload(workload: Workload, hardware: Hardware, chosen: dict[str, dict[str, Value]]) -> list[str]:
    run = workload.run
    if run.offload == "activations" and not run.compiled:
        chosen["activation-offload"] = {}
        return []
    if run.offload == "optimizer" and "fsdp2" not in chosen and "zero-optimizer" not in chosen:
        chosen["optimizer-state-offload"] = {}
        return []
    if run.offload == "parameters" and "fsdp2" in chosen:
        chosen["fsdp2"] = {**chosen["fsdp2"], "cpu_offload": True}
        return []
    instead = {
        "none": "",
        "activations": "not together with compile-model; torch.autograd.graph.save_on_cpu",
        "optimizer": 'no technique except sharding; DeepSpeed {"offload_optimizer": {"device": "cpu"}}',
        "parameters": 'no technique without fsdp2; DeepSpeed {"offload_param": {"device": "cpu"}}',
    }[run.offload]
    return [f"run.offload = {run.offload}: {instead}"] if instead else []


def _add_accumulation(workload: Workload, hardware: Hardware, chosen: dict[str, dict[str, Value]]) -> list[str]:
    count = workload.micro_batches
    if count == 1:
        return []
    if workload.run.pp > 1 or count > LARGEST_ACCUMULATION:
        return [
            f"{count} micro-batches per step: the pipeline's own schedule, or the script's loop, adds up their "
            "gradients"
        ]
    chosen["accumulation"] = {"micro_batches": count}
    return []


def _add_rest(workload: Workload, hardware: Hardware, chosen: dict[str, dict[str, Value]]) -> list[str]:
    run = workload.run
    if run.compiled:
        chosen["compile-model"] = {}
    usual = PlannedRun(micro_batch=1, global_batch=1)
    by_script = {
        "optimizer": "the script builds it",
        "fused_loss": "the model's own code",
        "trainable_params": "the script adds the adapters",
        "base_weights": "the script loads the weights this way (bitsandbytes)",
    }
    return [
        f"run.{name} = {str(getattr(run, name)).lower()}: {who}"
        for name, who in by_script.items()
        if getattr(run, name) != getattr(usual, name)
    ]
