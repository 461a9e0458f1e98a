"""A SkyPilot YAML file -> SkyPilotFile: its tasks, with nodes, accelerators, file mounts and commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from hotloop.lint.files import LintFormat, SourceFile, Surroundings
from hotloop.lint.shell import parse_shell
from hotloop.lint.tasks import Mount, Task, read_notes, read_variables
from hotloop.lint.yaml_fields import Field, read_documents


@dataclass(frozen=True, kw_only=True)
class SkyPilotFile:
    """``documents`` are its tasks, without the head of a pipeline."""

    documents: tuple[Field, ...]
    notes: str

    @property
    def tables(self) -> list[tuple[Field, str]]:
        """What is compared with a table of fields."""
        return [(one, "skypilot") for one in self.documents]

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        return tuple(self._make(one) for one in self.documents)

    def _make(self, document: Field) -> Task:
        resources = document["resources"]
        spots = [one["use_spot"] for one in list_choices(resources) if one["use_spot"].is_true]
        recovery = resources["job_recovery"]["strategy"] or resources["job_recovery"]
        is_managed = "sky launch" not in self.notes or "sky jobs" in self.notes
        return Task(
            name=document["name"].text or "run",
            script=parse_shell(document["run"].text or "", document["run"].first_line),
            nodes=int(document["num_nodes"].number or 0) if document["num_nodes"] else 1,
            gpus=count_accelerators(resources["accelerators"]),
            variables=tuple(read_variables(document["envs"].items + document["secrets"].items)),
            mounts=tuple(_mounts(document)),
            spot_line=spots[0].line if spots else None,
            retries=is_managed and (recovery.text or "").upper() != "NONE",
            notes=self.notes,
            loses_disk=bool(spots or recovery),
        )


def list_choices(resources: Field) -> list[Field]:
    """The resources, and each of those that they choose from."""
    return [resources, *resources["any_of"].elements, *resources["ordered"].elements]


def _mounts(document: Field) -> Iterator[Mount]:
    for path, value in document["file_mounts"].items:
        mode = (value["mode"].text or "MOUNT").upper()
        loss = "is a bucket in mode COPY: it is fetched once, and nothing is written back" if mode == "COPY" else ""
        yield Mount(
            path,
            loss if value.is_mapping else "is copied to the machine, and nothing is written back",
            value["mode"].line,
        )
    yield from (Mount(path, "", value.line) for path, value in document["volumes"].items)


def count_accelerators(field: Field) -> int:
    """Of each node, for ``A100:8``, ``{A100: 8}`` and lists that agree; 0 for TPUs and unknown counts."""
    names = [
        field.text or "",
        *(f"{name}:{value.text}" for name, value in field.items),
        *(one.text or "" for one in field.elements),
    ]
    found = {re.sub(r"^[^:]+:?", "", name) or "1" for name in names if name and not name.startswith("tpu")}
    return int(found.pop()) if len(found) == 1 and min(found).isdecimal() else 0


def parse_skypilot(file: SourceFile, around: Surroundings) -> SkyPilotFile | None:
    """None for YAML that holds no task. Raises NotRead for a template or broken YAML."""
    documents = tuple(one for one in read_documents(file.text) if one["run"] or one["resources"] or one["setup"])
    return SkyPilotFile(documents=documents, notes=read_notes(file.text)) if documents else None


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
