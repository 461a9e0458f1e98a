# ruff: noqa
"""Landmines: objects whose every special method notes that it was called, and by whom.

The script, torch and the standard library may call them; a call from anywhere else is a landmine: it is counted, prints,
draws random numbers and raises. ``calls`` counts all calls, so that a call through torch on another's behalf shows too.
"""

import collections
import os
import random
import sys
import sysconfig
import time

import torch

CALLS, FOREIGN = collections.Counter(), collections.Counter()
_getframe = sys._getframe
_own = (
    os.path.dirname(os.path.abspath(__file__)) + os.sep,
    os.path.dirname(torch.__file__) + os.sep,
    sysconfig.get_path("stdlib") + os.sep,
    "<frozen",
    "<string>",
    "<eval_with_key>",
)
_outside = os.sep + "site-packages" + os.sep


def _is_own(name):
    if not name.startswith(_own):
        return False
    return name.startswith(_own[:2]) or _outside not in name


_LOOKED_UP = ("_compiled_call_impl", "_call_impl")
"""What nn.Module.__call__ asks of every module: who stands in for it may ask the same, as often (see ``calls``)."""


def note(name, depth=2):
    """Note a call of a trap; ``depth`` frames up is who called it."""
    CALLS[name] += 1
    if name.endswith(_LOOKED_UP):
        return
    try:
        caller = _getframe(depth).f_code.co_filename
    except ValueError:
        caller = "nobody"
    if _is_own(caller):
        return
    FOREIGN[name] += 1
    torch.rand(1)
    random.random()
    time.sleep(0)
    if FOREIGN[name] == 1:
        print(f"landmine: {name} was called from {os.path.basename(caller)}", flush=True)
    raise RuntimeError(f"landmine: {name}")


SPECIAL = (
    "__len__ __iter__ __next__ __getitem__ __setitem__ __delitem__ __contains__ __bool__ __eq__ __ne__ __lt__ __le__"
    " __gt__ __ge__ __hash__ __repr__ __str__ __format__ __bytes__ __int__ __float__ __index__ __complex__ __call__"
    " __enter__ __exit__ __copy__ __deepcopy__ __reduce__ __reduce_ex__ __sizeof__ __dir__ __getattribute__ __setattr__"
    " __delattr__ __length_hint__ __reversed__ __fspath__ __add__ __radd__ __iadd__ __mul__ __rmul__ __sub__ __neg__"
    " __abs__ __array__ __await__ __aiter__ __round__ __missing__ __or__ __and__ __matmul__ __rmatmul__"
).split()
NAMED = (
    "items keys values get shape size dim dtype device data dataset sampler batch_size parameters named_parameters"
    " modules children state_dict param_groups state defaults training requires_grad grad is_cuda nelement numel"
    " tolist item attention_mask input_ids num_graphs _modules _parameters _version __wrapped__ __code__ __self__"
).split()


def _trap(owner, name, bases):
    def trap(self, *args, **kwargs):
        note(f"{owner}.{name}" + (f":{args[0]}" if name == "__getattribute__" else ""))
        for base in bases:
            inherited = getattr(base, name, None)
            if inherited is not None:
                return inherited(self, *args, **kwargs)
        raise TypeError(f"{owner} has no {name}")

    trap.__name__ = name
    return trap


def _trapped_property(owner, name):
    def read(self):
        note(f"{owner}.{name}")
        raise AttributeError(name)

    return property(read)


def mine_type(owner, *bases, only=SPECIAL, without=(), named=(), metaclass=type, **own):
    """A class of the bases, with a trap for each special method and a property for each name; ``own`` replaces them.

    A class with a base has traps only for the methods that the base has too, else it would be another kind of object.
    """
    bases = bases or (object,)
    has = [n for n in only if bases == (object,) or any(hasattr(base, n) for base in bases)]
    space = {n: _trap(owner, n, bases) for n in has if n not in without}
    space |= {n: _trapped_property(owner, n) for n in named if n not in without}
    return metaclass(owner, bases, space | own | {"__module__": "__main__"})


def mine(owner, **options):
    """An object that traps everything."""
    return mine_type(owner, named=NAMED, **options)()


class Meta(type):
    """A metaclass that traps what is asked of its classes."""

    def __getattribute__(cls, name):
        note(f"class.{name}")
        return type.__getattribute__(cls, name)

    def __eq__(cls, other):
        note("class.__eq__")
        return cls is other

    def __hash__(cls):
        note("class.__hash__")
        return id(cls) >> 4

    def __instancecheck__(cls, value):
        note("class.__instancecheck__")
        return type.__instancecheck__(cls, value)

    def __subclasscheck__(cls, kind):
        note("class.__subclasscheck__")
        return type.__subclasscheck__(cls, kind)

    def __repr__(cls):
        note("class.__repr__")
        return type.__repr__(cls)

    def __len__(cls):
        note("class.__len__")
        return 1

    def __bool__(cls):
        note("class.__bool__")
        return True

    def __iter__(cls):
        note("class.__iter__")
        return iter(())

    def __dir__(cls):
        note("class.__dir__")
        return []


def mines():
    """The fields for RESULT."""
    return {"landmines": sum(FOREIGN.values()), "calls": sum(CALLS.values()), "kinds": len(CALLS)}
