"""Checks of Compose files: the order of services, what lasts, and what reaches the GPUs."""

from __future__ import annotations

import re

from hotloop.judge.lint.checks import HIGH, LIKELY, MEDIUM, FieldCheck, ReadPlace, only, table_rule
from hotloop.judge.lint.formats.compose import DEVICES, count_gpus, read_mount
from hotloop.judge.lint.formats.settings import SettingsFile
from hotloop.judge.lint.tasks import SERVES, Task
from hotloop.judge.lint.yaml_fields import Field

FOREVER = ("always", "unless-stopped")
PREPARES = re.compile(
    r"(?i)prepar|preproc|migrat|\binit|make[-_]|convert|shards?\b|tokeni|download|fetch|setup|ingest|extract|build[-_]|seed"
)
WITHOUT_CHECK = re.compile(
    r"(?:^|/)(postgres|mysql|mariadb|mongo|redis|rabbitmq|minio/minio|qdrant/qdrant|nginx|python|ubuntu|alpine|busybox)(:|$)"
)
"""Public images without a health check of their own."""
STORES = re.compile(
    r"(?:^|/)(postgres|mysql|mariadb|mongo|minio/minio|qdrant/qdrant|elasticsearch|clickhouse-server|label-studio|weaviate)(:|$)"
)
"""Images of servers that store what they are given."""


def _depends(service: Field) -> list[tuple[str, str, Field]]:
    """The services on which one depends: name, condition, place."""
    short = [(one.text or "", "service_started", one) for one in service["depends_on"].elements]
    return short + [
        (name, one["condition"].text or "service_started", one) for name, one in service["depends_on"].items
    ]


def _sources(service: Field) -> dict[str, Field]:
    """What a service mounts, and where the file says so."""
    return {source: one for one in service["volumes"].elements if (source := read_mount(one)[0])}


def _is_once(name: str, service: Field, task: Task) -> bool:
    """Whether a service prepares something and ends."""
    is_kept = service["restart"].text in FOREVER or service.all("ports|expose|healthcheck")
    return not is_kept and bool(PREPARES.search(f"{name} {task.text}")) and not SERVES.search(task.text)


def _command(service: Field) -> list[Field]:
    return [one for one in service.all("command|entrypoint") if one.text] + service.all("command|entrypoint.*")


def _store(service: Field) -> Field:
    """Where a service says what it stores; else its image."""
    places = [word for word in _command(service) if re.search(r"sqlite:|mlruns|mlartifacts", word.text or "")]
    return [*places, service["image"] or service["build"] or service][0]


def _elsewhere(root: Field, service: Field) -> list[Field]:
    """Variables that address another service's port as localhost."""
    outside = re.compile(r"(?i)public|origin|cors|redirect|external|callback|client|front|allowed|base_url")
    values = [value for name, value in service["environment"].items if not outside.search(name)]
    values += [value for value in service["environment"].elements if not outside.search(value.text or "")]
    found = [
        (one, match[1])
        for one in values
        if (match := re.search(r"://(?:localhost|127\.0\.0\.1):(\d+)", one.text or ""))
    ]
    others = [each for _, each in root["services"].items if each.node is not service.node]
    served = {
        part
        for each in others
        for one in each.all("ports.*")
        for part in (one.text or "").split("/")[0].split(":")[-2:]
    }
    own = " ".join([one.text or "" for one in (*_command(service), *service.all("ports.*"))])
    is_host = (service["network_mode"].text or "").startswith(("host", "service:"))
    return [one for one, port in found if port in served and port not in own and not is_host]


def _services(file: SettingsFile, root: Field) -> list[tuple[Field, str, Field, Task, dict[str, tuple[Field, Task]]]]:
    pairs = zip(root["services"].items, file.tasks, strict=True)
    known = {name: (service, task) for (name, service), task in pairs}
    return [(root, name, service, task, known) for name, (service, task) in known.items()]


COMPOSE_SERVICES = table_rule(
    "compose-services",
    "services of a Compose file start too early, lose their data, or do not reach each other or the GPUs",
    """## What it does
    Compares the services of a Compose file with each other: `depends_on` and its conditions, volumes, restarts, GPUs,
    addresses, and variables in commands.

    ## Why it costs
    Training begins on files that are half written; `docker compose down` deletes a database without a volume; a
    restarted training repeats the whole run; `localhost` in a container is the container itself.

    ## How to recognize it
    The short form of `depends_on` waits only for the start. Compose replaces `$NAME` itself, from the caller's
    environment.

    ## What to do
    Use `condition: service_completed_successfully`, a named volume, `restart: on-failure`, the name of the service as
    host, and `$$NAME` for the shell in the container.

    ## When it is wrong
    Ignore the finding if a second Compose file completes the service.
    """,
    reads="compose",
    each="documents",
    about=_services,
    checks=(
        FieldCheck(
            at=lambda root, name, service, task, known: [
                place
                for other, condition, place in _depends(service)
                if condition == "service_started"
                and other in known
                and _is_once(other, *known[other])
                and {*_sources(service)} & {*_sources(known[other][0])}
            ],
            severity=HIGH,
            message=(
                "depends_on waits only until that container has started: {1} begins while the files that it "
                "prepares are missing or half written"
            ),
            advice="condition: service_completed_successfully",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda root, name, service, task, known: [
                place
                for other, condition, place in _depends(service)
                if condition == "service_completed_successfully"
                and other in known
                and known[other][0]["restart"].text in FOREVER
            ],
            severity=HIGH,
            message="{1} waits until that service has completed, but it restarts forever: {1} never starts",
            advice='restart: "no" in the service that should complete',
        ),
        FieldCheck(
            at=lambda root, name, service, task, known: [
                place
                for other, condition, place in _depends(service)
                if condition == "service_healthy"
                and other in known
                and not known[other][0]["healthcheck"].items
                and WITHOUT_CHECK.search(known[other][0]["image"].text or "")
            ],
            severity=HIGH,
            message="service_healthy, but that service has no healthcheck: {1} does not start",
            advice="add a healthcheck, or use service_started",
        ),
        FieldCheck(
            at=lambda root, name, service, task, known: [
                place
                for other, _, place in _depends(service)
                if other and other not in known and not root["include"] and not service["extends"] and "$" not in other
            ],
            severity=HIGH,
            message="{1} depends on a service that this file does not define: Compose refuses it",
            advice="write the name of a service",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda root, name, service, task, known: only(
                _store(service),
                not service["volumes"]
                and not service["tmpfs"]
                and not service["extends"]
                and (
                    STORES.search(service["image"].text or "")
                    or (
                        re.search(r"mlflow (server|ui)", task.text)
                        and re.search(r"sqlite:///(?!/)|mlruns|mlartifacts|^((?!store-uri).)*$", task.text)
                    )
                ),
            ),
            severity=MEDIUM,
            message=(
                "{1} stores its data without a volume, in the container's own layer: docker compose down or a "
                "new image loses it"
            ),
            advice="a named volume at its data folder",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda root, name, service, task, known: [
                place
                for source, place in _sources(service).items()
                if re.fullmatch(r"[A-Za-z0-9][\w.-]*", source)
                and source not in dict(root["volumes"].items)
                and not root["include"]
                and not service["extends"]
                and (not place.is_mapping or place["type"].text == "volume")
            ],
            severity=HIGH,
            message=(
                "the volume of {1} is not under volumes at the top level: Compose refuses the file (undefined volume)"
            ),
            advice="add it under volumes, or write ./ before a folder",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda root, name, service, task, known: only(
                service["restart"], service["restart"].text in FOREVER and task.is_training and not service["ports"]
            ),
            severity=HIGH,
            message=(
                "restart: {text} starts training again after it has succeeded: it holds its GPUs and repeats the run"
            ),
            advice="restart: on-failure",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda root, name, service, task, known: only(
                service["command"],
                task.is_training
                and (task.processes or 0) > 1
                and not count_gpus(service)
                and not service.all(f"gpus|runtime|devices|device_requests|extends|{DEVICES}")
                and not service[DEVICES]
                and not re.search(r"(?i)gloo|cpu", task.text),
            ),
            severity=HIGH,
            message="{1} starts several processes for training, but gets no GPU: it trains on CPUs, or fails",
            advice="deploy.resources.reservations.devices with capabilities [gpu], or gpus: all",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda root, name, service, task, known: [
                device for device in service[DEVICES].elements if not device["capabilities"]
            ],
            severity=HIGH,
            message="a device reservation of {1} without capabilities is refused",
            advice="capabilities: [gpu]",
        ),
        FieldCheck(
            at=lambda root, name, service, task, known: [
                device["count"] for device in service[DEVICES].elements if device["count"] and device["device_ids"]
            ],
            severity=HIGH,
            message="count and device_ids exclude each other: Compose refuses {1}",
            advice="keep one of them",
        ),
        FieldCheck(
            at=lambda root, name, service, task, known: _elsewhere(root, service),
            severity=HIGH,
            message=(
                "{text}: localhost is the container of {1} itself, not the service with that port: the "
                "connection is refused"
            ),
            advice="the name of the service as host",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda root, name, service, task, known: [
                service["healthcheck.test"]
                for first in service["healthcheck.test"].elements[:1]
                if first.text not in ("CMD", "CMD-SHELL", "NONE") and "$" not in (first.text or "")
            ],
            severity=HIGH,
            message="the list in healthcheck.test of {1} must begin with CMD, CMD-SHELL or NONE: Compose refuses it",
            advice="[CMD, ...]",
        ),
        FieldCheck(
            at=lambda root, name, service, task, known: [
                ReadPlace(one.first_line + (one.text or "").count("\n", 0, use.start()), use[0])
                for one in _command(service)
                for use in re.finditer(r"(?<!\$)\$(?:\(|\{?([A-Za-z_]\w*))", one.text or "")
                if use[0] == "$(" or use[1] in [each.name for each in task.variables if "$" not in (each.value or "")]
            ][:1],
            severity=HIGH,
            message="Compose itself replaces {text} in the command of {1}, from the caller's environment, not the "
            "container's: it is empty or refused",
            advice="$$ for the shell in the container",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda root, name, service, task, known: only(
                service["container_name"],
                service["deploy.replicas"].amount > 1 or service["scale"].amount > 1,
            ),
            severity=HIGH,
            message="container_name {text} with several replicas: the second cannot have the name, and is refused",
            advice="remove container_name",
        ),
        FieldCheck(
            at=lambda root, name, service, task, known: only(
                service["stop_grace_period"] or service["command"],
                task.is_training
                and re.search(r"(?i)sigterm|graceful|on[-_]preempt", task.text)
                and (
                    not service["stop_grace_period"]
                    or re.fullmatch(r"\d{1,2}s", service["stop_grace_period"].text or "")
                )
                and (task.stated_s("save|checkpoint") > 10 or not service["stop_grace_period"]),
            ),
            severity=MEDIUM,
            message=(
                "docker compose stop kills {1} 10 s after SIGTERM (stop_grace_period): the save that it makes "
                "then is cut"
            ),
            advice="stop_grace_period: 5m",
            confidence=LIKELY,
        ),
    ),
)
