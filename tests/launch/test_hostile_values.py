"""No value leaves its place: it is refused with one line, or read back as it was given, and nothing else changes."""

from __future__ import annotations

import contextlib
import shlex
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.ahead.launch import TARGETS
from hotloop.ahead.launch.request import LaunchRequest, Volume
from hotloop.core.errors import UsageError

from .build_request import make_request

MARK = "marked"
"""A value that every field takes."""
FIELDS: dict[str, Any] = {
    "name": lambda text: {"name": text},
    "image": lambda text: {"image": text},
    "gpu": lambda text: {"gpu": text},
    "interface": lambda text: {"interface": text},
    "rdma": lambda text: {"rdma": f"rdma/{text}"},
    "queue": lambda text: {"queue": text},
    "runtime": lambda text: {"runtime": text},
    "claim": lambda text: {"volume": Volume(claim=text, path="/storage")},
    "path": lambda text: {"volume": Volume(claim="runs", path=f"/{text}")},
    "comment": lambda text: {"slurm_options": (f"comment={text}",)},
    "shm": lambda text: {"shm": text},
    "time": lambda text: {"time": text},
}
PIECES = [
    "\n",
    "\r",
    "\x85",
    "\u2028",
    "\0",
    "\x1b[2J",
    "#SBATCH --uid=0",
    "\nid\n",
    "# x",
    ": ",
    "- a",
    '"',
    "'",
    "\\",
]
PIECES += [
    "$(id)",
    "`id`",
    "${{ env.X }}",
    " --signal=USR1@3",
    "; id",
    "&& id",
    "\nEND_OF_NODE\n",
    "{a: b}",
    "a",
    "\udc80",
]
HOSTILE = st.text(max_size=12) | st.lists(st.sampled_from(PIECES), max_size=4).map("".join)


def write(target: str, request: LaunchRequest) -> str:
    TARGETS[target].check(request)
    return TARGETS[target].write(request)


def parse(target: str, text: str) -> Any:
    """What the cluster reads: the words of sbatch's options and all lines that are no comments, or YAML's documents."""
    if target != "slurm":
        return list(yaml.safe_load_all(text))
    lines = text.splitlines()
    return [
        shlex.split(line.removeprefix("#SBATCH"), comments=True) if line.startswith("#SBATCH") else line
        for line in lines
        if line.startswith("#SBATCH") or not line.startswith("#")
    ]


def put(value: Any, text: str) -> Any:
    """The same with the hostile text in the place of the mark."""
    if isinstance(value, dict):
        return {put(key, text): put(one, text) for key, one in value.items()}
    if isinstance(value, list):
        return [put(one, text) for one in value]
    return value.replace(MARK, text) if isinstance(value, str) else value


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["slurm", "trainjob", "jobset", "job", "skypilot"]),
    st.sampled_from([one for one in FIELDS if one not in ("shm", "time")]),
    HOSTILE,
)
def test_a_hostile_value_stays_in_its_place(target: str, field: str, text: str) -> None:
    whole = parse(target, write(target, make_request(**FIELDS[field](MARK))))
    written = None
    with contextlib.suppress(UsageError):
        written = write(target, make_request(**FIELDS[field](text)))
    assert written is None or parse(target, written) == put(whole, text)
