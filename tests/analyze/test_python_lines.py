"""Which statements run Python alone, read from their source."""

import pytest

from hotloop.evidence.analyze.source import parse_source, runs_python


@pytest.mark.parametrize(
    ("statement", "known"),
    [
        ('key = "/".join(part.lower() for part in name.split("."))', True),
        ("self.seen[key] = self.seen.get(key, 0) + 1", True),
        ("found = re.findall(pattern, text)\nimport re", True),
        ("x = token.mean(1)", False),  # the name of a module of the standard library, which this file does not import
        ("if token in self.table:\n    pass", True),
        ("out.append(name)", True),
        ("keys = torch.stack(list(self.items))", True),
        ("x = torch.stack([a, b])", False),
        ('label = f"{name}.{index}"', True),
        ("for index, name in enumerate(names):\n    pass", True),
        ("x = self.inner(x)", False),
        ("x = torch.relu(x)", False),
        ("total = float(loss)", False),
        ("out.append(self.head(x))", False),
        ("mask = x.sum()", False),
        ("x = x * 2 + y", None),
        ("def path_of(a):\n    pass\nout[b, :t] = torch.tensor(path_of(score[b].tolist()))", True),
        ("x = torch.tensor([len(a & b) for b in sets])", True),
        ("x = torch.tensor(0.5)", False),
        ("x = embed(score.tolist())", False),
        ("for layer in self.layers:\n    pass", None),
    ],
)
def test_statements(statement: str, known: bool | None) -> None:
    module = parse_source(statement)
    assert runs_python(module, 3 if statement.startswith("def") else 1) is known


SEARCH = """
def best_path(value):
    n, t = value.shape
    for j in range(t):
        for i in range(max(0, n + j - t), min(n, j + 1)):
            stay = score[i, j - 1] if j and i < j else LOW
            score[i, j] = value[i, j] + max(stay, LOW)
            cell = self.cell(value[i, j])
    for j in range(t):
        for layer in layers:
            x = x * gate[:, j] + layer
        path[j] = x
    for t in range(1, n):
        row, before = score[t], best[t - 1]
        for s in range(t):
            stay = before[s]
            gain = self.gain(row[s])
    for a in range(n):
        for p in range(n):
            for k in others:
                if d[a, p] < d[a, k] and d[a, k] < best:
                    best = d[a, k]
"""


@pytest.mark.parametrize(
    ("line", "known"),
    [
        (5, True),
        (6, True),
        (7, True),
        (8, False),
        (11, None),
        (12, None),
        (4, True),
        (16, True),
        (17, False),
        (21, True),
        (22, True),
    ],
)
def test_loops_over_single_elements_are_python(line: int, known: bool | None) -> None:
    module = parse_source(SEARCH)
    assert runs_python(module, line) is known
