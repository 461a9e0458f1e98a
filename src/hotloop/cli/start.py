"""``python -m hotloop.cli.start``: the command line where the console script is not on PATH."""

import sys

from hotloop.cli import main

if __name__ == "__main__":
    sys.exit(main())
