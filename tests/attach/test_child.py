"""A command is waited for: who asks it to end is noticed once, and reaches it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

from hotloop.agent.attach.child import run_child

SLEEPS = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]


def test_a_request_to_end_is_passed_on_and_told() -> None:
    told: list[int] = []

    def ask() -> None:
        if not told:
            told.append(1)
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # other threads of a test run may take it

    end = run_child(SLEEPS, dict(os.environ), on_tick=ask)
    assert (end.signal_number, end.interrupted) == (signal.SIGTERM, True)


def test_a_signal_that_ends_nothing_is_no_request_to_end() -> None:
    quick = [
        sys.executable,
        "-c",
        "import signal, time; signal.signal(signal.SIGUSR1, lambda *_: exit(3)); time.sleep(60)",
    ]
    asked: list[int] = []

    def ask() -> None:
        asked.append(1)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    end = run_child(quick, dict(os.environ), on_tick=ask)
    assert not end.interrupted
    assert asked
    # Python may not have set its handler when the first one came.
    assert end.exit_code == 3 or end.signal_number == signal.SIGUSR1


def test_who_is_stopped_for_a_while_goes_on_waiting() -> None:
    """As with Ctrl-Z and fg: Python's sigtimedwait answers with garbage where SIGCONT comes after its time."""
    waits = (
        "import os, sys\n"
        "from hotloop.agent.attach.child import run_child\n"
        "end = run_child([sys.executable, '-c', 'import time; time.sleep(3)'], dict(os.environ))\n"
        "print(end.exit_code, end.interrupted)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", waits], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(0.8)
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.3)
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out.split()) == (0, ["0", "False"]), err
