"""hotloop rule: explain a rule or a technique, or list all rules."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any


def add_parser(subparsers: Any, summary: str) -> None:
    parser = subparsers.add_parser("rule", help=summary, description="Explain a rule or a technique.")
    parser.add_argument(
        "id", nargs="?", help="id of a rule, such as input-bound, or of a technique; without it all rules are listed"
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.diagnose import RULES

    if arguments.id is None:
        width = max(len(rule_id) for rule_id in RULES)
        for rule_id, rule in RULES.items():
            print(f"{rule_id:{width}}  {rule.summary}")
        print("\nhotloop rule ID explains one.")
        return 0
    if arguments.id not in set(RULES):
        from hotloop.apply import TECHNIQUES
        from hotloop.core.errors import UsageError

        if arguments.id not in set(TECHNIQUES):
            raise UsageError(
                f"unknown id {arguments.id!r}; rules: {', '.join(RULES)}; techniques: {', '.join(TECHNIQUES)}"
            )
        technique = TECHNIQUES[arguments.id]
        print(f"# {technique.id}: {technique.title} ({technique.numerics.value})\n\n{technique.manual}")
        if technique.settings:
            print("\n## Settings")
            for setting in technique.settings:
                default = "chosen by hotloop" if setting.default is None else f"default {setting.default!r}"
                print(f"{setting.name} ({default}): {setting.help}")
        return 0
    rule = RULES[arguments.id]
    print(f"# {rule.id}: {rule.summary}\n\n{rule.manual}")
    return 0
