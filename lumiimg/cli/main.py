"""The program around one command: errors, exit code, signals and streams.

This module imports only what `--help` needs; a command's module is imported when it runs.
"""

from __future__ import annotations

import argparse
import codecs
import errno
import gc
import io
import os
import signal
import sys
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn

from lumiimg.cli.commands import commands_with, parser_for
from lumiimg.cli.error_output import write_error
from lumiimg.cli.parser import Parser
from lumiimg.core.errors import BadInputError, ExitCode, LumiimgError, RefusedError, one_safe_line, say, write_note
from lumiimg.core.redact import has_login

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import FrameType

FAULT = 70
"""EX_SOFTWARE of sysexits.h; not used for any answer of lumiimg."""
_PLAIN = {"✓": "+", "✗": "x", "·": "-", "→": "->", "…": "...", "█": "#", "└": "`", "├": "|", "│": "|", "─": "-"}


def _command_of(parser: Parser, words: Iterable[str]) -> Parser:
    """Return the parser of the command or subcommand that the words name."""
    for word in words:
        parser = parser.below.get(word, parser)
    return parser


def _refuse_words(words: Sequence[str]) -> None:
    """Raise BadInputError for a word that no command accepts.

    An empty word: `--site "$SITE"` in a script does not mean "no site". An address with a login: it would appear in
    messages and results, split into folders where a path is expected.
    """
    are_options = True
    for before, word in pairwise(("", *words)):
        are_options = are_options and word != "--"
        option, equals, value = word.partition("=")
        what = option if option.startswith("--") and equals else before if before.startswith("-") else "an argument"
        if are_options and (not word or (option.startswith("--") and equals and not value)):
            raise BadInputError(f"{what} is empty", hint="perhaps a shell variable is not set")
        if has_login(word):
            from lumiimg.engine.engine import engine_word

            raise BadInputError(
                f"{one_safe_line(what)} contains an address with a password",
                hint=f"leave it out: lumiimg reads ~/.netrc, and the engine uses `{engine_word()} registry login`",
            )


def without_program(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return lumiimg's words, and those of the program that a job runs, after `--` or from its first word.

    argparse would mix them. Raises BadInputError if a word may belong to either.
    """
    words = list(argv)
    if words[:1] != ["job"]:
        return words, []
    if "--" in words:
        cut = words.index("--")
        return words[:cut], words[cut + 1 :]
    own, program = parser_for(words).below["job"].program_in(words[1:])
    return ["job", *own], program


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. Raises BadInputError, and SystemExit for wrong usage or after printing a help text."""
    words = [*argv[1:], "--help"] if argv[:1] == ["help"] else list(argv)
    Parser.words = words
    parser = parser_for(words)
    words, program = without_program(parser.behind_command(words))
    arguments, rest = parser.parse_known_args(words)
    arguments.program = program
    if rest:
        _command_of(parser, words).take(rest, arguments, commands_with(rest[0].partition("=")[0]))
    _refuse_words(words)
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = argparse.Namespace()
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv)
        if not hasattr(arguments, "command"):
            from lumiimg.cli.start import show_start

            show_start(os.environ)
            return ExitCode.GOOD
        return _execute(arguments)
    except LumiimgError as error:
        if isinstance(error, RefusedError):
            _report_site(arguments)
        if error.hint is None:
            from lumiimg.cli.suggestions import add_suggestion  # imported only after an error

            add_suggestion(error)
        write_error("lumiimg", str(error), error.sentence, error.hint)
        if vars(arguments).get("verbose"):
            for line in error.more:
                say(f"  {line}")
        return error.exit_code
    except KeyboardInterrupt:
        print("lumiimg: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            return 128 + signal.SIGPIPE  # the reader (`| head`) has what it wanted
        stopped = BadInputError(error.strerror or str(error), where=os.fsdecode(error.filename or "") or None)
        write_error("lumiimg", str(stopped), stopped.sentence, stopped.hint)
        return ExitCode.NO if error.errno in {errno.ENOSPC, errno.EDQUOT} else ExitCode.BAD_INPUT
    except Exception as error:
        if os.environ.get("LUMIIMG_DEBUG"):
            raise
        stopped = BadInputError(f"{type(error).__name__}: {error}", where="a bug in lumiimg")
        hint = "LUMIIMG_DEBUG=1 shows where; please report it"
        write_error("lumiimg", f"{stopped} ({hint})", stopped.sentence, hint)
        return FAULT


def _execute(arguments: argparse.Namespace) -> int:
    code = int(import_module(f"lumiimg.cli.{arguments.command}").execute(arguments))
    sys.stdout.flush()  # an answer that cannot be written does not count
    _report_site(arguments)
    return code


def _report_site(arguments: argparse.Namespace) -> None:
    """Report the site that was chosen without being named, and why."""
    options = vars(arguments)
    if (note := options.get("site_note")) and not options.get("quiet"):
        write_note(note)


def run() -> NoReturn:
    """Entry point of the program."""
    # Otherwise a tenth of a short command's time would go into garbage collection of what was just imported.
    gc.set_threshold(50_000)
    codecs.register_error("lumiimg", _in_ascii)
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # LANG=C on a compute node cannot encode every character of a log line or file name.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="lumiimg")
    # A job's time limit sends SIGTERM, a closed terminal sends SIGHUP: exit through the `finally` blocks, which remove
    # half-written files. Under nohup, SIGHUP is ignored, and stays ignored.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _terminate)
    if "_ARGCOMPLETE" in os.environ:  # a shell requests completions
        from lumiimg.cli import completion

        completion.answer(parser_for(os.environ.get("COMP_LINE", "").split(), offered=True))
    try:
        sys.exit(main())
    finally:
        _drop_what_is_left()


def _drop_what_is_left() -> None:
    """Drop output that a full or closed stream did not accept: Python would retry, complain, and exit with 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _open_closed_streams() -> None:
    """Open closed standard streams on /dev/null: otherwise the next file would get the number, and the output."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # the lowest free number is the stream's own
            stream = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(stream, True)
            setattr(sys, name, os.fdopen(stream, "r" if name == "stdin" else "w", closefd=False))


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """Replace lumiimg's own symbols with ASCII, and escape all other characters that cannot be encoded."""
    if isinstance(error, UnicodeEncodeError) and (plain := _PLAIN.get(error.object[error.start])):
        return plain, error.start + 1
    replaced, position = codecs.backslashreplace_errors(error)
    return str(replaced), position


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    # only once: a closing terminal sends SIGHUP twice (its shell, then the kernel), and the cleanup that the first one
    # started, such as cancelling a job, must finish; a third Ctrl-C still ends that
    for repeated in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(repeated, signal.SIG_IGN)
    raise SystemExit(128 + number)
