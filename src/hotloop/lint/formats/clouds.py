"""SkyPilot and dstack YAML files -> TaskFile: what they start, with nodes, accelerators, volumes and commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hotloop.lint.files import LintFormat, SourceFile, Surroundings
from hotloop.lint.shell import ShellScript, parse_shell
from hotloop.lint.tasks import Mount, Task, read_notes, read_seconds, read_variables
from hotloop.lint.yaml_fields import Field, read_documents


@dataclass(frozen=True, kw_only=True)
class TaskFile:
    """``documents`` are its tasks, without the head of a pipeline; ``tables``: what is compared with which table."""

    documents: tuple[Field, ...]
    tables: tuple[tuple[Field, str], ...]
    tasks: tuple[Task, ...]


def parse_tasks(file: SourceFile, around: Surroundings) -> TaskFile | None:
    """None for YAML that configures no run. Raises NotRead for a template or broken YAML."""
    notes, is_sky = read_notes(file.text), file.kind == "skypilot"
    documents = [
        one for one in read_documents(file.text) if (one.all("run|resources|setup") if is_sky else one["type"])
    ]
    tasks = [
        _read_skypilot(one, notes) if is_sky else _read_dstack(one, notes)
        for one in documents
        if is_sky or one["commands"]
    ]
    tables = tuple((one, file.kind) for one in documents)
    return TaskFile(documents=tuple(documents), tables=tables, tasks=tuple(tasks)) if documents else None


def _read_skypilot(document: Field, notes: str) -> Task:
    resources = document["resources"]
    spots = [
        spot
        for spot in document.all("resources.use_spot") + document.all("resources.any_of|ordered.*.use_spot")
        if spot.is_true
    ]
    recovery = resources["job_recovery"]["strategy"] or resources["job_recovery"]
    is_managed = "sky launch" not in notes or "sky jobs" in notes
    return Task(
        name=document["name"].text or "run",
        script=parse_shell(document["run"].text or "", document["run"].first_line),
        nodes=int(document["num_nodes"].number or 0) if document["num_nodes"] else 1,
        gpus=_count_accelerators(resources["accelerators"]),
        variables=(*read_variables(document["envs"]), *read_variables(document["secrets"])),
        mounts=tuple(_buckets(document)),
        spot_line=spots[0].line if spots else None,
        retries=is_managed and (recovery.text or "").upper() != "NONE",
        notes=notes,
        loses_disk=bool(spots or recovery),
    )


def _buckets(document: Field) -> Iterator[Mount]:
    for path, value in document["file_mounts"].items:
        mode = (value["mode"].text or "MOUNT").upper()
        loss = "is a bucket in mode COPY: it is fetched once, and nothing is written back" if mode == "COPY" else ""
        loss = loss if value.is_mapping else "is copied to the machine, and nothing is written back"
        yield Mount(path, loss, value["mode"].line)
    yield from (Mount(path, "", value.line) for path, value in document["volumes"].items)


def _count_accelerators(field: Field) -> int:
    """Of each node, for ``A100:8``, ``{A100: 8}`` and lists that agree; 0 for TPUs and unknown counts."""
    names = [
        field.text or "",
        *(f"{name}:{value.text}" for name, value in field.items),
        *(one.text or "" for one in field.elements),
    ]
    found = {re.sub(r"^[^:]+:?", "", name) or "1" for name in names if name and not name.startswith("tpu")}
    return int(found.pop()) if len(found) == 1 and min(found).isdecimal() else 0


def _read_dstack(document: Field, notes: str) -> Task:
    resources, retry, spot = document["resources"], document["retry"], document["spot_policy"]
    shared = resources["shm_size"]
    size = re.fullmatch(r"(?i)(\d+(?:\.\d+)?)\s*([KMGT])I?B?", shared.text or "")
    events = [one.text for one in retry["on_events"].elements]
    cpus = re.fullmatch(r"(?:\w+:)?(?:\d+)?(?:\.\.)?(\d+)", resources["cpu"].text or "")
    commands = [
        one
        for entry in document["commands"].elements
        for one in parse_shell(entry.text or "", entry.first_line).commands
    ]
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
        loss = "is a folder of the instance: another instance does not have it" if is_instance else ""
        yield Mount(entry["path"].text or path, loss, entry.line)


def _count_gpus(gpu: Field) -> int:
    """Of ``8``, ``A100:8``, ``nvidia:A100:80GB:8`` and of a mapping with ``count``; 0 for ranges."""
    parts = [part for part in (gpu.text or "").split(":") if re.match(r"[\d.]+$", part)]
    count = gpu["count"].text or (parts[0] if parts else "1" if gpu else "")
    return int(count) if count.isdecimal() else 0


SKYPILOT = LintFormat(
    id="skypilot",
    title="SkyPilot task",
    may_name=lambda name: name.lower().endswith((".yaml", ".yml")),
    holds=lambda data: bool(
        re.search(rb"(?m)^resources:", data) and re.search(rb"(?m)^(run|setup|num_nodes|file_mounts):", data)
    ),
    parse=parse_tasks,
    order=3,
)
DSTACK = LintFormat(
    id="dstack",
    title="dstack configuration",
    may_name=lambda name: name.lower().endswith((".yaml", ".yml")),
    holds=lambda data: bool(re.search(rb"(?m)^type: *['\"]?(task|service|dev-environment)\b", data)),
    parse=parse_tasks,
    order=2,
)
