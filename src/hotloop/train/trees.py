"""Nested state of any object <-> a JSON value and its tensors apart, so that no pickle is needed to keep or read it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import torch

from hotloop.core.errors import UsageError

_TAGS = ("$tensor", "$tuple", "$pairs", "$set", "$bytes")


class StateError(UsageError):
    """A value cannot be kept in a checkpoint; the text names its key."""


def split_tree(tree: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """The JSON form of ``tree``; its tensors go into ``tensors`` under names that start with ``name``.

    >>> tensors = {}
    >>> split_tree({"lr": 0.1, "w": torch.zeros(2), 3: (1,)}, "a", tensors)
    {'$pairs': [['lr', 0.1], ['w', {'$tensor': 'a/w'}], [3, {'$tuple': [1]}]]}
    >>> list(tensors)
    ['a/w']
    """
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    if isinstance(tree, torch.Tensor):
        while name in tensors:
            name += "~"
        tensors[name] = tree.detach()
        return {"$tensor": name}
    if isinstance(tree, Mapping):
        plain = all(isinstance(key, str) for key in tree) and not any(tag in tree for tag in _TAGS)
        pairs = [[key, split_tree(value, f"{name}/{key}", tensors)] for key, value in tree.items()]
        if plain:
            return {str(key): value for key, value in pairs}
        for key in tree:
            if not isinstance(key, str | int | float | bool | None):
                raise StateError(f"{name} has the key {key!r}; only strings and numbers can be keys")
        return {"$pairs": pairs}
    if isinstance(tree, list | tuple):
        parts = [split_tree(value, f"{name}/{index}", tensors) for index, value in enumerate(tree)]
        return parts if isinstance(tree, list) else {"$tuple": parts}
    if isinstance(tree, set | frozenset):
        return {"$set": [split_tree(value, name, tensors) for value in sorted(tree)]}
    if isinstance(tree, bytes):
        return {"$bytes": base64.b64encode(tree).decode("ascii")}
    raise StateError(
        f"{name} is a {type(tree).__module__}.{type(tree).__qualname__}: checkpoints support tensors, numbers, "
        "strings, bytes and lists, tuples, sets and dictionaries of these; remove it from the object's "
        "state_dict()"
    )


def join_tree(tree: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """What ``split_tree`` was given; mappings come back as plain dictionaries."""
    if isinstance(tree, list):
        return [join_tree(value, tensors) for value in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) == 1:
        tag, value = next(iter(tree.items()))
        if tag == "$tensor":
            return tensors[value]
        if tag == "$tuple":
            return tuple(join_tree(one, tensors) for one in value)
        if tag == "$pairs":
            return {key: join_tree(one, tensors) for key, one in value}
        if tag == "$set":
            return {join_tree(one, tensors) for one in value}
        if tag == "$bytes":
            return base64.b64decode(value)
    return {key: join_tree(value, tensors) for key, value in tree.items()}


def tensor_names(tree: Any) -> list[str]:
    """Names of the tensors that a JSON form refers to, in its order."""
    if isinstance(tree, list):
        return [name for value in tree for name in tensor_names(value)]
    if not isinstance(tree, dict):
        return []
    if len(tree) == 1 and "$tensor" in tree:
        return [str(tree["$tensor"])]
    return [name for value in tree.values() for name in tensor_names(value)]
