"""Logs of each outcome in each version's wording; the reader must find in them what a careful engineer would.

The logs are composed from the messages of each family of versions (tests/fixtures/nccl-families.toml). Two ranks,
usually on two nodes, print them, one message after the other, as a launcher collects them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

_DATA = tomllib.loads((Path(__file__).parents[1] / "fixtures/nccl-families.toml").read_text())
_HOW = ("warn", "plugin", "plugin-warn", "bare")


class Say(NamedTuple):
    """A message, and how it is printed."""

    text: str
    how: str = "info"
    """`info` and `warn` of the library, `plugin` (its INFO) and `plugin-warn`, `bare` (rank 0 only, no prefix)."""


@dataclass(frozen=True)
class Plugin:
    """What a plugin prints about itself."""

    opening: list[str]
    provider: str
    no_provider: list[str]
    no_provider_cause: str
    network: str = "AWS Libfabric"


@dataclass(frozen=True)
class Family:
    """Messages of a family of versions with the same wording."""

    banner: list[str]
    file: str
    absent: list[str]
    broken: list[str]
    """For all other loader errors; equal to `absent` if the library does not distinguish them."""
    plugin: str = ""
    """Key in PLUGINS."""
    loaded: tuple[str, ...] = ()
    """Empty if the version loads a plugin silently."""
    refused: tuple[str, ...] = ()
    """For a plugin that offers none of the APIs; empty if that message is unknown."""
    absent_cause: str = "plugin-absent"
    refused_cause: str = "plugin-no-symbol"
    chosen: tuple[str, ...] = ("Using network {network}",)
    fallen: tuple[str, ...] = ()
    """After init() has failed, before IB and Socket are tried."""
    died: str = "Error: network AWS Libfabric not found."
    comm: tuple[str, ...] = ()
    channel: str = "Channel 00 : {a}[c1000] -> {b}[c1000] [send] via NET/{network}/0{gdr}"
    connected: str = "Connected all rings"
    warn: str = "{host}:4242:4300 [0] {place} NCCL WARN {text}"
    plugin_info: str = "{host}:4242:4300 [0] NCCL INFO {text}"
    plugin_warn: str | None = None
    """Default: `warn`."""
    without: tuple[str, ...] = ()
    """Outcomes that are impossible in these versions."""

    @property
    def rccl(self) -> bool:
        return "RCCL" in self.banner[0] or "rccl" in self.file

    def holds(self, what: str) -> bool:
        opening = PLUGINS[self.plugin].opening if self.plugin else []
        reported = {
            "nodes": any("nNodes" in line for line in self.comm),
            "errors": self.broken != self.absent,
            "eligible": any("No eligible providers" in line for line in opening),
        }
        return reported[what] if what else True

    def value(self, name: str) -> Any:
        """Return the value of a name in the family, or else in its plugin."""
        return getattr(self, name) if hasattr(self, name) else getattr(PLUGINS[self.plugin], name)


@dataclass(frozen=True)
class Outcome:
    """How a job ended, and the expected result of reading its log."""

    says: list[str]
    verdict: str
    confidence: str | None = None
    provider: str = ""
    network: str = ""
    """Default: the plugin's."""
    gdr: bool = False
    error: str = ""
    one_node: bool = False
    cause: str | None = None
    warned: str = ""
    otherwise: str = ""

    def cause_of(self, family: Family) -> str | None:
        """Return the id of the first cause expected for a log of this family."""
        cause = self.cause if family.holds(self.warned) else self.otherwise
        return family.value(cause[1:]) if cause and cause.startswith("@") else cause


PLUGINS = {name: Plugin(**values) for name, values in _DATA["plugin"].items()}
FAMILIES = {name: Family(**values) for name, values in _DATA["family"].items()}
OUTCOMES = {name: Outcome(**values) for name, values in _DATA["outcome"].items()}
NEED_A_PLUGIN = {"cxi", "tcp", "efa", "init", "domain", "cut-opened", "cut-selected"}


def outcomes(family: Family) -> dict[str, Outcome]:
    """Return the outcomes that a family of versions can report, by name."""
    return {
        kind: outcome
        for kind, outcome in OUTCOMES.items()
        if kind not in family.without
        and not (kind in NEED_A_PLUGIN and not family.plugin)
        and not (kind == "refused" and not family.refused)  # 2.12 and older do not report it
    }


def _messages(family: Family, parts: list[str], how: str = "info") -> Iterator[Say]:
    for part in parts:
        if part.startswith("@"):
            name = part[1:]
            value = _DATA["part"].get(name) or family.value(name)
            own = "plugin" if name in {"opening", "provider"} else "warn" if name == "died" else "info"
            yield from _messages(family, [value] if isinstance(value, str) else value, own)
        elif part:
            named, colon, text = part.partition(": ")
            yield Say(text, named) if colon and named in _HOW else Say(part, how)


def written(family: Family, outcome: Outcome) -> list[str]:
    """Return the log: each message by rank 0, then by rank 8 on the other node (or rank 1, for a job on one node)."""
    hosts = ("nid005101", "nid005101" if outcome.one_node else "nid005102")
    lines: list[str] = []
    for say in _messages(family, outcome.says):
        for index, host in enumerate(hosts[: 1 if say.how == "bare" else 2]):
            rank = index if outcome.one_node else 8 * index
            lines.extend(_line(family, say, host, rank, outcome).split("\n"))
    return lines


def _line(family: Family, say: Say, host: str, rank: int, outcome: Outcome) -> str:
    style = {
        "bare": "{text}",
        "info": "{host}:4242:4300 [0] NCCL INFO {text}",
        "warn": "\n" + family.warn,
        "plugin": family.plugin_info,
        "plugin-warn": family.plugin_warn or "\n" + family.warn,
    }[say.how]
    fills = {
        "error": outcome.error,
        "network": outcome.network or (family.plugin and PLUGINS[family.plugin].network),
        "provider": outcome.provider,
        "gdr": "/GDRDMA" if outcome.gdr else "",
        "file": family.file,
        "rank": str(rank),
        "a": str(rank),
        "b": str(rank + 1),
        "nodes": "1" if outcome.one_node else "2",
    }
    text = say.text
    for name, value in fills.items():
        text = text.replace(f"{{{name}}}", value)
    place = "create_nccl_ofi_component:817" if say.how.startswith("plugin") else "net.cc:626"
    pid = "4243" if outcome.one_node and rank else "4242"
    line = style.replace("{host}:4242", f"{{host}}:{pid}").replace("{place}", place)
    return line.replace("{host}", host).replace("{text}", text)
