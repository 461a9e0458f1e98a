"""Checks of Dockerfiles: RUN steps that cannot work, lose the state that they set, or need another shell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hotloop.core.findings import Severity
from hotloop.core.lint import Confidence, LintFinding, lint_rule
from hotloop.judge.lint.formats.builds import DockerBuild, Fault, Layer, find_faults

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
COMPILES = r"\A(?![\s\S]*(except\b|is_available|CUDA_HOME|FORCE_CUDA))[\s\S]*CUDAExtension[\s\S]*\t(?P<it>.*)"
"""A setup.py that compiles for CUDA whatever it finds."""
BRINGS_OTHERS = (
    r"git|curl|wget|vim|cmake|gcc|g\+\+|build-essential|ffmpeg|python3[\w.-]*|\S+-dev|libgl1\S*|openssh-\w+|nginx|openmpi-bin"
    r"|openjdk\S*|default-\S+|software-properties-common|supervisor|gnupg\d?"
)
"""Packages that apt never installs alone: without -y, it asks about the others."""
FROZEN = r"^(?!.*(ubuntu:?1[0-8]\b|ubuntu1[468]|trusty|xenial|bionic|debian:([6-9]|10)\b|stretch|buster))"
"""Bases that are still in support: the archive of others no longer changes."""
FAILING = (
    Fault(
        "RUN",
        r"^git (-\S+ \S+ )*(clone|fetch|submodule add|pull)\b.*https?://(\S*@)?huggingface\.co/(?!spaces/)\S+",
        HIGH,
        "{0}: git without git-lfs fetches pointer files of 130 bytes instead of the weights",
        "install git-lfs, or use hf download",
        never=r"git[- ]lfs",
        confidence=LIKELY,
    ),
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
        r"^apt(-get)?(?!.*\s(-\w*y|--yes|--assume-yes|-qq|--print|--download|--reinstall|-s\b|--dry|\$))"
        rf" (-\S+ )*install\b.*\s({BRINGS_OTHERS})(?=[\s=]|$).*",
        HIGH,
        "{0} has no -y: it asks, gets no reply, and the build aborts",
        "apt-get install -y",
        unless=r"apt\.conf|yes \||assume-yes|APT_GET",
        confidence=LIKELY,
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
        "apt-get install uses the lists that apt-get update left in another layer, which the "
        "cache may have kept for months: packages that have left the mirror fail the build",
        "run apt-get update and install in one RUN",
        needs=r"(?m)^RUN (?![^\n]*apt(-get)? (-\S+ )*install)[^\n]*apt(-get)? (-\S+ )*update",
        base=FROZEN,
    ),
    Fault(
        "RUN-TEXT",
        r"^(?![\s\S]*apt(-get)? (-\S+ )*update)[\s\S]*?apt(-get)? (-\S+ )*install",
        HIGH,
        "{0}: no apt-get update comes before it, the base has no package lists, and the "
        "build fails (Unable to locate package)",
        "run apt-get update && apt-get install in one RUN",
        unless=r"apt(-get)? (-\S+ )*update|\.sh\b|/var/lib/apt|apt-key|aptitude",
        base=r"(^|/)(ubuntu|debian|python|cuda|pytorch)(/pytorch)?:",
        confidence=LIKELY,
    ),
    Fault(
        "SETUP",
        COMPILES,
        HIGH,
        "{0} compiles for CUDA, and {base} has no nvcc: the build fails",
        "compile it in a stage on the -devel image",
        unless=CUDA_TOOLS,
        base=NO_COMPILER,
        confidence=LIKELY,
    ),
    Fault(
        "SETUP",
        COMPILES,
        HIGH,
        "{0} compiles for CUDA without TORCH_CUDA_ARCH_LIST: it asks a GPU for the architecture, and a build has none",
        'ENV TORCH_CUDA_ARCH_LIST="8.0;9.0"',
        unless="TORCH_CUDA_ARCH_LIST|(?i:rocm)",
        base=r"^(?!.*nvcr\.io)",
        confidence=LIKELY,
    ),
    Fault(
        "RUN",
        r"^uv sync .*--(frozen|locked).*",
        HIGH,
        "{0}: no COPY above copies uv.lock, and without it the step fails",
        "COPY pyproject.toml uv.lock ./",
        unless=r"uv\.lock|(COPY|ADD) (\S+ )*(\./?|/|\S*\*\S*) +[^\s(]|git clone|source=[.']|\bcd \w",
        needs=r"(COPY|ADD) |source=",
    ),
    Fault(
        "RUN",
        r"^(uv sync|poetry install|pdm (install|sync)|pipenv " r"install)\b(?!.*--(frozen|locked)).*",
        MEDIUM,
        "{0}: no COPY above copies the lock file, so versions are resolved again and differ from it",
        "copy the lock file together with pyproject.toml",
        unless=r"lock\b|(COPY|ADD) (\S+ )*(\./?|/|\S*\*\S*) +[^\s(]|git clone|source=[.']|\bcd \w",
        needs=r"(COPY|ADD) (?!Flag)[^\n]*(pyproject|Pipfile)",
    ),
    Fault(
        "COPY",
        r"^(\./)?(src|[a-z_]+)/? (?=\S*/)",
        HIGH,
        "the project was installed above, before its source {0} was copied: the package in the image has no modules",
        "copy the source above pip install ., or install only its dependencies there",
        never=r"\n(COPY|ADD) [\s\S]*\n(COPY|ADD) [\s\S]*pip[\d.]* install [^\n]*\s\.(\[\S*\])?(\s|$)",
        unless=r"--no-deps|touch|mkdir|(COPY|ADD) (\S+ )*(\./)?(\.|src|[a-z_]+/)/? "
        r"+[^\s(][^\n]*\n[\s\S]*RUN [^\n]*pip[\d.]* install|git clone|--no-install-project",
        needs=r"(pyproject\.toml|setup\.py)[\s\S]*RUN [^\n]*pip[\d.]* install (?!-e )(-\S+ )*\.(\[\S*\])?\s",
        confidence=LIKELY,
    ),
    Fault(
        "RUN",
        r"^nvidia-smi\b.*",
        HIGH,
        "{0}: an image build has no GPU and no driver, and the build fails",
        "run it when the container starts",
    ),
    Fault(
        "RUN",
        r"^python[\d.]* -c .*(\.cuda\(\)|\.to\(['\"]cuda|device=['\"]cuda|assert "
        r"torch\.cuda\.is_available|get_device_(name|capability|properties)\().*",
        HIGH,
        "{0} needs a GPU, and an image build has none: it fails",
        "run it when the container starts, or on the CPU",
    ),
    Fault(
        "RUN",
        r"^pip3? (?!.*(--break-system-packages|--target|--prefix|-t ))install.*|^python3? "
        r"-m pip (?!.*--break-system-packages)install.*",
        HIGH,
        "{0}: pip of {base} refuses to install into the system's Python "
        "(externally-managed-environment), and the build fails",
        "create a virtual environment, or use --break-system-packages",
        unless=r"BREAK_SYSTEM_PACKAGES|EXTERNALLY-MANAGED|break-system|venv|conda|mamba|get-pip"
        r"|pyenv|uv (python|venv)|deadsnakes|Python-3|virtualenv|python3\.\d+-",
        base=r"(^|/)(ubuntu:(24\.04|noble|2[5-9])|debian:(1[23]|bookworm|trixie)|cuda:.*ubuntu24)",
    ),
    Fault(
        "RUN",
        r"^apt(-get)? .*\bpython3\.(1[0134]|9|8|7)\b(?!-)",
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
        r"(?i)^\S*flash[-_]attn\b(?!\S*\.whl)(?!.*--no-build-isolation)",  # older pips build it without isolation
        HIGH,
        "the build of {0} does not see torch without --no-build-isolation (ModuleNotFoundError), and fails",
        "install torch first, then pip install --no-build-isolation flash-attn",
        unless=r"no-build-isolation|NO_BUILD_ISOLATION",
        needs=r"\buv (pip|sync|add) [^\n]*\n\Z|RUN [^\n]*pip[\d.]* install [^\n]*(-U|--upgrade)\b[^\n]*\bpip(\s|$)",
        confidence=LIKELY,
    ),
    Fault(
        "PACKAGE",
        r"(?i)^\S*(detectron2|pytorch3d)\b(?!\S*\.whl)",
        MEDIUM,  # only some of its operators are compiled
        "{0} is compiled without CUDA unless FORCE_CUDA=1 is set, as a build has no GPU",
        'ENV FORCE_CUDA=1 TORCH_CUDA_ARCH_LIST="8.0;9.0"',
        unless="FORCE_CUDA|whl|(?i:rocm)",
        confidence=LIKELY,
    ),
    Fault(
        "PACKAGE",
        r"(?i)^\S*(minkowskiengine|diff[-_]gaussian\S*|tiny-?cuda-?nn)\b(?!\S*\.whl)",
        HIGH,
        "{0} asks a GPU for its architecture when it is compiled, and a build has none: set TORCH_CUDA_ARCH_LIST",
        'ENV TORCH_CUDA_ARCH_LIST="8.0;9.0"',
        unless="TORCH_CUDA_ARCH_LIST|TCNN_CUDA|(?i:rocm)",
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
        "{0} runs as user {user} (USER above), who may not install: permission denied, and the build fails",
        "install above USER, or USER root first",
        confidence=LIKELY,
    ),
    Fault(
        "FROM",
        r"^\S*nvidia/cuda(:latest)?(\s|$).*",
        HIGH,
        "{0}: nvidia/cuda has no latest tag, and the build fails",
        "name a full tag such as 12.4.1-cudnn-runtime-ubuntu22.04",
    ),
    Fault(
        "FROM",
        r"^\S*nvidia/cuda:1[12]\.\d+(\.\d+)?-(cudnn\d*-)?(base|runtime|devel)?(\s|$).*"
        r"|^\S*nvidia/cuda:1[12]\.\d+-\S*ubuntu.*",
        HIGH,
        "{0} is not a tag of nvidia/cuda (tags include the patch version and the system), and the build fails",
        "name a full tag such as 12.4.1-cudnn-runtime-ubuntu22.04",
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


@lint_rule("failing-step", "a step cannot work in an image build", reads="dockerfile", each="chains")
def failing_step(build: DockerBuild, chain: Sequence[Layer]) -> Iterator[LintFinding]:
    """## What it does
    Looks for steps that ask for input (`apt-get install` without `-y`), need a GPU or `nvcc`, call a program that the
    base image lacks, install as a user without permission, or name a package or tag that does not exist.

    ## Why it costs
    The build fails, or its result lacks CUDA.

    ## How to recognize it
    The rule uses a table of the contents of the official Ubuntu, Debian, CUDA, Python and PyTorch images, and the
    installs in the lines above.

    ## What to do
    See the advice of the finding.

    ## When it is wrong
    Ignore the finding if a script or an archive in a step above provides the program.
    """
    yield from find_faults(FAILING, chain)


RELATIVE = r"[^\t]*?(\s\.(/|\s|$|\[)|-r [^/$\s]|(python[\d.]*|bash|sh) [\w.]\S*\.(py|sh)|\bmake\b|npm |uv sync)"
"""What reads the folder in which a RUN starts."""
BUILDS = (
    r"PATH=[^\t]*\t[\s\S]*\t(RUN|CMD|ENTRYPOINT)\b|"
    r"[^\t]*\b(FORCE_CUDA|TORCH_CUDA_ARCH_LIST|CUDA_HOME|CC|CXX)=[^\t]*\t[\s\S]*(setup\.py|install |make\b)"
)
"""Variables that change what a step below finds or builds."""
GONE = "the variable or environment is gone in the next RUN, and when the container runs"
LOST = (
    *(
        Fault(
            "LAST",
            rf"^(?P<it>(cd|pushd) [^\t]*)(?![^\t])(?{sign}(\t(?!WORKDIR|RUN cd )[^\t]*)*?\tRUN {RELATIVE})",
            severity,
            "{0} does not last: the next RUN starts in WORKDIR again",
            "use WORKDIR, or join the commands with && in one RUN",
        )
        for severity, sign in ((HIGH, "="), (LOW, "!"))
    ),
    Fault(
        "LAST",
        r"^(?P<it>(source|\.|conda) [^\t]*activate[^\t]*|eval [^\t]*hook[^\t]*)"
        r"(?=\t[\s\S]*\b(pip|python|conda|uv|torchrun|make|\w+\.py))",
        HIGH,
        "{0} does not last: the environment is active neither in the next RUN nor when the container runs",
        "ENV PATH=<env>/bin:$PATH",
    ),
    *(
        Fault(
            "LAST",
            rf"^(?{sign}export ({BUILDS}|(?P<name>\w+)=[\s\S]*\t[\s\S]*\$\{{?(?P=name)\b))(?P<it>export [^\t]*)",
            severity,
            "{0} does not last: " + GONE,
            "use ENV",
        )
        for severity, sign in ((HIGH, "="), (LOW, "!"))
    ),
    Fault("LAST", r"^(?P<it>(source|\.) (?![^\t]*activate)[^\t]*)", LOW, "{0} does not last: " + GONE, "use ENV"),
    Fault(
        "LAST",
        r"^(?P<it>service [^\t]*start[^\t]*)",
        HIGH,
        "{0} does not last: the process ends with this RUN",
        "start it when the container starts",
    ),
    Fault(
        "LAST",
        r"^(?P<it>su (?![^\t]*-c)[^\t]*)",
        HIGH,
        "{0} does not last: the next RUN runs as the old user",
        "use USER",
    ),
    Fault(
        "LAST",
        r"^(?P<it>(alias|ulimit|umask|set) [^\t]*)",
        MEDIUM,
        "{0} does not last: it ends with this RUN",
        "use SHELL, or a script",
    ),
    Fault(
        "LOST",
        r"^(?!(curl|wget).*\t.*(bash|sh|tar|gpg|apt-key|tee|python3?) \(no)[\s\S]*",
        MEDIUM,
        "{0}, and the build goes on without it",
        "join the commands with &&, and use set -e and pipefail",
    ),
    Fault(
        "LOST",
        r"^(curl|wget)[\s\S]*",
        LOW,
        "{0}, and the build goes on without it",
        "join the commands with &&, and use set -e and pipefail",
    ),
)


@lint_rule(
    "lost-shell-state", "the effect or failure of a RUN is lost with its shell", reads="dockerfile", each="chains"
)
def lost_shell_state(build: DockerBuild, chain: Sequence[Layer]) -> Iterator[LintFinding]:
    """## What it does
    Looks for a `RUN` that only does `cd`, `export`, `source`, `conda activate` or `service start`; and for installs,
    downloads and compilations whose exit code is lost: before a `;` or in a heredoc line without `set -e`, in a pipe
    without `pipefail`, or through `|| true`.

    ## Why it costs
    Each `RUN` starts a new shell: the next line fails, or installs into another environment. If a failure is lost, the
    build succeeds although the image lacks a package.

    ## How to recognize it
    The rule reads the shell's commands and the operators that join them.

    ## What to do
    Use `WORKDIR`, `ENV` and `SHELL ["/bin/bash", "-eo", "pipefail", "-c"]`, or join the commands with `&&` in one
    `RUN`.

    ## When it is wrong
    Ignore the finding if the command only tests that a file exists, or its failure is expected.
    """
    yield from find_faults(LOST, chain)


BASH = 'SHELL ["/bin/bash", "-eo", "pipefail", "-c"] above it'
BRACES = (
    r"(?:[^;&|({]|\$\{)*?(?<![^\s;&|(])(?P<it>[^\s({]*(?<!\$)\{[\w./-]+(?:,[\w./-]+)+\}\S*)"  # one try for each word
)
BASHISMS = (
    Fault(
        "SH",
        r"(^|[;&|(]\s*)(source|pushd|popd|shopt|declare|mapfile) .*",
        HIGH,
        "{0}: not a command of sh (dash), which runs this line: not found",
        BASH,
        unless=r"ln -\w+ \S*bash |dash/sh|dpkg-reconfigure",
        base=DEBIAN,
        confidence=LIKELY,
    ),
    Fault(
        "SH",
        r"(^|[;&|(]\s*|if |while )\[\[ .*",
        HIGH,
        "{0}: [[ is not a command of sh (dash), which runs this line",
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
        "{0} is not valid syntax in sh (dash), which runs this line",
        BASH,
        unless=r"ln -\w+ \S*bash |dash/sh",
        base=DEBIAN,
        confidence=LIKELY,
    ),
    Fault(
        "SH",
        r"(?:^|[;&|(]\s*)(?!\s|rm )" + BRACES,
        HIGH,
        "{0}: sh (dash) does not expand braces and reads it as one name",
        BASH,
        unless=r"ln -\w+ \S*bash |dash/sh|git log|format",
        base=DEBIAN,
        confidence=LIKELY,
    ),
    Fault(
        "SH",
        r"\brm " + BRACES,
        LOW,
        "{0}: sh (dash) does not expand braces, and nothing is removed",
        BASH,
        unless=r"ln -\w+ \S*bash |dash/sh",
        base=DEBIAN,
        confidence=LIKELY,
    ),
)


@lint_rule("bashism-in-sh", "a RUN uses bash syntax, but its shell is sh", reads="dockerfile", each="chains")
def bashism_in_sh(build: DockerBuild, chain: Sequence[Layer]) -> Iterator[LintFinding]:
    """## What it does
    Looks for `source`, `[[`, `set -o pipefail`, `<( )` and `{a,b}` in a `RUN` or `CMD` of an image whose `/bin/sh` is
    dash.

    ## Why it costs
    The step fails (`source: not found`), or silently does something else.

    ## How to recognize it
    The base image is Debian or Ubuntu, no `SHELL` instruction names a shell, and the command is not run by bash.

    ## What to do
    Use `SHELL ["/bin/bash", "-o", "pipefail", "-c"]` above, or `.` for `source`.

    ## When it is wrong
    Ignore the finding if an earlier step links `/bin/sh` to bash.
    """
    yield from find_faults(BASHISMS, chain)
