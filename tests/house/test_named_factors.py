"""A number that enters a saving labelled measured or simulated has a name, and its source beside it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import hotloop

SOURCE = Path(hotloop.__file__).parent
CHECKED = (
    "core/findings.py",
    "diagnose",
    "apply/forecasts.py",
    "apply/techniques",
    "bench/probe.py",
)
MAKERS = {"Saving", "saving_within", "saving_of_removal", "Forecast"}
NO_FACTORS = {0.0, 1.0, 1e9, 1e6, 1e-9, 1e-6}
"""The ends of a ratio, and units."""
NOT_THE_SAVING = {"settings", "evidence", "technique", "doubt"}


class Module:
    """One file: its functions by name, and its constants by whether a docstring follows them."""

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)
        self.functions = {node.name: node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)}
        self.documented: dict[str, bool] = {}
        for at, node in enumerate(self.tree.body):
            for name in constants_of(node):
                self.documented[name] = is_followed_by_text(self.tree.body, at)


def constants_of(node: ast.stmt) -> Iterator[str]:
    """Names of the module's constants that this statement makes from floats."""
    if not isinstance(node, ast.Assign) or any(isinstance(part, ast.Call) for part in ast.walk(node.value)):
        return
    if not any(is_float(part) for part in ast.walk(node.value)):
        return
    for part in ast.walk(node.targets[0]):
        if isinstance(part, ast.Name) and part.id.lstrip("_").isupper():
            yield part.id


def is_float(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, float)


def is_followed_by_text(body: list[ast.stmt], at: int) -> bool:
    """Whether the statement, or the run of assignments that it begins, ends in a docstring."""
    for node in body[at + 1 :]:
        if isinstance(node, ast.Expr):
            return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if not isinstance(node, ast.Assign):
            return False
    return False


def unnamed_factors(modules: dict[str, Module]) -> list[str]:
    """Where a float without a name, or a constant without a source, enters a saving that is no rule of thumb."""
    public = {name: (m, node) for m in modules.values() for name, node in m.functions.items() if name[0] != "_"}
    documented = {name: known for m in modules.values() for name, known in m.documented.items()}
    found: set[str] = set()

    def follow(expression: ast.expr, path: str, function: ast.FunctionDef, seen: set[object]) -> None:
        for node in numbers_in(expression):
            if isinstance(node, ast.Constant) and isinstance(node.value, float) and node.value not in NO_FACTORS:
                found.add(f"{path}:{node.lineno}: {node.value}")
            elif isinstance(node, ast.Name) and node.id.lstrip("_").isupper():
                if not modules[path].documented.get(node.id, documented.get(node.id, True)):
                    found.add(f"{path}:{node.lineno}: {node.id} has no source")
            elif isinstance(node, ast.Name) and (function.name, node.id) not in seen:
                seen.add((function.name, node.id))
                for value in values_of(node.id, function):
                    follow(value, path, function, seen)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                called = modules[path].functions.get(node.func.id)
                where = path
                if called is None and node.func.id in public:
                    module, called = public[node.func.id]
                    where = next(name for name, one in modules.items() if one is module)
                if called is not None and called.name not in seen and called.name not in MAKERS:
                    seen.add(called.name)
                    for value in returned_by(called):
                        follow(value, where, called, seen)

    for path, module in modules.items():
        for function in module.functions.values():
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in MAKERS:
                    arguments = [*call.args, *(one.value for one in call.keywords if one.arg not in NOT_THE_SAVING)]
                    if not any(is_guess(one) for one in arguments):
                        for one in arguments:
                            follow(one, path, function, set())
    return sorted(found)


def numbers_in(expression: ast.expr) -> Iterator[ast.AST]:
    """What gives the expression its value: all parts but conditions."""
    yield expression
    if isinstance(expression, ast.Compare):
        return
    skipped = {id(expression.test)} if isinstance(expression, ast.IfExp) else set()
    for part in ast.iter_child_nodes(expression):
        if isinstance(part, ast.comprehension):
            yield from numbers_in(part.iter)
        elif isinstance(part, ast.keyword):
            yield from numbers_in(part.value)
        elif isinstance(part, ast.expr) and id(part) not in skipped:
            yield from numbers_in(part)


def values_of(name: str, function: ast.FunctionDef) -> Iterator[ast.expr]:
    """What is assigned to a local name, where it is not labelled a rule of thumb on the spot."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
            targets = [node.target]
        else:
            continue
        named = {part.id for one in targets for part in ast.walk(one) if isinstance(part, ast.Name)}
        if name in named and node.value is not None and not is_guess(node.value):
            yield node.value


def returned_by(function: ast.FunctionDef) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None and not is_guess(node.value):
            yield node.value


def is_guess(node: ast.AST) -> bool:
    """Whether it says rule of thumb, and nothing better in another case."""
    said = {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
    said |= {"RULE_OF_THUMB" for part in ast.walk(node) if isinstance(part, ast.Name) and part.id == "_THUMB"}
    return "RULE_OF_THUMB" in said and not said & {"SIMULATED", "MEASURED"}


def read_checked() -> dict[str, Module]:
    files = [
        file for one in CHECKED for file in ([SOURCE / one] if one.endswith(".py") else (SOURCE / one).rglob("*.py"))
    ]
    return {str(file.relative_to(SOURCE)): Module(file.read_text(encoding="utf-8")) for file in files}


def test_no_unnamed_number_enters_a_saving_that_is_no_rule_of_thumb() -> None:
    advice = (
        "name it as an UPPER_CASE constant with a docstring that states its source, or make the basis RULE_OF_THUMB"
    )
    assert unnamed_factors(read_checked()) == [], advice


def check(text: str) -> list[str]:
    return unnamed_factors({"one.py": Module(text)})


def test_this_check_can_fail() -> None:
    made = "saving_within(cost, {}, cost, cost, Basis.SIMULATED)"
    direct = f"def judge(cost):\n    return {made.format('0.75 * cost')}"
    by_name = f"def judge(cost):\n    low = 0.75 * cost\n    return {made.format('low')}"
    by_function = f"def share(cost):\n    return 0.75 * cost\ndef judge(cost):\n    return {made.format('share(cost)')}"
    by_case = f"def judge(cost, sure):\n    return {made.format('(0.75 if sure else 1.0) * cost')}"
    for text in (direct, by_name, by_function, by_case):
        assert len(check(text)) == 1, text
        assert check(text.replace("0.75", "1.0")) == []
        assert check(text.replace("SIMULATED", "RULE_OF_THUMB")) == []
        assert len(check("LOW = 0.75\n" + text.replace("0.75", "LOW"))) == 1
        assert check('LOW = 0.75\n"""Measured."""\n' + text.replace("0.75", "LOW")) == []


def test_it_follows_a_basis_that_is_chosen_with_the_numbers() -> None:
    guess = "    low, basis = 0.4 * cost, Basis.RULE_OF_THUMB\n"
    better = "    low, basis = {} * cost, Basis.SIMULATED\n"
    made = "    return saving_within(cost, low, cost, cost, basis)"
    assert check(f"def judge(cost):\n{guess}{better.format('1.0')}{made}") == []
    assert check(f"def judge(cost):\n{guess}{better.format('0.6')}{made}") == ["one.py:3: 0.6"]
