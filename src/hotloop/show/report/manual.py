"""A manual in Markdown -> HTML that can hold nothing but text, or plain text: headings, paragraphs, lists, code."""

from __future__ import annotations

import re
import textwrap
from html import escape

from .text import blank_controls, clean


def manual_to_html(manual: str) -> str:
    """HTML of the small part of Markdown that manuals use; everything else stays as escaped text.

    >>> manual_to_html("## What it does\\nSee `x<y`.")
    '<h4>What it does</h4>\\n<p>See <code>x&lt;y</code>.</p>'
    """
    out: list[str] = []
    for block in _split_blocks(manual):
        if block.startswith("```"):
            code = [blank_controls(line.expandtabs(4)).rstrip() for line in block.split("\n")[1:]]
            body = "\n".join(code[:-1] if code and code[-1] == "```" else code)
            out.append(f"<pre>{escape(body)}</pre>")
        elif block.startswith("#"):
            out.append(f"<h4>{_inline(block.lstrip('#').strip())}</h4>")
        elif re.match(r"([-*]|\d+\.) ", block):
            items = re.split(r"(?m)^(?:[-*]|\d+\.) ", block)[1:]
            tag = "ol" if block[0].isdigit() else "ul"
            out.append(f"<{tag}>{''.join(f'<li>{_inline(item)}</li>' for item in items)}</{tag}>")
        else:
            out.append(f"<p>{_inline(block)}</p>")
    return "\n".join(out)


def split_manual(manual: str, heading: str) -> tuple[str, str]:
    """The section under ``heading`` without it, and the manual without that section.

    >>> split_manual("## What it does\\nA.\\n\\n## What to do\\nB.\\n\\n## When it is wrong\\nC.", "What to do")
    ('B.', '## What it does\\nA.\\n\\n## When it is wrong\\nC.')
    """
    before, found, after = manual.partition(f"## {heading}\n")
    section, rest, last = after.partition("\n## ")
    return section.strip(), f"{before}{rest.lstrip() if found else ''}{last}"


def manual_to_text(manual: str, width: int) -> str:
    """The same as plain text, wrapped at ``width``; code is indented, as it was written.

    >>> print(manual_to_text("## What it does\\nSee `x<y` and **more** of it.", 20))
    What it does
      See x<y and more
      of it.
    """
    out: list[str] = []
    for block in _split_blocks(manual):
        if block.startswith("```"):
            code = textwrap.dedent("\n".join(block.removesuffix("```").split("\n")[1:])).rstrip()
            out.append(textwrap.indent(code, "      "))
        elif block.startswith("#"):
            out.append(("\n" if out else "") + _plain(block.lstrip("#").strip()))
        else:
            for item in re.split(r"\n(?=(?:[-*]|\d+\.) )", block):
                hang = "    " if _is_item(item) else "  "
                wrapped = textwrap.wrap(
                    _plain(item), max(20, width), initial_indent="  ", subsequent_indent=hang, break_on_hyphens=False
                )
                out.append("\n".join(wrapped))
    return "\n".join(out)


def _plain(text: str) -> str:
    return re.sub(r"\*\*([^*]+)\*\*", r"\1", clean(text).replace("`", ""))


def _split_blocks(manual: str) -> list[str]:
    """Complete fenced code, headings of one line each, lists, and paragraphs up to the next empty line."""
    blocks: list[list[str]] = []
    fenced = fresh = False
    for line in manual.splitlines():
        is_fence = line.startswith("```")
        if fenced:
            blocks[-1].append(line)
            fenced = not is_fence
            fresh = fresh or is_fence
        elif is_fence or line.startswith("#"):
            blocks.append([line])
            fenced, fresh = is_fence, True
        elif not line.strip():
            fresh = True
        elif fresh or not blocks or (_is_item(line) and not _is_item(blocks[-1][0])):
            blocks.append([line])
            fresh = False
        else:
            blocks[-1].append(line)
    return ["\n".join(block) for block in blocks]


def _is_item(line: str) -> bool:
    return re.match(r"([-*]|\d+\.) ", line) is not None


def _inline(text: str) -> str:
    """One run of text; only code spans and strong emphasis become tags, after escaping."""
    parts = re.split(r"`([^`]+)`", clean(text))
    for i, part in enumerate(parts):
        safe = escape(part)
        parts[i] = f"<code>{safe}</code>" if i % 2 else re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", safe)
    return "".join(parts)
