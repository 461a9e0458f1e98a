"""A Compose file -> SettingsFile: its services, as tasks that run on one machine."""

from __future__ import annotations

import re

from hotloop.judge.lint.files import LintFormat, SourceFile, Surroundings
from hotloop.judge.lint.formats.settings import SettingsFile
from hotloop.judge.lint.shell import ShellScript, parse_shell, split_words
from hotloop.judge.lint.tasks import Mount, Task, read_notes, read_variables, read_words
from hotloop.judge.lint.yaml_fields import Field, read_documents

DEVICES = "deploy.resources.reservations.devices"


def parse_compose(file: SourceFile, around: Surroundings) -> SettingsFile | None:
    """None for YAML without services. Raises NotRead."""
    documents = [one for one in read_documents(file.text)[:1] if one["services"].is_mapping]
    notes = read_notes(file.text)
    tasks = tuple(_read_service(name, service, notes) for one in documents for name, service in one["services"].items)
    return SettingsFile(documents=tuple(documents), notes=notes, tables=(), tasks=tasks) if documents else None


def _read_script(service: Field) -> tuple[ShellScript, str]:
    words = service["entrypoint"].elements + service["command"].elements
    given = service["command"] if service["command"].text else service["entrypoint"]
    if words or not given.text:
        return read_words(words)
    texts = split_words(given.text.replace("$$", "$"))
    shell = texts[0].rsplit("/", 1)[-1] if len(texts) > 2 and re.fullmatch(r"-\w*c", texts[1]) else ""
    return parse_shell(texts[2] if shell else given.text.replace("$$", "$"), given.first_line), shell


def _read_service(name: str, service: Field, notes: str) -> Task:
    script, shell = _read_script(service)
    mounts = [Mount(*mount, service["volumes"].line) for mount in _read_mounts(service)]
    size = re.fullmatch(r"(?i)(\d+(?:\.\d+)?)\s*([KMG])?I?B?", service["shm_size"].text or "64m")
    shared = float(size[1]) * 2.0 ** (10 * " KMG".index((size[2] or " ").upper())) if size else None
    return Task(
        name=name,
        script=script,
        shell=shell,
        gpus=count_gpus(service),
        lines={"shared": (service["shm_size"] or service).line},
        shared_bytes=None if service["ipc"].text else shared,
        variables=tuple(read_variables(service["environment"])),
        mounts=tuple(mounts),
        notes=notes,
        folder=service["working_dir"].text or (mounts[0].path if mounts else ""),
        loses_disk=bool(service["working_dir"] or mounts),
    )


def _read_mounts(service: Field) -> list[tuple[str, str]]:
    """The folders in the container that are mounted, and why what is written there is lost."""
    mounts = [read_mount(entry) for entry in service["volumes"].elements]
    return [(path, "is mounted read-only, so the first save fails" if "ro" in how else "") for _, path, how in mounts]


def read_mount(entry: Field) -> tuple[str, str, tuple[str, ...]]:
    """The source, the folder in the container, and the options of a volume."""
    if entry.is_mapping:
        fixed = ("ro",) if entry["read_only"].is_true else ()
        return entry["source"].text or "", entry["target"].text or "", fixed
    parts = re.split(r":(?![-?=])(?![^{]*\})", entry.text or "")
    return (parts[0] if len(parts) > 1 else ""), parts[min(1, len(parts) - 1)], tuple(",".join(parts[2:]).split(","))


def count_gpus(service: Field) -> int:
    """GPUs that a service reserves; 0 if the file gives no number."""
    devices = [one for one in service[DEVICES].elements if "gpu" in one.texts("capabilities.*")]
    counts = [len(one["device_ids"].elements) or one["count"].amount for one in devices]
    return int(sum(counts))


COMPOSE = LintFormat(
    id="compose",
    title="Compose file",
    may_name=lambda name: re.search(r"(?i)compose[\w.-]*\.ya?ml$", name) is not None,
    holds=lambda data: re.search(rb"(?m)^services:", data) is not None,
    parse=parse_compose,
    order=4,
)
