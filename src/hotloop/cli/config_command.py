"""hotloop config: the settings that apply in this folder, and where each comes from."""

from __future__ import annotations

import argparse

ORDER, SUMMARY = 19, "show the settings that apply here, and where each comes from"
ABOUT = {
    "description": "Show the settings that apply in this folder: of hotloop.toml, or of [tool.hotloop] in "
    "pyproject.toml, in this folder or the nearest above it. Options of a command count more than settings."
}
OPTIONS = ()


def execute(arguments: argparse.Namespace) -> int:
    import json

    from hotloop.core.decode import to_plain
    from hotloop.core.settings import KEYS, load_settings
    from hotloop.core.utilization import parse_targets
    from hotloop.judge.diagnose import RULES
    from hotloop.judge.lint import LINT_RULES

    settings = load_settings()
    parse_targets(settings.add_targets([]))
    for rule in {*settings.ignore, *(one for rules in settings.per_file_ignores.values() for one in rules)}:
        (LINT_RULES if rule in LINT_RULES else RULES)[rule]  # raises UsageError where neither has it
    for key in KEYS:
        print(
            key,
            "=",
            json.dumps(to_plain(getattr(settings, key))),
            f" ({settings.file if key in settings.given else 'default'})",
        )
    return 0
