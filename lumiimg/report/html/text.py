"""Foreign text on a page: one line, of bounded length, without what looks like a secret: a page will be shared."""

from __future__ import annotations

import re

from lumiimg.errors import one_line

HIDDEN = "(not shown)"
"""What stands where a secret was."""
LIMIT = 2000
"""Characters of one text; a line of a log may have millions."""
_NAME = r"token(?!s|iz)|secret|passw(?:or)?d|passphrase|credential|(?:api|access|private)[_-]?key"
_VALUE = r"\"[^\"]*\"|'[^']*'|\S+"
_SECRETS = (
    # NAME=value, "name": value, --name value
    (
        re.compile(rf"(?i)((?:{_NAME})[\w.-]{{0,40}}[\"']?\s{{0,3}}[=:]\s{{0,3}})(?:{_VALUE})"),
        rf"\1{HIDDEN}",
    ),
    (re.compile(rf"(?i)(--[\w-]{{0,30}}(?:{_NAME})\s)(?:{_VALUE})"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b((?:bearer|basic)\s)[\w.~+/=-]{8,}"), rf"\1{HIDDEN}"),
    (re.compile(r"(://)[^/\s@]{1,200}@"), rf"\1{HIDDEN}@"),
    # of Hugging Face, GitHub, GitLab, OpenAI, AWS, and JSON web tokens: by the form that each has
    (
        re.compile(
            r"\b(?:hf_\w{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|sk-[\w-]{16,}|AKIA[0-9A-Z]{16}|eyJ[\w-]{10,}\.[\w-]+\.[\w-]+)"
        ),
        HIDDEN,
    ),
)


def shown(text: str) -> str:
    """Return a text as it may stand on a page: control characters spelled out, secrets left out, cut where it is long.

    Control characters are those of `errors.one_line`: NUL, which HTML cannot carry, and marks that turn the direction
    of writing are among them.
    """
    is_long = len(text) > LIMIT
    text = one_line(text[:LIMIT])
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return f"{text}… (cut)" if is_long else text


def short(text: str, limit: int) -> str:
    """Return a text in so many characters, its end left out."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def without_folders(text: str) -> str:
    """Return a text with the last part of each path alone: for a picture, where the whole stands beside it."""
    return re.sub(r"(?<![\w.:/])/(?:[^/\s:,;]+/)+([^/\s:,;]+)", r"\1", text)
