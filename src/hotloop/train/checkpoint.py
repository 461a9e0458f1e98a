"""The state of training -> a folder that is complete or not there, and back; tensors by torch.distributed.checkpoint.

    checkpoints/
      step-00000200/
        manifest.json     step, world size, and bytes and SHA-256 of every other file; written last
        state.json        everything but tensors
        rank-00000.json   what belongs to one rank: its random number generators, the state of its communication hooks
        tensors/          torch.distributed.checkpoint
      .step-00000300.tmp/ being written, or was when the process died: never read

A folder gets its name by one rename, after its files and the manifest have reached the disk. Reading runs no code from
the folder: the only pickle in it (DCP's index) may name nothing but DCP's own plain types.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import json
import os
import pickle
import re
import shutil
import threading
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as read_distributed
from torch.distributed.checkpoint.state_dict_saver import save as write_distributed
from torch.distributed.tensor import DTensor

from hotloop.core.errors import UsageError

from .processes import Ranks, first_error

_TAGS = ("$tensor", "$tuple", "$pairs", "$set", "$bytes")


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
                raise UsageError(f"{name} has the key {key!r}; only strings and numbers can be keys")
        return {"$pairs": pairs}
    if isinstance(tree, list | tuple):
        parts = [split_tree(value, f"{name}/{index}", tensors) for index, value in enumerate(tree)]
        return parts if isinstance(tree, list) else {"$tuple": parts}
    if isinstance(tree, set | frozenset):
        return {"$set": [split_tree(value, name, tensors) for value in sorted(tree)]}
    if isinstance(tree, bytes):
        return {"$bytes": base64.b64encode(tree).decode("ascii")}
    raise UsageError(
        f"{name} is a {type(tree).__module__}.{type(tree).__qualname__}: checkpoints support tensors, numbers, "
        "strings, bytes and lists, tuples, sets and dictionaries of these; remove it from the object's "
        "state_dict()"
    )


def join_tree(tree: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The tree that ``split_tree`` was given; mappings come back as plain dictionaries."""
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


SCHEMA = "hotloop.checkpoint/1"
_NAME = re.compile(r"step-(\d{8,})")


class CheckpointError(UsageError):
    """A checkpoint cannot be written, is damaged, foreign, or of a different model; the text names the file or key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint whose files were found complete: its JSON; tensors are read on demand."""

    path: Path
    step: int
    world_size: int
    state: Mapping[str, Any]
    private: Mapping[str, Any] | None
    """What this rank kept; None when the checkpoint was written by fewer ranks."""


def list_checkpoints(folder: str | Path) -> list[Path]:
    """Folders that are named as checkpoints, oldest first, complete or damaged."""
    root = Path(folder)
    found = [
        (int(match[1]), path) for path in _entries(root) if (match := _NAME.fullmatch(path.name)) and path.is_dir()
    ]
    return [path for _, path in sorted(found)]


def step_of(path: Path) -> int:
    """The step in a checkpoint's folder name, or in its manifest where the folder was renamed."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match is not None else int(open_manifest(path)["step"])


def latest_checkpoint(folder: str | Path) -> Path | None:
    """The newest complete checkpoint of a folder; None when there is none. Damaged ones are skipped with a warning."""
    for path in reversed(list_checkpoints(folder)):
        try:
            check_files(path)
        except CheckpointError as error:
            warnings.warn(f"skipped: {error}", stacklevel=2)
            continue
        return path
    return None


def check_files(path: str | Path) -> dict[str, Any]:
    """The manifest, when every file is there with its size and checksum; raises CheckpointError naming the first."""
    root = Path(path)
    manifest = open_manifest(root)
    for name, kept in manifest["files"].items():
        file = root / name
        try:
            size = file.stat().st_size
            digest = _sha256(file) if size == kept["bytes"] else None
        except OSError as error:
            raise CheckpointError(f"{file}: {error.strerror}; use an older checkpoint") from error
        if digest != kept["sha256"]:
            what = f"{size} bytes instead of {kept['bytes']}" if digest is None else "its checksum differs"
            raise CheckpointError(f"{file} is damaged: {what}; use an older checkpoint")
    return manifest


def open_manifest(root: Path) -> dict[str, Any]:
    """The manifest alone, when it is complete; the files that it names are not looked at. Raises CheckpointError."""
    manifest = _read_json(root / "manifest.json")
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        found = manifest.get("schema") if isinstance(manifest, dict) else type(manifest).__name__
        raise CheckpointError(f"{root}/manifest.json: schema is {found!r}, not {SCHEMA!r}; give a folder step-...")
    body = {key: value for key, value in manifest.items() if key != "checksum"}
    if manifest.get("checksum") != _sha256_of(body):
        raise CheckpointError(f"{root}/manifest.json is damaged: its checksum differs; use an older checkpoint")
    return manifest


def open_checkpoint(path: str | Path, *, rank: int = 0) -> Checkpoint:
    """Read everything but tensors; every file is checked first."""
    root = Path(path)
    manifest = check_files(root)
    name = f"rank-{rank:05d}.json"
    return Checkpoint(
        path=root,
        step=int(manifest["step"]),
        world_size=int(manifest["world_size"]),
        state=_read_json(root / "state.json"),
        private=_read_json(root / name) if name in manifest["files"] else None,
    )


def load_checkpoint(path: str | Path, *, model: Any, optimizer: Any = None, scheduler: Any = None) -> Checkpoint:
    """Load a checkpoint into a model, and into an optimizer and scheduler if given, on any number of ranks.

    Everything is compared before anything is changed: a checkpoint of a different model is one error that names the
    key.
    """
    checkpoint = open_checkpoint(path)
    restore(checkpoint, model=model, optimizer=optimizer, plain={} if scheduler is None else {"scheduler": scheduler})
    return checkpoint


def restore(checkpoint: Checkpoint, *, model: Any, optimizer: Any, plain: Mapping[str, Any]) -> None:
    """Like ``load_checkpoint``; ``plain`` are further objects with load_state_dict, by the name of their tree."""
    index = _read_index(checkpoint.path)
    trees = checkpoint.state["trees"]
    mine = model_state(model)
    wanted: dict[str, torch.Tensor] = {}
    split_tree(mine, "model", wanted)
    _compare_model(checkpoint.path, wanted, set(tensor_names(trees["model"])), index)
    targets = {
        name: torch.empty_like(value, device=value.device if isinstance(value, DTensor) else "cpu")
        for name, value in wanted.items()
    }
    if optimizer is not None:
        _compare_optimizer(checkpoint, optimizer)
        targets |= _optimizer_targets(trees["optimizer"], optimizer, index)
    for name in plain:
        if name not in trees:
            raise CheckpointError(
                f"{checkpoint.path}/state.json contains no {name}; continue without one, or start over"
            )
        targets |= {one: _empty_of(index, one) for one in tensor_names(trees[name])}
    _read_tensors(checkpoint.path, index, targets)
    load_model(model, join_tree(trees["model"], targets))
    if optimizer is not None:
        optimizer.load_state_dict(join_tree(trees["optimizer"], targets))
    for name, value in plain.items():
        value.load_state_dict(join_tree(trees[name], targets))


def restore_own(checkpoint: Checkpoint, parts: Mapping[str, Any]) -> None:
    """Load what this rank alone had kept into ``parts``, objects with load_state_dict, by the name of their tree.

    Raises CheckpointError where it is missing, was kept by a different number of ranks, or does not fit.
    """
    kept = (checkpoint.private or {}).get("trees", {})
    for name, part in parts.items():
        if name not in kept:
            raise CheckpointError(f"{checkpoint.path} contains no {name} for this rank")
        index = _read_index(checkpoint.path)
        targets = {one: _empty_of(index, one) for one in tensor_names(kept[name])}
        _read_tensors(checkpoint.path, index, targets)
        try:
            part.load_state_dict(join_tree(kept[name], targets))
        except ValueError as error:
            raise CheckpointError(f"{checkpoint.path}: its {name} does not fit: {error}") from error


def load_model(model: Any, state: Mapping[str, Any]) -> None:
    """The reverse of ``model_state``."""
    inner = unwrap_model(model)
    own = {key.replace("_orig_mod.", ""): key for key in inner.state_dict()}
    inner.load_state_dict({own[key]: value for key, value in state.items()})


def unwrap_model(model: Any) -> Any:
    """The user's own module inside DistributedDataParallel and torch.compile."""
    while True:
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            model = model.module
        elif "_orig_mod" in getattr(model, "_modules", {}):
            model = model._orig_mod
        else:
            return model


def model_state(model: Any) -> dict[str, Any]:
    """state_dict() with the names that the user's module gives, whatever wraps it or its parts."""
    return {key.replace("_orig_mod.", ""): value for key, value in unwrap_model(model).state_dict().items()}


def optimizer_state(optimizer: Any, rank: int) -> dict[str, Any]:
    """state_dict() of the full optimizer; of torch's ZeroRedundancyOptimizer, gathered on rank 0: all ranks call
    this."""
    if hasattr(optimizer, "consolidate_state_dict"):
        optimizer.consolidate_state_dict(to=0)
        if rank != 0:
            return {"state": {}, "param_groups": []}
    return dict(optimizer.state_dict())


def optimizer_kind(optimizer: Any) -> str:
    """The optimizer's class by name; of torch's ZeroRedundancyOptimizer, the class that updates the shards."""
    return type(optimizer.optim if hasattr(optimizer, "consolidate_state_dict") else optimizer).__name__


class CheckpointWriter:
    """Writes the checkpoints of one training run into one folder, each on a thread of its own or in the caller's.

    On several ranks, all of them call the same methods in the same order.
    """

    def __init__(self, folder: str | Path, *, ranks: Ranks, keep: int | None, asynchronous: bool) -> None:
        self.folder = Path(folder)
        self._ranks = ranks
        self._keep = keep
        self._asynchronous = asynchronous
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._buffers: dict[str, torch.Tensor] = {}

    def save(
        self,
        *,
        step: int,
        trees: Mapping[str, Any],
        state: Mapping[str, Any],
        private: Mapping[str, Any],
        own_trees: Mapping[str, Any],
    ) -> None:
        """Copy the state now, and write it soon. Raises CheckpointError if the *previous* one could not be written.

        ``trees`` are the same on all ranks; ``private`` (JSON values) and ``own_trees`` belong to this rank alone.
        """
        self.wait()
        tensors: dict[str, torch.Tensor] = {}
        shapes = {name: split_tree(tree, name, tensors) for name, tree in trees.items()}
        content = json.dumps({**state, "trees": shapes}).encode()
        prefix = f"rank-{self._ranks.rank:05d}"
        own_shapes = {name: split_tree(tree, f"{prefix}/{name}", tensors) for name, tree in own_trees.items()}
        own = json.dumps({**private, "trees": own_shapes}).encode()
        name = f"step-{step:08d}"
        if not self._asynchronous:
            self._write(name, step, tensors, content, own)
            self.wait()
            return
        copies = self._copy(tensors)
        self._thread = threading.Thread(
            target=self._write, args=(name, step, copies, content, own), name=f"hotloop checkpoint {step}"
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is being written; raises any error of the writing."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _copy(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors on the CPU, as they are now. Buffers are kept: fresh memory costs page faults."""
        copies: dict[str, torch.Tensor] = {}
        on_device = False
        for name, tensor in tensors.items():
            if isinstance(tensor, DTensor):
                copies[name] = tensor.clone() if tensor.device.type == "cpu" else tensor.to("cpu")
                continue
            buffer = self._buffers.get(name)
            if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                pinned = tensor.device.type not in ("cpu", "mps")
                buffer = self._buffers[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
            buffer.copy_(tensor, non_blocking=True)
            on_device = on_device or tensor.device.type != "cpu"
            copies[name] = buffer
        if on_device:
            torch.accelerator.synchronize()
        return copies

    def _write(self, name: str, step: int, tensors: dict[str, torch.Tensor], content: bytes, own: bytes) -> None:
        """Leaves the error in ``_error``, the same one on every rank."""
        temporary = self.folder / f".{name}.tmp"
        files: dict[str, Any] = {}

        def prepare() -> None:
            if self._ranks.rank != 0:
                return
            self.folder.mkdir(parents=True, exist_ok=True)
            for left in _entries(self.folder):
                if left.name.startswith(".step-") and left.name.endswith(".tmp"):
                    shutil.rmtree(left)
            needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
            free = shutil.disk_usage(self.folder).free
            if free < needed:
                raise OSError(errno.ENOSPC, f"it needs {needed} bytes, but only {free} are free")
            (temporary / "tensors").mkdir(parents=True)

        def write_tensors() -> None:
            _quieten_single_process()
            write_distributed(
                tensors,
                storage_writer=FileSystemWriter(temporary / "tensors"),
                # What all ranks hold is rank 0's: buffers (running statistics) differ until DDP's next forward.
                planner=DefaultSavePlanner(dedup_save_to_lowest_rank=True),
                process_group=self._ranks.saving,
                no_dist=self._ranks.world_size == 1,
            )
            rank = self._ranks.rank
            _write_file(temporary / f"rank-{rank:05d}.json", own)
            found = [*(temporary / "tensors").glob(f"__{rank}_*"), temporary / f"rank-{rank:05d}.json"]
            files.update(_describe(temporary, found))

        def finish() -> None:
            every = _gather(files, self._ranks)
            if self._ranks.rank != 0:
                return
            _write_file(temporary / "state.json", content)
            every.update(_describe(temporary, [temporary / "state.json", temporary / "tensors" / ".metadata"]))
            manifest = {
                "schema": SCHEMA,
                "step": step,
                "world_size": self._ranks.world_size,
                "torch": torch.__version__,
            }
            manifest["files"] = every
            manifest["checksum"] = _sha256_of(manifest)
            _write_file(temporary / "manifest.json", json.dumps(manifest, indent=1).encode())
            _sync_folder(temporary / "tensors")
            _sync_folder(temporary)
            _put_in_place(temporary, self.folder / name)
            _sync_folder(self.folder)
            self._remove_old(step)

        for stage in (prepare, write_tensors, finish):
            error: BaseException | None = None
            try:
                stage()
            except BaseException as raised:
                error = raised
            try:
                text = first_error(_root_of(error), self._ranks.saving)
            except Exception as lost:
                text = f"a rank has ended: {lost}"
            if text is not None:
                if self._ranks.rank == 0:
                    shutil.rmtree(temporary, ignore_errors=True)  # what is left of it takes space and is never read
                self._error = CheckpointError(
                    f"{self.folder / name} could not be written: {text}; older checkpoints are unchanged"
                )
                self._error.__cause__ = error
                return

    def _remove_old(self, step: int) -> None:
        """Keep this many up to this step's. Later ones are damaged (a resume skipped them) and do not count."""
        if self._keep is None:
            return
        written = [path for path in list_checkpoints(self.folder) if step_of(path) <= step]
        for path in written[: -self._keep]:
            gone = path.with_name(f".{path.name}.old.tmp")
            path.rename(gone)  # at once: a half-deleted one must not look like a checkpoint
            shutil.rmtree(gone, ignore_errors=True)


def _entries(folder: Path) -> Iterable[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{folder}: {error.strerror}; give a folder for checkpoints") from error


def _put_in_place(temporary: Path, final: Path) -> None:
    """An existing checkpoint of this step is set aside if it is damaged. Raises OSError if it is intact."""
    if final.exists():
        try:
            check_files(final)
        except CheckpointError:
            count = 1
            while (aside := final.with_name(f"damaged-{count}-{final.name}")).exists():
                count += 1
            final.rename(aside)
        else:
            raise OSError(
                errno.EEXIST, "another training run already wrote this step there; give each run its own folder"
            )
    temporary.rename(final)


def _gather(files: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    if ranks.saving is None:
        return dict(files)
    found: list[Any] = [None] * ranks.world_size
    dist.all_gather_object(found, files, group=ranks.saving)
    return {name: value for one in found for name, value in one.items()}


def _root_of(error: BaseException | None) -> BaseException | None:
    """The cause in DCP's collected exception: the first failure of a rank."""
    failures = getattr(error, "failures", None)
    if failures:
        error = next(iter(failures.values()))[0]
    if isinstance(error, OSError) and error.strerror:
        return UsageError(error.strerror + (f" ({error.filename})" if error.filename else ""))
    return error


def _describe(root: Path, files: Iterable[Path]) -> dict[str, Any]:
    return {
        file.relative_to(root).as_posix(): {"bytes": file.stat().st_size, "sha256": _sha256(file)} for file in files
    }


def _sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sha256_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _write_file(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems cannot
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}; give a checkpoint's folder (step-...)") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}; use an older checkpoint") from error


def _quieten_single_process() -> None:
    """DCP warns on every save without a process group, which is intended here."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


# -- reading tensors ---------------------------------------------------------------------------------------------------

_ALLOWED = {
    "torch.distributed.checkpoint.metadata": {
        "Metadata",
        "MetadataIndex",
        "TensorStorageMetadata",
        "TensorProperties",
        "ChunkStorageMetadata",
        "StorageMeta",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", *(name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype))},
    "pathlib": {"PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"},
    "collections": {"OrderedDict"},
}


class _IndexUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name not in _ALLOWED.get(module.replace("pathlib._local", "pathlib"), ()):
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which checkpoints do not need")
        return super().find_class(module, name)


class _Reader(FileSystemReader):
    """DCP's reader with an index that was read safely."""

    def __init__(self, path: Path, index: Metadata) -> None:
        super().__init__(path)
        self._index = index

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        return self._index


def _read_index(path: Path) -> Metadata:
    file = path / "tensors" / ".metadata"
    try:
        with open(file, "rb") as stream:
            index = _IndexUnpickler(stream).load()
        assert isinstance(index, Metadata)
        for name, entry in index.state_dict_metadata.items():
            if not isinstance(entry, TensorStorageMetadata):  # anything else, DCP would unpickle
                raise pickle.UnpicklingError(f"{name} is not a tensor")
        for place in index.storage_data.values():
            if "/" in place.relative_path or "\\" in place.relative_path:
                raise pickle.UnpicklingError(f"it refers to the file {place.relative_path!r}")
    except OSError as error:
        raise CheckpointError(f"{file}: {error.strerror}; use an older checkpoint") from error
    except Exception as error:  # hostile bytes raise anything
        raise CheckpointError(f"{file} is not an index of tensors: {error}; use a checkpoint that you trust") from error
    return index


def _read_tensors(path: Path, index: Metadata, targets: dict[str, torch.Tensor]) -> None:
    _quieten_single_process()
    try:
        read_distributed(targets, storage_reader=_Reader(path / "tensors", index), no_dist=True)
    except Exception as error:
        raise CheckpointError(f"{path}/tensors cannot be read: {_root_of(error)}; use an older checkpoint") from error


def _entry_of(index: Metadata, name: str) -> TensorStorageMetadata:
    entry = index.state_dict_metadata.get(name)
    if not isinstance(entry, TensorStorageMetadata):
        raise CheckpointError(f"the checkpoint's tensors lack {name}; use an older checkpoint")
    return entry


def _empty_of(index: Metadata, name: str) -> torch.Tensor:
    entry = _entry_of(index, name)
    return torch.empty(entry.size, dtype=entry.properties.dtype)


def _compare_model(path: Path, mine: Mapping[str, torch.Tensor], theirs: set[str], index: Metadata) -> None:
    for name in (*sorted(theirs - set(mine)), *sorted(set(mine) - theirs)):
        key = name.removeprefix("model/")
        what = (
            f"lacks {key}, which this model has" if name in mine else f"contains {key}, which this model does not have"
        )
        raise CheckpointError(f"{path} is from a different model: it {what}")
    for name, tensor in mine.items():
        entry = _entry_of(index, name)
        if (entry.size, entry.properties.dtype) != (tensor.shape, tensor.dtype):
            raise CheckpointError(
                f"{path} is from a different model: {name.removeprefix('model/')} has shape {list(entry.size)} and "
                f"{entry.properties.dtype} there, {list(tensor.shape)} and {tensor.dtype} here"
            )


def _compare_optimizer(checkpoint: Checkpoint, optimizer: Any) -> None:
    theirs = checkpoint.state.get("optimizer_counts")
    mine = [len(group["params"]) for group in optimizer.param_groups]
    kind, own_kind = checkpoint.state.get("optimizer_kind"), optimizer_kind(optimizer)
    if mine != theirs or kind != own_kind:
        raise CheckpointError(
            f"{checkpoint.path} is from a different optimizer: {kind} with {theirs} parameters in its groups "
            f"there, {own_kind} with {mine} here"
        )


def _optimizer_targets(tree: Any, optimizer: Any, index: Metadata) -> dict[str, torch.Tensor]:
    """A tensor to read into for each tensor that the optimizer had: sharded where its parameter is."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    targets = {}
    for name in tensor_names(tree):
        empty = _empty_of(index, name)
        parts = name.split("/")
        parameter = parameters[int(parts[2])] if len(parts) > 2 and parts[1] == "state" and parts[2].isdigit() else None
        if isinstance(parameter, DTensor) and parameter.shape == empty.shape:
            targets[name] = torch.empty_like(parameter, dtype=empty.dtype).detach()
        else:
            targets[name] = empty
    return targets
