"""The program: one sub-command a module; here only the parser, the errors and the exit code.

Nothing is imported here that `--help` does not need; each command imports its rooms when it runs.
"""

from __future__ import annotations

import argparse
import errno
import gc
import io
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

from lumiimg import __version__
from lumiimg.cli import (
    adapt,
    bench,
    bind,
    build,
    cache,
    check,
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
    show,
    sign,
    verify,
    why,
)
from lumiimg.errors import ExitCode, LumiimgError, one_line
from lumiimg.secret import hidden

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

FAULT = 70
"""EX_SOFTWARE of sysexits.h: none of our answers."""
COMMANDS = (
    build,
    rebuild,
    adapt,
    lock,
    diff,
    check,
    log,
    host,
    bind,
    drift,
    module,
    explain,
    job,
    ldd,
    reframe,
    draft,
    listing,
    show,
    sign,
    verify,
    cache,
    why,
    bench,
    doctor,
)
_EPILOG = """\
exit codes: 0 good · 1 the answer is no · 2 wrong usage or bad input ·
3 cannot decide (says what would) · 4 something needed is missing here

start with:  lumiimg check IMAGE   or   lumiimg build --recipe demo -o demo.sif
"""


class Parser(argparse.ArgumentParser):
    """argparse, but an error is one line: what is wrong and where the help is."""

    def error(self, message: str) -> NoReturn:
        """Print one line and leave with 2."""
        print(f"{self.prog}: {hidden(one_line(message))} (see `{self.prog} --help`)", file=sys.stderr)
        raise SystemExit(ExitCode.BAD_INPUT)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = Parser(
        prog="lumiimg",
        description="Build ROCm AI images for HPE Slingshot machines, and prove which network they use.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"lumiimg {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    for command in (*COMMANDS, node):
        command.configure_parser(commands)
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
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        arguments.paths += rest
    if not hasattr(arguments, "execute"):
        parser.print_help()
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
        print(f"lumiimg: {one_line(f'{where}{error.strerror or error}')}", file=sys.stderr)
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
    for stream in (sys.stdout, sys.stderr):
        # LANG=C on a compute node has no letter for what a log line or a file name may hold.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # A job's time limit sends SIGTERM, a terminal that is closed SIGHUP: leave through the `finally` blocks, which
    # remove what is half-written. Under nohup SIGHUP is ignored, and stays so.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _terminate)
    sys.exit(main())


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    # once: a terminal that closes sends SIGHUP twice (its shell, then the kernel), and what the first has begun to
    # put in order, a job to be cancelled, must come to its end; a third Ctrl-C still ends that
    for repeated in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(repeated, signal.SIG_IGN)
    raise SystemExit(128 + number)
