"""Check text that goes into a definition file, and quote values for it.

A definition file is parsed line by line before any shell sees it (apptainer pkg/build/types/parser), with traps that
shell quoting cannot prevent. Measured on Apptainer 1.4.5, 2026-11-21, each in a heredoc inside `%post`:

- a line whose first non-blank character is `%` is a section header, indented or not: `%labels` ends the script silently
  and the build still succeeds; any other word is a fatal error without a line number;
- `{{ word }}` is a build argument: fatal if it is not defined (`{{ .Id }}`, `{{ a b }}` and `{a}` are left unchanged);
- a line that begins with `bootstrap:`, in any case, starts another stage, wherever it is: the following text is that
  stage's header (`All` in deffile.go);
- a line of 64 KiB or more is fatal (`bufio.Scanner: token too long`);
- a carriage return at the end of a line is dropped;
- files that `%files` puts under /tmp or /var/tmp are lost: the host's folders are mounted over them during `%post`.
"""

from __future__ import annotations

import re

from lumiimg.core.errors import BadInputError

LINE_LIMIT_BYTES = 60_000
_STAGE = re.compile(r"bootstrap:", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
"""Control characters except the tab."""
_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+")


class DefinitionError(BadInputError):
    """Text that a definition file cannot contain unchanged."""


def checked_body(body: str, where: str) -> str:
    """Return a script's text in a form that a section may contain, ending in a newline.

    Raises DefinitionError, with file and line, if the engine would interpret a line itself.
    """
    for number, line in enumerate(body.split("\n"), start=1):
        problem, hint = trap(line)
        if problem:
            raise DefinitionError(problem, where=f"{where}:{number}", hint=hint)
    return body if body.endswith("\n") else body + "\n"


def trap(line: str) -> tuple[str, str]:
    """Return the part of a script line that an engine would misread, and the remedy; empty strings if there is none."""
    if line.lstrip().startswith("%"):
        return (
            f"the line begins with {line.split(maxsplit=1)[0][:40]!r}, which starts a section in a definition file",
            r"print it with printf '\045name\n', or put the text into a file of the layer",
        )
    if "{{" in line:
        return "the line contains '{{', which marks a build argument in a definition file", "write '{''{'"
    if "\r" in line:
        return "the line contains a carriage return, which the engine drops", "save the file with Unix line endings"
    if _STAGE.match(line):
        return "the line begins with 'Bootstrap:', which starts another image in a definition file", "indent it"
    if "\0" in line:
        return "the line contains a NUL byte", "remove it"
    if _CONTROL.search(line):
        return "the line contains a control character", "write it as an escape for printf: '\\033'"
    if len(line.encode()) > LINE_LIMIT_BYTES:
        return f"the line is longer than {LINE_LIMIT_BYTES} bytes, which the engine cannot read", "break it"
    return "", ""


def quote_bash(value: str) -> str:
    r"""Quote a value for bash: none of its bytes can start a line, open a `{{`, or end the quotes.

    `$'…'` (bash(1), QUOTING) escapes everything but plain characters, so a newline in a value is `\x0a` in the file.
    """
    if _PLAIN.fullmatch(value):
        return value
    escaped = "".join(c if (c.isalnum() and c.isascii()) or c in " _@+=:,./-" else _escape(c) for c in value)
    return f"$'{escaped}'"


def _escape(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def quote_sh(value: str, where: str) -> str:
    """Quote a value for a POSIX shell, which reads `%environment`.

    Raises DefinitionError for a value that POSIX quoting cannot put on one line.
    """
    if any(not c.isprintable() for c in value):
        raise DefinitionError(f"the value {value!r} contains a control character", where=where, hint="remove it")
    # '{''{' is the same word to the shell, but not a build argument to the engine
    quoted = "'" + value.replace("'", "'\"'\"'") + "'"
    while "{{" in quoted:
        quoted = quoted.replace("{{", "{''{")
    return quoted
