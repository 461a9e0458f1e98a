"""``python -m hotloop``: the command line where the script ``hotloop`` is not on PATH."""

import sys

from hotloop.cli import main

sys.exit(main())
