"""Where trace files are read: in processes of this machine, or by the workers of a Dask cluster, as an Executor."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hotloop import __version__
from hotloop.core.errors import UsageError

CONNECT_S = 10
RETRIES = 3
"""How often a file is given to another worker when the one that reads it dies."""

CHECK_S = 60
"""After so long without a result, somebody asks whether anybody still works."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads the files."""

    executor: Executor
    lost: tuple[type[Exception], ...]
    """Errors of a future which mean that whoever worked on it is gone."""
    check: Callable[[], None]
    """Raises UsageError when nobody is left to work."""


@contextmanager
def open_reader(workers: int, scheduler: str | None = None) -> Iterator[Reader]:
    """Processes of this machine, or the workers of the Dask cluster at ``scheduler``.

    Raises UsageError when the scheduler's address is none, nobody answers there, or its workers lack this hotloop.
    """
    if scheduler is None:
        # A fresh process each: memory of one file is given back before the next, and no thread of ours is forked.
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield Reader(pool, (BrokenExecutor,), lambda: None)  # a pool tells by itself
        return
    try:
        from distributed import Client, KilledWorker  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise UsageError(f"--on {scheduler} needs dask.distributed; run: pip install 'hotloop[dask]'") from None
    try:
        connect: Any = Client
        client = connect(scheduler, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"--on {scheduler}: no scheduler answers ({str(error).splitlines()[0]}); give its address, such as "
            "tcp://host:8786"
        ) from error
    logging.getLogger("distributed").setLevel(logging.ERROR)  # it warns of each task that it gives to another worker
    with client:
        found = client.run(_version, on_error="return")
        if not found:
            raise UsageError(f"--on {scheduler}: the scheduler has no workers; start one: dask worker {scheduler}")
        for worker, version in found.items():
            if version != __version__:
                has = f"has hotloop {version}" if isinstance(version, str) else f"cannot import hotloop ({version})"
                raise UsageError(f"--on {scheduler}: worker {worker} {has}; install hotloop {__version__} there")

        def check() -> None:
            if not client.scheduler_info()["workers"]:
                raise UsageError(f"--on {scheduler}: all workers are gone; start one: dask worker {scheduler}")

        yield Reader(client.get_executor(retries=RETRIES), (KilledWorker, OSError, CancelledError), check)


def _version() -> str:
    return __version__
