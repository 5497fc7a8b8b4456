"""The program: one sub-command a module; here only the parser, the errors and the exit code.

Nothing is imported here that `--help` does not need; each command imports its rooms when it runs.
"""

from __future__ import annotations

import argparse
import codecs
import errno
import functools
import gc
import io
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from lumiimg import __version__
from lumiimg.cli import (
    adapt,
    bench,
    bind,
    build,
    cache,
    check,
    completion,
    diff,
    doctor,
    draft,
    drift,
    explain,
    host,
    job,
    ldd,
    listing,
    lock,
    log,
    module,
    node,
    rebuild,
    reframe,
    schema,
    show,
    sign,
    start,
    verify,
    why,
)
from lumiimg.errors import ExitCode, LumiimgError, one_line
from lumiimg.secret import hidden

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import FrameType

FAULT = 70
"""EX_SOFTWARE of sysexits.h: none of our answers."""
GROUPS = {
    "build": (build, adapt, rebuild, lock, diff, why, draft),
    "prove": (check, bind, drift, reframe, sign, verify),
    "explain": (explain, log, ldd, bench),
    "around it": (host, job, module, listing, show, cache, doctor, schema, completion),
}
"""The commands, as `--help` groups them."""
COMMANDS = tuple(command for commands in GROUPS.values() for command in commands)
_PLAIN = {"✓": "+", "✗": "x", "·": "-", "→": "->", "…": "...", "█": "#", "└": "`", "├": "|", "│": "|", "─": "-"}
_EPILOG = """\
exit codes: 0 good · 1 the answer is no · 2 wrong usage or bad input ·
3 cannot decide (says what would) · 4 something needed is missing here
what to do next here: lumiimg      of a command: lumiimg COMMAND --help
"""


class Parser(argparse.ArgumentParser):
    """argparse, but an error is one line: what is wrong, what was meant perhaps, and where the help is."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # noqa: ANN401 - as argparse has it
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:  # noqa: SLF001
            told = [choice.dest for choice in action._choices_actions]  # noqa: SLF001 - `node` is for lumiimg itself
            raise argparse.ArgumentError(None, f"there is no command {value!r}{meant(value, told)}")
        super()._check_value(action, value)

    @property
    def below(self) -> Sequence[argparse._SubParsersAction[Parser]]:
        """The commands below this one; nothing, or one action that has them all."""
        return [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Print what cannot be understood, with the option that was meant perhaps, and leave with 2."""
        first = words[0].partition("=")[0]
        options = self._option_string_actions if first.startswith("-") else ()
        self.error(f"unrecognized arguments: {' '.join(words)}{meant(first, options)}")

    def error(self, message: str) -> NoReturn:
        """Print one line and leave with 2."""
        print(f"{self.prog}: {hidden(one_line(message))} (see `{self.prog} --help`)", file=sys.stderr)
        raise SystemExit(ExitCode.BAD_INPUT)


def meant(word: str, names: Iterable[str]) -> str:
    """Return a question that names what is spelled alike."""
    import difflib  # only where something is wrong

    close = difflib.get_close_matches(word[:60], names, n=1, cutoff=0.7)
    return f", did you mean {close[0]}?" if close else ""


class MainParser(Parser):
    """The parser above all commands; its help shows them in groups, which argparse does not have for commands."""

    def format_help(self) -> str:
        """Return the help."""
        formatter = self._get_formatter()
        formatter.add_usage("lumiimg COMMAND ...", (), ())
        formatter.add_text(self.description)
        told = iter(self.below[0]._choices_actions)  # noqa: SLF001 - in the order in which they were added
        for title, group in GROUPS.items():
            formatter.start_section(title)
            formatter.add_arguments([next(told) for _ in group])
            formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments([action for action in self._actions if action.option_strings])
        formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()


@functools.cache  # the same for a whole process: a hundredth of a second
def make_parser() -> MainParser:
    """Return the parser of all commands."""
    parser = MainParser(
        prog="lumiimg",
        description="Build ROCm AI images for HPE Slingshot machines, and prove which network\nthey use.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"lumiimg {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    for command in (*COMMANDS, node):
        command.configure_parser(commands)
    return parser


def _command_of(parser: Parser, words: Iterable[str]) -> Parser:
    """Return the parser of the command, or of the command below that, which the words name."""
    for word in words:
        for commands in parser.below:
            parser = commands.choices.get(word, parser)
    return parser


def without_program(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return our words, and those of the program that a job runs: argparse would mix them."""
    words = list(argv)
    if words[:1] != ["job"] or "--" not in words:
        return words, []
    cut = words.index("--")
    return words[:cut], words[cut + 1 :]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = make_parser()
    words, program = without_program(sys.argv[1:] if argv is None else argv)
    arguments, rest = parser.parse_known_args(words)
    arguments.program = program
    if rest:
        # argparse gives positional words up once an option has come between them
        if not hasattr(arguments, "paths") or any(word.startswith("-") for word in rest):
            _command_of(parser, words).refuse(rest)
        arguments.paths = [*arguments.paths, *rest]
    if not hasattr(arguments, "execute"):
        start.print_start(os.environ)
        return ExitCode.GOOD
    try:
        return int(arguments.execute(arguments))
    except LumiimgError as error:
        print(f"lumiimg: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("lumiimg: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            # The reader (`| head`) has what it wanted; Python would complain again when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 128 + signal.SIGPIPE
        where = f"{error.filename}: " if error.filename else ""
        print(f"lumiimg: {hidden(one_line(f'{where}{error.strerror or error}'))}", file=sys.stderr)
        return ExitCode.NO if error.errno in {errno.ENOSPC, errno.EDQUOT} else ExitCode.BAD_INPUT
    except Exception as error:
        if os.environ.get("LUMIIMG_DEBUG"):
            raise
        what = hidden(one_line(f"{type(error).__name__}: {error}"))
        print(f"lumiimg: a fault of lumiimg: {what} (LUMIIMG_DEBUG=1 shows where; please report it)", file=sys.stderr)
        return FAULT


def run() -> NoReturn:
    """Entry point of the program."""
    # A tenth of a short command would go into searching what was just imported for garbage.
    gc.set_threshold(50_000)
    codecs.register_error("lumiimg", _in_other_letters)
    for stream in (sys.stdout, sys.stderr):
        # LANG=C on a compute node has no letter for what a log line or a file name may hold.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="lumiimg")
    # A job's time limit sends SIGTERM, a terminal that is closed SIGHUP: leave through the `finally` blocks, which
    # remove what is half-written. Under nohup SIGHUP is ignored, and stays so.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _terminate)
    if "_ARGCOMPLETE" in os.environ:  # a shell asks, at a TAB
        completion.answer(make_parser(), hidden="node")
    sys.exit(main())


def _in_other_letters(error: UnicodeError) -> tuple[str, int]:
    """Write our own marks and lines in letters that every terminal has, and spell others out."""
    if isinstance(error, UnicodeEncodeError) and (plain := _PLAIN.get(error.object[error.start])):
        return plain, error.start + 1
    replaced, position = codecs.backslashreplace_errors(error)
    return str(replaced), position


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    # once: a terminal that closes sends SIGHUP twice (its shell, then the kernel), and what the first has begun to
    # put in order, a job to be cancelled, must come to its end; a third Ctrl-C still ends that
    for repeated in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(repeated, signal.SIG_IGN)
    raise SystemExit(128 + number)
