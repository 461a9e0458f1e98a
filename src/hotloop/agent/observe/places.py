"""Frames -> places in the user's own code."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from types import CodeType, FrameType

from hotloop.core.stack_layout import Place, is_users

_SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


def _library_folders() -> tuple[str, ...]:
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    try:
        folders.update(site.getsitepackages())
        folders.add(site.getusersitepackages())
    except AttributeError:  # some embedded interpreters have no site functions
        folders.discard(None)
    return (_SOURCE, *(os.path.join(os.path.abspath(f), "") for f in folders if f))


LIBRARIES = _library_folders()
"""Folders of code that is not the user's: ours, and those that this interpreter installs into."""
_files: dict[str, bool] = {}


def is_user_file(filename: str) -> bool:
    """True for code that is neither a library's, nor the interpreter's, nor ours."""
    known = _files.get(filename)
    if known is None:
        known = is_users(filename, os.path.abspath(filename), LIBRARIES)
        if len(_files) > 20_000:  # generated code must not grow us without bound
            _files.clear()
        _files[filename] = known
    return known


def is_user_code(code: CodeType) -> bool:
    """``is_user_file`` of a code object."""
    return is_user_file(code.co_filename)


def place_of(frame: FrameType) -> Place:
    return (os.path.abspath(frame.f_code.co_filename), frame.f_lineno, frame.f_code.co_name)


def caller_place(depth: int = 1) -> Place | None:
    """The innermost user frame above the caller; without one, the innermost that is neither torch nor ours."""
    frame: FrameType | None = sys._getframe(depth)
    fallback: Place | None = None
    while frame is not None:
        code = frame.f_code
        if is_user_code(code):
            return place_of(frame)
        if fallback is None:
            name = frame.f_globals.get("__name__", "")
            if not name.startswith(("torch.", "hotloop.", "importlib", "_hotloop")):
                fallback = place_of(frame)
        frame = frame.f_back
    return fallback


def place_of_callable(target: object) -> Place | None:
    """Where a function, method or callable object was defined; None for built-ins."""
    function = getattr(target, "__func__", target)
    function = getattr(function, "__wrapped__", function)
    code = getattr(function, "__code__", None)
    if code is None and not isinstance(target, type):
        code = getattr(vars(type(target)).get("__call__"), "__code__", None)
    if code is None:
        return None
    return (os.path.abspath(code.co_filename), code.co_firstlineno, getattr(code, "co_qualname", code.co_name))
