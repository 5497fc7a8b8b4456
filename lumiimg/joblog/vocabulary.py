"""The compiled knowledge base (general.toml and a file per topic): what messages mean, and which are troubles."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from lumiimg.core.findings import Remedy
from lumiimg.core.toml import package_toml
from lumiimg.joblog.gpu_memory import RELATIONS
from lumiimg.joblog.lines import prefixes
from lumiimg.joblog.verdict import Verdict

if TYPE_CHECKING:
    import datetime as dt

    from lumiimg.joblog.lines import Message

_Entry = TypeVar("_Entry")

TOPICS = ("plugin.toml", "libfabric.toml", "nccl.toml", "gpu.toml", "slurm.toml", "oneccl.toml", "programs.toml")
"""Files of troubles, ordered so that the likelier cause comes first if a log shows several."""


class Effect(StrEnum):
    """Effect of a trouble on the plugin of the process that prints it."""

    MISSING = "missing"
    """No plugin of the expected name was found."""
    LOAD_ERROR = "load-error"
    """The file was found, but could not be loaded or is unusable for this library."""
    INIT_ERROR = "init-error"
    """init() failed: the library falls back to IB or Socket, unless NCCL_NET forbids it."""
    ENDPOINT_ERROR = "endpoint-error"
    """The provider was selected but cannot be used: the job dies, whatever was selected before."""
    NETWORK_ABSENT = "network-absent"
    """NCCL_NET requests a network that no loaded plugin provides: the job dies."""
    NO_NETWORK = "no-network"
    """No network could be started, and there is no fallback left: the job dies."""
    RUN_ERROR = "run-error"
    """The network was chosen and connected, but a transfer or a collective over it failed."""
    NONE = "none"
    """No effect on the choice of the network: advice, or a trouble that the job survives."""


class Weight(StrEnum):
    """Rank of a trouble among the causes of one job."""

    ROOT = "root"
    SYMPTOM = "symptom"
    """A consequence of something that the log may also show; after the roots."""
    NOTE = "note"
    """Worth knowing, but not a cause; last."""
    ECHO = "echo"
    """A repetition of an error shown elsewhere; dropped if there is a root or a symptom."""


class ExitRole(StrEnum):
    """How a trouble ends the job."""

    NO = "no"
    """It does not, or its effect on the network determines how."""
    CAUSE = "cause"
    """It killed a process, whatever else is printed."""
    CRASH = "crash"
    """It killed a process; if Slurm had already begun to clear the step away, it is a consequence of that."""
    RAISED = "raised"
    """An error of a program, which may have continued: it ended the job if processes ended after it."""
    OUTSIDE = "outside"
    """Something outside the job ended it, whatever state it was in."""
    CANCELLED = "cancelled"
    """Somebody ended it; after a death, it was Slurm, which clears away the rest of the step."""
    CLEARED = "cleared"
    """Slurm clears a step away; the line does not say why."""
    WAITED = "waited"
    """A rank gave up waiting for another rank, which may have died earlier."""
    FOLLOWS = "follows"
    """A consequence: another rank had already ended."""
    OTHER = "other"
    """An error of a program about which the knowledge base knows nothing specific."""
    EXIT = "exit"
    """A process ended; the line does not say why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePattern:
    """One kind of message."""

    id: str
    """Stable name."""
    pattern: str
    """Python regular expression that the message matches; compiled on first use, as a log needs only a few."""
    hints: tuple[str, ...]
    """Literals; every match contains at least one of them."""
    example: str
    """A matching line, as it was printed."""
    within: str | None = None
    """Another regular expression that the message must match as well."""
    of_job: bool = False
    """Whether it holds for the whole job, whichever process printed it: variables, versions."""
    numbers: str | None = None
    """Name of a relation between sizes in its groups that must hold (gpu_memory.RELATIONS)."""
    after: str | None = None
    """What may precede it in a line without a library's prefix; before a trouble, program prefixes are allowed, too."""
    of_program: bool = False
    """Whether it is any program's report of a failure, in words of its own; program prefixes may precede it."""

    @property
    def is_grave(self) -> bool:
        """Whether it says that a network, the job or a program ended."""
        return self.of_program

    def match(self, message: Message) -> re.Match[str] | None:
        """Return the match of the pattern in the message, or None.

        Text with a library's prefix was written by that library throughout. In other lines, a message begins where the
        prefixes end: after other words, it is a quotation.
        """
        text = message.text
        for hint in self.hints:
            if hint in text:
                break
        else:
            return None
        found = compiled(self.pattern).search(text, message.start)
        if found is None or (self.within is not None and compiled(self.within).search(text) is None):
            return None
        if self.numbers is not None and not RELATIONS[self.numbers](found):
            return None
        return found if message.signed or self._lead.fullmatch(text, message.start, found.start()) else None

    @property
    def _lead(self) -> re.Pattern[str]:
        if self.of_program:
            return prefixes().program
        return prefixes().bare if self.after is None else compiled(self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature(MessagePattern):
    """A known trouble, which any program may report."""

    summary: str
    """What the line means; like `because` and `remedy`, it may contain `{name}` for a group of the pattern."""
    because: tuple[str, ...] = ()
    """Possible reasons, most likely first."""
    remedy: tuple[Remedy, ...]
    """What to do."""
    source: str
    """Source of this knowledge."""
    date: dt.date
    """Date of the entry."""
    versions: str | None = None
    """Versions of the library or plugin that prints it; null for all."""
    effect: Effect = Effect.NONE
    """Its effect on the plugin of the process that prints it."""
    weight: Weight = Weight.ROOT
    """Its rank among the causes of one job."""
    ends: ExitRole = ExitRole.NO
    """How it ends the job."""
    given: tuple[str, ...] = ()
    """Events that the job must also show."""
    unless: tuple[str, ...] = ()
    """Events that, in the same process, make it harmless or are more specific."""
    order: int
    """Position in the knowledge base, which is in order of likelihood."""
    sure: bool = True
    """Whether the line proves the effect."""

    @property
    def is_grave(self) -> bool:
        return self.ends is not ExitRole.NO or self.effect is not Effect.NONE

    @property
    def likelihood(self) -> tuple[int, int]:
        """Sort key of causes, most likely first."""
        return list(Weight).index(self.weight), self.order

    @property
    def _lead(self) -> re.Pattern[str]:
        return compiled(f"{prefixes().program.pattern}(?:{self.after or ''})")


@dataclass(frozen=True, slots=True)
class GeneralCause:
    """Advice about a verdict that no single line explains."""

    id: str
    summary: str
    remedy: tuple[Remedy, ...]
    source: str
    verdicts: frozenset[Verdict] = frozenset()
    """Verdicts that it applies to; empty if it is about an ending."""
    because: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReturnCode:
    """A return code of libfabric, as the plugins print it (RC: -38)."""

    value: int
    """The code, negative as libfabric returns it; logs also print it without its sign."""
    name: str
    """`FI_ENOSYS`."""
    text: str
    """Text from strerror or fi_strerror."""
    meaning: str
    """What causes it on this network."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The known log messages, with their sources."""

    entries: tuple[MessagePattern, ...]
    signatures: Mapping[str, Signature]
    """Signatures by id, in order of likelihood."""
    foreign: tuple[str, ...]
    """Marks of messages about other plugins (tuner, profiler), which fail with the same words."""
    networks: Mapping[str, str]
    """Name of a network in lower case -> `ofi`, `socket` or `ib`."""
    providers: Mapping[str, Verdict]
    advice: Mapping[str, GeneralCause]
    slingshot_host: re.Pattern[str]
    """Node names that hint at Slingshot."""
    slingshot_device: re.Pattern[str]
    slingshot_only: re.Pattern[str]
    """Words in advice that is useless off Slingshot."""
    lumi_only: re.Pattern[str]
    """Words in advice that is useless on Slingshot machines other than LUMI."""
    return_codes: Mapping[int, ReturnCode]
    """Return codes by their negative value."""
    places: tuple[re.Pattern[str], ...]
    """Patterns for the rank or node that a death hit."""
    aftermath: re.Pattern[str]
    """Lines that may follow after a program has ended."""
    harmless: re.Pattern[str]
    """Warnings of the library after which it continues."""

    @property
    def known_signatures(self) -> tuple[Signature, ...]:
        """Signatures, most likely cause first."""
        return tuple(self.signatures.values())

    @property
    def known_codes(self) -> tuple[ReturnCode, ...]:
        """Return codes in the order of the knowledge base."""
        return tuple(self.return_codes.values())

    @property
    def hints(self) -> dict[str, tuple[MessagePattern, ...]]:
        """Entries by hint."""
        found: dict[str, list[MessagePattern]] = {}
        for entry in self.entries:
            for hint in entry.hints:
                found.setdefault(hint, []).append(entry)
        return {hint: tuple(found[hint]) for hint in sorted(found)}

    def family(self, network: str) -> str | None:
        """Return the family of a network named in a log line; more words may follow the name."""
        words = network.lower().split()
        names = (" ".join(words[:n]) for n in range(len(words), 0, -1))
        return next((self.networks[name] for name in names if name in self.networks), None)


@cache
def vocabulary() -> Vocabulary:
    """Return the knowledge base; its tests find mistakes in it."""
    data, topics = package_toml(__package__, "general.toml"), [package_toml(__package__, name) for name in TOPICS]
    troubles: list[dict[str, Any]] = [table for topic in topics for table in topic["signature"]]
    codes = _entries(ReturnCode, [table for topic in topics for table in topic.get("rc", ())])
    for order, table in enumerate(troubles):
        table["order"] = order
    for table in (*data["event"], *troubles):
        for key in table.keys() & {"pattern", "within", "after"}:
            table[key] = _filled(table[key], data["fragments"])
    signatures = _entries(Signature, troubles)
    return Vocabulary(
        entries=(*_entries(MessagePattern, data["event"]), *signatures),
        signatures={one.id: one for one in signatures},
        foreign=tuple(data["foreign"]["plugins"]),
        networks={name.lower(): family for family, names in data["networks"].items() for name in names},
        providers={name: Verdict(verdict) for name, verdict in data["providers"].items()},
        advice={one.id: one for one in _entries(GeneralCause, data["advice"])},
        slingshot_host=re.compile(data["slingshot"]["host"]),
        slingshot_device=re.compile(data["slingshot"]["device"]),
        slingshot_only=re.compile("|".join((data["slingshot"]["lumi"], data["slingshot"]["only"]))),
        lumi_only=re.compile(data["slingshot"]["lumi"]),
        return_codes={one.value: one for one in codes},
        places=tuple(map(re.compile, data["places"]["patterns"])),
        aftermath=re.compile("|".join(table["pattern"] for table in data["aftermath"])),
        harmless=re.compile("|".join(table["pattern"] for topic in topics for table in topic.get("harmless", ()))),
    )


_CONVERTED: dict[str, Callable[[Any], Any]] = {
    "effect": Effect,
    "weight": Weight,
    "ends": ExitRole,
    "verdicts": lambda names: frozenset(map(Verdict, names)),
    "remedy": lambda tables: tuple(Remedy(**table) for table in tables),
}
"""Conversions of the values of some keys; arrays of other keys become tuples."""


def _entries(kind: type[_Entry], tables: list[dict[str, Any]]) -> tuple[_Entry, ...]:
    """Return entries of the knowledge base made from their tables. Done by hand because msgspec would take 45 ms."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    found = []
    for table in tables:
        said = {key: value for key, value in table.items() if key in names}
        for key, value in said.items():
            convert = _CONVERTED.get(key, tuple if isinstance(value, list) else None)
            said[key] = convert(value) if convert else value
        found.append(kind(**said))
    return tuple(found)


def _filled(pattern: str, fragments: Mapping[str, str]) -> str:
    for name, fragment in fragments.items():
        pattern = pattern.replace(f"(?&{name})", fragment)
    return pattern


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Return a pattern of the knowledge base, compiled once."""
    return re.compile(pattern)
