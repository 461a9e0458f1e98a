"""Checks of Dockerfiles: commands that do not run, and files or programs that are missing when a container starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hotloop.core.findings import Severity
from hotloop.core.lint import Confidence, LintFinding, lint_rule
from hotloop.judge.lint.formats.builds import DockerBuild, Fault, Layer, find_faults

HIGH, MEDIUM, LOW, LIKELY = Severity.HIGH, Severity.MEDIUM, Severity.LOW, Confidence.LIKELY
FETCH = r"((huggingface-cli|hf) download|from_pretrained|snapshot_download|hf_hub_download)"
PLACED = r"--local-dir|local_dir|cache_dir|--cache-dir|save_pretrained"
AGAIN = ": the container does not find the weights and downloads them again at each start"
OTHER_ENV = "{0} is the base's, not that of the environment created above: its packages are not found"
LACKS = r"(^|/)(python:\S*slim|(ubuntu|debian):|cuda:|pytorch/pytorch:|uv:python\S*slim)"
NOT_LOADED = "its import fails (cannot open shared object file)"
NOT_RUN = "its calls fail at run time"
LIBRARIES = (
    (
        r"opencv-(contrib-)?python|ultralytics|mmcv(-full)?|mmengine|imgaug|insightface|deepface|paddleocr|rapidocr\S*|python-doctr",
        "libGL.so.1 (libgl1) and libglib2.0-0",
        "import cv2 fails",
        "libgl1 libglib2.0-0, or use opencv-python-headless",
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
"""(packages, the library that their wheels lack, effect, Debian packages, pattern that provides it, bases without
it)"""
WEIGHTS = (
    Fault(
        "RUN",
        rf"^.*{FETCH}.*",
        HIGH,
        "{0} goes into a cache mount, which is not part of the image" + AGAIN,
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
        "{0} is installed in ~/.local/bin (pip install as user {user}, or --user), which PATH lacks: not found",
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
        r"|conda-pack|\nRUN (?![^\n]*(activate|conda run|/envs/|-n \S))[^\n]*\bpip[\d.]* install ",
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


@lint_rule("missing-at-start", "packages or files in the image are not found when it runs", reads="dockerfile")
def missing_at_start(build: DockerBuild) -> Iterator[LintFinding]:
    """## What it does
    Looks for weights that are downloaded into a cache mount, to another user's home folder, or above the `ENV HF_HOME`
    that moves the cache; for conda and virtual environments that `CMD` does not use; and for shared libraries that a
    wheel needs but a slim image lacks (`libGL.so.1` for OpenCV, `libgomp.so.1` for LightGBM, FFmpeg).

    ## Why it costs
    At each start, the container downloads gigabytes again, or it runs the base image's Python and fails with
    `ModuleNotFoundError`.

    ## How to recognize it
    The rule follows the instructions of the final image in order.

    ## What to do
    Use `ENV HF_HOME=/opt/huggingface` above the download, and `ENV PATH=/opt/venv/bin:$PATH` for an environment.

    ## When it is wrong
    Ignore the finding if the entry point sets the missing variable or path.
    """
    yield from find_faults(WEIGHTS, build.final)


EXEC_KINDS = "EXEC-CMD EXEC-ENTRYPOINT EXEC-RUN"
BROKEN = (
    Fault(
        EXEC_KINDS,
        r'"[^"]*\$\{?[A-Za-z_]\w*[^"]*"',
        HIGH,
        "{0} is not expanded: no shell reads the JSON array (exec form), so the program gets the variable's name",
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
        "{0} is one word: a program of that name, with spaces, is not found",
        "make each argument a separate word",
    ),
    Fault(
        "EXEC-CMD",
        r'^\[\s*"[^"]* [^"]*"\s*\]',
        HIGH,
        "{0} is one word: a program of that name, with spaces, is not found",
        "make each argument a separate word",
        unless="ENTRYPOINT",
    ),
    Fault(
        EXEC_KINDS,
        r'^\[\s*"(cd|source|\.|export|exec|set|ulimit|eval|alias)"',
        HIGH,
        "{0} is a shell builtin, not a program: it is not found",
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
        "{0} is not valid JSON (single quotes, or an extra comma): the shell looks for a program of that name",
        'write a JSON array with double quotes: ["python", "train.py"]',
    ),
    Fault(
        "CMD CMD-TEXT",
        r"^[\s\S]{1,40}",
        MEDIUM,
        "CMD {0} replaces the CMD above: only the last takes effect, the other never runs",
        "keep one CMD; start several processes from a script",
        needs=r"(?m)^CMD (?![\s\S]*^FROM )[\s\S]*^CMD ",
    ),
    Fault(
        "ENTRYPOINT-TEXT",
        r"^[\s\S]{1,40}",
        MEDIUM,
        "ENTRYPOINT {0} replaces the ENTRYPOINT above, which never runs",
        "keep one ENTRYPOINT",
        needs=r"(?m)^ENTRYPOINT (?![\s\S]*^FROM )[\s\S]*^ENTRYPOINT ",
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
        "CMD {0} is ignored, and so are the arguments of docker run: ENTRYPOINT is in shell form",
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
        "{0} starts more processes than the GPUs that the ENV above makes visible: ranks share a GPU or fail",
        "remove the ENV with VISIBLE_DEVICES",
        needs=r"ENV [^\n]*(CUDA|NVIDIA)_VISIBLE_DEVICES[= ]\"?\d(?![,\d])",
    ),
    Fault(
        "START",
        r"nproc[-_]per[-_]node[ =](gpu|auto)",
        HIGH,
        "{0} counts one GPU, as the ENV CUDA_VISIBLE_DEVICES above hides the others of each machine: they are idle",
        "remove the ENV with VISIBLE_DEVICES",
        needs=r"(CUDA|NVIDIA)_VISIBLE_DEVICES[= ]\"?\d(?![,\d])",
    ),
    Fault(
        "STOPSIGNAL",
        r"KILL|^9$",
        HIGH,
        "STOPSIGNAL {0} ends training immediately: no handler runs, and nothing is saved",
        "STOPSIGNAL SIGTERM",
    ),
    Fault(
        "START",
        r"(torchrun|accelerate|deepspeed|torch\.distributed\.\w+)\b(?=.*--(nnodes"
        r"|num[-_]machines|num[-_]nodes)[ =](\d+:)?([2-9]|\d\d)).*(--(node[-_]rank"
        r"|machine[-_]rank)[ =]\d+|--standalone|--(master[-_]addr|main[-_]process[-_]ip"
        r"|rdzv[-_]endpoint)[ =](localhost|127\.)\S*)",
        HIGH,
        "{0}: the rank or address is the same on each node, so they train alone or wait for each other forever",
        "set each node's rank and address when the container starts",
    ),
    Fault(
        "START",
        r"^python[\d.]* -m torch\.distributed\.launch\b",
        LOW,
        "{0} is deprecated: local ranks are passed as arguments, and failed ranks are not restarted",
        "use torchrun",
    ),
)


@lint_rule("broken-command", "a CMD, ENTRYPOINT or RUN does not start its command", reads="dockerfile", each="chains")
def broken_command(build: DockerBuild, chain: Sequence[Layer]) -> Iterator[LintFinding]:
    """## What it does
    Looks for JSON arrays with `$VARIABLE`, `&&`, `|`, shell builtins or an entire command in one string; for arrays
    that are not valid JSON; for `STOPSIGNAL SIGKILL`; and for launchers that give each node the same rank or address.

    ## Why it costs
    No shell reads the array: `$OUT` stays `$OUT`, and `"python train.py"` is not a program. Nodes that have the same
    rank never connect to each other.

    ## How to recognize it
    The rule looks at the words of the array if its program is not a shell.

    ## What to do
    Use the shell form with `exec`, or `["sh", "-c", "exec python train.py --out \\"$OUT\\""]`.

    ## When it is wrong
    Ignore the finding if the program itself expands variables.
    """
    yield from find_faults(BROKEN, chain)
