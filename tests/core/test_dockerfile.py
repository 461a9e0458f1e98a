"""Dockerfiles are read as BuildKit reads them, and whatever the text is, only DockerfileError is raised."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.core.dockerfile import Dockerfile, DockerfileError, Instruction, parse_dockerfile


def read_one(text: str) -> Instruction:
    """The instruction behind FROM."""
    return parse_dockerfile(f"FROM base\n{text}\n").instructions[1]


def test_continued_lines_comments_and_empty_lines_are_one_instruction() -> None:
    one = read_one("RUN a && \\\n# why\n\n  b \\  \n  c")
    assert (one.name, one.first_line, one.last_line) == ("RUN", 2, 6)
    assert one.arguments == "a &&   b   c"
    assert [number for number, _ in one.lines] == [2, 5, 6]


def test_the_escape_directive_changes_what_continues_a_line() -> None:
    text = "# escape=`\nFROM base\nCOPY a c:\\\nRUN x `\n  y\n"
    assert [one.arguments for one in parse_dockerfile(text).instructions] == ["base", "a c:\\", "x   y"]


def test_flags_are_apart_from_the_arguments() -> None:
    one = read_one("RUN --mount=type=cache,target=/root/.cache --network=none pip install --upgrade x")
    assert one.arguments == "pip install --upgrade x"
    assert one.mounts == ({"type": "cache", "target": "/root/.cache"},)
    assert one.flag("network") == "none"
    assert one.flag("security") is None


def test_stages_know_their_base_and_each_other() -> None:
    text = "ARG TAG=1\nARG BASE=img:${TAG}\nFROM ${BASE} AS Build\nRUN a\nFROM build AS more\nFROM $OTHER\n"
    parsed = parse_dockerfile(f"{text}COPY --from=0 a b\n")
    assert [(one.base, one.name) for one in parsed.stages] == [("img:1", "build"), ("build", "more"), ("$OTHER", None)]
    assert parsed.find_stage("BUILD") is parsed.stages[0]
    assert parsed.find_stage("2") is parsed.stages[2]
    assert parsed.find_stage("3") is None
    assert parsed.lineage(parsed.stages[1]) == parsed.stages[:2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROM a\nRUN x\nFETCH y\n", "line 3: unknown instruction 'FETCH'"),
        ("RUN x\nFROM a\n", "line 1: RUN comes before the first FROM"),
        ("FROM a\nRUN <<EOF\nx\n", "line 2: the heredoc 'EOF' has no end"),
        ("FROM a b c\n", "line 1: FROM needs an image, or an image AS a name"),
        ("# escape=x\nFROM a\n", "line 1: the escape character may be \\ or `, not 'x'"),
        ("FROM a\nONBUILD ONBUILD RUN x\n", "line 2: ONBUILD may not trigger another ONBUILD"),
    ],
)
def test_what_the_builder_refuses_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(DockerfileError) as error:
        parse_dockerfile(text)
    assert str(error.value) == message


PIECES = st.sampled_from(
    (
        *("FROM a", "FROM a AS b", "RUN x", "RUN <<E", "RUN <<-'E' cat", "E", "\tE", "COPY <<E /x", "ONBUILD RUN <<E"),
        *(
            "ONBUILD ",
            "ARG A=${A",
            "# escape=`",
            "# c",
            "\\",
            "x \\",
            "`",
            "",
            " ",
            "CMD [",
            'CMD ["a"]',
            "FROM",
            "--x",
        ),
        *("RUN --mount=type=cache,", "\ufeff", "\x0c", "\r", "from $A as", "RUN '"),
    )
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES | st.text(max_size=12), max_size=14).map("\n".join))
def test_any_text_is_read_or_refused_with_a_line_of_the_file(text: str) -> None:
    lines_count = text.count("\n") + 1
    try:
        parsed = parse_dockerfile(text)
    except DockerfileError as error:
        refused_at = error.line
    else:
        check_lines(parsed, lines_count)
        return
    assert 1 <= refused_at <= lines_count


def check_lines(parsed: Dockerfile, lines_count: int) -> None:
    behind = 0
    for one in parsed.instructions:
        assert behind < one.first_line <= one.last_line <= lines_count
        assert all(one.first_line <= number <= one.last_line for number, _ in one.lines)
        behind = one.last_line
        for heredoc in one.heredocs:
            assert one.first_line < heredoc.last_line <= one.last_line
    assert sum(len(stage.instructions) for stage in parsed.stages) <= len(parsed.instructions)
