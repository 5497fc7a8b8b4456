"""Dumps of PyTorch's flight recorder: which collective each rank began last, and which ranks are behind where.

A process writes a dump when a collective takes too long: `nccl_trace_rank_3`, as a pickle or as JSON. Formats:
torch/csrc/distributed/c10d/FlightRecorder.hpp and FlightRecorderDetail.hpp, versions 2.0 to 2.10 (PyTorch 2.15).
Only the file name shows the rank.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, TypeVar

from lumiimg.core.errors import BadInputError, one_line
from lumiimg.core.text import ranges

GROUP_LIMIT, DUMP_LIMIT = 256, 16_384
"""Maximum number of process groups read from a dump, and of dumps per job."""
DUMP_LIMIT_BYTES = 32 << 20
_RANKS = 65_536
"""Maximum number of ranks read for a process group."""
_NAMED = 64
"""Maximum number of ranks, or ranges of ranks, named in a line."""
_CALLS, _DIMENSIONS = 64, 64
"""Maximum number of calls stored per process group (the latest), and of dimensions of a tensor."""
_ENTRIES, _FRAMES = 100_000, 256
"""Maximum number of entries read from a dump, and of frames per call stack: a pickle may repeat one endlessly."""
_CODES, _VALUES = 8_000_000, 1_000_000
"""Maximum number of opcodes in a pickle, and of values: 20,000 collectives with call stacks need half of that."""
_NUMBER_LIMIT = 10**18
_PICKLE = re.compile(rb"\x80\x02\}\(X.\0\0\0(?:version|entries|pg_config)", re.DOTALL)
_JSON = re.compile(rb'\s{0,16}\{\s{0,16}"(?:comm_lib_version|entries|nccl_comm_state|nccl_version|pg_config)"\s{0,4}:')
_Value = TypeVar("_Value")
_RANK = re.compile(r"(\d{1,7})(?:\.(?:json|pickle|pkl))?$")
_WORD = 200
_BETWEEN_TWO = re.compile(r"(?:\w{1,20}:)?_?(?:send|recv|coalesced)", re.IGNORECASE)
"""Calls that may legitimately differ between ranks."""
_OF_ANY_SIZE = re.compile(r"(?:\w{1,20}:)?_?(?:all_?to_?all|gather|scatter)", re.IGNORECASE)
"""Calls to which ranks may contribute different amounts of data."""


def is_dump(head: bytes) -> bool:
    """Return whether a file with this start may be a dump; only reading it shows whether it is."""
    return is_pickle(head) or _JSON.match(head) is not None


def is_pickle(head: bytes) -> bool:
    """Return whether a file with this start is a pickle of a flight recorder."""
    return _PICKLE.match(head) is not None


@dataclass(frozen=True, slots=True)
class Stall:
    """The ranks that a stall began with, and the reason."""

    ranks: str
    """Ranks that the others waited for: `0-3,8`."""
    reason: str
    """What shows it, as the predicate of a sentence about these ranks."""
    differs: bool = False
    """Whether they called a different collective, or one of a different size, rather than fewer collectives."""

    @property
    def who(self) -> str:
        """The ranks, in words."""
        return ranks_word(self.ranks)


@dataclass(frozen=True, slots=True)
class RankProgress:
    """How far a rank got in a process group, according to its dump of PyTorch's flight recorder."""

    rank: int
    """Rank, from the file name."""
    group: str
    """The process group with its purpose: `0 (default_pg)`."""
    begun: int
    """Number of the last collective that it began."""
    completed: int
    """Number of the last collective that ended; -1 if none did, or the dump does not say."""
    waits_in: str | None
    """The first call whose end was not seen, with its source line if recorded; null if all ended."""

    @property
    def sentence(self) -> str:
        """The same, in words."""
        waits = f", waits in {self.waits_in}" if self.waits_in else ""
        calls = f"began {max(self.begun, 0)}, ended {max(self.completed, 0)}"
        return f"rank {self.rank}, process group {self.group}: {calls}{waits}"


def rank_ranges(numbers: Iterable[int]) -> str:
    """Return numbers as Slurm writes them: `0-3,8`; if there are very many, only the first."""
    parts = ranges(sorted(numbers)[: _NAMED * 64]).split(",")
    return ",".join(parts[:_NAMED]) + (",…" if len(parts) > _NAMED else "")


def ranks_word(ranks: str) -> str:
    """Return ranks with their noun: `rank 3`, `ranks 3-5`."""
    return f"{'rank' if ranks.isdecimal() else 'ranks'} {ranks}"


# -- a pickle as PyTorch's C++ code writes it, read as pure data: nothing that it names is looked up, imported or called


class _Unpickler(pickle._Unpickler):  # noqa: SLF001 - Python's own, which has a table of opcodes
    """Accepts only the opcodes that torch/csrc/jit/serialization/pickler.cpp writes for a flight recorder: protocol 2
    with numbers, texts, lists, tuples and dictionaries (c10d/TraceUtils.h, pickle_str). Any other opcode, such as one
    that calls something (GLOBAL, REDUCE, BUILD), is a KeyError. See https://docs.python.org/3/library/pickletools.html
    """

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]
    codes = values = 0

    def load_items(self) -> None:
        items, into = self.pop_mark(), self.stack[-1]
        # hashing a deep tuple would crash the process, and large numbers can be chosen to collide
        if not all(isinstance(key, str) or _number(key) == key for key in items[::2]):
            raise ValueError("a key that is neither text nor a number")
        into.update(zip(items[::2], items[1::2], strict=True))


def _counted(load: Callable[[Any], None], *, makes_value: bool) -> Callable[[Any], None]:
    def counted(reader: _Unpickler) -> None:
        reader.codes += 1
        reader.values += makes_value
        if reader.codes > _CODES or reader.values > _VALUES:
            raise ValueError("too many values")
        load(reader)

    return counted


_ALL: dict[int, Any] = _Unpickler.dispatch | {pickle.SETITEMS[0]: _Unpickler.load_items}
_Unpickler.dispatch = {code: _counted(_ALL[code], makes_value=False) for code in b"\x80.N\x88\x89hjqe(u"}
_Unpickler.dispatch |= {code: _counted(_ALL[code], makes_value=True) for code in b"JKM\x8aGX)}]t\x85\x86\x87r"}
_ERRORS = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, RecursionError, TypeError, ValueError),
    *(pickle.UnpicklingError, struct.error),
)
"""Exceptions raised for a dump that is cut off, damaged or something else."""


# -- the content of a dump


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """Activity of a rank in one process group."""

    enqueued: int
    """Number of the last collective that it enqueued."""
    completed: int
    """Number of the last collective that ended; -1 if not known."""
    calls: dict[int, str]
    """The latest collectives by number: `nccl:all_reduce`, with the line of the program if recorded."""
    sizes: dict[int, int]
    """Number of elements that the rank contributed to each of them."""


@dataclass(frozen=True, slots=True)
class FlightDump:
    """The dump of one rank."""

    rank: int | None
    groups: dict[str, GroupSeen]
    """Activity by name of the process group."""
    members: dict[str, tuple[int, ...]]
    """Ranks of each group that the dump describes."""


def parsed(data: bytes, file: str) -> FlightDump:
    """Return the parsed dump; raises BadInputError if the bytes are not a dump."""
    if len(data) > DUMP_LIMIT_BYTES:
        raise BadInputError(f"is a dump larger than {DUMP_LIMIT_BYTES >> 20} MiB", where=file)
    try:
        value = _Unpickler(io.BytesIO(data)).load() if is_pickle(data) else json.loads(data)
    except _ERRORS as error:
        raise BadInputError("is cut off, or not a dump of PyTorch's flight recorder", where=file) from error
    if not isinstance(value, dict) or not value.keys() & {"pg_config", "pg_status", "entries"}:
        raise BadInputError("is not a dump of PyTorch's flight recorder", where=file)
    found = _RANK.search(Path(file).name)
    return FlightDump(int(found[1]) if found else None, _groups(value), _members(value.get("pg_config")))


def _groups(dump: dict[object, object]) -> dict[str, GroupSeen]:
    entries: dict[str, dict[int, dict[object, object]]] = {}
    ended: dict[str, int] = {}
    names: dict[str, str] = {}
    for entry in _dictionaries(dump.get("entries"), _ENTRIES):
        number, group = _number(entry.get("collective_seq_id")), _group(entry)
        if number < 0 or entry.get("is_p2p") is True or (group not in entries and len(entries) >= GROUP_LIMIT):
            continue
        names[str(_number(entry.get("pg_id")))] = group
        of = entries.setdefault(group, {})
        of[number] = entry
        if len(of) > _CALLS:
            del of[min(of)]
        if entry.get("state") == "completed":
            ended[group] = max(ended.get(group, -1), number)
    calls = {group: {number: _call(entry) for number, entry in of.items()} for group, of in entries.items()}
    sizes = {group: {number: _elements(entry) for number, entry in of.items()} for group, of in entries.items()}
    status = {names.get(str(key), str(key)): of for key, of in _pairs(dump.get("pg_status"))}
    seen = {}
    for group in [*calls, *(name for name in status if name not in calls)][:GROUP_LIMIT]:
        known = status.get(group, {})
        last = max(calls.get(group, {}), default=-1)
        enqueued = max(_number(known.get("last_enqueued_collective")), last)
        completed = max(_number(known.get("last_completed_collective")), ended.get(group, -1))
        seen[group] = GroupSeen(enqueued, completed, calls.get(group, {}), sizes.get(group, {}))
    return seen


def _group(entry: dict[object, object]) -> str:
    """Return the name of an entry's process group with its purpose: `0 (default_pg)`."""
    of = entry.get("process_group")
    words = [_text(word) for word in of[:2]] if isinstance(of, list | tuple) else []
    name, purpose = (*words, "", "")[:2]
    return f"{name} ({purpose})" if purpose and purpose != "undefined" else name


def _call(entry: dict[object, object]) -> str:
    name = _text(entry.get("profiling_name"))
    for frame in _dictionaries(entry.get("frames"), _FRAMES):
        file, line = _text(frame.get("filename")), frame.get("line")
        if file.endswith(".py") and "/torch/" not in file and type(line) is int:
            return f"{name} ({file}:{line})"
    return name


def _elements(entry: dict[object, object]) -> int:
    """Return the number of elements in the tensors of a call; -1 if the dump does not say."""
    tensors = entry.get("input_sizes")
    if not isinstance(tensors, list) or not all(
        isinstance(one, list) and len(one) < _DIMENSIONS for one in tensors[:_CALLS]
    ):
        return -1
    counts = [prod(max(_number(side), 0) for side in one) for one in tensors[:_CALLS]]
    return sum(counts) if sum(counts) < _NUMBER_LIMIT else -1


def _members(config: object) -> dict[str, tuple[int, ...]]:
    groups = ((_text(key), group.get("ranks")) for key, group in [*_pairs(config)][:GROUP_LIMIT])
    return {key: _listed(ranks[: 8 * _RANKS]) if isinstance(ranks, str) else () for key, ranks in groups}


@lru_cache(512)
def _listed(ranks: str) -> tuple[int, ...]:
    """Return the numbers in a list; cached because the dumps of all ranks contain the same lists."""
    return tuple(int(rank) for rank in re.findall(r"\d{1,7}", ranks)[:_RANKS])


def _dictionaries(values: object, most: int) -> Iterator[dict[object, object]]:
    yield from (one for one in values[:most] if isinstance(one, dict)) if isinstance(values, list) else ()


def _pairs(values: object) -> Iterator[tuple[object, dict[object, object]]]:
    yield from ((k, v) for k, v in values.items() if isinstance(v, dict)) if isinstance(values, dict) else ()


def _number(value: object) -> int:
    """Return a number, which JSON dumps store as text; -1 for anything else."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    return value if type(value) is int and abs(value) < _NUMBER_LIMIT else -1


def _text(value: object) -> str:
    return one_line(value[:_WORD]) if isinstance(value, str) else ""


def progress(dumps: Sequence[FlightDump]) -> tuple[RankProgress, ...]:
    """Return how far each rank got in each group, in rank order."""
    found = [
        RankProgress(dump.rank, group, seen.enqueued, seen.completed, _waits_in(seen))
        for dump in dumps
        if dump.rank is not None
        for group, seen in dump.groups.items()
    ]
    return tuple(sorted(found, key=lambda one: (one.rank, one.group)))


def _waits_in(seen: GroupSeen) -> str | None:
    """Return the first call whose end was not seen."""
    waiting = sorted(number for number in seen.calls if number > seen.completed)
    return seen.calls[waiting[0]] if waiting else None


def stalled(dumps: Sequence[FlightDump]) -> Stall | None:
    """Return which ranks are behind in a group, or call something different from the others; None if there are none."""
    ranked = {dump.rank: dump for dump in dumps if dump.rank is not None}
    groups = dict.fromkeys(group for dump in ranked.values() for group in dump.groups)
    for group in groups:
        of = {rank: dump.groups[group] for rank, dump in ranked.items() if group in dump.groups}
        members = {rank for dump in ranked.values() for rank in dump.members.get(group.partition(" (")[0], ())}
        of |= {rank: GroupSeen(0, 0, {}, {}) for rank in members & ranked.keys() - of.keys()}
        if found := _behind(group, of) or _mismatch(group, of):
            return found
    return _silent(ranked)


def _behind(group: str, of: dict[int, GroupSeen]) -> Stall | None:
    """Return the ranks that began the fewest collectives, if others wait in the next one: dumps of a running job are
    from different moments, and if one hangs, ranks may have enqueued more or fewer collectives after that one.
    """
    least = min(seen.enqueued for seen in of.values())
    if not any(seen.completed in {-1, least} and least < seen.enqueued for seen in of.values()):
        return None
    ranks = [rank for rank, seen in of.items() if seen.enqueued == least]
    waiting = next((seen.calls[least + 1] for seen in of.values() if least + 1 in seen.calls), "")
    what = f", {waiting}" if waiting else ""
    reason = f"did not begin collective {least + 1} of process group {group}{what}, although the others did"
    return Stall(rank_ranges(ranks), reason)


def _mismatch(group: str, of: dict[int, GroupSeen]) -> Stall | None:
    """Return the ranks whose call under some number differs from that of most, or has a different size and has not
    ended: NCCL does not detect many of these mismatches.
    """
    ended = min(seen.completed for seen in of.values())
    for number in sorted({number for seen in of.values() for number in seen.calls}):
        begun = {rank: seen for rank, seen in of.items() if number in seen.calls}
        calls = {rank: seen.calls[number].partition(" (")[0] for rank, seen in begun.items()}
        sizes = {rank: seen.sizes[number] for rank, seen in begun.items()} if number > ended else {}
        if found := differing(f"collective {number} of process group {group}", calls, sizes):
            return found
    return None


def differing(what: str, calls: dict[int, str], sizes: dict[int, int]) -> Stall | None:
    """Return the ranks whose call, or whose size (-1: not known), differs from that of most."""
    if any(_BETWEEN_TWO.match(call) for call in calls.values()):
        return None
    most, size = _commonest(calls.values()), _commonest(sizes.values())
    if other := [rank for rank, call in calls.items() if call != most]:
        return Stall(rank_ranges(other), f"called {calls[other[0]]} as {what}, others {most}", differs=True)
    other = [rank for rank, one in sizes.items() if one != size]
    if not other or -1 in sizes.values() or _OF_ANY_SIZE.match(f"{most}"):
        return None
    called = f"called {most} with {sizes[other[0]]} elements as {what}"
    return Stall(rank_ranges(other), f"{called}, others with {size}", differs=True)


def _commonest(values: Iterable[_Value]) -> _Value | None:
    """Return the most frequent value, the first one if there are several."""
    return next((value for value, _ in Counter(values).most_common(1)), None)


def _silent(ranked: dict[int, FlightDump]) -> Stall | None:
    """Return the ranks of the job that wrote no dump, if they are at most half of all."""
    everyone = {rank for dump in ranked.values() for members in dump.members.values() for rank in members}
    missing = everyone - ranked.keys()
    if ranked and missing and 2 * len(missing) <= len(everyone):
        return Stall(rank_ranges(missing), "wrote no dump of the flight recorder, although the others did")
    return None
