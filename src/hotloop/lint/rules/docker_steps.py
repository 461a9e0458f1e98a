"""Dockerfiles, by tables: steps that fail or do nothing, secrets, versions that move, settings that cost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hotloop.core.findings import Severity
from hotloop.core.lint import Confidence, LintFinding, lint_rule
from hotloop.lint.formats.builds import DockerBuild, Fault, Layer, find_faults

HIGH, MEDIUM, LOW, LIKELY = Severity.HIGH, Severity.MEDIUM, Severity.LOW, Confidence.LIKELY
DEBIAN = r"(^|/)(ubuntu|debian|cuda:.*ubuntu|pytorch/pytorch)(:|$|[\w.-]*)"
PLAIN = r"(^|/)(ubuntu|debian)(:|$)|(^|/)cuda:.*ubuntu"
NO_COMPILER = r"(^|/)cuda:.*-(base|runtime)|(^|/)pytorch/pytorch:.*-runtime|(^|/)python:|(^" r"|/)(ubuntu|debian):"
CUDA_TOOLS = r"cuda-toolkit|cuda-nvcc|nvidia-cuda-toolkit|cuda-compiler|cudatoolkit-dev|cuda_\d" r"|cuda-libraries-dev"
BUILDS_CUDA = (
    r"(?i)^\S*(flash[-_]attn|apex\b(?=.*(cuda_ext|-option|-settings))|detectron2"
    r"|pytorch3d|minkowskiengine|mamba[-_]ssm|causal[-_]conv1d|tiny-?cuda-?nn"
    r"|nvdiffrast|gsplat|diff[-_]gaussian\S*|grouped[-_]gemm)\b(?!\S*\.whl)(?!.*(--fin"
    r"d-links|--only-binary))"
)
FAILING = (
    *(
        Fault(
            "PACKAGE",
            rf"(?i)^({packages})(?=[\s=<>~!]|$)(?!\S*\.whl)(?!.*(--only-binary|--find-links|--extra-index-url))[^\t]*",
            HIGH,
            f"{{0}} has no wheel and is compiled: {{base}} lacks {needs}, and the build fails",
            f"apt-get install -y --no-install-recommends {needs} above it, or take a -binary package",
            unless=rf"(?i){brings}|\.sh\b|xargs|conda|micromamba|\bnix|apt-get build-dep",
            base=r"(^|/)(python:\S*slim|uv:python\S*slim|debian:\S*slim|cuda:\S*-(base|runtime)|pytorch/pytorch:\S*-runtime)",
            confidence=LIKELY,
        )
        for packages, needs, brings in (
            (r"psycopg2|psycopg\[c\]", "libpq-dev gcc", r"libpq|postgresql"),
            (r"mysqlclient", "default-libmysqlclient-dev pkg-config gcc", r"libmysqlclient|libmariadb"),
            (r"pyaudio", "portaudio19-dev gcc", "portaudio"),
            (r"pygraphviz", "libgraphviz-dev gcc", "libgraphviz|graphviz-dev"),
            (r"(dlib|llama[-_]cpp[-_]python|kenlm)", "build-essential cmake", r"build-essential|g\+\+|clang|whl"),
            (r"(python-ldap)", "libldap-dev libsasl2-dev gcc", "libldap"),
            (r"(pycairo|pygobject)", "libcairo2-dev pkg-config gcc", "libcairo"),
            (r"(mpi4py)", "libopenmpi-dev gcc", "openmpi|mpich"),
        )
    ),
    Fault(
        "RUN",
        r"^apt(-get)?(?!.*\s(-\w*y|--yes|--assume-yes|-qq|--print|--download|-s\b|--dry"
        r"|\$)) (-\S+ )*install(?!( (-\S+|unzip|zip|pigz|htop|make|less|tree|nano|rsync"
        r"|numactl|libtcmalloc-minimal4))*$)\s\S.*",
        HIGH,
        "{0} has no -y: it asks, gets no answer, and the build is aborted",
        "apt-get install -y",
        unless=r"apt\.conf|yes \||assume-yes|APT_GET",
    ),
    Fault(
        "RUN",
        r"^apt(-get)? .*\b(tzdata|keyboard-configuration|libopencv-dev|python3-opencv"
        r"|texlive\S*|krb5-user|console-setup|xserver-xorg\S*|xfce4)\b",
        MEDIUM,
        "{0}: the package asks for a time zone or keyboard, and the build can hang",
        "ARG DEBIAN_FRONTEND=noninteractive above it",
        unless=r"(?i)noninteractive|/etc/localtime",
        confidence=LIKELY,
    ),
    Fault(
        "RUN-TEXT",
        r"^(?![\s\S]*apt(-get)? (-\S+ )*update)[\s\S]*?apt(-get)? (-\S+ )*install",
        MEDIUM,
        "apt-get install uses the lists of apt-get update in another layer, which the "
        "cache may have kept for months: packages that left the mirror fail the build",
        "run apt-get update and install in one RUN",
        needs=r"(?m)^RUN (?![^\n]*apt(-get)? (-\S+ )*install)[^\n]*apt(-get)? (-\S+ )*update",
    ),
    Fault(
        "RUN-TEXT",
        r"^(?![\s\S]*apt(-get)? (-\S+ )*update)[\s\S]*?apt(-get)? (-\S+ )*install",
        HIGH,
        "{0}: no apt-get update stands above, the base has no package lists, and the "
        "build fails (Unable to locate package)",
        "run apt-get update && apt-get install in one RUN",
        unless=r"apt(-get)? (-\S+ )*update|\.sh\b|/var/lib/apt|apt-key|aptitude",
        base=r"(^|/)(ubuntu|debian|python|cuda|pytorch)(/pytorch)?:",
        confidence=LIKELY,
    ),
    Fault(
        "SETUP",
        r"CUDAExtension[\s\S]*\t(?P<it>.*)",
        HIGH,
        "{0} compiles for CUDA, and {base} has no nvcc: the build fails",
        "compile it in a stage on the -devel image",
        unless=CUDA_TOOLS,
        base=NO_COMPILER,
        confidence=LIKELY,
    ),
    Fault(
        "SETUP",
        r"CUDAExtension[\s\S]*\t(?P<it>.*)",
        HIGH,
        "{0} compiles for CUDA without TORCH_CUDA_ARCH_LIST: the architecture is asked of a GPU, and a build has none",
        'ENV TORCH_CUDA_ARCH_LIST="8.0;9.0"',
        unless="TORCH_CUDA_ARCH_LIST",
        base=r"^(?!.*nvcr\.io)",
        confidence=LIKELY,
    ),
    Fault(
        "RUN",
        r"^uv sync .*--(frozen|locked).*",
        HIGH,
        "{0}: no COPY above takes uv.lock, and without it the step fails",
        "COPY pyproject.toml uv.lock ./",
        unless=r"uv\.lock|(COPY|ADD) (\S+ )*(\./?|/|\S*\*\S*) +[^\s(]|git clone|source=[.']",
        needs=r"(COPY|ADD) |source=",
    ),
    Fault(
        "RUN",
        r"^(uv sync|poetry install|pdm (install|sync)|pipenv " r"install)\b(?!.*--(frozen|locked)).*",
        MEDIUM,
        "{0}: no COPY above takes the lock file, so versions are resolved anew and differ from it",
        "copy the lock file beside pyproject.toml",
        unless=r"lock\b|(COPY|ADD) (\S+ )*(\./?|/|\S*\*\S*) +[^\s(]|git clone|source=[.']",
        needs=r"(COPY|ADD) (?!Flag)[^\n]*(pyproject|Pipfile)",
    ),
    Fault(
        "COPY",
        r"^(\./)?(src|[a-z_]+)/? (?=\S*/)",
        HIGH,
        "the project was installed above, before its source {0} was there: the package in the image has no modules",
        "copy the source above pip install ., or install only what it depends on there",
        unless=r"--no-deps|touch|mkdir|(COPY|ADD) (\S+ )*(\./)?(\.|src|[a-z_]+/)/? "
        r"+[^\s(][^\n]*\n[\s\S]*RUN [^\n]*pip[\d.]* install|git clone|--no-install-project",
        needs=r"(pyproject\.toml|setup\.py)[\s\S]*RUN [^\n]*pip[\d.]* install (-\S+ )*\.(\[\S*\])?\s",
        confidence=LIKELY,
    ),
    Fault(
        "RUN",
        r"^nvidia-smi\b.*",
        HIGH,
        "{0}: no GPU and no driver are there while an image is built, and the build fails",
        "run it when the container starts",
    ),
    Fault(
        "RUN",
        r"^python[\d.]* -c .*(\.cuda\(\)|\.to\(['\"]cuda|device=['\"]cuda|assert "
        r"torch\.cuda\.is_available|get_device_(name|capability|properties)\().*",
        HIGH,
        "{0} needs a GPU, which is not there while an image is built: it fails",
        "run it when the container starts, or on the CPU",
    ),
    Fault(
        "RUN",
        r"^pip3? (?!.*(--break-system-packages|--target|--prefix|-t ))install.*|^python3? "
        r"-m pip (?!.*--break-system-packages)install.*",
        HIGH,
        "{0}: pip of {base} refuses to install into the system's Python "
        "(externally-managed-environment), and the build fails",
        "make a virtual environment, or give --break-system-packages",
        unless=r"BREAK_SYSTEM_PACKAGES|EXTERNALLY-MANAGED|break-system|venv|conda|mamba|get-pip"
        r"|pyenv|uv (python|venv)|deadsnakes|Python-3|virtualenv|python3\.\d+-",
        base=r"(^|/)(ubuntu:(24\.04|noble|2[5-9])|debian:(1[23]|bookworm|trixie)|cuda:.*ubuntu24)",
    ),
    Fault(
        "RUN",
        r"^apt(-get)? .*\bpython3\.(1[1-4]|9|8|7)\b(?!-)",
        HIGH,
        "{0}: {base} packs only Python 3.12, and apt-get finds no such package",
        "choose another base, or add the PPA first",
        unless="deadsnakes|ppa",
        base=r"ubuntu:?(24\.04|noble)",
    ),
    Fault(
        "RUN",
        r"^apt(-get)? .*\bpython3\.(1[2-4]|9|8|7)\b(?!-)",
        HIGH,
        "{0}: {base} packs only Python 3.10 and 3.11, and apt-get finds no such package",
        "choose another base, or add the PPA first",
        unless="deadsnakes|ppa",
        base=r"ubuntu:?(22\.04|jammy)",
    ),
    Fault(
        "RUN",
        r"^apt(-get)? .*\bpython3\.1\d\b(?!-)",
        HIGH,
        "{0}: {base} packs only Python 3.8 and 3.9, and apt-get finds no such package",
        "choose another base, or add the PPA first",
        unless="deadsnakes|ppa",
        base=r"ubuntu:?(20\.04|focal)",
    ),
    Fault(
        "PACKAGE",
        BUILDS_CUDA,
        HIGH,
        "{0} is compiled for CUDA, and {base} has no nvcc: the build fails",
        "compile it in a stage on the -devel image",
        unless=CUDA_TOOLS,
        base=NO_COMPILER,
        confidence=LIKELY,
    ),
    Fault(
        "PACKAGE",
        r"(?i)^\S*flash[-_]attn\b(?!\S*\.whl)(?!.*--no-build-isolation)",
        HIGH,
        "the build of {0} does not see torch without --no-build-isolation (ModuleNotFoundError), and fails",
        "install torch first, then pip install --no-build-isolation flash-attn",
        unless=r"no-build-isolation|NO_BUILD_ISOLATION",
        confidence=LIKELY,
    ),
    Fault(
        "PACKAGE",
        r"(?i)^\S*(detectron2|pytorch3d)\b(?!\S*\.whl)",
        HIGH,
        "{0} is compiled without CUDA unless FORCE_CUDA=1 is set, as no GPU is there in a build",
        'ENV FORCE_CUDA=1 TORCH_CUDA_ARCH_LIST="8.0;9.0"',
        unless="FORCE_CUDA|whl",
        confidence=LIKELY,
    ),
    Fault(
        "PACKAGE",
        r"(?i)^\S*(apex\b(?=.*(cuda_ext|-option|-settings))|minkowskiengine|nvdiffrast"
        r"|gsplat|diff[-_]gaussian\S*|tiny-?cuda-?nn)\b(?!\S*\.whl)",
        HIGH,
        "{0} asks a GPU for its architecture when it is compiled, and a build has none: set TORCH_CUDA_ARCH_LIST",
        'ENV TORCH_CUDA_ARCH_LIST="8.0;9.0"',
        unless="TORCH_CUDA_ARCH_LIST|TCNN_CUDA",
        base=r"^(?!.*nvcr\.io)",
        confidence=LIKELY,
    ),
    Fault(
        "PACKAGE",
        r"^git\+.*",
        HIGH,
        "{0} needs git, which {base} does not have: the build fails",
        "install git above it",
        unless=r"\b(install|add)\b[^\n]*\sgit(\s|$)|\.sh\b|conda",
        base=r"(^|/)(python:[\d.]+-slim|(ubuntu|debian):|cuda:|pytorch/pytorch:2\S*-runtime)",
        confidence=LIKELY,
    ),
    Fault(
        "RUN",
        r"^git (clone|lfs|submodule).*",
        HIGH,
        "{0}: {base} has no git, and nothing above installs it: the build fails",
        "install git above it",
        unless=r"install[\s\S]*\bgit\b[\s\S]*git (clone|lfs|submodule)|\.sh\b|conda",
        base=r"(^|/)(python:[\d.]+-slim|(ubuntu|debian):|cuda:|pytorch/pytorch:2\S*-runtime)",
        confidence=LIKELY,
    ),
    Fault(
        "RUN",
        r"^(curl|wget) .*",
        HIGH,
        "{0}: {base} does not have it, and nothing above installs it: the build fails",
        "install it above",
        unless=r"install[\s\S]*\b(curl|wget)\b[\s\S]*(curl|wget) |\.sh\b",
        base=r"(^|/)(python:[\d.]+-slim|(ubuntu|debian):|pytorch/pytorch:2\S*-runtime)",
        confidence=LIKELY,
    ),
    Fault(
        "RUN",
        r"^pip3? .*install.*|^python3? .*",
        HIGH,
        "{0}: {base} has no Python, and nothing above installs it: the build fails",
        "install python3 and python3-pip above it",
        unless=r"(apt|apt-get|yum|dnf|apk) [^\n]*(python|pip)|(COPY|ADD)[^\n]*Flag|conda|uv "
        r"|pyenv|\.sh\b|\.tar|\.tgz|mamba",
        base=PLAIN,
        confidence=LIKELY,
    ),
    Fault(
        "RUN START",
        r"^python .*",
        HIGH,
        "{0}: {base} has python3 and no python: command not found",
        "call python3, or install python-is-python3",
        unless=r"python-is-python3|/python\b|alternatives|conda|venv|pyenv|uv "
        r"|mamba|python[23]?[\d.]*\s+/\S*bin|COPY.*from|\.sh\b|PATH=|\bpython\b(?=[^"
        r"|]*install)",
        base=PLAIN,
        confidence=LIKELY,
    ),
    Fault(
        "RUN",
        r"^(gcc|g\+\+|make|nvcc) .*",
        HIGH,
        "{0}: {base} has no compiler, and nothing above installs one",
        "install build-essential above it",
        unless=r"build-essential|gcc|g\+\+|install[\s\S]*\bmake\b|\.sh\b|conda",
        base=r"(^|/)python:[\d.]+-slim|(^|/)(ubuntu|debian):|cuda:.*-(base|runtime)",
        confidence=LIKELY,
    ),
    Fault(
        "USER-RUN",
        r"^(?!.*\b(sudo|su|doas|gosu)\b)(apt|apt-get|apk|yum|dnf) .*(install|update|add).*",
        HIGH,
        "{0} runs as user {user}, who may not install (USER above): permission denied, and the build fails",
        "install above USER, or USER root first",
        confidence=LIKELY,
    ),
    Fault(
        "FROM",
        r"^\S*nvidia/cuda(:latest)?(\s|$).*",
        HIGH,
        "{0}: nvidia/cuda has no latest tag, and the build fails",
        "name a whole tag such as 12.4.1-cudnn-runtime-ubuntu22.04",
    ),
    Fault(
        "FROM",
        r"^\S*nvidia/cuda:1[12]\.\d+(\.\d+)?-(cudnn\d*-)?(base|runtime|devel)?(\s|$).*"
        r"|^\S*nvidia/cuda:1[12]\.\d+-\S*ubuntu.*",
        HIGH,
        "{0} is no tag of nvidia/cuda (the patch version and the system belong to it), and the build fails",
        "name a whole tag such as 12.4.1-cudnn-runtime-ubuntu22.04",
        confidence=LIKELY,
    ),
    Fault(
        "RUN",
        r"^(source|conda|mamba) activate .*|^conda activate.*",
        HIGH,
        "{0} fails or does nothing: the shell of a RUN is not set up for conda",
        'SHELL ["conda", "run", "-n", "NAME", "/bin/bash", "-c"], or ENV PATH=<env>/bin:$PATH',
        unless=r"conda\.sh|shell\.bash hook|shell hook|activate\s+base|bash[\"', "
        r"]+-\w*l|--login|source activate|conda init|BASH_ENV|/bin/activate",
        confidence=LIKELY,
    ),
)


@lint_rule("failing-step", "a step that cannot work in a build", reads="dockerfile", each="chains")
def failing_step(build: DockerBuild, chain: Sequence[Layer]) -> Iterator[LintFinding]:
    """## What it does
    Looks for steps that ask (`apt-get install` without `-y`), need a GPU or `nvcc`, call a program that the base does
    not have, install as a user who may not, or name a package or tag that does not exist.

    ## Why it costs
    The build fails, or what it makes lacks CUDA.

    ## How to tell
    By a table of what the official images of Ubuntu, Debian, CUDA, Python and PyTorch hold, and what the lines above
    install.

    ## What to do
    See the advice of the finding.

    ## When it is wrong
    If a script or an archive of a step above brings the program.
    """
    yield from find_faults(FAILING, chain)


GONE = "the variable or environment is gone in the next RUN and when the container runs"
LOST = (
    Fault(
        "LAST",
        r"^(cd|pushd) .*",
        HIGH,
        "{0} does not last: the next RUN starts in WORKDIR again",
        "use WORKDIR, or join the commands by && in one RUN",
    ),
    Fault(
        "LAST",
        r"^(source|\.|conda) .*activate.*|^eval .*hook.*",
        HIGH,
        "{0} does not last: the environment is not active in the next RUN nor when the container runs",
        "ENV PATH=<env>/bin:$PATH",
    ),
    Fault("LAST", r"^(export|source|\.) (?!.*activate).*", HIGH, "{0} does not last: " + GONE, "use ENV"),
    Fault(
        "LAST",
        r"^service .*start.*",
        HIGH,
        "{0} does not last: the process ends with this RUN",
        "start it when the container starts",
    ),
    Fault("LAST", r"^su (?!.*-c).*", HIGH, "{0} does not last: the user is the old one in the next RUN", "use USER"),
    Fault(
        "LAST",
        r"^(alias|ulimit|umask|set) .*",
        MEDIUM,
        "{0} does not last: it ends with this RUN",
        "use SHELL, or a script",
    ),
    Fault(
        "LOST",
        r"^(?!(curl|wget).*\t.*(bash|sh|tar|gpg|apt-key|tee|python3?) \(no)[\s\S]*",
        MEDIUM,
        "{0}, and the build goes on without it",
        "join the commands by &&, and use set -e and pipefail",
    ),
    Fault(
        "LOST",
        r"^(curl|wget)[\s\S]*",
        LOW,
        "{0}, and the build goes on without it",
        "join the commands by &&, and use set -e and pipefail",
    ),
)


@lint_rule(
    "lost-shell-state", "a RUN whose effect or failure is lost with its shell", reads="dockerfile", each="chains"
)
def lost_shell_state(build: DockerBuild, chain: Sequence[Layer]) -> Iterator[LintFinding]:
    """## What it does
    Looks for a `RUN` that only does `cd`, `export`, `source`, `conda activate` or `service start`; and for installs,
    downloads and compilations whose exit code is lost: before `;` or a line of a heredoc without `set -e`, a pipe
    without `pipefail`, `|| true`.

    ## Why it costs
    Each `RUN` is a new shell: the next line fails, or installs into another environment. A lost failure leaves a green
    build whose image lacks a package.

    ## How to tell
    The commands of the shell, as its grammar joins them.

    ## What to do
    Use `WORKDIR`, `ENV` and `SHELL ["/bin/bash", "-eo", "pipefail", "-c"]`, or join the commands by `&&` in one `RUN`.

    ## When it is wrong
    If the command only tests that a file is there, or its failure is expected.
    """
    yield from find_faults(LOST, chain)


BASH = 'SHELL ["/bin/bash", "-eo", "pipefail", "-c"] above it'
BASHISMS = (
    Fault(
        "SH",
        r"(^|[;&|(]\s*)(source|pushd|popd|shopt|declare|mapfile) .*",
        HIGH,
        "{0}: no command of sh (dash), which runs this line: not found",
        BASH,
        unless=r"ln -\w+ \S*bash |dash/sh|dpkg-reconfigure",
        base=DEBIAN,
        confidence=LIKELY,
    ),
    Fault(
        "SH",
        r"(^|[;&|(]\s*|if |while )\[\[ .*",
        HIGH,
        "{0}: [[ is no command of sh (dash), which runs this line",
        BASH,
        unless=r"ln -\w+ \S*bash |dash/sh",
        base=DEBIAN,
        confidence=LIKELY,
    ),
    Fault(
        "SH",
        r"set -\w*o pipefail",
        HIGH,
        "{0}: sh (dash) refuses it (Illegal option), and the build fails",
        BASH,
        unless=r"ln -\w+ \S*bash |dash/sh",
        base=DEBIAN,
        confidence=LIKELY,
    ),
    Fault(
        "SH",
        r"\s<\(.*",
        HIGH,
        "{0} is no syntax of sh (dash), which runs this line",
        BASH,
        unless=r"ln -\w+ \S*bash |dash/sh",
        base=DEBIAN,
        confidence=LIKELY,
    ),
    Fault(
        "SH",
        r"(?<![$\w])\S*\{[\w./-]+(,[\w./-]+)+\}\S*",
        HIGH,
        "{0}: sh (dash) expands no braces and makes one name of it",
        BASH,
        unless=r"ln -\w+ \S*bash |dash/sh|git log|format",
        base=DEBIAN,
        confidence=LIKELY,
    ),
)


@lint_rule("bashism-in-sh", "a RUN uses what only bash knows, and the shell is sh", reads="dockerfile", each="chains")
def bashism_in_sh(build: DockerBuild, chain: Sequence[Layer]) -> Iterator[LintFinding]:
    """## What it does
    Looks for `source`, `[[`, `set -o pipefail`, `<( )` and `{a,b}` in a `RUN` or `CMD` of an image whose `/bin/sh` is
    dash.

    ## Why it costs
    The step fails (`source: not found`), or does something else without a word.

    ## How to tell
    The base is Debian or Ubuntu, no `SHELL` is named, and the command is not given to bash.

    ## What to do
    `SHELL ["/bin/bash", "-o", "pipefail", "-c"]` above, or `.` for `source`.

    ## When it is wrong
    If an earlier step makes `/bin/sh` a link to bash.
    """
    yield from find_faults(BASHISMS, chain)


FETCH = r"((huggingface-cli|hf) download|from_pretrained|snapshot_download|hf_hub_download)"
PLACED = r"--local-dir|local_dir|cache_dir|--cache-dir|save_pretrained"
AGAIN = ": the container does not find the weights and downloads them again at each start"
OTHER_ENV = "{0} is that of the base, not of the environment that a line above makes: its packages are not found"
LACKS = r"(^|/)(python:\S*slim|(ubuntu|debian):|cuda:|pytorch/pytorch:|uv:python\S*slim)"
NOT_LOADED = "its import fails (cannot open shared object file)"
NOT_RUN = "its calls fail when they are made"
LIBRARIES = (
    (
        r"opencv-(contrib-)?python|ultralytics|mmcv(-full)?|mmengine|imgaug|insightface|deepface|paddleocr|rapidocr\S*|python-doctr",
        "libGL.so.1 (libgl1) and libglib2.0-0",
        "import cv2 fails",
        "libgl1 libglib2.0-0, or take opencv-python-headless",
        r"libgl|mesa|libopencv|python3-opencv|ffmpeg(?!-python)|xvfb|libgtk|libqt",
        LACKS + r"|(^|/)python:",
    ),
    (r"(open3d|pyvista|vtk|mayavi)", "libGL.so.1 (libgl1)", NOT_LOADED, "libgl1 libgomp1", "libgl|mesa|xvfb", LACKS),
    (
        r"lightgbm",
        "libgomp.so.1 (libgomp1)",
        NOT_LOADED,
        "libgomp1",
        r"libgomp|gcc|g\+\+|build-essential|gfortran",
        r"(^|/)(python:\S*slim|uv:python\S*slim|debian:\S*slim)",
    ),
    (
        r"(py)?soundfile *== *0\.(10|\d)\.\S*",
        "libsndfile.so.1",
        NOT_LOADED,
        "libsndfile1",
        "libsndfile|ffmpeg(?!-python)",
        LACKS,
    ),
    (r"torchcodec", "the libraries of FFmpeg", NOT_LOADED, "ffmpeg", "ffmpeg(?!-python)|libav", LACKS),
    (
        r"(openai-whisper|whisperx|pydub|ffmpeg-python)",
        "the program ffmpeg",
        NOT_RUN,
        "ffmpeg",
        "ffmpeg(?!-python)|imageio-ffmpeg",
        LACKS,
    ),
    (r"pytesseract", "the program tesseract", NOT_RUN, "tesseract-ocr", "tesseract-ocr", LACKS),
    (r"pdf2image", "poppler's pdftoppm", NOT_RUN, "poppler-utils", "poppler", LACKS),
    (r"pyzbar", "libzbar.so.0", NOT_LOADED, "libzbar0", "libzbar", LACKS),
    (r"python-magic", "libmagic.so.1", NOT_LOADED, "libmagic1", r"libmagic|\bfile\b", LACKS),
    (r"weasyprint", "Pango", NOT_LOADED, "libpango-1.0-0 libpangoft2-1.0-0", "libpango", LACKS),
    (r"cairosvg", "libcairo.so.2", NOT_LOADED, "libcairo2", "libcairo|pango", LACKS),
    (r"pyturbojpeg", "libturbojpeg.so.0", NOT_LOADED, "libturbojpeg0", "libturbojpeg|libjpeg-turbo", LACKS),
    (r"pyvips(?!-binary|\[binary)", "libvips.so.42", NOT_LOADED, "libvips42", "libvips", LACKS),
    (r"sounddevice", "libportaudio.so.2", NOT_LOADED, "libportaudio2", "portaudio", LACKS),
)
"""(packages, the library that their wheels do not hold, effect, packages of Debian, what brings it, bases without)"""
WEIGHTS = (
    Fault(
        "RUN",
        rf"^.*{FETCH}.*",
        HIGH,
        "{0} goes into a cache mount, which is no part of the image" + AGAIN,
        "download without the mount",
        unless=PLACED + r"|\bcp -|\bmv ",
        needs=r"type=cache[^\n']*(target|dst)=[^\n']*(huggingface|hf_home|/\.cache)/?['\",][^\n]*\n$",
    ),
    Fault(
        "ENV",
        r"^(HF_HOME|HF_HUB_CACHE|HUGGINGFACE_HUB_CACHE|TRANSFORMERS_CACHE|XDG_CACHE_HOME)=.*",
        HIGH,
        "{0} moves the cache of Hugging Face after the download above" + AGAIN,
        "set HF_HOME above the download",
        unless=PLACED + rf"|HF_HOME[\s\S]*{FETCH}",
        needs=rf"RUN [^\n]*{FETCH}",
    ),
    Fault(
        "USER",
        r"^(?!root|0|\$)\S+",
        HIGH,
        "root has downloaded the weights above to /root/.cache, and the container runs as {0}" + AGAIN,
        "ENV HF_HOME=/opt/huggingface above the download",
        unless=PLACED + r"|HF_HOME|HF_HUB_CACHE|TRANSFORMERS_CACHE|XDG_CACHE|chown[^\n]*cache|USER "
        r"(?!root)[\s\S]*USER",
        needs=rf"RUN [^\n]*{FETCH}",
    ),
    Fault(
        "RUN",
        rf"^.*{FETCH}.*",
        HIGH,
        "{0} is refused, as HF_HUB_OFFLINE=1 is set above: the build fails",
        "set it below the download",
        needs=r"ENV [^\n]*(HF_HUB_OFFLINE|TRANSFORMERS_OFFLINE)[= ]\"?(1|true)",
        unless=r"HF_HUB_OFFLINE=0",
    ),
    *(
        Fault(
            "USER",
            r"^(?!root)[a-z][\w-]*",
            severity,
            "user {0} has no home folder (useradd without --create-home): caches of torch, "
            "triton and Hugging Face cannot be written",
            "useradd --create-home, or ENV HOME=/tmp",
            needs=rf"\A(?{sign}[\s\S]*(vllm|sglang|deepspeed|triton|torch\.compile|jupyter|wandb|mlflow|ray start"
            r"|text-generation|(hf|huggingface-cli) download|from_pretrained))[\s\S]*useradd"
            r"(?![^\n&;]*\s(-\w*m|--create-home|--home|-d\b))",
            unless=r"mkdir[^\n]*/home|adduser|useradd[^\n&;]*\s(-\w*m|--create-home)",
            never=r"\w*HOME[= ]|CACHE\w*[= ]|OFFLINE[= ]",
            base=r"python|pytorch|cuda|nvidia|conda|huggingface",
            confidence=LIKELY,
        )
        for severity, sign in ((MEDIUM, "="), (LOW, "!"))
    ),
    *(
        Fault(
            "PACKAGE BROUGHT",
            rf"(?i)^({packages})(?=[\s=<>~!\[;]|$)[^\t]*",
            HIGH,
            f"{{0}} needs {needs}, which {{base}} lacks: {effect}",
            f"apt-get install -y --no-install-recommends {advice}",
            never=rf"(?i){brings}|\.sh\b|xargs|conda|micromamba|\bnix|headless",
            base=base,
            confidence=LIKELY,
        )
        for packages, needs, effect, advice, brings, base in LIBRARIES
    ),
    Fault(
        "START",
        r"^(torchrun|accelerate|deepspeed|uvicorn|gunicorn)\b.*",
        HIGH,
        "{0} is installed in ~/.local/bin (pip install as user {user}, or --user), which PATH does not have: not found",
        "ENV PATH=/home/USER/.local/bin:$PATH",
        needs=r"(?m)^USER (?!root|0)[\s\S]*^RUN [^\n]*pip[\d.]* install|COPY [^\n]*/\.local ",
        unless=r"\.local/bin|venv|conda|sudo|PYTHONUSERBASE|(?m)^USER root[\s\S]*^RUN [^\n]*pip".replace("(?m)^", ""),
        confidence=LIKELY,
    ),
    Fault(
        "USER",
        r"^(?!root|0|\$)\S+",
        HIGH,
        "{0} may not read /root, where the packages (.local) were copied to: they are not found",
        "copy them to the home of the user, with --chown",
        needs=r"COPY [^\n]*\s/root/\.local/?\s",
    ),
    Fault(
        "START",
        r"^(python[\d.]*|torchrun|accelerate|deepspeed)\b.*",
        HIGH,
        OTHER_ENV,
        "ENV PATH=/opt/conda/envs/NAME/bin:$PATH, or conda run -n NAME",
        needs=r"(conda|mamba) (create|env create)(?![^\n]*(-n|--name)[ =]base)",
        unless=r"PATH[= ][^\n]*(envs|/env)|conda[\", ]+run|SHELL [^\n]*(conda|-\w*l)|CMD "
        r"[^\n]*activate|ENTRYPOINT [^\n]*(conda|activate|\.sh)|CONDA_DEFAULT_ENV"
        r"|conda-pack",
        confidence=LIKELY,
    ),
    Fault(
        "START",
        r"^(python[\d.]*|torchrun|accelerate|deepspeed)\b.*",
        HIGH,
        OTHER_ENV,
        "ENV PATH=/opt/venv/bin:$PATH",
        needs=r"(-m venv|virtualenv|uv venv) |COPY [^\n]*/\.?v?env/?\s|RUN uv sync",
        unless=r"PATH[= ][^\n]*(env|\.local)|VIRTUAL_ENV|CMD [^\n]*activate|ENTRYPOINT "
        r"[^\n]*(activate|\.sh|uv|env/)|UV_PROJECT_ENV|UV_SYSTEM|CMD [^\n]*(\"uv\"|uv "
        r"run|env/bin)|chmod[^\n]*env|PATH[= ][^\n]*\$",
        confidence=LIKELY,
    ),
)


@lint_rule("missing-at-start", "what the image installed or downloaded is not found when it runs", reads="dockerfile")
def missing_at_start(build: DockerBuild) -> Iterator[LintFinding]:
    """## What it does
    Looks for weights that are downloaded into a cache mount, to another user's home, or above the `ENV HF_HOME` that
    moves the cache; for conda and virtual environments that `CMD` does not run in; and for shared libraries that a
    wheel needs and a slim image lacks (`libGL.so.1` of OpenCV, `libgomp.so.1` of LightGBM, FFmpeg).

    ## Why it costs
    Each container downloads gigabytes again when it starts, or runs the base's Python: `ModuleNotFoundError`.

    ## How to tell
    The instructions of the image that runs, in their order.

    ## What to do
    `ENV HF_HOME=/opt/huggingface` above the download; `ENV PATH=/opt/venv/bin:$PATH`.

    ## When it is wrong
    If the entry point sets what is missing.
    """
    yield from find_faults(WEIGHTS, build.final)


EXEC_KINDS = "EXEC-CMD EXEC-ENTRYPOINT EXEC-RUN"
BROKEN = (
    Fault(
        EXEC_KINDS,
        r'"[^"]*\$\{?[A-Za-z_]\w*[^"]*"',
        HIGH,
        "{0} is not expanded: no shell reads the JSON array (exec form), and the program gets the name of the variable",
        'use the shell form with exec, or ["sh", "-c", "exec ..."]',
    ),
    Fault(
        EXEC_KINDS,
        r'"(&&|\|\|?|;|>>?|<|2>&1|&)"',
        HIGH,
        "{0} is an argument here: no shell reads the JSON array (exec form)",
        'use ["sh", "-c", "... && exec ..."]',
    ),
    Fault(
        "EXEC-ENTRYPOINT EXEC-RUN",
        r'^\[\s*"[^"]* [^"]*"',
        HIGH,
        "{0} is one word: a program of that name with blanks is not found",
        "give each argument a word of its own",
    ),
    Fault(
        "EXEC-CMD",
        r'^\[\s*"[^"]* [^"]*"\s*\]',
        HIGH,
        "{0} is one word: a program of that name with blanks is not found",
        "give each argument a word of its own",
        unless="ENTRYPOINT",
    ),
    Fault(
        EXEC_KINDS,
        r'^\[\s*"(cd|source|\.|export|exec|set|ulimit|eval|alias)"',
        HIGH,
        "{0} is a builtin of the shell and no program: it is not found",
        'use ["sh", "-c", "..."]',
    ),
    Fault(
        EXEC_KINDS,
        r'^\[\s*"[A-Z_]+=[^"]*"',
        HIGH,
        "{0} sets no variable in exec form: it is taken for the program",
        "use ENV",
    ),
    Fault(
        "CMD-TEXT ENTRYPOINT-TEXT RUN-TEXT",
        r"^\[\s*('|\w+[,\]]|\"[^\[\]]*(,\s*|[^\"\s])\]\s*$).*",
        HIGH,
        "{0} is no JSON (single quotes, or a comma too many): the shell looks for a program of that text",
        'write a JSON array with double quotes: ["python", "train.py"]',
    ),
    Fault(
        "CMD CMD-TEXT",
        r"^[\s\S]{1,40}",
        MEDIUM,
        "CMD {0} replaces the one above: only the last CMD takes effect, the other never runs",
        "keep one CMD; start several processes by a script",
        needs=r"(?m)^CMD [\s\S]*^CMD (?![\s\S]*^FROM )",
    ),
    Fault(
        "ENTRYPOINT-TEXT",
        r"^[\s\S]{1,40}",
        MEDIUM,
        "ENTRYPOINT {0} replaces the one above, which never runs",
        "keep one ENTRYPOINT",
        needs=r"(?m)^ENTRYPOINT [\s\S]*^ENTRYPOINT (?![\s\S]*^FROM )",
    ),
    Fault(
        "CMD-TEXT",
        r"^(?!\[)[\s\S]{1,40}",
        HIGH,
        "CMD {0} in shell form gives the ENTRYPOINT the arguments /bin/sh -c ...",
        "write CMD as a JSON array of arguments",
        needs=r'(?m)^ENTRYPOINT \["(\S*python[\d.]*|torchrun|accelerate|deepspeed)"',
    ),
    Fault(
        "CMD-TEXT",
        r"^[\s\S]{1,40}",
        HIGH,
        "CMD {0} is ignored, and so are the arguments of docker run: ENTRYPOINT stands in shell form",
        "write ENTRYPOINT as a JSON array (exec form)",
        needs=r"(?m)^ENTRYPOINT (?!\[)",
    ),
    Fault(
        "EXEC-CMD",
        r'^\[\s*"(python[\d.]*|torchrun|accelerate|deepspeed)"',
        HIGH,
        "CMD {0} gives the program of ENTRYPOINT another program as its first argument",
        "leave the program out of CMD, or out of ENTRYPOINT",
        needs=r'(?m)^ENTRYPOINT \["\S*(python[\d.]*|torchrun|accelerate|deepspeed)"',
    ),
    Fault(
        "START",
        r"(nproc[-_]per[-_]node|num[-_]processes|num[-_]gpus)[ =]([2-9]|\d\d)",
        HIGH,
        "{0} starts more processes than GPUs are visible by the ENV above: ranks share a GPU or fail",
        "remove the ENV of VISIBLE_DEVICES",
        needs=r"ENV [^\n]*(CUDA|NVIDIA)_VISIBLE_DEVICES[= ]\"?\d(?![,\d])",
    ),
    Fault(
        "STOPSIGNAL",
        r"KILL|^9$",
        HIGH,
        "STOPSIGNAL {0} ends the training at once: no handler runs, and nothing is saved",
        "STOPSIGNAL SIGTERM",
    ),
    Fault(
        "START",
        r"(torchrun|accelerate|deepspeed|torch\.distributed\.\w+)\b(?=.*--(nnodes"
        r"|num[-_]machines|num[-_]nodes)[ =](\d+:)?([2-9]|\d\d)).*(--(node[-_]rank"
        r"|machine[-_]rank)[ =]\d+|--standalone|--(master[-_]addr|main[-_]process[-_]ip"
        r"|rdzv[-_]endpoint)[ =](localhost|127\.)\S*)",
        HIGH,
        "{0}: the rank or address is the same on each node, so they train alone or wait for each other without end",
        "give the rank and address of each node when the container starts",
    ),
    Fault(
        "START",
        r"^python[\d.]* -m torch\.distributed\.launch\b",
        LOW,
        "{0} is deprecated: local ranks come as arguments, and failed ranks are not restarted",
        "use torchrun",
    ),
)


@lint_rule(
    "broken-command", "a CMD, ENTRYPOINT or RUN that does not start what it says", reads="dockerfile", each="chains"
)
def broken_command(build: DockerBuild, chain: Sequence[Layer]) -> Iterator[LintFinding]:
    """## What it does
    Looks for JSON arrays with `$VARIABLE`, `&&`, `|`, builtins of the shell or a whole command in one string; for
    arrays that are no JSON; for `STOPSIGNAL SIGKILL`; and for launchers that give each node the same rank or address.

    ## Why it costs
    No shell reads the array: `$OUT` stays `$OUT`, and `"python train.py"` is no program. Nodes of one rank never meet.

    ## How to tell
    The words of the array, where its program is not a shell.

    ## What to do
    Use the shell form with `exec`, or `["sh", "-c", "exec python train.py --out \\"$OUT\\""]`.

    ## When it is wrong
    If the program itself expands variables.
    """
    yield from find_faults(BROKEN, chain)


NAMES = (
    r"(?i:(\w*_)?(token|passwd|password|secret|secret_?key|api_?key|access_?key(_?id)?"
    r"|private_?key|credentials?|auth_?key|deploy_?key|ssh_?key|pat))"
)
HIDE = "use RUN --mount=type=secret, or give it to the container when it starts"
READ = ": whoever pulls the image can read the secret, also if a later layer removes it"
SECRETS = (
    Fault(
        "ARG",
        rf"^(?!(?i:.*(pad|max|eos|bos|num|mask)_token)){NAMES}=",
        HIGH,
        "ARG {0} keeps the token or password in the history of the image" + READ,
        HIDE,
    ),
    Fault(
        "ENV",
        rf"^(?!(?i:.*(pad|max|eos|bos|num|mask)_token)){NAMES}=(?!/|(?i:true|false|none" rf"|null|\d?)$)",
        HIGH,
        "ENV {0} keeps the token or password in the configuration of the image" + READ,
        HIDE,
    ),
    Fault(
        "RUN-TEXT ENV ARG ADD",
        r"(?<![\w-])(hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
        r"|AKIA[0-9A-Z]{16}|glpat-[\w-]{16,}|sk-[A-Za-z0-9]{20,})",
        HIGH,
        "a token is written here" + READ,
        HIDE,
    ),
    Fault(
        "RUN-TEXT ENV ARG ADD",
        r"://[^/\s:@$'\"]+:[^/\s@$'\"{]{3,}@",
        HIGH,
        "a URL with a password is written here" + READ,
        HIDE,
    ),
    Fault(
        "RUN-TEXT",
        r"://[^/\s@'\"]*\$\{?\w*(TOKEN|PAT|PASSW\w*|SECRET|KEY)\w*\}?[^/\s'\"]*@",
        HIGH,
        "the URL with the token stays in the layer and the history" + READ,
        HIDE,
        unless=r"type': 'secret|type=secret",
    ),
    Fault(
        "RUN",
        r"^((huggingface-cli|hf auth|hf) login|wandb login \S*[\w$].*|(docker|az|gh auth) "
        r"login .*(-p|-password|-with-token)|aws configure set \S*secret|git config "
        r".*(extraheader|insteadof)).*",
        HIGH,
        "{0} leaves the token in a file of this layer" + READ,
        HIDE,
        confidence=LIKELY,
    ),
    Fault(
        "RUN-TEXT",
        r"(?:echo|printf)[^;&|]*(TOKEN|PASSWORD|SECRET|API_KEY|machine|password)[^;&|]*>+ "
        r"*\S*(netrc|pypirc|kaggle|token|credentials|id_rsa|\.env|pip\.conf"
        r"|git-credentials)",
        HIGH,
        "{0} writes the secret to a file of this layer" + READ,
        HIDE,
        confidence=LIKELY,
    ),
    Fault(
        "COPY ADD",
        r"(^|[\s/\"])(\.env(\.(prod|production|local|secret))?|id_(rsa|ed25519|ecdsa|dsa)"
        r"|\.netrc|\.pypirc|kaggle\.json|\.git-credentials|\.aws|\.ssh"
        r"|[\w-]*(service[-_]?account|credentials?|secrets?)[\w-]*\.(json|ya?ml|txt|env)"
        r"|[\w.-]*(?<!ca)(?<!cert)(?<!chain)\.(pem|p12)|\.?hf_token"
        r"|token\.txt)/?(?=[\s\"])",
        HIGH,
        "{0} with its secret is copied into a layer" + READ,
        HIDE,
        confidence=LIKELY,
    ),
)


@lint_rule("secret-in-image", "a secret is kept in the image or its history", reads="dockerfile")
def secret_in_image(build: DockerBuild) -> Iterator[LintFinding]:
    """## What it does
    Looks for tokens, passwords and keys in `ARG`, `ENV`, `COPY`, in URLs, and for logins in a `RUN` that leave a token
    in a file.

    ## Why it costs
    Whoever can pull the image reads them, from its history or from a layer, also after a later step removes the file.

    ## How to tell
    By names (`HF_TOKEN`), by the form of known tokens, and by files such as `.env`, `id_rsa`, `.netrc`. Stages from
    which only files are copied are passed over.

    ## What to do
    `RUN --mount=type=secret,id=hf_token,env=HF_TOKEN ...`; give secrets to the container when it starts. Replace one
    that was published.

    ## When it is wrong
    If the value is a placeholder that never opens anything.
    """
    yield from find_faults(SECRETS, build.final)


COMMIT = r"(?!\S*@([0-9a-f]{7,40}\b|v?\d|[^\s@/]*\d[._-]\d|\S*\$|refs/tags|[^\s@]*/[0-9a-f]{40}\b))(?!\S*#\S*rev=)"
MOVES = (
    "names a branch, no commit: the cached layer keeps its old code when the branch "
    "moves, and no two builds are the same"
)
MOVING = (
    Fault(
        "PACKAGE",
        rf"^([\w.\[\],-]+ *@ *)?{COMMIT}(git\+|git@)\S+",
        MEDIUM,
        "{0} " + MOVES,
        "pin a commit (git+https://...@<sha>)",
    ),
    Fault(
        "RUN",
        r"^git clone (?!.*(-b|--branch)[ =](\S*\d+[._]\d+"
        r"|\S*\$))(?!.*--revision)(?!.*remote\.origin\.fetch=\+?[0-9a-f]{7}).*",
        MEDIUM,
        "{0} " + MOVES,
        "git checkout <sha> in the same RUN, or clone a tag",
        unless=r"git clone[^\n]*(\n(?!(RUN|COPY|ADD|ENV|ARG|WORKDIR|FROM|CMD|USER|LABEL) "
        r")[^\n]*)*git (-C \S+ )?(checkout|reset|switch|fetch)(?! "
        r"(origin/)?(main|master|develop)\b)",
    ),
    Fault("ADD", r"^\S+\.git(#(?![0-9a-f]{7})\S*)?(?=\s)", MEDIUM, "{0} " + MOVES, "ADD https://...git#<sha>"),
    Fault(
        "FROM",
        r"^(?=\S*/|ubuntu|debian|python|alpine|node|fedora|centos|tensorflow|golang"
        r"|busybox)[^\s$@:]+(:\d+/[^\s$@:]+)?(:latest)?(?=\s*\t| +(?i:as) )",
        MEDIUM,
        "{0} is another image tomorrow (no version tag): Python, CUDA or torch change "
        "without a word, and no build can be repeated",
        "pin a version tag or a digest",
    ),
    Fault(
        "PACKAGE",
        r"^(torch|(torchvision|torchaudio)(?!.*torch\S*==)|flash[-_]attn|vllm|xformers"
        r"|deepspeed)(\[.*\])?(?=\s*(>=?[^,]*)?\t)(?!.*(--index-url|-c |--constraint))",
        MEDIUM,
        "{0} is not pinned: each new layer gets another version, and what was compiled "
        "or tested with the old one breaks",
        "pin the version (==)",
        unless=r"uv\.lock|PIP_CONSTRAINT",
        base=r"^(?!.*(pytorch/|nvcr\.io))",
        confidence=LIKELY,
    ),
    Fault(
        "PACKAGE",
        r"^(?!(pip|setuptools|wheel|uv|poetry)\b)[A-Za-z][\w.-]*(\[.*\])?(?=\s*(>=?[^,]*)?"
        r"\t)(?!.*(-c |--constraint|--no-deps))",
        LOW,
        "{0} is not pinned: each new layer gets another version",
        "pin the version (==), or use a lock file",
        unless="PIP_CONSTRAINT",
        confidence=LIKELY,
    ),
    Fault(
        "RUN",
        r"^apt(-get)? .*\b(dist-)?upgrade\b.*|^(python[\d.]* -m )?pip[\d.]* install (-\S+ "
        r")*(-U|--upgrade) (-\S+ )*pip( setuptools)?( wheel)?$",
        LOW,
        "{0} changes what is installed with each new layer",
        "choose a newer base image, or pin the version",
    ),
    Fault(
        "RUN",
        r"^uv sync (?!.*--(frozen|locked)).*",
        LOW,
        "{0} without --frozen or --locked may change the lock file's versions",
        "uv sync --frozen",
        unless="UV_FROZEN|UV_LOCKED",
    ),
    Fault(
        "RUN",
        r"^curl (?=.*( -\w*[oO]\b| --output| --remote-name))(?!.*( -\w*f\w*\b| "
        r"--fail)).*\.(pt|pth|bin|safetensors|ckpt|onnx|npz|parquet|csv|json|h5|model)\b.*",
        MEDIUM,
        "{0}: curl without -f saves the server's error page as the file, and the build goes on",
        "curl -fsSL --retry 3, and sha256sum -c",
        unless="sha256sum|md5sum|--checksum",
    ),
    Fault(
        "RUN",
        r"^(curl (?=.*( -\w*[oO]\b| --output))|wget ).*(https?://\S+)",
        LOW,
        "{0} is not checked: what the URL gives can change without a word",
        "check it by sha256sum -c, or ADD --checksum",
        unless=r"sha\d+sum|md5sum|gpg|checksum",
    ),
    Fault(
        "ADD",
        r"^https?://\S+\.(tar|tgz|tar\.\w+|zip|pt|pth|safetensors|bin|whl)(?=\s)",
        MEDIUM,
        "ADD {0}: it is not unpacked, not checked by a checksum, and the archive stays in its layer when it is removed",
        "RUN curl -fsSL URL | tar -x, or ADD --checksum=sha256:... URL",
        unless=r"name='checksum'",
    ),
    Fault(
        "ADD",
        r"^https?://\S+",
        LOW,
        "ADD {0} is not checked: what the URL gives can change without a word",
        "ADD --checksum=sha256:...",
        unless=r"name='checksum'",
    ),
)


@lint_rule(
    "moving-version", "what is installed changes without a change of the file", reads="dockerfile", each="chains"
)
def moving_version(build: DockerBuild, chain: Sequence[Layer]) -> Iterator[LintFinding]:
    """## What it does
    Looks for branches in `git clone` and `pip install git+https://...` (requirements files are read), bases without a
    version (`latest`), packages without one, and downloads that nobody checks.

    ## Why it costs
    A cached layer keeps the code or version of its day without a word, and another builder gets another: images of one
    Dockerfile differ, and an old one cannot be made again.

    ## How to tell
    No commit, version tag, digest or checksum is given, and no `git checkout` follows in the same `RUN`.

    ## What to do
    Name a commit, a version, a digest; install by a lock file.

    ## When it is wrong
    If all builds are made without a cache and the newest code is wanted.
    """
    yield from find_faults(MOVING, chain)


MOVE = "remove it from the image, and set it for the run that needs it"
COSTLY = (
    Fault(
        "CPU-PACKAGES",
        r"(?m)^(torch(vision)?|sentence[-_]transformers|easyocr|openai-whisper|ultralytics)(?![\w-])(?!\S*\+cpu)[^\t\n]*"
        r"(?![\s\S]*(whl/cpu|\+cpu|torch-backend[= ]cpu|cpu/torch))",
        MEDIUM,
        "{0} from PyPI brings the CUDA libraries (nvidia-*), gigabytes that this image for the CPU never uses",
        "use the CPU wheels: --extra-index-url https://download.pytorch.org/whl/cpu, torch==X+cpu",
        unless=r"whl/cpu|\+cpu|TORCH_BACKEND=cpu|(linux/)?(arm64|aarch64)",
        confidence=LIKELY,
    ),
    Fault(
        "RUN",
        r"^(conda|mamba|micromamba) (env )?(-\S+ )*(install|create|update).*",
        LOW,
        "{0}: the package cache (pkgs) stays in this layer, as no conda clean follows",
        "conda clean -afy in this RUN, or a cache mount on the pkgs folder",
        unless=r"(conda|mamba) clean|rm -\w+ [^\n]*pkgs|type': 'cache|type=cache[^\n]*\n$",
    ),
    Fault(
        "START",
        r"^(gunicorn|uvicorn|hypercorn|granian|fastapi|python[\d.]* -m (uvicorn|gunicorn))\b(?!.*--preload).* "
        r"(--workers|-w|--processes)[ =]?([2-9]|\d\d)\b.*",
        MEDIUM,
        "{0}: each worker is a process that loads the model of its own: several copies in the memory of one GPU, and "
        "several CUDA contexts",
        "one worker for each GPU (--workers 1) with batching; more replicas for more GPUs",
        base=r"cuda|pytorch/pytorch|nvcr\.io",
        confidence=LIKELY,
    ),
    Fault(
        "ENV",
        r"^WEB_CONCURRENCY=([2-9]|\d\d)\b",
        MEDIUM,
        "{0} starts several workers, and each loads the model of its own: several copies in the memory of one GPU",
        "one worker for each GPU (WEB_CONCURRENCY=1) with batching",
        base=r"cuda|pytorch/pytorch|nvcr\.io",
        confidence=LIKELY,
    ),
    Fault(
        "ENV",
        r"^CUDA_LAUNCH_BLOCKING=[^0$].*",
        HIGH,
        "{0} in the image makes each kernel wait for the one before: CPU and GPU no longer overlap",
        MOVE,
    ),
    Fault(
        "ENV",
        r"^CUDA_VISIBLE_DEVICES=(-1|none|)$|^NVIDIA_VISIBLE_DEVICES=(none|void|)$",
        HIGH,
        "{0} in the image hides all GPUs",
        MOVE,
    ),
    Fault(
        "ENV",
        r"^(CUDA|NVIDIA)_VISIBLE_DEVICES=\d+(,\d+)*$",
        MEDIUM,
        "{0} in the image leaves the other GPUs of each machine unused, whatever number of processes is started",
        MOVE,
    ),
    Fault(
        "ENV",
        r"^NVIDIA_DRIVER_CAPABILITIES=(?!.*(compute|all|\$)).*",
        HIGH,
        "{0} leaves compute out: CUDA's driver is not mounted, and torch sees no GPU",
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ),
    Fault(
        "ENV",
        r"^NCCL_P2P_DISABLE=[^0$].*",
        HIGH,
        "{0} in the image sends all that GPUs exchange through the host's memory",
        MOVE,
    ),
    Fault(
        "ENV",
        r"^NCCL_(IB|SHM|NET_GDR)_DISABLE=[^0$].*",
        MEDIUM,
        "{0} in the image sends what nodes or GPUs exchange over a slower way",
        MOVE,
    ),
    Fault(
        "ENV",
        r"^(NCCL|GLOO)_SOCKET_IFNAME=lo$",
        HIGH,
        "{0} binds NCCL to the loopback: nodes never find each other",
        MOVE,
    ),
    Fault(
        "ENV",
        r"^(RANK|NODE_RANK|LOCAL_RANK)=\d+$",
        HIGH,
        "{0} in the image gives each process or node the same rank",
        MOVE,
    ),
    Fault(
        "ENV",
        r"^(WORLD_SIZE=\d+|MASTER_ADDR=(localhost|127\.\S*))$",
        MEDIUM,
        "{0} in the image fixes the number of processes, or makes each node its own master",
        MOVE,
    ),
    Fault(
        "ENV",
        r"^TORCH_DISTRIBUTED_DEBUG=(?i:detail)",
        MEDIUM,
        "{0} in the image checks each collective by another one: tens of percent of each step",
        MOVE,
    ),
    Fault(
        "ENV", r"^(TORCHDYNAMO|TORCH_COMPILE)_DISABLE=[^0$]", MEDIUM, "{0} in the image turns torch.compile off", MOVE
    ),
    Fault(
        "ENV", r"^PYTORCH_NO_CUDA_MEMORY_CACHING=[^0$]", HIGH, "{0} in the image makes each tensor a cudaMalloc", MOVE
    ),
    Fault(
        "ENV",
        r"^(NVIDIA_TF32_OVERRIDE=0|CUDA_CACHE_DISABLE=1|PYTHONDEVMODE=1|PYTHONMALLOC=debug"
        r"|CUDA_MODULE_LOADING=EAGER)",
        MEDIUM,
        "{0} in the image slows each start or each step (TF32 off, kernels compiled again, debug mode)",
        MOVE,
    ),
    Fault(
        "ENV",
        r"^(OMP|MKL|OPENBLAS)_NUM_THREADS=1$",
        MEDIUM,
        "{0} in the image gives each process one thread for all its work on the CPU: "
        "loading and preprocessing are slower",
        MOVE,
    ),
    Fault("ENV", r"^NCCL_DEBUG=(?i:info|trace)", LOW, "{0} in the image writes logs of each rank", MOVE),
    Fault(
        "ENV",
        r"^PATH=(?!.*\$\{?PATH)(?!.*/usr/bin).*",
        HIGH,
        "{0}: PATH is overwritten without $PATH, and python and the programs of the base are not found",
        "ENV PATH=...:$PATH",
    ),
    Fault(
        "ENV",
        r"^LD_LIBRARY_PATH=(?!.*\$\{?LD_LIBRARY_PATH)(?!.*/usr/local/(nvidia|cuda)).*",
        MEDIUM,
        "{0}: LD_LIBRARY_PATH is overwritten, and the folders of CUDA and the driver that {base} has set are lost",
        "ENV LD_LIBRARY_PATH=...:$LD_LIBRARY_PATH",
        base=r"cuda|pytorch|nvcr",
    ),
    Fault(
        "ENV",
        r"^PYTHONPATH=(?!.*\$\{?PYTHONPATH).*",
        MEDIUM,
        "{0}: PYTHONPATH is overwritten, and the modules of the one above are not found",
        "ENV PYTHONPATH=...:$PYTHONPATH",
        needs=r"ENV [^\n]*PYTHONPATH[= ][\s\S]*ENV [^\n]*PYTHONPATH",
    ),
    Fault(
        "RUN-TEXT",
        r"^(?![\s\S]*(conda|mamba) (install|create|env|update))[\s\S]*(conda|mamba) clean",
        MEDIUM,
        "conda clean only hides the packages' archives that a layer above holds: they stay in the image",
        "run it in the RUN that installs",
        needs=r"(conda|mamba) (install|create|env|update)",
    ),
    Fault(
        "RUN-TEXT",
        r"^(?![\s\S]*pip[\d.]* install)[\s\S]*(pip[\d.]* cache purge|rm -\w+ " r"[^\n&;]*\.cache(/pip|/\*)?/?(\s|$))",
        MEDIUM,
        "the cache of pip is removed in a later layer: it stays in the image, hidden",
        "use a cache mount, or --no-cache-dir",
        needs=r"pip[\d.]* install (?![^\n]*--no-cache-dir)[^\n]*(torch|-r )",
        unless="NO_CACHE",
    ),
    Fault(
        "RUN-TEXT",
        r"^(?![\s\S]*apt(-get)? (-\S+ )*install)[\s\S]*(rm -\w+ "
        r"[^\n&;]*/var/(lib/apt|cache/apt)|apt(-get)? (clean|autoremove|purge|remove))",
        LOW,
        "what apt-get installed or fetched is removed in a later layer: it stays in the image, hidden",
        "clean in the RUN that installs",
        needs=r"apt(-get)? (-\S+ )*install",
    ),
    Fault(
        "PACKAGE",
        r"^torch(?![\w-])\S*(?!.*(--no-cache-dir|--no-cache\b|--target))",
        MEDIUM,
        "the cache of pip with the wheels of {0} stays in this layer: gigabytes that are pulled and never used",
        "use a cache mount, or --no-cache-dir",
        unless=r"NO_CACHE|type=(cache|tmpfs)[^\n]*\n$|cache (purge|clean|prune)|rm -\w+ " r"[^\n]*(\.cache|/root/)",
        base=r"^(?!.*nvcr\.io)",
        confidence=LIKELY,
    ),
    Fault(
        "RUN",
        r"^(python[\d.]* -m )?pip[\d.]* (?!.*--no-cache-dir)install.*",
        LOW,
        "{0}: the cache of pip stays in this layer",
        "use a cache mount, or --no-cache-dir",
        unless=r"NO_CACHE|type=(cache|tmpfs)|cache (purge|clean|prune)|rm -\w+ [^\n]*(\.cache|/root/)",
        confidence=LIKELY,
    ),
    Fault(
        "RUN",
        r"^apt(-get)? (-\S+ )*install.*",
        LOW,
        "{0}: the package lists stay in this layer",
        "rm -rf /var/lib/apt/lists/* in this RUN",
        unless=r"/var/lib/apt|apt(-get)? clean|type=cache[^\n]*\n$",
        confidence=LIKELY,
    ),
    Fault(
        "FROM",
        r"(?i)^\S*(cuda|pytorch)\S*-devel\S*(?=[^\t]*\t(?![\s\S]*(nvcc|setup\.py|deepspeed"
        r"|flash[-_]?(attn|infer)|apex|no-build-isolation|CUDA_HOME|ninja|make\b|cutlass|triton"
        r"|vllm|sglang|tensorrt|gcc|g\+\+|build-essential|xformers|CUDA_ARCH|cmake|bitsandbytes|mamba[-_]ssm|causal"
        r"|pytorch3d|detectron2|mmcv|cupy|numba|UNREAD|COMPILES|uv sync|poetry|-e \.|install \.|git\+|\.sh\b)))",
        MEDIUM,
        "{0} brings compilers and headers into the image that runs: several gigabytes "
        "that each node pulls, and nothing here compiles",
        "run on the -runtime image of the same version; compile in a first stage (multi-stage build)",
        confidence=LIKELY,
    ),
    Fault(
        "FROM",
        r"^\S*(cuda|pytorch)\S*-devel\S*",
        LOW,
        "{0} brings compilers and headers, gigabytes that each node pulls",
        "compile in a first stage (multi-stage build); run on the -runtime image",
    ),
    Fault(
        "RUN-TEXT",
        r"(wget|curl)\b[^\n;&|]*\.(zip|tgz|tar\S*|gz)\b(?![\s\S]*\brm\b)[\s\S]*&&[^\n" r"|]*\b(tar|unzip) ",
        MEDIUM,
        "the archive stays in this layer beside what was unpacked from it",
        "rm it in the same RUN, or pipe the download into tar",
        confidence=LIKELY,
    ),
    Fault(
        "RUN",
        r"^apt(-get)? (-\S+ )*install.*",
        MEDIUM,
        "{0}: {base} removes the packages after each install (docker-clean), so that the cache mount stays empty",
        "rm -f /etc/apt/apt.conf.d/docker-clean above it",
        needs=r"type=cache[^\n]*/var/cache/apt[^\n]*\n$",
        unless="docker-clean|Keep-Downloaded|keep-cache",
    ),
    Fault(
        "START",
        r".*",
        LOW,
        "{0} runs as root: files that it writes to mounted folders belong to root",
        "RUN useradd --create-home app, and USER app at the end",
        unless=r"(?m)^USER (?!root|0)",
    ),
    Fault(
        "WORKDIR",
        r"^(?![/$\"'~]|[A-Za-z]:).*",
        LOW,
        "WORKDIR {0} is relative: it depends on the folder of the base",
        "give an absolute path",
    ),
    Fault(
        "COPY ADD",
        r"^\S.*",
        LOW,
        "{0} belongs to root, though USER stands above: {user} cannot write there",
        "COPY --chown=USER",
        needs=r"(?m)^USER (?!root|0)[\s\S]*\n[^\n]*\n\Z",
        unless=r"chown[^\n]*\n\Z|USER root",
    ),
    Fault(
        "ENV",
        r"^DEBIAN_FRONTEND=.*",
        LOW,
        "ENV {0} stays in the image for all who use it",
        "ARG DEBIAN_FRONTEND=noninteractive",
    ),
    Fault(
        "HEALTHCHECK",
        r"import torch|torch\.cuda|nvidia-smi|transformers",
        MEDIUM,
        "HEALTHCHECK starts {0} again and again: seconds of CPU and memory of the GPU beside the training",
        "test a file or port that the training keeps, and not more than once in some minutes",
        unless=r"interval', value='(\d+m|\d+h|[1-9]\d\d+s)",
    ),
    Fault(
        "VOLUME",
        r".+",
        MEDIUM,
        "VOLUME {0}: each container gets a new anonymous volume there; what it saves is "
        "lost with it, and what the image has is copied at each start",
        "mount a named volume when the container starts",
        confidence=LIKELY,
    ),
    Fault(
        "RUN",
        r"^(python[\d.]* -m )?pip[\d.]* .*(\s(pytest|black|flake8|mypy|ruff|jupyter(lab)?"
        r"|notebook|pre-commit|sphinx)\b|(dev|test)[\w-]*\.txt|\.\[\w*(dev|test)).*"
        r"|^apt(-get)? .*\b(build-essential|g\+\+|cmake)\b.*",
        LOW,
        "{0}: tools of development stay in the image that runs",
        "install them in another stage (multi-stage build)",
        unless=r"purge|autoremove",
    ),
    Fault(
        "START",
        r"^(pip[\d.]* install|python[\d.]* -m (pip install|spacy download|nltk\.downloader)"
        r"|(poetry|pdm|npm) (ci|install)"
        r"|uv (sync|pip install)|apt(-get)? .*install|(huggingface-cli|hf) download|wget |curl "
        r".*https?:|git clone|aws s3 (cp|sync)|gsutil|gdown|rclone|azcopy|(conda|mamba) (env|install)).*",
        MEDIUM,
        "{0} runs at each start of the container: every node downloads again at run time while its GPUs wait",
        "do it in the image (RUN), or on a volume that is kept",
    ),
)


@lint_rule("costly-image-setting", "the image slows or limits every training that it runs", reads="dockerfile")
def costly_setting(build: DockerBuild) -> Iterator[LintFinding]:
    """## What it does
    Looks for `ENV` settings of CUDA, NCCL, torch and OpenMP that are for debugging, for one process, or hide the GPUs;
    for search paths that are replaced, health checks that import torch, anonymous volumes, and downloads at each start.

    ## Why it costs
    The image carries them to every job: synchronous kernels, traffic through the host, one thread, the same rank for
    all, no GPU at all.

    ## How to tell
    By the name and value, in the stages of the image that runs.

    ## What to do
    Remove it, and set it for the one run that needs it.

    ## When it is wrong
    If all machines that run the image need the setting.
    """
    yield from find_faults(COSTLY, build.final)


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
"""torch -> its builds for CUDA, the Pythons 3 with wheels for Linux, and the torchvision that goes with it."""
ON_INDEX = (
    r"torch\w*|pytorch-triton|triton|xformers|numpy|pillow|filelock|networkx|jinja2"
    r"|sympy|fsspec|mpmath|nvidia-[\w-]+|setuptools|"
    r"typing[-_]extensions|markupsafe|certifi|charset-normalizer|idna|requests|urllib3"
    r"|tqdm|packaging|cmake|lit|fbgemm\S*"
)
TOGETHER = "take versions that were published together (pytorch.org, previous versions)"
UNFIT = (
    Fault(
        "CONDA",
        r"(?ms)\A(?!.*(cuda|cpuonly|gpu|nvidia|=cpu|cpu_|_cpu))(.*^dependencies:.*^\s*- (\S+::)?|.*\b(install|create) "
        r"(?:(?:-c|--channel) \S+ |(?!-c |--channel )\S+ )*?)(?P<it>(pytorch|jaxlib)(?=[\s=<>]|$)[^\n]{0,20})",
        HIGH,
        "conda solves {0} without a driver in the build, and takes the CPU build: the GPUs are not used",
        "ENV CONDA_OVERRIDE_CUDA=12.4 above it, and pytorch-gpu or pytorch=*=cuda*",
        unless="CONDA_OVERRIDE_CUDA|pytorch-cuda|pytorch-gpu",
        confidence=LIKELY,
    ),
    Fault(
        "CONDA",
        r"(?s)\A(?=.*conda-forge).*\b(?P<it>(pytorch|jaxlib)\S*=\S*cuda\S*|pytorch-gpu\S*)",
        HIGH,
        "{0} depends on __cuda, which no build without a driver has: conda finds no solution, and the build fails",
        "ENV CONDA_OVERRIDE_CUDA=12.4 above it",
        unless="CONDA_OVERRIDE_CUDA",
        confidence=LIKELY,
    ),
    Fault(
        "PACKAGE",
        r"^(jax(?!\[\S*cuda)|tensorflow[-_]cpu|paddlepaddle(?!-gpu)|jax\[cpu\])(?=[\s=<>~]|$)[^\t]*",
        HIGH,
        "{0} on {base} is a build for the CPU: the GPUs are not used",
        "install jax[cuda12], tensorflow or paddlepaddle-gpu",
        unless=r"jax\[cuda|jaxlib\S*cuda|jax-cuda|cuda1\d[-_](local|pip)",
        base=r"(^|/)cuda:|nvcr\.io/nvidia/cuda",
        confidence=LIKELY,
    ),
    Fault(
        "PACKAGES",
        r"(?m)\A(?![\s\S]*(^torch\b|onnxruntime-gpu|onnxruntime\[))[\s\S]*^(?P<it>onnxruntime(?![\w-])[^\t\n]*)",
        MEDIUM,
        "{0} on {base} runs on the CPU only (no CUDAExecutionProvider)",
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
            rf"*(?!{vision}\b)|torchaudio *== *(?!{torch}\b))\S+)",
            HIGH,
            f"{{0}} does not go with torch {torch}: pip refuses the pins or replaces torch",
            TOGETHER,
        )
        for torch, (_, _, vision) in TORCH.items()
    ),
    Fault(
        "PACKAGES",
        rf"(?im)^(?!({ON_INDEX})\b)[a-z][\w-]*(?=[^\n:/]*$)(?=[\s\S]*((--index-url|-i)[ "
        rf"=]https?://download\.pytorch\.org))(?![\s\S]*(--extra-index-url|--find-links))",
        HIGH,
        "--index-url replaces PyPI by PyTorch's index, which has no {0}: pip finds no version and the build fails",
        "install torch alone from it, or use --extra-index-url",
    ),
    *(
        Fault(
            "COPY ENV",
            rf"lib/python3\.{minor}/site-packages\S*",
            HIGH,
            f"{{0}} is of Python 3.{minor}, and {{base}} runs another one: its packages are not found",
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
        "{0}: a virtual environment does not run at another path, as its scripts name the old one",
        "make it at the path where it is used",
        unless="relocatable",
    ),
)


@lint_rule(
    "unfit-versions", "versions that do not fit each other, the index or the Python", reads="dockerfile", each="chains"
)
def unfit_versions(build: DockerBuild, chain: Sequence[Layer]) -> Iterator[LintFinding]:
    """## What it does
    Compares pinned versions of torch with the CUDA index, the Python of the base, torchvision and torchaudio; looks for
    `--index-url` of PyTorch with packages of PyPI; for `site-packages`, wheels and environments of another Python or
    path that a stage copies; and for CPU builds that conda or pip choose for an image with GPUs.

    ## Why it costs
    The build fails: no such wheel exists, or the pins contradict each other. Or the modules are not found at start.

    ## How to tell
    By the published tables of PyTorch's builds up to 2.9. Requirements files are read.

    ## What to do
    Take the versions of one line of PyTorch's table of previous versions.

    ## When it is wrong
    If an index of your own has such a build.
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
                f"{held[0]} holds packages of Python {made} (stage {stage.name or stage.index}), and this stage runs "
                f"Python {run}: modules are not found, or their compiled parts do not load",
                "build on the same Python version and base as the image that runs",
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
"""Base -> the Python that its distribution packs."""


def _read_python(base: str) -> str:
    """The Python of a base image, with its place where that is not /usr/local; empty where it is not known."""
    official = re.search(r"(^|/)(python:|uv:(\S*-)?python)(3\.\d+)", base)
    packed = next((text for pattern, text in PYTHONS.items() if re.search(pattern, base)), "")
    return f"{official[4]}{' (musl)' if 'alpine' in base else ''}" if official else packed


def _holds_packages(source: str, above: Sequence[Layer], scripts: str) -> bool:
    """Whether a path of a stage is one that its installs fill."""
    path = source.rstrip("/")
    places = (
        r"(--prefix|--target|--root|-t|venv|virtualenv|-w|--wheel-dir|PYTHONUSERBASE|UV_PROJECT_ENVIRONMENT)[= ]\"?"
        rf"(-\S+ )*{re.escape(path)}(?![\w.-])"
    )
    is_named = re.search(r"venv|\.local$|(site|dist)-packages", path) or re.search(places, scripts)
    is_project = "uv sync" in scripts and path == above[-1].workdir
    return len(path) > 1 and (is_project or is_named is not None) and any(layer.installs for layer in above)


ONCE = "choose a base with this torch, or one without any, and install torch once"
REPLACED = (
    Fault(
        "PACKAGE",
        r"^torch(\[\S*\])?(\s*[=~!<>]=?\s*[\d.]+\S*|(?=\s*\t.* " r"(-U|--upgrade|--force-reinstall)\b))",
        HIGH,
        "{0} replaces NVIDIA's own build in {base}: the image holds both, and apex, "
        "TransformerEngine and what else was compiled for it breaks",
        "leave torch out of the list, or keep the image's constraints (PIP_CONSTRAINT)",
        base=r"nvcr\.io/nvidia/pytorch",
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
            f"{{0}} replaces the torch {torch} of {{base}}: the image holds both, gigabytes that nobody uses",
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
            f"{{0}} replaces the torch {torch} of a layer above: the image holds both, gigabytes that nobody uses",
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
        "{0} by pip comes on top of the pytorch that conda has installed above: the image holds both",
        ONCE,
        needs=r"(conda|mamba) (create|install) [^\n]*\bpytorch\b",
    ),
    *(
        Fault(
            "PACKAGES",
            rf"(?m)^torch\b\S*(?![\s\S]*\b(wheel|download) " rf")(?=[\s\S]*(whl/|\+)cu{cuda[:2]}{cuda[3:]}\b)",
            MEDIUM,
            f"{{0}} is built for CUDA {cuda}, {{base}} for another: the image holds two, and "
            f"extensions that it compiles are refused",
            ONCE,
            base=rf"cuda:?-?(?!{cuda})\d+\.\d+",
            confidence=LIKELY,
        )
        for cuda in ("11.3", "11.6", "11.7", "11.8", "12.1", "12.4", "12.6", "12.8", "12.9", "13.0")
    ),
    Fault(
        "PACKAGE",
        r"^(vllm|sglang|xformers)\b\S*(?!.*--no-deps)",
        MEDIUM,
        "{0} needs one exact torch, and pip replaces that of {base} by it: the image holds both",
        "choose a base without torch, or the version that goes with this torch",
        base=r"pytorch/pytorch|nvcr\.io/nvidia/pytorch",
        confidence=LIKELY,
    ),
)


@lint_rule("torch-twice", "an install replaces the torch of the base or of a layer", reads="dockerfile", each="chains")
def torch_twice(build: DockerBuild, chain: Sequence[Layer]) -> Iterator[LintFinding]:
    """## What it does
    Looks for an install that replaces a torch which the base or an earlier layer has: another version, another CUDA,
    the CPU build, or a package that needs an exact version (vllm, xformers). Requirements files are read.

    ## Why it costs
    The first installation stays in the image, gigabytes that nobody uses. On NVIDIA's images the build that the other
    packages were compiled for is lost; a CPU build leaves the GPUs idle.

    ## How to tell
    The base's tag, or an earlier `RUN`, names a torch that is not the one of this install.

    ## What to do
    Choose the base by its version of torch, or begin with a plain CUDA runtime image; install torch once.

    ## When it is wrong
    If the earlier layer is in a stage from which nothing but files is copied; such stages are not compared.
    """
    yield from find_faults(REPLACED, chain)
