"""Files of one run -> the training scripts that are warned by a signal that no Python file of the run handles."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from .files import SourceFile, Start, Surroundings
from .formats.batch import parse_batch
from .formats.manifests import Pod, parse_manifests, read_objects
from .yaml_fields import Field

_HANDLES = re.compile(r"\bSIG(TERM|USR|INT|HUP|CONT)|signal\.signal\b|add_signal_handler")
_PREEMPTED = re.compile(r"terminationGracePeriodSeconds|(?i:spot|preemptible)")
_RUN = re.compile(r"(?:^|[\s=\"'])([\w./-]+\.py)\b|\s-m\s+([\w.]+\.[\w.]+)")
DEFAULT_GRACE_S = 30
SPOT = re.compile(r"(?i)spot|preemptible")


def survey(files: Sequence[SourceFile], save_s: float | None) -> Surroundings:
    """If any Python file handles or catches a signal, no script is reported."""
    objects: dict[str, dict[str, tuple[Field, ...]]] = {}
    is_handled = False
    scripts: list[str] = []
    started: list[tuple[str, Start]] = []
    known = Surroundings(save_s=save_s)
    for file in files:
        if file.kind == "python":
            is_handled = is_handled or _HANDLES.search(file.text) is not None
            scripts.append(file.path)
            continue
        try:
            if file.kind == "sbatch" and "--signal" in file.text:
                started += _read_batch(file, known)
            elif file.kind == "kubernetes":
                objects.setdefault(os.path.dirname(file.path), {})[file.path] = read_objects(file.text)
                started += (
                    _read_manifests(file, replace(known, objects=objects)) if _PREEMPTED.search(file.text) else []
                )
        except Exception:
            continue  # reported by the run itself
    starts: dict[str, Start] = {}
    for written, start in started if not is_handled else ():
        path = _find_script(written, start.file, scripts)
        if path is not None:
            starts.setdefault(path, start)
    return Surroundings(save_s=save_s, starts=starts, objects=objects)


def _read_batch(file: SourceFile, known: Surroundings) -> Iterator[tuple[str, Start]]:
    batch = parse_batch(file, known)
    signal, option = (batch.signal, batch.option("signal")) if batch else (None, None)
    if batch is None or signal is None or option is None or signal[2] or signal[0] in ("KILL", "9"):
        return
    when = f"{signal[1]} s before the time limit"
    start = Start(file=file.path, line=option.line, signal=signal[0], when=when, is_asked=True)
    for launch in [run.launch for run in batch.runs if run.step == "srun" and run.launch]:
        yield (f"{launch.script.replace('.', '/')}.py" if launch.is_module else launch.script), start


def _read_manifests(file: SourceFile, known: Surroundings) -> Iterator[tuple[str, Start]]:
    manifests = parse_manifests(file, known)
    for pod in manifests.pods if manifests else ():
        line = _find_warning(pod)
        for container in pod.containers if line is not None else ():
            words = " ".join(one.text or "" for key in ("command", "args") for one in container[key].elements)
            if line is not None and not container["lifecycle.preStop"]:
                start = Start(file=file.path, line=line, signal="TERM", when="before the eviction", is_asked=False)
                yield from ((script, start) for script in _list_scripts(f" {words}"))


def _find_warning(pod: Pod) -> int | None:
    """The line from which an eviction follows: a grace period above the default, or spot nodes."""
    grace = pod.spec["terminationGracePeriodSeconds"]
    if (grace.number or 0) > DEFAULT_GRACE_S:
        return grace.line
    for key, value in pod.spec["nodeSelector"].items:
        if SPOT.search(f"{key} {value.text}"):
            return value.line
    for one in pod.spec["tolerations"].elements:
        if SPOT.search(f"{one['key'].text} {one['value'].text}"):
            return one.line
    return None


def _list_scripts(text: str) -> list[str]:
    return [found[1] or f"{found[2].replace('.', '/')}.py" for found in _RUN.finditer(text)]


def _find_script(written: str, job: str, scripts: Sequence[str]) -> str | None:
    """The file to which a job refers: the file next to it, else the only file whose path ends that way.

    An absolute path begins with a folder of the node or image, so the longest ending that matches a file is used.
    """
    parts = os.path.normpath(written).lstrip("/").split("/")
    tails = ["/".join(parts[at:]) for at in range(len(parts) if written.startswith("/") else 1)]
    found = next(
        (same for tail in tails if (same := [path for path in scripts if f"/{path}".endswith(f"/{tail}")])), []
    )
    beside = os.path.normpath(os.path.join(os.path.dirname(job), tails[0]))
    return beside if beside in found else found[0] if len(found) == 1 else None
