"""Text that is put into a script of bash: the commands of a RUN, long words, comments, messages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lumiimg.definition.text import DefinitionError, checked_body, quote_bash
from lumiimg.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.definition.docker.instructions import Instruction

_SIMPLE_COMMAND = re.compile(r"\$\([^()'\"\\`#]*\)")
_CHUNK = 8000
_COMMENT = 300


def script_of(instruction: Instruction) -> str:
    """Return what Docker gives to the shell."""
    heredocs = instruction.heredocs
    if is_heredoc_alone(instruction):
        content = heredocs[0].content
        return re.sub(r"^\t+", "", content, flags=re.MULTILINE) if heredocs[0].strips_tabs else content
    text = _broken(instruction.pieces)
    return "\n".join([text, *(f"{heredoc.content}{heredoc.name}" for heredoc in heredocs)])


def is_heredoc_alone(instruction: Instruction) -> bool:
    """Whether RUN has a heredoc and no command: Docker runs what it holds, by its own interpreter if it names one."""
    return len(instruction.heredocs) == 1 and re.fullmatch(r"\d*<<-?\S+", instruction.text) is not None


def _broken(pieces: Sequence[str]) -> str:
    r"""Put the lines together, broken by `\` as in the file where the shell takes that as nothing.

    Docker takes the break out before the shell sees it; inside '…', behind a comment's #, and where this reading of
    quotes comes to its end, the line is therefore left whole.
    """
    text, quote, is_sure = "", "", True
    for number, piece in enumerate(pieces):
        if number:
            text += "\\\n" if is_sure and quote != "'" else ""
        text += piece
        at = 0
        while is_sure and at < len(piece):
            character = piece[at]
            if character == "\\" and quote != "'":
                at += 1
            elif character in "'\"" and quote in ("", character):
                quote = "" if quote else character
            elif quote == '"' and (inner := _SIMPLE_COMMAND.match(piece, at)) is not None:
                at = inner.end() - 1
            elif quote != "'":
                is_comment = character == "#" and not quote and (at == 0 or piece[at - 1] in " \t;&|(")
                is_command = character == "`" or (quote == '"' and piece.startswith("$(", at))
                is_sure = not (is_comment or is_command or (not quote and piece.startswith("<<", at)))
            at += 1
        # An escape of the shell at the end of a piece would take the break for its own.
        is_sure = is_sure and not piece.endswith("\\")
    return text


def is_plain(script: str, end: str) -> bool:
    """Whether a script can stand in a heredoc as it is."""
    if end in script.split("\n") or not all(character.isprintable() or character in "\t\n" for character in script):
        return False
    try:
        checked_body(script, "")
    except DefinitionError:
        return False
    return True


def chunks(text: str) -> str:
    """Quote a text that may be long as one word over lines that are not."""
    lines = text.splitlines(keepends=True)
    parts = [line[at : at + _CHUNK] for line in lines for at in range(0, len(line), _CHUNK)]
    return "\\\n".join(map(quote_bash, parts)) or "''"


def comment_text(text: str) -> str:
    """Return a text as it may stand in a comment: printable, and nothing that a definition file would read."""
    return one_line(text).replace("{{", "{ {")


def comment(text: str) -> str:
    """Return one line of a comment."""
    line = comment_text(text)
    return f"# {line[:_COMMENT]}{'…' if len(line) > _COMMENT else ''}"


def message(text: str) -> str:
    """Quote a message so that a person can read it in the script too."""
    return "'" + comment_text(text)[:_COMMENT].replace("'", "'\\''") + "'"
