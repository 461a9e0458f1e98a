"""For every test: signals are as in a terminal, also where the tests were started in the background."""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell without job control starts `command &` so
    signal.signal(signal.SIGINT, signal.default_int_handler)
