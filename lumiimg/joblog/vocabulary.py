"""The knowledge base (general.toml and a file for each topic), compiled: what messages mean, and which are troubles."""

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
"""Files of troubles, those first that are the likelier cause where several are in a log."""


class Effect(StrEnum):
    """What a trouble does to the plugin of the process that prints it."""

    MISSING = "missing"
    """No plugin of the expected name was found."""
    LOAD_ERROR = "load-error"
    """The file was found and could not be loaded, or is of no use to this library."""
    INIT_ERROR = "init-error"
    """init() failed: the library goes on to IB or Socket, unless NCCL_NET forbids it."""
    ENDPOINT_ERROR = "endpoint-error"
    """The provider was selected and cannot be used: the job dies, whatever was selected before."""
    NETWORK_ABSENT = "network-absent"
    """NCCL_NET asks for a network that no loaded plugin has: the job dies."""
    NO_NETWORK = "no-network"
    """No network could be started, and none is left to fall back to: the job dies."""
    RUN_ERROR = "run-error"
    """The network was chosen and connected, and a transfer or a collective over it failed."""
    NONE = "none"
    """The choice of the network is not touched: advice, or what the job goes on with."""


class Weight(StrEnum):
    """How a trouble ranks among the causes of one job."""

    ROOT = "root"
    SYMPTOM = "symptom"
    """Follows from something that may be in the log too; after the roots."""
    NOTE = "note"
    """Worth knowing, no cause; last."""
    ECHO = "echo"
    """Repeats an error that is shown elsewhere; dropped where there is a root or a symptom."""


class ExitRole(StrEnum):
    """How a trouble ends the job."""

    NO = "no"
    """It does not, or its effect on the network says how."""
    CAUSE = "cause"
    """It killed a process, whatever else is printed."""
    CRASH = "crash"
    """It killed a process; where Slurm had begun to clear the step away, it follows on that."""
    RAISED = "raised"
    """An error of a program, which may have gone on: it ended the job if processes ended after it."""
    OUTSIDE = "outside"
    """Whoever runs the job ended it, and would have ended it in any state."""
    CANCELLED = "cancelled"
    """Somebody ended it; behind a death Slurm did, which clears away what is left of the step."""
    CLEARED = "cleared"
    """Slurm clears a step away; the line does not say why."""
    WAITED = "waited"
    """A rank gave up waiting for another one, which may have died before."""
    FOLLOWS = "follows"
    """Another rank had ended before."""
    OTHER = "other"
    """An error of a program that the knowledge base does not know better."""
    EXIT = "exit"
    """A process ended; the line does not say why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePattern:
    """One kind of message."""

    id: str
    """Stable name."""
    pattern: str
    """Regular expression (Python's) that the message matches; compiled when it is first needed: a log needs few."""
    hints: tuple[str, ...]
    """Literals of which one is in every match."""
    example: str
    """A line that it matches, as it was printed."""
    within: str | None = None
    """Must be found in the message as well."""
    of_job: bool = False
    """What is seen holds for the whole job, whoever printed it: variables, versions."""
    numbers: str | None = None
    """A relation of sizes in its groups that holds, of gpu_memory.RELATIONS."""
    after: str | None = None
    """What may stand before it in a line that no library signed; before a trouble, prefixes of programs as well."""

    @property
    def is_grave(self) -> bool:
        """Whether it says that a network, or the job, ended."""
        return False

    def match(self, message: Message) -> re.Match[str] | None:
        """Return where the message says it.

        What a library signed is its own from the first word to the last. In other lines a message begins where the
        prefixes end: behind other words it is quoted.
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
        return prefixes().bare if self.after is None else compiled(self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature(MessagePattern):
    """A known trouble, which any program may print."""

    summary: str
    """What the line means; may hold `{name}` of the pattern's groups, as `because` and `remedy` may."""
    because: tuple[str, ...] = ()
    """What leads to it, most likely first."""
    remedy: tuple[Remedy, ...]
    """What to do."""
    source: str
    """Where that is from."""
    date: dt.date
    """Of the entry."""
    versions: str | None = None
    """Of the library or plugin that prints it; null for all."""
    effect: Effect = Effect.NONE
    """What it does to the plugin of the process that prints it."""
    weight: Weight = Weight.ROOT
    """How it ranks among the causes of one job."""
    ends: ExitRole = ExitRole.NO
    """How it ends the job."""
    given: tuple[str, ...] = ()
    """Events that the job must show as well."""
    unless: tuple[str, ...] = ()
    """Events that, in the same process, make it harmless or say it better."""
    order: int
    """Place in the knowledge base, which is in order of likelihood."""
    sure: bool = True
    """Whether the line proves what its effect says."""

    @property
    def is_grave(self) -> bool:
        return self.ends is not ExitRole.NO or self.effect is not Effect.NONE

    @property
    def likelihood(self) -> tuple[int, int]:
        """What causes are sorted by, the most likely first."""
        return list(Weight).index(self.weight), self.order

    @property
    def _lead(self) -> re.Pattern[str]:
        return compiled(f"{prefixes().program.pattern}(?:{self.after or ''})")


@dataclass(frozen=True, slots=True)
class GeneralCause:
    """What is said about a verdict that no single line explains."""

    id: str
    summary: str
    remedy: tuple[Remedy, ...]
    source: str
    verdicts: frozenset[Verdict] = frozenset()
    """Of which it is said; none of what is said of an ending."""
    because: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReturnCode:
    """A return code of libfabric, as the plugins print it (RC: -38)."""

    value: int
    """The number, as it is printed without its sign."""
    name: str
    """`FI_ENOSYS`."""
    text: str
    """What strerror or fi_strerror says."""
    meaning: str
    """What it comes from on this network."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The messages of logs that are known, with their source."""

    entries: tuple[MessagePattern, ...]
    signatures: Mapping[str, Signature]
    """In order of likelihood."""
    foreign: tuple[str, ...]
    """Messages about other plugins (tuner, profiler), which fail in the same words."""
    networks: Mapping[str, str]
    """Name of a network in lower case -> `ofi`, `socket`, `ib`."""
    providers: Mapping[str, Verdict]
    advice: Mapping[str, GeneralCause]
    slingshot_host: re.Pattern[str]
    """Names of nodes that hint at Slingshot."""
    slingshot_device: re.Pattern[str]
    slingshot_only: re.Pattern[str]
    """Words of advice that is of no use elsewhere."""
    lumi_only: re.Pattern[str]
    """Those that are of no use on another machine with Slingshot."""
    return_codes: Mapping[int, ReturnCode]
    """By value, negative."""
    places: tuple[re.Pattern[str], ...]
    """What names the rank or the node that a death hit."""
    aftermath: re.Pattern[str]
    """Lines that may follow when a program has ended."""
    harmless: re.Pattern[str]
    """Warnings of the library behind which it goes on."""

    @property
    def known_signatures(self) -> tuple[Signature, ...]:
        """Most likely cause first."""
        return tuple(self.signatures.values())

    @property
    def known_codes(self) -> tuple[ReturnCode, ...]:
        """By their numbers."""
        return tuple(self.return_codes.values())

    @property
    def hints(self) -> dict[str, tuple[MessagePattern, ...]]:
        """Each hint, with the entries that it is one of."""
        found: dict[str, list[MessagePattern]] = {}
        for entry in self.entries:
            for hint in entry.hints:
                found.setdefault(hint, []).append(entry)
        return {hint: tuple(found[hint]) for hint in sorted(found)}

    def family(self, network: str) -> str | None:
        """Return the family of a network as named in a log line, where more words may follow the name."""
        words = network.lower().split()
        names = (" ".join(words[:n]) for n in range(len(words), 0, -1))
        return next((self.networks[name] for name in names if name in self.networks), None)


@cache
def vocabulary() -> Vocabulary:
    """Return the knowledge base; a mistake in it is an error, found by its tests."""
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
"""What is made of the values of some keys; arrays of the others are tuples."""


def _entries(kind: type[_Entry], tables: list[dict[str, Any]]) -> tuple[_Entry, ...]:
    """Return entries of the knowledge base: what their tables say of the fields. By hand: msgspec would take 45 ms."""
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
