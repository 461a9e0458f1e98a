"""Checks of Dockerfiles: versions of torch, CUDA and Python that do not match, and torch installed twice."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hotloop.core.findings import Severity
from hotloop.core.lint import Confidence, LintFinding, lint_rule
from hotloop.judge.lint.formats.builds import DockerBuild, Fault, Layer, find_faults

HIGH, MEDIUM, LIKELY = Severity.HIGH, Severity.MEDIUM, Confidence.LIKELY
TORCH = {
    "1.12": ("cu102|cu113|cu116", range(7, 11), "0.13"),
    "1.13": ("cu116|cu117", range(7, 12), "0.14"),
    "2.0": ("cu117|cu118", range(8, 12), "0.15"),
    "2.1": ("cu118|cu121", range(8, 12), "0.16"),
    "2.2": ("cu118|cu121", range(8, 13), "0.17"),
    "2.3": ("cu118|cu121", range(8, 13), "0.18"),
    "2.4": ("cu118|cu121|cu124", range(8, 13), "0.19"),
    "2.5": ("cu118|cu121|cu124", range(9, 14), "0.20"),
    "2.6": ("cu118|cu124|cu126", range(9, 14), "0.21"),
    "2.7": ("cu118|cu126|cu128", range(9, 14), "0.22"),
    "2.8": ("cu126|cu128|cu129", range(9, 14), "0.23"),
    "2.9": ("cu126|cu128|cu130", range(10, 15), "0.24"),
}
"""torch -> its CUDA builds, the minor versions of Python 3 with Linux wheels, and the matching torchvision."""
ON_INDEX = (
    r"torch\w*|pytorch-triton|triton|xformers|numpy|pillow|filelock|networkx|jinja2"
    r"|sympy|fsspec|mpmath|nvidia-[\w-]+|setuptools|"
    r"typing[-_]extensions|markupsafe|certifi|charset-normalizer|idna|requests|urllib3"
    r"|tqdm|packaging|cmake|lit|fbgemm\S*"
)
BREAKS = (
    (
        "torch",
        r"(1\.|2\.[0-2]\b)",
        "before 2.3 (built for NumPy 1)",
        r"numpy(?=$|[\s\t]|;| *>=| *== *2| *> )(?![^\t\n]*(<|!= *2))",
        "torch.from_numpy raises RuntimeError (Numpy is not available)",
        "numpy<2",
        "numpy *(<|==1)",
    ),
    (
        "openai",
        r"1\.([0-4]?\d|5[0-4])\b",
        "before 1.55.3",
        r"httpx(?=$|[\s\t]| *>=| *== *0\.2[89])(?![^\t\n]*<)",
        "Client.__init__() got an unexpected keyword argument 'proxies'",
        "httpx<0.28",
        "httpx *<",
    ),
    (
        "flask",
        r"(1\.|2\.[01]\b|2\.2\.[0-4])",
        "before 2.2.5",
        r"werkzeug(?=$|[\s\t]| *>=| *== *3)(?![^\t\n]*<)",
        "cannot import name 'url_quote' from 'werkzeug.urls'",
        "werkzeug<3",
        "werkzeug *<",
    ),
)
"""(package, pattern of its versions, the versions in words, the other package, effect, advice, what pins it)."""
TOGETHER = "use versions that were published together (pytorch.org, previous versions)"
UNFIT = (
    Fault(
        "CONDA",
        r"(?ms)\A(?!.*(cuda|cpuonly|gpu|nvidia|=cpu|cpu_|_cpu))(.*^dependencies:.*^\s*- (\S+::)?|.*\b(install|create) "
        r"(?:(?:-c|--channel) \S+ |(?!-c |--channel )\S+ )*?)(?P<it>(pytorch|jaxlib)(?=[\s=<>]|$)[^\n]{0,20})",
        HIGH,
        "conda resolves {0} in a build without a driver, and takes the CPU build: the GPUs are not used",
        "ENV CONDA_OVERRIDE_CUDA=12.4 above it, and pytorch-gpu or pytorch=*=cuda*",
        unless="CONDA_OVERRIDE_CUDA|pytorch-cuda|pytorch-gpu",
        confidence=LIKELY,
    ),
    Fault(
        "CONDA",
        r"(?s)\A(?=.*conda-forge).*\b(?P<it>(pytorch|jaxlib)\S*=\S*cuda\S*|pytorch-gpu\S*)",
        HIGH,
        "{0} depends on __cuda, which a build without a driver lacks: conda finds no solution, and the build fails",
        "ENV CONDA_OVERRIDE_CUDA=12.4 above it",
        unless="CONDA_OVERRIDE_CUDA",
        confidence=LIKELY,
    ),
    Fault(
        "PACKAGES",
        r"(?m)\A(?![\s\S]*(jax|jaxlib)\S*cuda)[\s\S]*?^(?P<it>(jax|tensorflow[-_]cpu|paddlepaddle|jax\[cpu\])(?=[\s=<>~]|$)[^\t\n]*)",
        HIGH,
        "{0} on {base} is a CPU build: the GPUs are not used",
        "install jax[cuda12], tensorflow or paddlepaddle-gpu",
        unless=r"jax\[cuda|jaxlib\S*cuda|jax-cuda|cuda1\d[-_](local|pip)",
        base=r"(^|/)cuda:|nvcr\.io/nvidia/cuda",
        confidence=LIKELY,
    ),
    Fault(
        "PACKAGES",
        r"(?m)\A(?![\s\S]*(^torch\b|onnxruntime-gpu|onnxruntime\[))[\s\S]*^(?P<it>onnxruntime(?![\w-])[^\t\n]*)",
        MEDIUM,
        "{0} on {base} runs only on the CPU (no CUDAExecutionProvider)",
        "install onnxruntime-gpu",
        base=r"(^|/)cuda:",
        confidence=LIKELY,
    ),
    *(
        Fault(
            "PACKAGES",
            rf"(?m)^torch *== *{torch}(\.\d+)*(\+|\s(?=[\s\S]*whl/))(?=[\s\S]*)(?=cu"
            rf"|[\s\S]*whl/cu)(?!({cuda})\b|[\s\S]*whl/({cuda})\b)",
            HIGH,
            f"{{0}}: torch {torch} has builds for {cuda.replace('|', ', ')} only; pip finds no version for this CUDA",
            TOGETHER,
        )
        for torch, (cuda, _, _) in TORCH.items()
    ),
    *(
        Fault(
            "PACKAGES",
            rf"(?m)^torch *== *{torch}\b[\d.+\w]*",
            HIGH,
            f"{{0}} has no wheel for the Python of {{base}} (there are 3.{pythons[0]} to "
            f"3.{pythons[-1]}): pip finds no version",
            TOGETHER,
            base=rf"(^|/)python:3\.(?!({'|'.join(map(str, pythons))})\b)\d+",
            unless=r"uv python|conda|pyenv",
        )
        for torch, (_, pythons, _) in TORCH.items()
    ),
    *(
        Fault(
            "PACKAGES",
            rf"(?ms)\A(?=.*^torch *== *{torch}\b).*^(?P<it>(torchvision *== "
            rf"*(?!{vision}\b)|torchaudio *== *(?!{torch.replace('1.', '0.', 1) if torch[0] == '1' else torch}\b))\S+)",
            HIGH,
            f"{{0}} does not match torch {torch}: pip refuses the pins or replaces torch",
            TOGETHER,
        )
        for torch, (_, _, vision) in TORCH.items()
    ),
    *(
        Fault(
            "PACKAGES",
            rf"(?ms)\A(?=.*^{package} *== *{version}).*^(?P<it>{other}[^\t\n]*)",
            HIGH,
            f"{{0}} resolves to a version that {package} {text} does not work with: {effect}",
            f"pin {advice}",
            never=rf"PIP_CONSTRAINT|(?i:constraints?\S*\.txt)|pip[^\n]* -c |RUN [^\n]*{never}",
            confidence=LIKELY,
        )
        for package, version, text, other, effect, advice, never in BREAKS
    ),
    Fault(
        "PACKAGES",
        rf"(?im)^(?!({ON_INDEX})\b)[a-z][\w-]*(?=[^\n:/]*$)(?=[\s\S]*((--index-url|-i)[ "
        rf"=]https?://download\.pytorch\.org))(?![\s\S]*(--extra-index-url|--find-links))",
        HIGH,
        "--index-url replaces PyPI with PyTorch's index, which has no {0}: pip finds no version and the build fails",
        "install only torch from it, or use --extra-index-url",
    ),
    *(
        Fault(
            "COPY ENV",
            rf"lib/python3\.{minor}/site-packages\S*",
            HIGH,
            f"{{0}} is for Python 3.{minor}, and {{base}} runs another: its packages are not found",
            "use one Python in all stages",
            base=rf"(^|/)python:3\.(?!{minor}\b)\d",
            unless=r"deadsnakes|conda|pyenv|uv python",
        )
        for minor in range(6, 15)
    ),
    Fault(
        "COPY",
        r"^(/\S*/\.?v?env|/\.?v?env)/? (?!\1/?$)/\S+",
        HIGH,
        "{0}: a virtual environment does not work at another path, as its scripts name the old path",
        "create it at the path where it is used",
        unless="relocatable",
    ),
)


@lint_rule(
    "unfit-versions", "versions do not match each other, the index or the Python", reads="dockerfile", each="chains"
)
def unfit_versions(build: DockerBuild, chain: Sequence[Layer]) -> Iterator[LintFinding]:
    """## What it does
    Compares pinned versions of torch with the CUDA index, the base's Python, torchvision and torchaudio; looks for
    PyTorch's `--index-url` with packages from PyPI; for `site-packages`, wheels and environments that a stage copies
    although they belong to another Python or path; and for CPU builds that conda or pip chooses for an image with GPUs.

    ## Why it costs
    The build fails: no such wheel exists, or the pins contradict each other. Or the container does not find modules
    when it starts.

    ## How to recognize it
    The rule uses the published tables of PyTorch's builds up to 2.9. It also reads requirements files.

    ## What to do
    Use the versions from one row of PyTorch's table of previous versions.

    ## When it is wrong
    Ignore the finding if your own package index has such a build.
    """
    yield from find_faults(UNFIT, chain)
    taken = [(layer, stage) for layer in chain if (stage := layer.source_stage) is not None]
    for layer, stage in taken if not any(INTERPRETER.match(one) for each, _ in taken for one in each.sources) else ():
        above = build.chain(stage)
        scripts = " ".join(one.instruction.script for one in (*above, *chain) if one.name in ("RUN", "ENV"))
        made, run = (_read_python(build.dockerfile.lineage(one)[0].base) for one in (stage, layer.stage))
        held = [
            source
            for source in layer.sources
            if _holds_packages(source, above, scripts) and ("/python3" not in source or made[:4] == run[:4])
        ]
        if held and made and run and made != run and not OTHER_PYTHON.search(scripts):
            yield layer.report(
                HIGH,
                f"{held[0]} has packages of Python {made} (stage {stage.name or stage.index}), and this stage runs "
                f"Python {run}: modules are not found, or their compiled parts do not load",
                "build on the same Python version and base as the final image",
                confidence=LIKELY,
            )


OTHER_PYTHON = re.compile(
    r"deadsnakes|conda|mamba|pyenv|uv python|UV_PYTHON|\bpython3\.\d+(?!/)|PYTHON_VERSION|Python-3"
)
INTERPRETER = re.compile(
    r"/(usr(/local(/bin\S*)?)?)?/?$|\S*/(python|python3(\.\d+)?|\.?uv|uv/python|conda|miniconda3?)/?$"
)
PYTHONS = {
    r"ubuntu:?(24\.04|noble)|cuda:\S*ubuntu24": "3.12 of /usr/bin",
    r"ubuntu:?(22\.04|jammy)|cuda:\S*ubuntu22": "3.10 of /usr/bin",
    r"ubuntu:?(20\.04|focal)|cuda:\S*ubuntu20": "3.8 of /usr/bin",
    r"(^|/)debian:(13|trixie)": "3.13 of /usr/bin",
    r"(^|/)debian:(12|bookworm)|distroless/python3-debian12": "3.11 of /usr/bin",
    r"(^|/)debian:(11|bullseye)|distroless/python3-debian11": "3.9 of /usr/bin",
}
"""Base -> the Python that its distribution packages."""


def _read_python(base: str) -> str:
    """The Python of a base image, with its path unless that is /usr/local; empty where it is not known."""
    official = re.search(r"(^|/)(python:|uv:(\S*-)?python)(3\.\d+)", base)
    packed = next((text for pattern, text in PYTHONS.items() if re.search(pattern, base)), "")
    return f"{official[4]}{' (musl)' if 'alpine' in base else ''}" if official else packed


def _holds_packages(source: str, above: Sequence[Layer], scripts: str) -> bool:
    """Whether a stage's installs write to a path."""
    path = source.rstrip("/")
    places = (
        r"(--prefix|--target|--root|-t|venv|virtualenv|-w|--wheel-dir|PYTHONUSERBASE|UV_PROJECT_ENVIRONMENT)[= ]\"?"
        rf"(-\S+ )*{re.escape(path)}(?![\w.-])"
    )
    is_named = re.search(r"venv|\.local$|(site|dist)-packages", path) or re.search(places, scripts)
    is_project = "uv sync" in scripts and path == above[-1].workdir
    return len(path) > 1 and (is_project or is_named is not None) and any(layer.installs for layer in above)


ONCE = "choose a base with this torch, or without torch, and install torch once"
REMOVED = r"uninstall[^\n]*\storch\b"
REPLACED = (
    Fault(
        "PACKAGE",
        r"^torch(\[\S*\])?(\s*(==|<)=?\s*[\d.]+\S*|(?=\s*\t.* (-U|--upgrade|--force-reinstall)\b))",
        HIGH,
        "{0} replaces NVIDIA's own build in {base}: the image contains both, and apex, "
        "TransformerEngine and other packages compiled for it break",
        "leave torch out of the list, or keep the image's constraints (PIP_CONSTRAINT)",
        base=r"nvcr\.io/nvidia/pytorch",
        unless=REMOVED,
    ),
    Fault(
        "PACKAGE",
        r"^torch(\[\S*\])?\s*(==|<)=?\s*[\d.]+\S*",
        MEDIUM,
        "{0} comes on top of NVIDIA's own build in {base}, whose layer stays in the image: gigabytes of it are unused",
        ONCE,
        base=r"nvcr\.io/nvidia/pytorch",
        needs=REMOVED,
    ),
    Fault(
        "PACKAGES",
        r"(?m)^torch\b\S*(?=[\s\S]*(whl/cpu|\+cpu))",
        HIGH,
        "{0} from the CPU index on {base}: a torch without CUDA, and the GPUs are not used",
        "use the index of the image's CUDA (whl/cu124)",
        base=r"cuda|pytorch/pytorch|nvcr\.io",
    ),
    *(
        Fault(
            "PACKAGE",
            rf"^torch *== *(?!{torch}\b)[\d.]+\S*(?!.*\b(wheel|download) )",
            MEDIUM,
            f"{{0}} replaces the torch {torch} of {{base}}: the image contains both, gigabytes of them unused",
            ONCE,
            base=rf"pytorch/pytorch:{torch}\.",
        )
        for torch in TORCH
    ),
    *(
        Fault(
            "PACKAGE",
            rf"^torch *== *(?!{torch}\b)[\d.]+\S*(?!.*\b(wheel|download) )",
            MEDIUM,
            f"{{0}} replaces the torch {torch} of a layer above: the image contains both, gigabytes of them unused",
            ONCE,
            needs=rf"(?m)^RUN [^\n]*install[^\n]*\btorch *== *{torch}\b[^\n]*\n[\s\S]*^RUN ",
            unless=r"uninstall[^\n]* torch\b|--target",
        )
        for torch in TORCH
    ),
    Fault(
        "PACKAGE",
        r"^torch(?![\w-])\S*",
        MEDIUM,
        "pip installs {0} on top of the pytorch that conda installed above: the image contains both",
        ONCE,
        needs=r"(conda|mamba) (create|install) [^\n]*\bpytorch\b",
    ),
    *(
        Fault(
            "PACKAGES",
            rf"(?m)^torch\b\S*(?![\s\S]*\b(wheel|download) " rf")(?=[\s\S]*(whl/|\+)cu{cuda[:2]}{cuda[3:]}\b)",
            MEDIUM,
            f"{{0}} is built for CUDA {cuda}, {{base}} for another: the image contains both, and "
            f"extensions that it compiles are refused",
            ONCE,
            base=rf"cuda:?-?(?!{cuda})\d+\.\d+",
            confidence=LIKELY,
        )
        for cuda in ("11.3", "11.6", "11.7", "11.8", "12.1", "12.4", "12.6", "12.8", "12.9", "13.0")
    ),
    *(
        Fault(
            "PACKAGE",
            rf"^(vllm|sglang|xformers)\b{version}(?!.*--no-deps)",
            MEDIUM,
            "{0} needs one exact torch, and pip replaces {base}'s torch with it: the image contains both",
            "choose a base without torch, or the version that matches this torch",
            base=base,
            unless=r"\n[^\n]*install[^\n]*[\s\"']torch *==[^\n]*\n[\s\S]*\n",
            confidence=LIKELY,
        )
        for version, base in (
            (r"\S*", r"nvcr\.io/nvidia/pytorch"),
            (r"(?!\s*==)\S*", "pytorch/pytorch"),
        )  # a pin may match
    ),
)


@lint_rule(
    "torch-twice",
    "an install replaces the torch of the base image or an earlier layer",
    reads="dockerfile",
    each="chains",
)
def torch_twice(build: DockerBuild, chain: Sequence[Layer]) -> Iterator[LintFinding]:
    """## What it does
    Looks for an install that replaces the torch of the base image or an earlier layer with another version, a build for
    another CUDA version, or the CPU build, including through a package that needs an exact version (vllm, xformers).
    The rule also reads requirements files.

    ## Why it costs
    The first installation stays in the image: gigabytes that nothing uses. On NVIDIA's images, the torch build for
    which the other packages were compiled is lost; a CPU build leaves the GPUs idle.

    ## How to recognize it
    The base image's tag, or an earlier `RUN`, names a different torch from this install.

    ## What to do
    Choose a base with the right version of torch, or start from a plain CUDA runtime image; install torch once.

    ## When it is wrong
    Ignore the finding if the earlier layer is in a stage from which only files are copied; such stages are not
    compared.
    """
    yield from find_faults(REPLACED, chain)
