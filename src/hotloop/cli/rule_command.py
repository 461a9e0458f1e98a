"""hotloop rule: explain a rule, or list them all."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any


def add_parser(subparsers: Any, summary: str) -> None:
    parser = subparsers.add_parser("rule", help=summary, description="Explain a rule.")
    parser.add_argument("id", nargs="?", help="id of a rule, such as input-bound; without it all are listed")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.diagnose import RULES

    if arguments.id is None:
        width = max(len(rule_id) for rule_id in RULES)
        for rule_id, rule in RULES.items():
            print(f"{rule_id:{width}}  {rule.summary}")
        print("\nhotloop rule ID explains one.")
        return 0
    rule = RULES[arguments.id]
    print(f"# {rule.id}: {rule.summary}\n\n{rule.manual}")
    return 0
