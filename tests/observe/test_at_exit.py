"""What runs at exit runs to its end, and Ctrl-C meanwhile prints nothing."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import atexit, os, signal
atexit.register(lambda: print("theirs", signal.getsignal(signal.SIGINT) is signal.default_int_handler))
from hotloop.agent.observe.at_exit import run_at_exit
def end():
    os.kill(os.getpid(), signal.SIGINT)
    print("ended")
{register}
"""


def run(register: str) -> tuple[int, str, str]:
    script = SCRIPT.replace("{register}", register)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_ctrl_c_at_exit_breaks_and_prints_nothing() -> None:
    assert run("run_at_exit(end)") == (0, "ended\ntheirs True\n", "")


def test_a_plain_callback_would_be_printed() -> None:
    _, stdout, stderr = run("atexit.register(end)")
    assert "ended" not in stdout
    assert "KeyboardInterrupt" in stderr
