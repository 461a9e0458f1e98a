"""Checks of Dockerfiles: what a program needs when the container runs, and servers that nobody reaches or that stop."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import Confidence, LintFinding, lint_rule
from hotloop.judge.lint.formats.builds import ENVIRONMENT, DockerBuild, Fault, find_faults, is_below

HIGH, MEDIUM, LIKELY = Severity.HIGH, Severity.MEDIUM, Confidence.LIKELY
BARE = r"(^|/)(python:\S*slim|uv:python\S*slim|debian:|ubuntu:|cuda:\S*-(base|runtime)\S*ubuntu)"
"""Bases without a compiler, curl, or the libraries of OpenGL."""
INSTALLS = r"\b(?:apt-get|apt|apk|dnf|yum|microdnf|tdnf|conda|mamba|micromamba)\b[^&|;]*"
COMPILER = r"gcc|g\+\+|build-essential|clang|\bcc\b|toolchain|-devel|compilers"
NVCC = r"cuda-toolkit|cuda-nvcc|nvidia-cuda-toolkit|cuda-compiler|cudatoolkit|DS_BUILD_|/usr/local/cuda|nvcc"
TRITON = r"torch\.compile\(|^\s*(import|from) (triton|liger_kernel|unsloth|fla|flash_attn_triton)\b"
NVDEC = r"^(PyNvVideoCodec|PyNvCodec|nvidia-dali\S*)\b|^\s*(import|from) (PyNvVideoCodec|PyNvCodec|nvidia\.dali)\b"
NUMBA = r"librosa|numba|umap-learn|pynndescent|hdbscan|resampy|stumpy|cuml\S*|datashader|pyod"
NO_HOME = r"useradd(?![^\n&;]*\s(-\w*m\b|--create-home))[^\n&;]*"
HAS_CUDNN = r"(?i)cudnn|tensorrt|conda|onnxruntime-gpu\[|\btorch(==|>=|~=| |\")"
MANY = (
    r"openai/(whisper|clip)-[\w.-]+|facebook/(wav2vec2|bart|opt|hubert|data2vec|mbart|xlm|dino)[\w.-]*|google/(vit|t5|mt5|flan"
    r"|electra|bert|bigbird|pegasus|umt5)[\w.-]*|(google-bert|FacebookAI|distilbert|google-t5|openai-community)/\S+"
    r"|stabilityai/(stable-diffusion|sdxl)[\w.-]*|(runwayml|stable-diffusion-v1-5|CompVis)/\S+|sentence-transformers/\S+"
    r"|Salesforce/blip[\w.-]*|microsoft/(deberta|DialoGPT|wavlm|layoutlm|resnet|swin)[\w.-]*"
)
"""Repositories whose weights exist in several formats (safetensors, .bin, flax, TensorFlow) or precisions."""
NEEDED = (
    Fault(
        "USER-USES",
        rf"(?m)^(?!root|0|\$)[\w-]+(?=[\s\S]*^(?P<it>{NUMBA})(?=[\s=<>~!\[;]|$))",
        HIGH,
        "{0} caches compiled kernels (numba), and the user of this line has neither a home folder nor write access to "
        "site-packages: its import fails (cannot cache function ... no locator available)",
        "ENV NUMBA_CACHE_DIR=/tmp/numba, or useradd --create-home",
        needs=NO_HOME,
        never=r"NUMBA_CACHE_DIR|NUMBA_DISABLE|\bHOME[= ]|adduser|mkdir[^\n]*/home|chown",
        confidence=LIKELY,
    ),
    *(
        Fault(
            "HEALTHCHECK",
            rf"\bCMD\b.*\b{tool}\b",
            MEDIUM,
            f"HEALTHCHECK calls {tool}, which {{base}} lacks and nothing installs: the container is always unhealthy, "
            "and an orchestrator restarts it",
            f"install {tool}, or use python -c 'import urllib.request; ...'",
            base=BARE,
            never=rf"{INSTALLS}\b{tool}\b|COPY [^\n]*{tool}|\.sh\b|xargs",
            confidence=LIKELY,
        )
        for tool in ("curl", "wget", "nc", "pgrep", "ps")
    ),
    Fault(
        "PACKAGE",
        r"^deepspeed(?=[\s=<>~!\[]|$)[^\t]*",
        HIGH,
        "{0} compiles its kernels (FusedAdam) when training starts, and {base} has no nvcc: it fails with a missing "
        "CUDA_HOME",
        "use the -devel image, or build the ops there (DS_BUILD_FUSED_ADAM=1)",
        base=r"(^|/)(pytorch/pytorch:\S*-runtime|cuda:\S*-(base|runtime)|python:\S*slim)",
        never=rf"{NVCC}|\.sh\b|conda install",
        confidence=LIKELY,
    ),
    Fault(
        "ENV-USES",
        rf"(?m)^NVIDIA_DRIVER_CAPABILITIES=(?!\S*(video|all|\$))(?P<it>\S*)(?=[\s\S]*({NVDEC}|h264_cuvid|_nvenc|hwaccel.{{1,4}}cuda))",
        HIGH,
        "NVIDIA_DRIVER_CAPABILITIES={0} omits video: libnvcuvid is not mounted, and the NVDEC decoder fails at "
        "its first "
        "use",
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video",
    ),
    Fault(
        "ENV",
        r"^NVIDIA_DRIVER_CAPABILITIES=(?!.*(graphics|all|\$)).*",
        HIGH,
        "{0} omits graphics: the EGL driver is not mounted, and rendering with EGL fails or runs on the CPU",
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics",
        never=r"\A(?![\s\S]*(MUJOCO_GL|PYOPENGL_PLATFORM)[= ]\"?egl)",
    ),
    *(
        Fault(
            "ENV",
            rf"^(MUJOCO_GL|PYOPENGL_PLATFORM)={value}$",
            HIGH,
            f"{{0}} needs {library}, which {{base}} lacks and nothing installs: creating the renderer fails",
            f"apt-get install -y --no-install-recommends {package}",
            base=BARE,
            never=rf"{provides}|\.sh\b|xargs|conda",
            confidence=LIKELY,
        )
        for value, library, package, provides in (
            ("egl", "libEGL.so.1", "libegl1 libgl1", "libegl|mesa|libgl1|libglvnd|opengl"),
            ("osmesa", "libOSMesa.so", "libosmesa6", "osmesa|mesa"),
            ("glfw", "a display", "xvfb", "xvfb|Xvfb|DISPLAY"),
        )
    ),
    Fault(
        "RUN",
        r"^apt(-get)? .*install.*\b(?P<it>libnvidia-[a-z0-9-]+-\d{3}\S*|nvidia-(driver|utils|headless"
        r"|compute-utils)-\d{3}\S*"
        r"|libcuda1(-\d+)?|cuda-drivers\S*)",
        HIGH,
        "{0} puts driver libraries of one version into the image: they clash with those of the host's driver that the "
        "container toolkit mounts (version mismatch)",
        "leave the driver to the host: NVIDIA_DRIVER_CAPABILITIES selects its libraries",
        confidence=LIKELY,
    ),
    Fault(
        "FROM-USES",
        rf"(?m)\A(?![\s\S]*(?i:device.{{1,4}}cpu\b))[\s\S]*(?P<it>{TRITON})",
        HIGH,
        "{0} needs a C compiler when it runs (Triton builds its launcher), and {base} has none: the first step fails "
        "(Failed to find C compiler)",
        "apt-get install -y --no-install-recommends gcc libc6-dev",
        base=BARE,
        never=rf"(?i){COMPILER}|\.sh\b|xargs|conda|TORCHDYNAMO_DISABLE",
        confidence=LIKELY,
    ),
    Fault(
        "PACKAGES",
        r"(?m)\A(?![\s\S]*(^torch\b|cudnn|tensorrt))[\s\S]*^(?P<it>onnxruntime-gpu(?!\[)[^\t\n]*)",
        HIGH,
        "{0} needs cuDNN, which neither {base} nor a package brings: CUDAExecutionProvider fails to load, and "
        "inference "
        "falls back to the CPU",
        "use a -cudnn-runtime image, or onnxruntime-gpu[cuda,cudnn]",
        base=r"(^|/)(cuda:(?!\S*cudnn)|python:|debian:|ubuntu:)",
        never=HAS_CUDNN,
        confidence=LIKELY,
    ),
    Fault(
        "RUN-FILE",
        r"^(?P<it>python[^\t]*)\t(?![\s\S]*(local_dir|cache_dir|save_pretrained))[\s\S]*"
        r"(from_pretrained|snapshot_download|hf_hub_download)\(",
        HIGH,
        "{0} downloads into a cache mount, which is not part of the image: the container does not find the weights",
        "download without the mount",
        needs=r"type=cache[^\n']*(target|dst)=[^\n']*(huggingface|hf_home|/\.cache)/?['\",][^\n]*\n$",
    ),
    Fault(
        "RUN",
        rf"^(huggingface-cli|hf) download ({MANY})(?= |$)(?!.*--(include|exclude))(?! (?!-)\S)(?!.* [\w/-]+\.\w+( "
        rf"|$)).*",
        MEDIUM,
        "{0} downloads the whole repository: all formats of the weights (safetensors, .bin, flax, fp32) go into the "
        "image, and one is used",
        "--include '*.safetensors' '*.json' '*.txt'",
        confidence=LIKELY,
    ),
    Fault(
        "CMD-TEXT ENTRYPOINT-TEXT",
        r"(?P<it>\buv\"?,? *\"?run\b(?![^\n]*--no-sync)[^\n]*)",
        MEDIUM,
        "{0} syncs the environment at each start of the container, with the dev group and what the build left out "
        "(uv sync --no-dev): it downloads packages, and fails without network",
        "uv run --no-sync, or ENV PATH=/app/.venv/bin:$PATH without uv",
        needs=r"uv sync[^\n]*--(no-dev|no-default-groups|no-group|only-group|group|extra|all-extras)",
        never=r"UV_NO_SYNC|UV_NO_DEV|\brun\b[^\n]*(--no-dev|--extra|--group)",
    ),
)


@lint_rule("unmet-need", "the image lacks what its program needs when it runs", reads="dockerfile")
def unmet_need(build: DockerBuild) -> Iterator[LintFinding]:
    """## What it does
    Looks for programs that need something the final image lacks: a C compiler for Triton, nvcc for DeepSpeed, cuDNN for
    ONNX Runtime, the driver's video or graphics libraries, a cache folder for numba, curl for HEALTHCHECK, the source
    of an editable install.

    ## Why it costs
    The container fails at its first step or import, or runs on the CPU without a word.

    ## How to recognize it
    The rule compares the requirements and the code that the Dockerfile copies with what the base and the layers bring.

    ## What to do
    Install what is missing in the final stage, or choose a base that has it.

    ## When it is wrong
    Ignore the finding if a base of your own or a mounted folder brings it.
    """
    yield from find_faults(NEEDED, build.final)
    for layer in build.final:
        stage, chain = layer.source_stage, build.chain(layer.stage)
        if stage is None or not ENVIRONMENT.search(" ".join(layer.sources)):
            continue
        kept = [posixpath.normpath(target) for one in chain for _, target in one.taken]
        for above in build.chain(stage):
            for install in above.installs:
                folders = {
                    install.command.locate(one) for one in install.projects if EDITABLE.search(install.command.plain)
                }
                lost = [
                    one for one in sorted(folders) if not any(is_below(one, place) for place in kept if place != "/")
                ]
                if lost and not any(is_below(one, lost[0]) for one in kept):
                    yield above.report(
                        HIGH,
                        f"the editable install (-e) leaves only a pointer to {lost[0]} in the environment, and "
                        f"the final "
                        "stage does not copy that folder: the package is not found (ModuleNotFoundError)",
                        "install it without -e, or copy its source to the same path",
                        install.command.line,
                    )


EDITABLE = re.compile(r"pip[\d.]* install .*(-e |--editable)")
BACK = "bind to 0.0.0.0"
AT_HOME = ": it listens on 127.0.0.1 inside the container, so no published port or service reaches it"
REACHED = r"nginx|supervisor|haproxy|caddy|traefik|envoy|\.sh\b|socat"
SERVERS = (
    Fault(
        "START",
        r"^(?P<it>(.*\b(uvicorn|gunicorn|hypercorn|flask|granian|jupyter\S*|mlflow|tensorboard|python\S*|vllm|bentoml)\b.*)"
        r"(--host|--bind|-b|--ip|-h)[ =](127\.0\.0\.1|localhost)\S*)",
        HIGH,
        "{0}" + AT_HOME,
        BACK,
        never=REACHED,
    ),
    *(
        Fault(
            "START",
            rf"^{program}(?!.*({option})[ =])(?!.*(\$|--help|--uds|--fd|--config| -c )).*",
            HIGH,
            "{0}" + AT_HOME,
            BACK,
            never=rf"{REACHED}|{variable}|0\.0\.0\.0",
            confidence=LIKELY,
        )
        for program, option, variable in (
            (r"(python\S* -m )?uvicorn\b", "--host", "UVICORN_HOST"),
            (r"(python\S* -m )?flask\b.* run\b", "--host|-h", "FLASK_RUN_HOST"),
            (r"gunicorn\b", r"--bind|-b|-\w*b\w*", "GUNICORN_CMD_ARGS|gunicorn[\\w.]*\\.py|[ /]PORT="),
            (r"mlflow (server|ui)\b", "--host|-h", "MLFLOW_HOST"),
            (
                r"jupyter(-lab|-notebook| lab| notebook)\b",
                "--ip|--ServerApp.ip|--NotebookApp.ip",
                "jupyter_\\w*config|JUPYTER|jupyterhub|NB_USER",
            ),
            (r"tensorboard\b(?!.*--bind_all)", "--host", "(?!)"),
        )
    ),
    Fault(
        "START-USES",
        r"^(?P<it>gunicorn\b(?![^\t]*(--timeout|-t |-c |--config|-k |--worker-class|--threads|--preload|\$))[^\t]*)\t"
        r"[\s\S]*(from_pretrained|torch\.load|create_model|diffusers)",
        HIGH,
        "{0}: a sync worker is killed after 30 s (default --timeout), while it loads the model or processes a long "
        "request (WORKER TIMEOUT)",
        "--timeout 600, or a threaded or async worker class",
        never="GUNICORN_CMD_ARGS|gunicorn[\\w.]*\\.py",
        confidence=LIKELY,
    ),
    Fault(
        "START-USES",
        r"(?m)^(?P<it>gunicorn\b[^\t]*--preload[^\t]*)\t[\s\S]*^\w+ = [^\n]*(\n[ \t]+[^\n]*){0,4}?"
        r"(\.cuda\(|\.to\(.cuda|device=.cuda)",
        HIGH,
        "{0}: the module puts the model on the GPU when --preload imports it, before the fork: the workers fail "
        "(Cannot "
        "re-initialize CUDA in forked subprocess)",
        "remove --preload, or load the model in a post_fork or startup hook",
        confidence=LIKELY,
    ),
)


@lint_rule(
    "unreachable-server", "a server listens where nobody reaches it, or its workers are killed", reads="dockerfile"
)
def unreachable_server(build: DockerBuild) -> Iterator[LintFinding]:
    """## What it does
    Looks for servers that listen on 127.0.0.1, by an option or by default (uvicorn, flask, gunicorn, mlflow, jupyter,
    tensorboard), and for gunicorn workers that time out while they load a model, or fork after CUDA was initialized.

    ## Why it costs
    No request reaches the server, or each request ends in a killed worker that loads the model again.

    ## How to recognize it
    The rule reads the command of the final stage and the code that the Dockerfile copies.

    ## What to do
    Bind to `0.0.0.0`, set `--timeout`, and load models after the fork.

    ## When it is wrong
    Ignore the finding if a proxy in the same pod or host network reaches the server, or the command is overridden.
    """
    yield from find_faults(SERVERS, build.final)
