"""Checks of Kubernetes pods and their containers."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator

from hotloop.judge.lint.checks import HIGH, LIKELY, LOW, MEDIUM, FieldCheck, ReadPlace, only, table_rule
from hotloop.judge.lint.formats.manifests import (
    GIB,
    GPUS,
    MIB,
    NODE_RULES,
    RUNS_TO_END,
    SHARED,
    Container,
    Manifests,
    Pod,
    quantity,
)
from hotloop.judge.lint.yaml_fields import Field

NATIVE = re.compile(r"(cpu|memory|ephemeral-storage|storage|pods|hugepages-\w+|attachable-volumes-.+)$")
SHARES = re.compile(r"shared|gpu-?(cores|mem)|mig-|\.(share|mem)|vgpu")
MOST_GPUS = 16
"""The most GPUs of a node on sale today; 8 is usual."""


FRACTIONAL_GPU = table_rule(
    "fractional-gpu",
    "a pod asks for a fraction of a GPU, which no cluster grants",
    """## What it does
    Looks for a quantity of `nvidia.com/gpu` (or of another vendor's GPUs) that is not a whole number.

    ## Why it costs
    The API server refuses the object: extended resources are integers.

    ## How to recognize it
    The value is a fraction such as `0.25`, or it is given in thousandths, such as `500m`.

    ## What to do
    Ask for 1 and let the device plugin share the GPU by time-slicing, MPS, or MIG's own resource names.

    ## When it is wrong
    Ignore the finding if a webhook in the cluster rewrites the value first.
    """,
    reads="kubernetes",
    each="pods",
    checks=(
        FieldCheck(
            at=lambda pod: [one for one in pod.amounts if one.name in GPUS and one.number != int(one.number)],
            severity=HIGH,
            message="{text} is refused: GPUs are whole numbers",
            advice="ask for 1, and share the GPU by time-slicing, MPS or MIG",
        ),
    ),
)


GPU_WITHOUT_LIMIT = table_rule(
    "gpu-without-limit",
    "GPUs are requested without an equal limit",
    """## What it does
    Compares GPUs under `resources.requests` with those under `resources.limits`, and any request with its limit.

    ## Why it costs
    For extended resources, the request and the limit must be equal, and no request may exceed its limit. The API server
    refuses the object.

    ## How to recognize it
    A request names a GPU, and the limit is missing or different; or a CPU or memory request exceeds its limit.

    ## What to do
    Write the number under `limits`; Kubernetes then sets the request.

    ## When it is wrong
    Ignore the finding if a webhook in the cluster or a patch in another file adds the limit.
    """,
    reads="kubernetes",
    each="pods",
    checks=(
        FieldCheck(
            at=lambda pod: [
                one["image"]
                for one in pod.containers
                if not any("/" in amount.name for amount in pod.amounts)
                and not pod.spec["resourceClaims"]
                and pod.kind not in ("TrainJob", "TrainingRuntime", "ClusterTrainingRuntime")
                and re.search(r"torchrun|accelerate launch|deepspeed", one.text)
                and re.search(r"(nproc[-_]per[-_]node|num[-_](processes|gpus))[= ]([2-9]|gpu)", one.text)
                and not re.search(r"(?i)gloo|cpu", one.text)
                and not one["securityContext.privileged"].is_true
            ],
            severity=HIGH,
            message=("a launcher starts several processes, but no GPU is requested: the container trains on CPUs"),
            advice="resources.limits: nvidia.com/gpu",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda pod: [
                one
                for one in pod.amounts
                if one.part == "requests" and one.name in GPUS and one.container.amount(one.name) is None
            ],
            severity=HIGH,
            message="a request of {text} is refused: it has no limit, and GPUs need both",
            advice="write {text} under limits",
        ),
        FieldCheck(
            at=lambda pod: [
                one
                for one in pod.amounts
                if one.part == "requests"
                and one.name in GPUS
                and one.container.amount(one.name) not in (None, one.number)
            ],
            severity=HIGH,
            message="a request of {text} is refused: for GPUs, it must equal the limit",
            advice="write the same number under limits",
        ),
        FieldCheck(
            at=lambda pod: [
                one
                for one in pod.amounts
                if one.part == "requests"
                and one.name not in GPUS
                and one.number > (one.container.amount(one.name) or one.number)
            ],
            severity=HIGH,
            message="a request of {text} exceeds its limit, and is refused",
            advice="raise the limit, or lower the request",
        ),
    ),
)


UNKNOWN_RESOURCE = table_rule(
    "unknown-resource",
    "a resource has a name that no node offers",
    """## What it does
    Compares the names under `resources` with those of Kubernetes and of the vendors' device plugins.

    ## Why it costs
    A name without a domain is refused (`gpu: 1`); no node offers a misspelled one (`nvidia.com/gpus`), and the pod
    stays pending forever.

    ## How to recognize it
    The name is unknown and has no domain, or it is close to the name of a GPU resource.

    ## What to do
    Write the device plugin's name: `nvidia.com/gpu`, `amd.com/gpu`.

    ## When it is wrong
    Ignore the finding if one of your device plugins offers a resource of that name.
    """,
    reads="kubernetes",
    each="pods",
    checks=(
        FieldCheck(
            at=lambda pod: [one for one in pod.amounts if "/" not in one.name and not NATIVE.match(one.name)],
            severity=HIGH,
            message="{text} is refused: no Kubernetes resource has this name, and device names begin with a vendor",
            advice="write nvidia.com/gpu (amd.com/gpu), cpu or memory",
        ),
        FieldCheck(
            at=lambda pod: [
                one
                for one in pod.amounts
                if "/" in one.name
                and one.name not in GPUS
                and not SHARES.search(one.name)
                and difflib.get_close_matches(one.name.lower(), GPUS, n=1, cutoff=0.8)
            ],
            severity=HIGH,
            message="no node offers {text}, as the name is misspelled: the pod stays pending",
            advice="write nvidia.com/gpu (amd.com/gpu)",
            confidence=LIKELY,
        ),
    ),
)


IMPOSSIBLE_AMOUNT = table_rule(
    "impossible-amount",
    "an amount has the wrong unit",
    """## What it does
    Checks the units of CPU, memory, disk and GPU amounts. Looks for memory in bytes or thousandths (`64`, `64m`),
    thousands of CPUs, a few thousandths of a CPU together with GPUs, more GPUs than a node has, and less memory than
    torch needs.

    ## Why it costs
    The pod is killed at its first allocation, runs very slowly on a tiny share of a CPU, or stays pending forever.

    ## How to recognize it
    The rule reads each amount with its unit: `m` is a thousandth, no suffix means bytes, `M` is 10^6 and `Mi` is 2^20.

    ## What to do
    Use `Gi` for memory, plain numbers for CPUs, and several pods for more GPUs than a node has.

    ## When it is wrong
    Ignore the finding if one of your nodes is that large, or the container that small.
    """,
    reads="kubernetes",
    each="pods",
    checks=(
        FieldCheck(
            at=lambda pod: [
                one for one in pod.amounts if one.name in ("memory", "ephemeral-storage") and 0 < one.number < MIB
            ],
            severity=HIGH,
            message=(
                "{text} is only a few bytes (no unit is bytes, m is a thousandth): the container is killed at once"
            ),
            advice="write the amount in Mi or Gi",
        ),
        FieldCheck(
            at=lambda pod: [
                one
                for one in pod.amounts
                if one.name == "memory"
                and one.part == "limits"
                and one.container.gpu_count
                and MIB <= one.number < 2 * GIB
                and pod.is_training
            ],
            severity=HIGH,
            message="{text} for a container with GPUs: torch by itself needs more, and the container is OOMKilled",
            advice="write the amount in Gi",
        ),
        FieldCheck(
            at=lambda pod: [one for one in pod.amounts if one.name == "cpu" and one.number >= 512],
            severity=HIGH,
            message="no node has {text} cores: the pod stays pending",
            advice="write cores, or thousandths with an m",
        ),
        FieldCheck(
            at=lambda pod: [
                one
                for one in pod.amounts
                if one.name == "cpu" and one.part == "limits" and one.container.gpu_count and one.number < 0.5
            ],
            severity=HIGH,
            message="{text} is a tiny share of a core, and the GPUs wait for it",
            advice="write cores without an m",
        ),
        FieldCheck(
            at=lambda pod: [one for one in pod.amounts if one.name in GPUS and one.number > MOST_GPUS],
            severity=HIGH,
            message="{text} in one pod is more than a node has: the pod stays pending",
            advice="use several pods, each with the GPUs of one node",
        ),
    ),
)


MEMORY_VOLUME = table_rule(
    "memory-volume",
    "a volume in memory uses up the container's memory",
    """## What it does
    Compares the size of each `medium: Memory` volume (`emptyDir`) with the memory limit of the container that mounts
    it.

    ## Why it costs
    Pages of such a volume count as the container's memory: once batches in flight, shared files and the model exceed
    the limit, the container is OOMKilled, often hours after the start.

    ## How to recognize it
    `sizeLimit` is at least the limit (high), or above half of it (medium).

    ## What to do
    Raise the memory limit by the volume's size, or lower `sizeLimit`.

    ## When it is wrong
    Ignore the finding if the volume is never filled.
    """,
    reads="kubernetes",
    each="pods",
    about=lambda manifests, pod: [
        (pod.volumes[name]["emptyDir.sizeLimit"], (quantity(pod.volumes[name]["emptyDir.sizeLimit"]) or 0) / limit)
        for container in (pod.containers if pod.is_training else ())
        for _, name, _ in container.mounts
        if (limit := container.amount("memory"))
        and name in pod.volumes
        and pod.volumes[name]["emptyDir.medium"].text == "Memory"
    ],
    checks=(
        FieldCheck(
            at=lambda size, share: only(size, share >= 1),
            severity=HIGH,
            message=(
                "a volume in memory may grow to {text}, as much as the container's memory limit, and counts toward it: "
                "OOMKilled"
            ),
            advice="raise the memory limit by the volume's size, or lower sizeLimit",
        ),
        FieldCheck(
            at=lambda size, share: only(size, 0.5 < share < 1),
            severity=MEDIUM,
            message=(
                "a volume in memory may grow to {text}, more than half of the container's memory limit, and counts "
                "toward it"
            ),
            advice="raise the memory limit by the volume's size, or lower sizeLimit",
        ),
    ),
)


SHARED_MEMORY_ON_DISK = table_rule(
    "shared-memory-on-disk",
    "/dev/shm is a folder on the node's disk",
    """## What it does
    Looks for an `emptyDir` without `medium: Memory` that is mounted at `/dev/shm`, and for a volume in memory that is
    mounted elsewhere.

    ## Why it costs
    Batches that DataLoader workers hand over are then written to the node's disk. They may fill the disk, and the pod
    is evicted.

    ## How to recognize it
    The mount at `/dev/shm` names a volume whose `emptyDir` has no medium.

    ## What to do
    Use `emptyDir: {medium: Memory}`. Its size counts as the container's memory.

    ## When it is wrong
    Ignore the finding if the node's disk is already a memory file system.
    """,
    reads="kubernetes",
    each="pods",
    checks=(
        FieldCheck(
            at=lambda pod: [
                pod.volumes[name]["emptyDir"]
                for one in pod.containers
                for path, name, _ in one.mounts
                if path == SHARED and name in pod.volumes and pod.volumes[name]["emptyDir.medium"].text is None
            ],
            severity=MEDIUM,
            message="the workers' data in /dev/shm goes to the node's disk: the emptyDir has no medium: Memory",
            advice="emptyDir: {{medium: Memory}}",
        ),
        FieldCheck(
            at=lambda pod: [
                mount["mountPath"]
                for one in pod.containers
                for path, name, mount in one.mounts
                if re.search(r"shm|shared-?mem", name)
                and "shm" not in path
                and pod.gpu_count
                and pod.volumes.get(name, mount)["emptyDir.medium"].text == "Memory"
                and SHARED not in [other for other, _, _ in one.mounts]
            ],
            severity=HIGH,
            message=(
                "shared memory is mounted at {text}: /dev/shm stays at 64 MiB, and loader workers die with a bus error"
            ),
            advice="mountPath: /dev/shm",
            confidence=LIKELY,
        ),
    ),
)


SMALL_SHARED_MEMORY = table_rule(
    "small-shared-memory",
    "a training container has too little shared memory",
    """## What it does
    Looks for training jobs and servers on several GPUs that have no volume at `/dev/shm`, or a volume of less than 1
    GiB.

    ## Why it costs
    A container's `/dev/shm` has 64 MiB. DataLoader workers hand batches over in it, and NCCL connects the GPUs of a
    node through it: a worker dies with a bus error, or NCCL fails with "No space left on device".

    ## How to recognize it
    The pod trains, a container asks for GPUs, and nothing larger is mounted at `/dev/shm`. The severity is `high` with
    several GPUs or loader workers, and `low` otherwise: with one GPU, the need depends on the workers.

    ## What to do
    Mount a volume `emptyDir: {medium: Memory, sizeLimit: 8Gi}` at `/dev/shm`.

    ## When it is wrong
    Ignore the finding if the loader has no workers, or if the container runtime provides more shared memory.
    """,
    reads="kubernetes dstack",
    each="tasks",
    about=lambda file, task: (
        [(task,)]
        if (task.is_training or task.tensor_parallel > 1)
        and task.gpus
        and task.shared_bytes is not None
        and task.shared_bytes < GIB
        else []
    ),
    checks=(
        FieldCheck(
            at=lambda task: only(
                ReadPlace(task.lines["shared"], f"{task.shared_bytes / MIB:g}"), task.gpus > 2 or task.workers
            ),
            severity=HIGH,
            message=(
                "/dev/shm has {text} MiB of shared memory for {0.gpus} GPUs and {0.workers} known loader workers: a "
                "worker dies with a bus error, or NCCL finds no space"
            ),
            advice="an emptyDir with medium: Memory and several Gi at /dev/shm; shm_size in dstack",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda task: only(
                ReadPlace(task.lines["shared"], f"{task.shared_bytes / MIB:g}"), task.gpus <= 2 and not task.workers
            ),
            severity=LOW,
            message="/dev/shm has {text} MiB of shared memory: a loader worker dies with a bus error",
            advice="an emptyDir with medium: Memory and several Gi at /dev/shm; shm_size in dstack",
            confidence=LIKELY,
        ),
    ),
)


SLEEP = re.compile(r"\bsleep[ :]+(\d+)")


def _graces(manifests: Manifests, pod: Pod) -> list[tuple[Field, float, float, float, bool]]:
    """The grace period of a pod and its seconds, the seconds that a preStop hook sleeps and that a save takes, and
    whether the training script saves when it is stopped."""
    grace = pod.spec["terminationGracePeriodSeconds"]
    hooks = [container["lifecycle.preStop"] for container in pod.containers]
    slept = [f"sleep {hook['sleep.seconds'].text} " + " ".join(hook.texts("exec.command.*")) for hook in hooks]
    hook_s = max((float(found[1]) for text in slept if (found := SLEEP.search(text))), default=0.0)
    names = [container.name for container in pod.containers]
    tasks = [task for task in manifests.tasks if pod.is_training and task.name in names]
    saves = [manifests.save_s or task.stated_s(r"sav(e|ing)|checkpoint|sigterm") for task in tasks]
    is_saving = any(re.search(r"(?i)sigterm|preempt|graceful", task.text) for task in tasks)
    grace_s = 30.0 if grace.number is None else grace.number
    return [(grace or pod.spec["containers"], grace_s, hook_s, max(saves, default=0.0), is_saving)]


SHORT_GRACE = table_rule(
    "short-grace",
    "a pod is killed before its last save can finish",
    """## What it does
    Compares `terminationGracePeriodSeconds` (30 by default) with the time that the `preStop` hook sleeps and with the
    time that a checkpoint takes, if a comment or `--save-seconds` states it.

    ## Why it costs
    The grace period starts at the eviction and includes the hook. At its end, the pod is killed in the middle of the
    save: steps are lost, and perhaps the checkpoint file too.

    ## How to recognize it
    The hook sleeps at least as long as the grace period, or a save takes longer. The finding is `likely` if the
    training script saves on SIGTERM and has 30 seconds or less.

    ## What to do
    Set `terminationGracePeriodSeconds` to more than the time of the hook plus the time of a save. Spot nodes may end
    sooner anyway.

    ## When it is wrong
    Ignore the finding if the training script saves nothing when it is stopped.
    """,
    reads="kubernetes",
    each="pods",
    about=_graces,
    checks=(
        FieldCheck(
            at=lambda grace, grace_s, hook_s, save_s, is_saving: only(grace, hook_s and hook_s + save_s >= grace_s),
            severity=MEDIUM,
            message=(
                "terminationGracePeriodSeconds: killed {1:g} s after SIGTERM, but the preStop hook sleeps {2:g} s "
                "and a save takes {3:g} s"
            ),
            advice="raise terminationGracePeriodSeconds above the time of the hook plus the time of a save",
        ),
        FieldCheck(
            at=lambda grace, grace_s, hook_s, save_s, is_saving: only(
                grace, not hook_s and (save_s > grace_s or (is_saving and not save_s and grace_s <= 30))
            ),
            severity=MEDIUM,
            message=(
                "terminationGracePeriodSeconds: killed {1:g} s after SIGTERM, but training saves when it is stopped "
                "(takes {3:g} s, if stated)"
            ),
            advice="raise terminationGracePeriodSeconds above the time of a save, for example to 300",
            confidence=LIKELY,
        ),
    ),
)


AZURE_SPOT = "kubernetes.azure.com/scalesetpriority"
SPOT_WITHOUT_TOLERATION = table_rule(
    "spot-without-toleration",
    "a pod selects spot nodes whose taint it does not tolerate",
    """## What it does
    Looks for a node selector for spot nodes without a toleration.

    ## Why it costs
    On Azure, all spot nodes have the taint `kubernetes.azure.com/scalesetpriority=spot:NoSchedule`: the pod stays
    pending forever.

    ## How to recognize it
    `nodeSelector` names spot capacity, and no toleration matches. On Azure, the taint is always present.

    ## What to do
    Add your provider's toleration next to the selector.

    ## When it is wrong
    Ignore the finding if an admission webhook adds the toleration, as some clusters do.
    """,
    reads="kubernetes",
    each="pods",
    checks=(
        FieldCheck(
            at=lambda pod: [
                ReadPlace(value.line, key)
                for key, value in pod.spec["nodeSelector"].items
                if (key, value.text) == (AZURE_SPOT, "spot")
                and not any(rule["key"].text in (key, None) for rule in pod.spec["tolerations"].elements)
            ],
            severity=HIGH,
            message="selects spot nodes ({text}) but does not tolerate their taint: the pod stays pending",
            advice="add a toleration with key {text}",
        ),
    ),
)


def _contradictions(pod: Pod) -> list[Field]:
    """Requirements of a node affinity that exclude what the node selector asks for."""
    chosen = {key: value.text for key, value in pod.spec["nodeSelector"].items}
    rules = [rule for rule in pod.spec.all(NODE_RULES) if rule["key"].text in chosen]
    return [
        rule["key"]
        for rule in rules
        if rule["operator"].text == "DoesNotExist"
        or (
            (rule["operator"].text == "In") is (chosen[rule["key"].text or ""] not in rule.texts("values.*"))
            and rule["operator"].text in ("In", "NotIn")
        )
    ]


UNPLACEABLE_POD = table_rule(
    "unplaceable-pod",
    "no node fits the pod",
    """## What it does
    Compares a pod's node selector, affinity, tolerations, spread constraints and host network with each other.

    ## Why it costs
    A pod with contradictory rules stays pending forever, and a malformed toleration is refused.

    ## How to recognize it
    The affinity excludes a key that the selector sets, a toleration uses `Exists` with a value, or a selector does not
    match the pod.

    ## What to do
    Make the rules agree; `kubectl describe pod` shows the rule that no node meets.

    ## When it is wrong
    Ignore the finding if a webhook in the cluster rewrites the rules.
    """,
    reads="kubernetes",
    each="pods",
    checks=(
        FieldCheck(
            at=_contradictions,
            severity=HIGH,
            message=(
                "the node affinity excludes what nodeSelector asks for ({text}): no node fits, and the pod stays "
                "pending"
            ),
            advice="make nodeSelector and affinity agree",
        ),
        FieldCheck(
            at=lambda pod: [
                rule["value"]
                for rule in pod.spec["tolerations"].elements
                if rule["operator"].text == "Exists" and rule["value"].text
            ],
            severity=HIGH,
            message="a toleration with operator Exists and a value ({text}) is refused",
            advice="remove the value, or use operator: Equal",
        ),
        FieldCheck(
            at=lambda pod: only(
                pod.spec["hostNetwork"],
                pod.spec["hostNetwork"].is_true
                and pod.count > 1
                and pod.gpu_count
                and pod.spec["dnsPolicy"].text in (None, "ClusterFirst"),
            ),
            severity=HIGH,
            message=(
                "hostNetwork with dnsPolicy ClusterFirst uses the node's DNS: names of services and pods are not found"
            ),
            advice="dnsPolicy: ClusterFirstWithHostNet",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda pod: only(pod.spec["nodeName"], pod.count > 1 and pod.gpu_count * pod.count > MOST_GPUS),
            severity=HIGH,
            message="nodeName puts all pods on {text}, which has too few GPUs",
            advice="use nodeSelector, and let the scheduler place the pods",
        ),
    ),
)


GIVEN_TO_JOBS = re.compile(r"(JOB_COMPLETION_INDEX|\w+_SERVICE_\w+)$")
GIVEN = re.compile(
    r"(PET_\w+|MASTER_\w+|WORLD_SIZE|\w*RANK|\w+_SERVICE_\w+|JOB_COMPLETION_INDEX"
    r"|(VC|VK|LWS|RAY|FQ|TF|TPU|JOBSET|MEGASCALE|KUBERNETES)_\w+)$"
)
"""Variables that operators and the kubelet add."""
_SHELL_LIKE = re.compile(r"(^|/)(ba|da|a|z)?sh$|entrypoint|envsubst|^env$|\.sh$")


def _plain_words(container: Container) -> list[Field]:
    """The words of a command that runs without a shell."""
    is_read = container.read[1] or any(_SHELL_LIKE.search(word.text or "") for word in container.words)
    return [] if is_read else container.words


def _undefined(manifests: Manifests, pod: Pod, container: Container) -> Iterator[ReadPlace]:
    """References ``$(NAME)`` to names that env does not have, or only further down."""
    names = [variable.name for variable in container.variables]
    given = GIVEN_TO_JOBS if pod.kind in ("Job", "CronJob", "JobSet") else GIVEN
    places = [(word.text, word.line, names) for word in _plain_words(container)]
    places += [(variable.value, variable.line, names[:at]) for at, variable in enumerate(container.variables)]
    for text, line, known in places if pod.kind not in ("TrainJob", "Workflow") and not manifests.is_part else ():
        for name in re.findall(r"(?<!\$)\$\(([A-Za-z_]\w*)\)", text or ""):
            if name not in known and not given.match(name) and (name in names or not container["envFrom"]):
                yield ReadPlace(line, f"$({name})")


_OF_NODE = re.compile(
    r"(JOB_COMPLETION_INDEX|HOSTNAME|POD_\w+|NODE_\w+|\w*RANK|WORLD_SIZE|MASTER_\w+|PET_\w+|HOME|PWD|RANDOM)$"
)
"""Variables that exist or should exist in the container, and that no template fills in earlier."""


_DOLLARS = re.compile(r"(?<![$\\])\$(?:\{(\w+)\}|([A-Z_][A-Z0-9_]+)\b|\((?:hostname|date|nproc|cat|seq|ls)\b)")


def _unexpanded(manifests: Manifests, container: Container) -> list[ReadPlace]:
    """``$NAME`` and ``$(command)`` among words that run without a shell."""
    names = [] if manifests.is_template else [variable.name for variable in container.variables]
    found = [(word.line, match) for word in _plain_words(container) for match in _DOLLARS.finditer(word.text or "")]
    named = [(line, match[0], match[1] or match[2]) for line, match in found]
    return [ReadPlace(line, text) for line, text, name in named if not name or name in names or _OF_NODE.match(name)]


VARIABLE_WITHOUT_SHELL = table_rule(
    "variable-without-shell",
    "a variable in a command is not replaced",
    """## What it does
    Looks for `$NAME` in `command` and `args` without a shell and in `env` values, and for `$(NAME)` where the container
    does not define the name before its use.

    ## Why it costs
    Kubernetes replaces only `$(NAME)`, and only names in the container's `env`. Everything else reaches the program
    literally: a node rank of `$JOB_COMPLETION_INDEX`, a path with a dollar sign.

    ## How to recognize it
    No `sh -c` precedes the variable. `$(NAME)` is reported if `env` has no such name, or defines it further down.

    ## What to do
    Use `$(NAME)` and define NAME in `env`, or start the program with `sh -c "exec ..."`.

    ## When it is wrong
    Ignore the finding if the program itself or an earlier template replaces variables.
    """,
    reads="kubernetes",
    each="pods",
    about=lambda manifests, pod: [(manifests, pod, container) for container in pod.every_container],
    checks=(
        FieldCheck(
            at=lambda manifests, pod, one: _unexpanded(manifests, one),
            severity=HIGH,
            message="{text} is not expanded: no shell runs, and Kubernetes replaces only $(NAME)",
            advice="write $(NAME) with NAME in env, or start it with bash -c 'exec ...'",
        ),
        FieldCheck(
            at=lambda manifests, pod, one: [
                ReadPlace(each.line, found[0])
                for each in one.variables
                if (found := re.search(r"(?<![$\\])\$\{?([A-Z_][A-Z0-9_]+)\b", each.value or ""))
                and not manifests.is_template
                and (
                    (found[1] in [other.name for other in one.variables] and found[1] != each.name)
                    or (found[1] == "PATH" and not re.search(r"(^|:)(/usr)?/bin/?(:|$)", each.value or ""))
                )
            ],
            severity=HIGH,
            message=(
                "{text} in a variable's value is not expanded: no shell reads it, and Kubernetes replaces only $(NAME)"
            ),
            advice="write $(NAME), with NAME further up in env",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=_undefined,
            severity=HIGH,
            message="{text} is not expanded: env does not define it, or only further down",
            advice="define it in env above",
            confidence=LIKELY,
        ),
    ),
)


def _swallowed(container: Container) -> list[Field]:
    """Words after the script of ``sh -c``, which become $0, $1, where the script reads none of them."""
    words = [word for word in container.words if word.text != "--"]
    texts = [word.text or "" for word in words]
    starts = [n for n in range(1, len(texts)) if re.fullmatch(r"-\w*c", texts[n]) and texts[n - 1].endswith("sh")]
    return [words[n + 2] for n in starts[:1] if n + 2 < len(words) and not re.search(r"\$[@*\d{]", texts[n + 1])]


BROKEN_COMMAND = table_rule(
    "broken-container-command",
    "a command is not read as intended",
    """## What it does
    Reads `command` and `args` as the runtime does: as words of a program, without a shell unless one is named.

    ## Why it costs
    The container ends immediately ("no such file", "unrecognized arguments"), or training runs without its options.

    ## How to recognize it
    There are shell operators without a shell, several words in one list element, or words after the script of `sh -c`.

    ## What to do
    Use one list element for each word, or `[bash, -c, "exec ..."]` with the entire command in one element.

    ## When it is wrong
    Ignore the finding if the image's entrypoint is a shell that joins its arguments.
    """,
    reads="kubernetes",
    each="pods",
    about=lambda manifests, pod: [(container,) for container in pod.every_container],
    checks=(
        FieldCheck(
            at=lambda one: [word for word in _plain_words(one) if word.text in ("&&", "||", "|", ">", ">>", ";", "<")][
                :1
            ],
            severity=HIGH,
            message=(
                "{text} is an argument here, as no shell reads the command: the program gets it and everything after it"
            ),
            advice="command: [bash, -c, '...']",
        ),
        FieldCheck(
            at=lambda one: only(
                one["command"].elements[0] if one["command"].elements else one["command"],
                len(one["command"].elements) == 1 and re.match(r"\S+ +\S", one["command"].elements[0].text or ""),
            ),
            severity=HIGH,
            message="all of '{text}' is read as the name of the program: no such file or directory",
            advice="one list element for each word, or a shell: [bash, -c, '...']",
        ),
        FieldCheck(
            at=lambda one: [
                word
                for word in _plain_words(one)
                if one["command"] and re.match(r"--?[A-Za-z][\w.-]* +[\w./$-]+$", word.text or "")
            ],
            severity=HIGH,
            message="the program does not accept '{text}', a single word, as an option (unrecognized arguments)",
            advice="use two list elements, or one with =",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=_swallowed,
            severity=HIGH,
            message="{text} is not part of the command: sh -c takes one word, and what follows becomes $0, $1",
            advice="put the whole command into the word after -c",
        ),
        FieldCheck(
            at=lambda one: [
                word for word in _plain_words(one)[:1] if word.text in ("cd", "source", "export", "set", "ulimit", ".")
            ],
            severity=HIGH,
            message="{text} is a shell command, and no program has that name",
            advice="command: [bash, -c, '...'], or workingDir",
        ),
    ),
)


def _repeated(fields: list[Field]) -> list[Field]:
    """Texts that occur twice, at their last place."""
    counts = Counter(field.text for field in fields)
    return [field for text, field in {field.text: field for field in fields}.items() if text and counts[text] > 1]


def _hidden(pod: Pod) -> list[Field]:
    """Mounts of an empty volume over the folder where a program is or starts."""
    filled = pod.spec.texts("initContainers.*.volumeMounts.*.name")
    return [
        mount["mountPath"]
        for container in pod.containers
        for path, name, mount in container.mounts
        if name not in filled
        and not mount["subPath"]
        and pod.volumes.get(name, mount)["emptyDir"]
        and re.search(
            rf"(^|\s){re.escape(path)}/[\w-]+\.(py|sh)\b",
            re.sub(r"(^|\s)(?=[\w-]+\.(py|sh)\b)", rf"\1{container['workingDir'].text}/", container.text),
        )
    ]


def _patience_s(probe: Field) -> float:
    """Seconds until a probe that never succeeds finally fails."""
    return probe["initialDelaySeconds"].amount + (probe["periodSeconds"].number or 10) * (
        probe["failureThreshold"].number or 3
    )


TRIES = re.compile(r"[-_/](tests?|(gpu-?)?burn|bench\w*|busybox|vector-?add)\b")
"""Images that only test a node."""
LOADS = re.compile(
    r"(?i)^(?!.*(jupyter|notebook)).*(vllm|text-generation|triton|sglang|ollama|llm|diffusion|model|infer|predict|serv)"
)
"""Programs and images that load weights before they answer."""
PROBED = "containers.*.livenessProbe|readinessProbe|startupProbe.httpGet|tcpSocket.port"
INCONSISTENT_POD = table_rule(
    "inconsistent-pod",
    "parts of a pod do not match each other",
    """## What it does
    Compares mounts with volumes, probes with ports and loading times, image tags with pull policies, and users with the
    volumes to which they write. Also looks for duplicate names.

    ## Why it costs
    The object is refused, the container ends at once, or it is killed again and again while it loads.

    ## How to recognize it
    Both parts are in the same pod. The finding is `likely` if it depends on the image or on the time that loading
    weights takes.

    ## What to do
    Follow the advice of the finding; `kubectl apply --dry-run=server` shows refused parts.

    ## When it is wrong
    Ignore the finding if a webhook or a patch adds the missing part.
    """,
    reads="kubernetes",
    each="pods",
    about=lambda manifests, pod: [(pod,)] if not manifests.is_part else [],
    checks=(
        FieldCheck(
            at=lambda pod: [
                name
                for name in pod.spec.all("initContainers|containers.*.volumeMounts.*.name")
                if name.text
                and "$" not in name.text
                and name.text not in pod.volumes
                and pod.kind not in ("TrainJob", "Workflow")
                and not (pod.kind == "MPIJob" and name.text in ("mpi-job-config", "ssh-auth"))  # the operator's own
                and (pod.kind == "Pod" or not pod.owner.all("spec.volumes|volumeClaimPolicies"))
            ],
            severity=HIGH,
            message="the pod has no volume named {text}: the object is refused",
            advice="add it under volumes, or correct the name",
        ),
        FieldCheck(
            at=lambda pod: [
                *_repeated(pod.spec.all("initContainers|containers.*.name")),
                *_repeated(pod.spec.all("volumes.*.name")),
                *(
                    wrong
                    for one in pod.every_container
                    for wrong in _repeated([mount["mountPath"] for _, _, mount in one.mounts if not mount["subPath"]])
                ),
            ],
            severity=HIGH,
            message=(
                "{text} occurs twice (containers, volumes and mount paths need unique names): the object is refused"
            ),
            advice="give each a unique name",
        ),
        FieldCheck(
            at=lambda pod: [
                wrong
                for one in pod.every_container
                for wrong in _repeated([each["name"] for each in one["env"].elements])
            ],
            severity=MEDIUM,
            message="{text} is set twice in env: the last value is used, the other has no effect",
            advice="keep one of them",
        ),
        FieldCheck(
            at=_hidden,
            severity=HIGH,
            message="the empty volume at {text} hides the image's files there: the program is not found",
            advice="mount it next to the code",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda pod: [
                one["image"]
                for one in pod.containers
                if pod.gpu_count
                and one["imagePullPolicy"].text == "IfNotPresent"
                and not TRIES.search(one["image"].text or "")
                and re.search(r":latest$|^[^:@$]+$", one["image"].text or "$")
            ],
            severity=MEDIUM,
            message="the tag of {text} moves, and IfNotPresent keeps the node's image: nodes run different code",
            advice="name a version or a digest",
        ),
        FieldCheck(
            at=lambda pod: [
                one["livenessProbe"]
                for one in pod.containers
                if pod.is_training and pod.kind in RUNS_TO_END and one.gpu_count
            ],
            severity=HIGH,
            message=(
                "a liveness probe on a training container: training does not respond while it loads, compiles or "
                "saves, and is killed"
            ),
            advice="remove the probe; the exit code shows when training ends",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda pod: [
                one["livenessProbe"]
                for one in pod.containers
                if one.gpu_count
                and not one["startupProbe"]
                and not pod.is_training
                and LOADS.search(f"{one.text} {one['image'].text}")
                and _patience_s(one["livenessProbe"]) < 120
            ],
            severity=HIGH,
            message="the liveness probe kills the server before its weights are loaded: it restarts forever",
            advice="add a startupProbe that waits a few minutes",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda pod: [
                one["startupProbe"] for one in pod.containers if one.gpu_count and _patience_s(one["startupProbe"]) < 60
            ],
            severity=HIGH,
            message=(
                "the startup probe gives the server less than a minute to load its weights: it is killed and "
                "starts again"
            ),
            advice="raise failureThreshold times periodSeconds to a few minutes",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda pod: [port for port in pod.spec.all(PROBED) if pod.lacks_port(port, is_spoken=True)],
            severity=HIGH,
            message="the probe uses port {text}, which the container does not declare: it never succeeds",
            advice="use a name or number of the container's ports",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda pod: only(
                pod.spec["securityContext.runAsUser"],
                (pod.spec["securityContext.runAsUser"].number or 0) > 0
                and not pod.spec["securityContext.fsGroup"]
                and pod.is_training
                and any(
                    volume["persistentVolumeClaim"] and not volume["persistentVolumeClaim.readOnly"].is_true
                    for volume in pod.volumes.values()
                ),
            ),
            severity=HIGH,
            message=(
                "user {text} may not write to the claim, as its files belong to root without fsGroup: the first "
                "save fails"
            ),
            advice="set securityContext.fsGroup",
            confidence=LIKELY,
        ),
    ),
)
