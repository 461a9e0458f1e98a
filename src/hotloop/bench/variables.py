"""Environment variables -> what they do to a training here: harm, cost, or nothing at all.

A variable is judged by its value and by whether anything on this machine reads it. One entry of VARIABLES is one
variable; a new one is one more entry.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .host import Host

Level = Literal["warning", "harmful"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """``is_bad`` looks at the value. ``is_read`` says whether anything here reads it; None when that is unknown."""

    name: str
    is_bad: Callable[[str, Host], bool]
    level: Level
    why: str
    fix: str
    is_read: Callable[[Host], bool | None]
    unread: str
    """Why it has no effect, where it is not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What one variable of this environment does. ``level`` is None when it has no effect."""

    name: str
    value: str
    level: Level | None
    why: str
    fix: str


def judge_variables(host: Host) -> tuple[Effect, ...]:
    """The effects worth telling, harmful first; variables that do what they should are left out."""
    effects = []
    for one in VARIABLES:
        value = host.environment.get(one.name)
        if value is None:
            continue
        read = one.is_read(host)
        if read is False:
            effects.append(Effect(name=one.name, value=value, level=None, why=one.unread, fix=f"unset {one.name}"))
        elif one.is_bad(value, host):
            # Where it cannot be told whether anything reads it, the harm is possible, not certain.
            level: Level = one.level if read else "warning"
            why = one.why if read else f"{one.why} (whether anything here reads it is unknown)"
            effects.append(Effect(name=one.name, value=value, level=level, why=why, fix=one.fix))
    order: dict[str | None, int] = {"harmful": 0, "warning": 1, None: 2}
    return tuple(sorted(effects, key=lambda e: (order[e.level], e.name)))


def integer(text: str) -> int | None:
    """A whole number, or None."""
    text = text.strip()
    return int(text) if re.fullmatch(r"[+-]?\d{1,9}", text) else None


def is_on(value: str, host: Host) -> bool:
    """A switch that is on: a number other than 0, or a word for yes."""
    number = integer(value)
    return number != 0 if number is not None else value.strip().lower() in ("true", "yes", "on", "y", "t")


def is_off(value: str, host: Host) -> bool:
    number = integer(value)
    return number == 0 if number is not None else value.strip().lower() in ("false", "no", "off", "n", "f")


def is_set(value: str, host: Host) -> bool:
    return value.strip() != ""


def is_any(value: str, host: Host) -> bool:
    return True


def is_fine(value: str, host: Host) -> bool:
    """No value is bad: the variable is known only because it may have no effect."""
    return False


def is_one_of(*words: str) -> Callable[[str, Host], bool]:
    """The value is one of these words, in any case."""
    return lambda value, host: value.strip().lower() in words


def is_below(limit: int) -> Callable[[str, Host], bool]:
    """The value is a positive number below ``limit``."""
    return lambda value, host: 0 < (integer(value) or 0) < limit


# Who reads a variable here.


def always(host: Host) -> bool | None:
    return True


def never(host: Host) -> bool | None:
    return False


def with_torch(host: Host) -> bool | None:
    return True if host.has_torch else None


def with_cuda(host: Host) -> bool | None:
    if not host.has_torch:
        return None
    return bool(host.fact("accelerator", "kind") == "cuda")


def with_hip(host: Host) -> bool | None:
    return None if not host.has_torch else host.fact("torch", "hip") is not None


def with_nccl(host: Host) -> bool | None:
    if not host.has_torch:
        return None
    return bool(host.fact("distributed", "backends", "nccl")) and host.fact("accelerator", "kind") == "cuda"


def with_several_gpus(host: Host) -> bool | None:
    nccl = with_nccl(host)
    if not nccl:
        return nccl
    # A GPU that is hidden here may be seen by the training; one that is not there is not.
    return max(host.devices_count or 0, len(host.gpus or ())) > 1


def with_infiniband(host: Host) -> bool | None:
    nccl = with_nccl(host)
    return bool(host.names("sys/class/infiniband")) if nccl else nccl


def with_gloo(host: Host) -> bool | None:
    return None if not host.has_torch else bool(host.fact("distributed", "backends", "gloo"))


def with_mkl(host: Host) -> bool | None:
    return None if not host.has_torch else bool(host.fact("torch", "mkl"))


def with_onednn(host: Host) -> bool | None:
    return None if not host.has_torch else bool(host.fact("torch", "onednn"))


def with_openmp(*names: str) -> Callable[[Host], bool | None]:
    """One of these OpenMP runtimes was loaded by torch."""

    def is_read(host: Host) -> bool | None:
        loaded = host.fact("openmp")
        return None if not isinstance(loaded, list) or not loaded else any(name in loaded for name in names)

    return is_read


# What makes a value bad.


def names_no_interface(value: str, host: Host) -> bool:
    """An interface list in gloo's way (exact names) of which one does not exist here."""
    present = host.names("sys/class/net")
    wanted = [name.strip() for name in value.split(",") if name.strip()]
    return bool(present) and any(name not in present for name in wanted)


def matches_no_interface(value: str, host: Host) -> bool:
    """An interface list in NCCL's way (prefixes, '=' exact, '^' all but these) that leaves no interface."""
    present = host.names("sys/class/net")
    inverted = value.startswith("^")
    text = value[1:] if inverted else value
    exact = text.startswith("=")
    wanted = [name.strip() for name in (text[1:] if exact else text).split(",") if name.strip()]
    if not present or not wanted:
        return False

    def hit(name: str) -> bool:
        return any(name == w if exact else name.startswith(w) for w in wanted)

    return not any(hit(name) != inverted for name in present if name != "lo" or not inverted)


def hides_all_gpus(value: str, host: Host) -> bool:
    first = value.split(",")[0].strip()
    return (first == "" or first == "-1") and any(re.fullmatch(r"nvidia\d+", name) for name in host.names("dev"))


def has_missing_library(value: str, host: Host) -> bool:
    paths = [path for path in re.split(r"[\s:]+", value) if "/" in path and "$" not in path]
    return any(not os.path.exists(path) for path in paths)


def limits_vector_units(value: str, host: Host) -> bool:
    """A cap on oneDNN's instruction set below what the CPU has."""
    flags = host.fact("cpu_flags")
    old = ("avx2", "avx512f")
    caps = {"sse41": old, "avx": old, "avx2": old[1:], "avx2_vnni": old[1:], "avx2_vnni_2": old[1:]}
    caps |= {name: ("amx_bf16",) for name in ("avx512_core", "avx512_core_vnni", "avx512_core_bf16")}
    return isinstance(flags, list) and any(flag in flags for flag in caps.get(value.strip().lower(), ()))


def keeps_scalar_kernels(value: str, host: Host) -> bool:
    """torch's own kernels without vector instructions, on a CPU that has them."""
    flags = host.fact("cpu_flags")
    return value.strip().lower() == "default" and isinstance(flags, list) and "avx2" in flags


def spins_while_crowded(value: str, host: Host) -> bool:
    threads = host.number("torch", "threads")
    return (
        value.strip().lower() in ("active", "infinite")
        and threads is not None
        and host.cores_count is not None
        and threads > host.cores_count
    )


def splits_blocks_small(value: str, host: Host) -> bool:
    found = re.search(r"max_split_size_mb\s*:\s*(\d+)", value)
    return found is not None and int(found.group(1)) < 128


NO_NCCL = "torch here has no NCCL with a GPU to use it"
ONE_GPU = "it acts between GPUs, and NCCL has fewer than two here"
NO_CUDA = "torch uses no CUDA device here"
GONE = "nothing reads it any more"
NO_KMP = "only Intel's and LLVM's OpenMP read it, and torch here has loaded neither"
NOT_READ = "torch does not read it"


def _nccl_renamed(old: str) -> Variable:
    return Variable(
        name=old,
        is_bad=is_on if "BLOCKING" in old else is_any,
        level="harmful" if "BLOCKING" in old else "warning",
        why=BLOCKING if "BLOCKING" in old else f"since torch 2.2 its name is TORCH_{old}; the old one only warns",
        fix=f"unset {old}" if "BLOCKING" in old else f"export TORCH_{old}, unset {old}",
        is_read=with_nccl,
        unread=NO_NCCL,
    )


BLOCKING = "the host waits for every collective to end, so nothing of it is hidden behind computation"

VARIABLES: tuple[Variable, ...] = (
    # CUDA
    Variable(
        name="CUDA_LAUNCH_BLOCKING",
        is_bad=is_on,
        level="harmful",
        why="the host waits for every kernel to end; it is meant for finding the kernel that fails",
        fix="unset CUDA_LAUNCH_BLOCKING",
        is_read=with_cuda,
        unread=NO_CUDA,
    ),
    Variable(
        name="CUDA_VISIBLE_DEVICES",
        is_bad=hides_all_gpus,
        level="warning",
        why="it hides every GPU of this machine: the training would run on the CPU",
        fix="unset CUDA_VISIBLE_DEVICES, or name the GPUs, such as 0,1",
        is_read=always,
        unread="",
    ),
    Variable(
        name="CUDA_CACHE_DISABLE",
        is_bad=is_on,
        level="warning",
        why="kernels that the driver compiles at start are compiled again in every process",
        fix="unset CUDA_CACHE_DISABLE",
        is_read=with_cuda,
        unread=NO_CUDA,
    ),
    Variable(
        name="NVIDIA_TF32_OVERRIDE",
        is_bad=is_off,
        level="warning",
        why="TF32 is off for every library, whatever the program sets: float32 matrix products run on slow units",
        fix="unset NVIDIA_TF32_OVERRIDE, unless full float32 precision is wanted",
        is_read=with_cuda,
        unread=NO_CUDA,
    ),
    # Allocators
    Variable(
        name="PYTORCH_NO_CUDA_MEMORY_CACHING",
        is_bad=is_set,
        level="harmful",
        why="every tensor is a cudaMalloc and a cudaFree, and each of them may wait for the device",
        fix="unset PYTORCH_NO_CUDA_MEMORY_CACHING",
        is_read=with_cuda,
        unread=NO_CUDA,
    ),
    *(
        Variable(
            name=name,
            is_bad=splits_blocks_small,
            level="warning",
            why="a small max_split_size_mb keeps large blocks whole: fewer of them are reused, more are allocated anew",
            fix=f"export {name}=expandable_segments:True, and drop max_split_size_mb",
            is_read=with_cuda,
            unread=NO_CUDA,
        )
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    ),
    Variable(
        name="PYTORCH_HIP_ALLOC_CONF",
        is_bad=splits_blocks_small,
        level="warning",
        why="a small max_split_size_mb keeps large blocks whole: fewer of them are reused, more are allocated anew",
        fix="drop max_split_size_mb",
        is_read=with_hip,
        unread="torch here is not built for ROCm",
    ),
    Variable(
        name="LD_PRELOAD",
        is_bad=has_missing_library,
        level="warning",
        why="a library that it names is not there: the allocator or profiler that it should bring is not used",
        fix="correct the path in LD_PRELOAD",
        is_read=always,
        unread="",
    ),
    *(
        Variable(
            name=name,
            is_bad=is_on,
            level="warning",
            why="the C library checks or fills memory at every allocation",
            fix=f"unset {name}",
            is_read=always,
            unread="",
        )
        for name in ("MALLOC_CHECK_", "MALLOC_PERTURB_")
    ),
    # NCCL
    Variable(
        name="NCCL_P2P_DISABLE",
        is_bad=is_on,
        level="harmful",
        why="GPUs of one host exchange data through the host's memory instead of NVLink or PCIe",
        fix="unset NCCL_P2P_DISABLE",
        is_read=with_several_gpus,
        unread=ONE_GPU,
    ),
    Variable(
        name="NCCL_P2P_LEVEL",
        is_bad=is_one_of("loc", "0"),
        level="harmful",
        why="direct exchange between GPUs is off at this level",
        fix="unset NCCL_P2P_LEVEL",
        is_read=with_several_gpus,
        unread=ONE_GPU,
    ),
    Variable(
        name="NCCL_SHM_DISABLE",
        is_bad=is_on,
        level="harmful",
        why="GPUs without a direct path go over the network even inside one host",
        fix="unset NCCL_SHM_DISABLE",
        is_read=with_several_gpus,
        unread=ONE_GPU,
    ),
    Variable(
        name="NCCL_IB_DISABLE",
        is_bad=is_on,
        level="harmful",
        why="several hosts talk over TCP although there is an InfiniBand or RoCE device",
        fix="unset NCCL_IB_DISABLE",
        is_read=with_infiniband,
        unread="there is no InfiniBand device that NCCL could use",
    ),
    Variable(
        name="NCCL_NET_GDR_LEVEL",
        is_bad=is_one_of("loc", "0"),
        level="warning",
        why="the network card never reads GPU memory directly: everything between hosts passes through host memory",
        fix="unset NCCL_NET_GDR_LEVEL",
        is_read=with_infiniband,
        unread="there is no InfiniBand device that NCCL could use",
    ),
    *(
        Variable(
            name=name,
            is_bad=is_set,
            level="warning",
            why="it fixes one choice for all sizes; NCCL picks the faster one for each",
            fix=f"unset {name}, or measure with and without",
            is_read=with_several_gpus,
            unread=ONE_GPU,
        )
        for name in ("NCCL_ALGO", "NCCL_PROTO")
    ),
    Variable(
        name="NCCL_MAX_NCHANNELS",
        is_bad=is_below(4),
        level="warning",
        why="so few channels cannot fill fast links",
        fix="unset NCCL_MAX_NCHANNELS",
        is_read=with_several_gpus,
        unread=ONE_GPU,
    ),
    Variable(
        name="NCCL_BUFFSIZE",
        is_bad=is_below(1 << 20),
        level="warning",
        why="buffers below 1 MiB (the default is 4 MiB) cut messages into many small pieces",
        fix="unset NCCL_BUFFSIZE",
        is_read=with_several_gpus,
        unread=ONE_GPU,
    ),
    Variable(
        name="NCCL_DEBUG",
        is_bad=is_one_of("info", "trace"),
        level="warning",
        why="every rank writes its log; TRACE writes one line per call",
        fix="export NCCL_DEBUG=WARN",
        is_read=with_nccl,
        unread=NO_NCCL,
    ),
    Variable(
        name="TORCH_NCCL_BLOCKING_WAIT",
        is_bad=is_on,
        level="harmful",
        why=BLOCKING,
        fix="unset TORCH_NCCL_BLOCKING_WAIT",
        is_read=with_nccl,
        unread=NO_NCCL,
    ),
    _nccl_renamed("NCCL_BLOCKING_WAIT"),
    _nccl_renamed("NCCL_ASYNC_ERROR_HANDLING"),
    Variable(
        name="NCCL_SOCKET_IFNAME",
        is_bad=matches_no_interface,
        level="harmful",
        why="no network interface here fits it: NCCL fails when several hosts start",
        fix="name one of the interfaces of: ls /sys/class/net",
        is_read=with_nccl,
        unread=NO_NCCL,
    ),
    *(
        Variable(
            name=name, is_bad=is_any, level="warning", why="", fix="", is_read=never, unread=f"NCCL: {GONE}{instead}"
        )
        for name, instead in (
            ("NCCL_TREE_THRESHOLD", " since 2.5 (NCCL_ALGO took its place)"),
            ("NCCL_LL_THRESHOLD", " since 2.5 (NCCL_PROTO took its place)"),
            ("NCCL_SINGLE_RING_THRESHOLD", " since 2.3"),
            ("NCCL_IB_CUDA_SUPPORT", " since 2.4 (NCCL_NET_GDR_LEVEL took its place)"),
        )
    ),
    Variable(
        name="NCCL_TIMEOUT",
        is_bad=is_any,
        level="warning",
        why="",
        fix="",
        is_read=never,
        unread="neither NCCL nor torch reads it; the timeout is an argument of init_process_group",
    ),
    # gloo and torch.distributed
    Variable(
        name="GLOO_SOCKET_IFNAME",
        is_bad=names_no_interface,
        level="harmful",
        why="an interface that it names does not exist here: init_process_group with gloo fails",
        fix="name one of the interfaces of: ls /sys/class/net",
        is_read=with_gloo,
        unread="torch here has no gloo",
    ),
    Variable(
        name="GLOO_DEVICE_TRANSPORT",
        is_bad=is_one_of("tcp_tls"),
        level="warning",
        why="every byte between ranks is encrypted on the CPU",
        fix="unset GLOO_DEVICE_TRANSPORT, where the network may be trusted",
        is_read=with_gloo,
        unread="torch here has no gloo",
    ),
    Variable(
        name="TORCH_DISTRIBUTED_DEBUG",
        is_bad=is_one_of("detail"),
        level="harmful",
        why="before every collective of several ranks all of them compare what they are about to do",
        fix="unset TORCH_DISTRIBUTED_DEBUG",
        is_read=with_torch,
        unread="",
    ),
    # Threads
    Variable(
        name="OMP_WAIT_POLICY",
        is_bad=spins_while_crowded,
        level="harmful",
        why="threads that wait keep their core busy, and there are more threads than cores",
        fix="unset OMP_WAIT_POLICY",
        is_read=with_torch,
        unread="",
    ),
    Variable(
        name="KMP_BLOCKTIME",
        is_bad=spins_while_crowded,
        level="harmful",
        why="threads that wait keep their core busy, and there are more threads than cores",
        fix="unset KMP_BLOCKTIME",
        is_read=with_openmp("libiomp5", "libomp"),
        unread=NO_KMP,
    ),
    Variable(
        name="KMP_AFFINITY",
        is_bad=is_fine,
        level="warning",
        why="",
        fix="",
        is_read=with_openmp("libiomp5", "libomp"),
        unread=NO_KMP,
    ),
    *(
        Variable(
            name=name,
            is_bad=is_fine,
            level="warning",
            why="",
            fix="",
            is_read=with_openmp("libgomp"),
            unread="only GNU's OpenMP reads it, and torch here has not loaded that",
        )
        for name in ("GOMP_CPU_AFFINITY", "GOMP_SPINCOUNT")
    ),
    *(
        Variable(name=name, is_bad=is_any, level="warning", why="", fix="", is_read=never, unread=unread)
        for name, unread in (
            ("TORCH_NUM_THREADS", f"{NOT_READ}; OMP_NUM_THREADS or torch.set_num_threads sets the threads"),
            ("PYTORCH_NUM_THREADS", f"{NOT_READ}; OMP_NUM_THREADS or torch.set_num_threads sets the threads"),
            ("MKL_DEBUG_CPU_TYPE", f"MKL: {GONE} since 2020.1"),
            ("TORCH_ALLOW_TF32", f"{NOT_READ}; torch.set_float32_matmul_precision('high') allows TF32"),
            ("CUDNN_BENCHMARK", f"{NOT_READ}; torch.backends.cudnn.benchmark = True is the switch"),
            ("TORCH_CUDNN_BENCHMARK", f"{NOT_READ}; torch.backends.cudnn.benchmark = True is the switch"),
        )
    ),
    # CPU libraries
    Variable(
        name="ATEN_CPU_CAPABILITY",
        is_bad=keeps_scalar_kernels,
        level="harmful",
        why="torch's own kernels leave this CPU's vector units unused",
        fix="unset ATEN_CPU_CAPABILITY",
        is_read=with_torch,
        unread="",
    ),
    *(
        Variable(
            name=name,
            is_bad=limits_vector_units,
            level="harmful",
            why="matrix products and convolutions use an older instruction set than this CPU has",
            fix=f"unset {name}",
            is_read=with_onednn,
            unread="torch here is built without oneDNN",
        )
        for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
    ),
    *(
        Variable(
            name=name,
            is_bad=is_on,
            level="harmful",
            why="one line is printed for every operator",
            fix=f"unset {name}",
            is_read=with_mkl if name.startswith("MKL") else with_onednn,
            unread="torch here is built without the library that reads it",
        )
        for name in ("ONEDNN_VERBOSE", "DNNL_VERBOSE", "MKL_VERBOSE")
    ),
    # Compiler
    *(
        Variable(
            name=name,
            is_bad=is_on,
            level="warning",
            why="torch.compile does nothing: the model runs eagerly, without a word",
            fix=f"unset {name}",
            is_read=with_torch,
            unread="",
        )
        for name in ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
    ),
    Variable(
        name="TORCHINDUCTOR_FORCE_DISABLE_CACHES",
        is_bad=is_on,
        level="warning",
        why="every start compiles everything again",
        fix="unset TORCHINDUCTOR_FORCE_DISABLE_CACHES",
        is_read=with_torch,
        unread="",
    ),
    Variable(
        name="TORCHINDUCTOR_FX_GRAPH_CACHE",
        is_bad=is_off,
        level="warning",
        why="every start compiles every graph again",
        fix="unset TORCHINDUCTOR_FX_GRAPH_CACHE",
        is_read=with_torch,
        unread="",
    ),
    Variable(
        name="TORCH_COMPILE_DEBUG",
        is_bad=is_on,
        level="warning",
        why="every compiled graph is written out to files",
        fix="unset TORCH_COMPILE_DEBUG",
        is_read=with_torch,
        unread="",
    ),
    # Python and tokenizers
    Variable(
        name="PYTHONTRACEMALLOC",
        is_bad=is_on,
        level="harmful",
        why="Python keeps the stack of every allocation: all Python code runs at a fraction of its speed",
        fix="unset PYTHONTRACEMALLOC",
        is_read=always,
        unread="",
    ),
    *(
        Variable(
            name=name,
            is_bad=is_bad,
            level="warning",
            why="Python checks every allocation: all Python code is slower",
            fix=f"unset {name}",
            is_read=always,
            unread="",
        )
        for name, is_bad in (
            ("PYTHONDEVMODE", is_set),
            ("PYTHONMALLOC", is_one_of("debug", "malloc_debug", "pymalloc_debug")),
        )
    ),
    Variable(
        name="TOKENIZERS_PARALLELISM",
        is_bad=is_on,
        level="warning",
        why="tokenisers in DataLoader workers each start a thread per core, and one that was used before the workers "
        "were forked may hang in them; it acts only where Hugging Face tokenizers are used",
        fix="export TOKENIZERS_PARALLELISM=false, when batches are tokenised in workers",
        is_read=always,
        unread="",
    ),
)
"""Known variables. NCCL's names and defaults: NVIDIA's list of environment variables (2.23); torch's: the sources of
2.13, where each name marked as unread was searched for and not found."""
