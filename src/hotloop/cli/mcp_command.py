"""hotloop mcp: hotloop's commands as tools of an agent."""

from __future__ import annotations

import argparse

ORDER, SUMMARY = 21, "serve hotloop's commands to agents over the Model Context Protocol"
ABOUT = {
    "description": "Serve run, report, trace, rule, diff, check, lint and tune as tools of the Model Context Protocol, "
    "over standard input and output. Each call is a process of its own with a time limit. It needs the extra mcp: "
    "pip install 'hotloop[mcp]'."
}
OPTIONS = ()


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.core.errors import UsageError

    try:
        from hotloop.integrations.mcp import SERVER
    except ModuleNotFoundError as error:
        raise UsageError(f"hotloop mcp needs the package {error.name}: pip install 'hotloop[mcp]'") from None
    SERVER.run()
    return 0
