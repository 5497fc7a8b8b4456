"""The definition of a target, and of a fault."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from lumiimg.core.errors import BadInputError

LIMIT_S = 2.0
"""Processor time for one input."""
LIMIT_BYTES = 256 << 20
"""Address space that one input may use in addition to that of the process."""
HANG_LIMIT_S = 60.0
"""Wall-clock time, because waiting takes no processor time."""
INPUT_LIMIT_BYTES = 64 << 10


_Call = TypeVar("_Call", bound=Callable[[bytes], str | None])


@dataclass(frozen=True, slots=True)
class Target:
    """One parser."""

    name: str
    parsers: tuple[str, ...]
    """The functions of this package that it calls: `elf.facts.read_elf`; an internal one has a leading underscore."""
    call: Callable[[bytes], str | None]
    """Parses an input, uses the result, and returns the text that we would print about it, if any."""
    refuses: tuple[type[Exception], ...] = (BadInputError,)
    """The errors with which the parser may refuse an input; any other is a fault."""
    form: str = "lines"
    """How inputs are mutated: as `bytes`, `lines`, `json` or `toml`."""
    repair: Callable[[bytes], bytes] | None = None
    """Corrects checksums and digests, so that a mutation gets past them."""
    rounds: int = 40
    """Number of mutations in `make test`; fewer for a parser that takes milliseconds."""


TARGETS: dict[str, Target] = {}


def target(name: str, *parsers: str, **more: Any) -> Callable[[_Call], _Call]:
    """Register a target with the decorated function as its `call`; `more` are its other fields."""

    def add(call: _Call) -> _Call:
        TARGETS[name] = Target(name, parsers, call, **more)
        return call

    return add


class FaultError(Exception):
    """An input that reveals a fault of a parser."""


class _TooSlowError(BaseException):
    """Not an Exception, so that no parser can mistake it for a broken input."""


@contextlib.contextmanager
def bounded(limit_bytes: int = LIMIT_BYTES) -> Iterator[None]:
    """Limit memory and time of what runs within; `try_input` sets the time of each input."""

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
    """Return whether the parser accepts an input; False if it refuses it properly. Raises FaultError."""
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
