"""A dstack YAML file -> DstackFile: its task, service or development environment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from hotloop.lint.files import LintFormat, SourceFile, Surroundings
from hotloop.lint.shell import ShellScript, parse_shell
from hotloop.lint.tasks import Mount, Task, TaskVariable, read_notes, read_seconds, read_variables
from hotloop.lint.yaml_fields import Field, read_documents


@dataclass(frozen=True, kw_only=True)
class DstackFile:
    """``documents`` are what it configures."""

    documents: tuple[Field, ...]
    notes: str

    @property
    def tables(self) -> list[tuple[Field, str]]:
        """What is compared with a table of fields."""
        return [(one, "dstack") for one in self.documents]

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        return tuple(self._make(one) for one in self.documents if one["commands"])

    def _make(self, document: Field) -> Task:
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
            gpus=count_gpus(resources["gpu"]),
            cpus=float(cpus[1]) if cpus else None,
            lines={"cpus": resources["cpu"].line, "limit": document["max_duration"].line, "shared": shared.line},
            shared_bytes=float(size[1]) * 2.0 ** (10 * "KMGT".index(size[2].upper()) + 10) if size else 64 * 2.0**20,
            variables=tuple(_variables(document["env"])),
            mounts=tuple(_mounts(document)),
            is_warned=any(re.search(r"(?i)sigterm|on-preempt|graceful", one.text) for one in commands),
            spot_line=spot.line if spot.text in ("spot", "auto") else None,
            retries=retry.is_true or (retry.is_mapping and (not events or "interruption" in events)),
            limit_s=read_seconds(duration[1], duration[2]) if duration else None,
            notes=self.notes,
        )


def _variables(env: Field) -> Iterator[TaskVariable]:
    """Of a mapping, or of a list of ``NAME=value`` and bare names."""
    yield from read_variables(env.items)
    for entry in env.elements:
        name, equals, value = (entry.text or "").partition("=")
        yield TaskVariable(name, value if equals else None, entry.line)


def _mounts(document: Field) -> Iterator[Mount]:
    for entry in document["volumes"].elements:
        source, _, path = (entry.text or "").rpartition(":")
        is_instance = source.startswith("/") or entry["instance_path"]
        loss = "is a folder of the instance: another instance does not have it" if is_instance else ""
        yield Mount(entry["path"].text or path, loss, entry.line)


def count_gpus(gpu: Field) -> int:
    """Of ``8``, ``A100:8``, ``nvidia:A100:80GB:8`` and of a mapping with ``count``; 0 for ranges."""
    parts = [part for part in (gpu.text or "").split(":") if re.match(r"[\d.]+$", part)]
    count = gpu["count"].text or (parts[0] if parts else "1" if gpu else "")
    return int(count) if count.isdecimal() else 0


def parse_dstack(file: SourceFile, around: Surroundings) -> DstackFile | None:
    """None for YAML that configures no run. Raises NotRead for a template or broken YAML."""
    documents = tuple(one for one in read_documents(file.text) if one["type"].text)
    return DstackFile(documents=documents, notes=read_notes(file.text)) if documents else None


DSTACK = LintFormat(
    id="dstack",
    title="dstack configuration",
    may_name=lambda name: name.lower().endswith((".yaml", ".yml")),
    holds=lambda data: bool(re.search(rb"(?m)^type: *['\"]?(task|service|dev-environment)\b", data)),
    parse=parse_dstack,
    order=2,
)
