"""What a target is, and when an input is a fault."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from lumiimg.core.errors import BadInputError

LIMIT_S = 2.0
"""Of the processor, for one input."""
LIMIT_BYTES = 256 << 20
"""Of address space that one input may take on top of what the process has."""
HANG_LIMIT_S = 60.0
"""Of the clock: what waits for something takes no time of the processor."""
INPUT_LIMIT_BYTES = 64 << 10


_Call = TypeVar("_Call", bound=Callable[[bytes], str | None])


@dataclass(frozen=True, slots=True)
class Target:
    """One parser."""

    name: str
    parsers: tuple[str, ...]
    """What it calls, of this package: `elf.facts.read_elf`; a leading underscore where the reader is a part."""
    call: Callable[[bytes], str | None]
    """Parses, uses what comes out, and returns what a person would be shown of it, where that is text of ours."""
    refuses: tuple[type[Exception], ...] = (BadInputError,)
    """The errors by which the parser refuses an input; any other is a fault."""
    form: str = "lines"
    """How inputs are changed: `bytes`, `lines`, `json`, `toml`."""
    repair: Callable[[bytes], bytes] | None = None
    """Makes sums and digests right again, so that a change gets past them."""
    rounds: int = 40
    """Mutations in `make test`; fewer for a parser that takes milliseconds."""


TARGETS: dict[str, Target] = {}


def target(name: str, *parsers: str, **more: Any) -> Callable[[_Call], _Call]:
    """Make a function the `call` of a target (`more`: its other fields), and give it a place among all of them."""

    def add(call: _Call) -> _Call:
        TARGETS[name] = Target(name, parsers, call, **more)
        return call

    return add


class FaultError(Exception):
    """An input that a parser does not bear."""


class _TooSlowError(BaseException):
    """Not an Exception: no parser may take it for a broken input."""


@contextlib.contextmanager
def bounded(limit_bytes: int = LIMIT_BYTES) -> Iterator[None]:
    """Bound memory and time of what runs within; the time of each input is set by `try_input`."""

    def stop(_signal: int, _frame: object) -> NoReturn:
        raise _TooSlowError

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = [(number, signal.signal(number, stop)) for number in (signal.SIGPROF, signal.SIGALRM)]
    resource.setrlimit(resource.RLIMIT_AS, (_address_space_bytes() + limit_bytes, hard))
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def try_input(target: Target, data: bytes) -> bool:
    """Tell whether the parser takes an input; False where it refuses it as it should. Raises FaultError."""
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    signal.setitimer(signal.ITIMER_REAL, HANG_LIMIT_S)
    try:
        shown = target.call(data)
    except target.refuses as error:
        message = str(error)
        if not message or not message.isprintable():
            raise FaultError(f"an error that is not one printable line: {message[:200]!r}") from error
        return False
    except _TooSlowError as error:
        raise FaultError(f"takes more than {LIMIT_S:.0f} s of the processor, or hangs") from error
    except MemoryError as error:
        raise FaultError(f"takes more than {LIMIT_BYTES >> 20} MiB") from error
    except Exception as error:
        raise FaultError(f"{type(error).__name__}: {error}"[:300]) from error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    for line in (shown or "").split("\n"):
        if not line.isprintable():
            raise FaultError(f"shows what is not printable: {line[:200]!r}")
    return True


def _address_space_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - read once, of the kernel
        return int(file.read().split()[0]) * resource.getpagesize()
