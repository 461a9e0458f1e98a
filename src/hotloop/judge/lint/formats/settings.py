"""Settings files -> SettingsFile: files that SkyPilot, dstack, DeepSpeed, accelerate and Lightning's command line
read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from hotloop.core.manifest_tables import known_fields, read_types
from hotloop.judge.lint.files import LintFormat, NotRead, SourceFile, Surroundings
from hotloop.judge.lint.shell import ShellScript, parse_shell
from hotloop.judge.lint.tasks import Mount, Task, read_notes, read_seconds, read_variables
from hotloop.judge.lint.yaml_fields import Field, read_documents


@dataclass(frozen=True, kw_only=True)
class SettingsFile:
    """``documents`` are the file's settings, ``notes`` its name and comments; ``tables``: the values to compare with
    each table; ``tasks``: the tasks that it starts."""

    documents: tuple[Field, ...]
    notes: str
    tables: tuple[tuple[Field, str], ...]
    tasks: tuple[Task, ...] = ()


def parse_settings(file: SourceFile, around: Surroundings) -> SettingsFile | None:
    """None for a file that sets nothing. Raises NotRead."""
    text = re.sub(r"(?m)^\s*//.*$", "", file.text.replace("\t", "  ")) if file.kind == "deepspeed" else file.text
    documents = tuple(read_documents(text)[:1])
    if documents and not documents[0].is_mapping:
        raise NotRead("not a mapping of settings")
    tables = tuple((document, file.kind) for document in documents)
    notes = f"{os.path.basename(file.path)} {read_notes(text)}"
    return SettingsFile(documents=documents, notes=notes, tables=tables) if documents else None


_NOT_TRAINING = re.compile(r"(?i)(^|[/_-])(eval\w*|infer\w*|predict\w*|generat\w*|export\w*|quantiz\w*)([/_.-]|$)")


def parse_lightning(file: SourceFile, around: Surroundings) -> SettingsFile | None:
    """None for YAML whose trainer is not Lightning's; fields are known without a ``_target_`` of Hydra."""
    trainers = [one["trainer"] or one["fit.trainer"] for one in read_documents(file.text)[:1]]
    known = known_fields(read_types("lightning")["root"])
    count = sum(name in known for trainer in trainers for name, _ in trainer.items)
    if count < 2 or "exp_manager" in file.text or _NOT_TRAINING.search(file.path):  # NeMo itself saves and shards
        return None
    is_hydra = re.search(r"(?m)_target_|^\s*- _self_|^defaults:|\$\{", file.text) is not None
    tables = () if is_hydra or count * 2 <= len(trainers[0].items) else ((trainers[0], "lightning"),)
    return SettingsFile(documents=tuple(trainers), notes="", tables=tables)


def parse_skypilot(file: SourceFile, around: Surroundings) -> SettingsFile | None:
    """None for YAML without a task; the head of a pipeline is not a task. Raises NotRead."""
    return _read_tasks(file, [one for one in read_documents(file.text) if one.all("run|resources|setup")])


def parse_dstack(file: SourceFile, around: Surroundings) -> SettingsFile | None:
    """None for YAML that does not configure a run. Raises NotRead."""
    return _read_tasks(file, [one for one in read_documents(file.text) if one["type"].text])


def _read_tasks(file: SourceFile, documents: list[Field]) -> SettingsFile | None:
    notes, read = read_notes(file.text), _read_skypilot if file.kind == "skypilot" else _read_dstack
    tasks = tuple(read(one, notes) for one in documents if file.kind == "skypilot" or one["commands"])
    tables = tuple((one, file.kind) for one in documents)
    return SettingsFile(documents=tuple(documents), notes=notes, tables=tables, tasks=tasks) if documents else None


def _read_skypilot(document: Field, notes: str) -> Task:
    resources = document["resources"]
    choices = document.all("resources.use_spot") + document.all("resources.any_of|ordered.*.use_spot")
    spots = [spot for spot in choices if spot.is_true]
    recovery = resources["job_recovery"]["strategy"] or resources["job_recovery"]
    is_managed = "sky launch" not in notes or "sky jobs" in notes
    return Task(
        name=document["name"].text or "run",
        script=parse_shell(document["run"].text or "", document["run"].first_line),
        nodes=int(document["num_nodes"].number or 0) if document["num_nodes"] else 1,
        gpus=_count_gpus(resources["accelerators"]),
        variables=(*read_variables(document["envs"]), *read_variables(document["secrets"])),
        mounts=tuple(_buckets(document)),
        spot_line=spots[0].line if spots else None,
        retries=is_managed and (recovery.text or "").upper() != "NONE",
        notes=notes,
        loses_disk=bool(spots or recovery),
    )


def _buckets(document: Field) -> Iterator[Mount]:
    for path, value in document["file_mounts"].items:
        is_copied = not value.is_mapping or (value["mode"].text or "").upper() == "COPY"
        loss = "is copied to the machine once (mode COPY), and nothing is written back" if is_copied else ""
        yield Mount(path, loss, value["mode"].line)
    yield from (Mount(path, "", value.line) for path, value in document["volumes"].items)


def _read_dstack(document: Field, notes: str) -> Task:
    resources, retry, spot = document["resources"], document["retry"], document["spot_policy"]
    shared = resources["shm_size"]
    size = re.fullmatch(r"(?i)(\d+(?:\.\d+)?)\s*([KMGT])I?B?", shared.text or "")
    events = [one.text for one in retry["on_events"].elements]
    cpus = re.fullmatch(r"(?:\w+:)?(?:\d+)?(?:\.\.)?(\d+)", resources["cpu"].text or "")
    entries = [parse_shell(entry.text or "", entry.first_line) for entry in document["commands"].elements]
    commands = [command for entry in entries for command in entry.commands]
    duration = re.fullmatch(r"(\d+)\s*([smhdw]?)", document["max_duration"].text or "")
    return Task(
        name=document["name"].text or document["type"].text or "",
        script=ShellScript(commands=tuple(commands), is_whole=True),
        shell="sh" if document["image"] and "bash" not in (document["shell"].text or "") else "bash",
        nodes=int(document["nodes"].number or 0) if document["nodes"] else 1,
        gpus=_count_gpus(resources["gpu"]),
        cpus=float(cpus[1]) if cpus else None,
        lines={"cpus": resources["cpu"].line, "limit": document["max_duration"].line, "shared": shared.line},
        shared_bytes=float(size[1]) * 2.0 ** (10 * "KMGT".index(size[2].upper()) + 10) if size else 64 * 2.0**20,
        variables=tuple(read_variables(document["env"])),
        mounts=tuple(_volumes(document)),
        is_warned=any(re.search(r"(?i)sigterm|on-preempt|graceful", one.text) for one in commands),
        spot_line=spot.line if spot.text in ("spot", "auto") else None,
        retries=retry.is_true or (retry.is_mapping and (not events or "interruption" in events)),
        limit_s=read_seconds(duration[1], duration[2]) if duration else None,
        notes=notes,
    )


def _volumes(document: Field) -> Iterator[Mount]:
    for entry in document["volumes"].elements:
        source, _, path = (entry.text or "").rpartition(":")
        is_instance = source.startswith("/") or entry["instance_path"]
        loss = "is a folder on the instance: another instance does not have it" if is_instance else ""
        yield Mount(entry["path"].text or path, loss, entry.line)


def _count_gpus(field: Field) -> int:
    """GPUs of each node, for ``8``, ``A100:8``, ``A100:80GB:8``, ``{A100: 8}``, ``{name: A100, count: 8}`` and lists
    that agree; 0 for TPUs, ranges and unknown counts."""
    given = field["count"] or field
    texts = [text for text in (given.text or "", *given.texts("*")) if text and not text.startswith("tpu")]
    counts = {next((part for part in text.split(":") if re.fullmatch(r"[\d.]+", part)), "1") for text in texts}
    return int(min(counts)) if len(counts) == 1 and min(counts).isdecimal() else 0


SKYPILOT = LintFormat(
    id="skypilot",
    title="SkyPilot task",
    may_name=lambda name: name.lower().endswith((".yaml", ".yml")),
    holds=lambda data: bool(
        re.search(rb"(?m)^resources:", data) and re.search(rb"(?m)^(run|setup|num_nodes|file_mounts):", data)
    ),
    parse=parse_skypilot,
    order=3,
)
DSTACK = LintFormat(
    id="dstack",
    title="dstack configuration",
    may_name=lambda name: name.lower().endswith((".yaml", ".yml")),
    holds=lambda data: bool(re.search(rb"(?m)^type: *['\"]?(task|service|dev-environment)\b", data)),
    parse=parse_dstack,
    order=2,
)
DEEPSPEED = LintFormat(
    id="deepspeed",
    title="DeepSpeed settings",
    may_name=lambda name: name.lower().endswith(".json"),
    holds=lambda data: bool(re.search(rb'"(zero_optimization|train_micro_batch_size_per_gpu)"\s*:', data[:100_000])),
    parse=parse_settings,
)
ACCELERATE = LintFormat(
    id="accelerate",
    title="accelerate settings",
    may_name=lambda name: name.lower().endswith((".yaml", ".yml")),
    holds=lambda data: bool(re.search(rb"(?m)^(compute_environment|distributed_type):", data)),
    parse=parse_settings,
    order=2,
)
LIGHTNING = LintFormat(
    id="lightning",
    title="Lightning settings",
    may_name=lambda name: name.lower().endswith((".yaml", ".yml")),
    holds=lambda data: bool(
        re.search(rb"(?m)^ *trainer:", data) and re.search(rb"(?m)^ *(model|data|fit|seed_everything):", data)
    ),
    parse=parse_lightning,
    order=3,
)
