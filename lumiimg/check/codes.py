"""The registry of findings: what each code means, which part of the fabric path it is about, and what answers it.

A finding of files may be answered by a probe, and every finding below level run by a collective that goes over
Slingshot (`answer.py`). docs/reference/findings.md is printed from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from lumiimg.fabric.path import Part
from lumiimg.findings import Code, Level, Severity

if TYPE_CHECKING:
    from collections.abc import Mapping

_OK, _INFO, _OPEN, _BAD = Severity.OK, Severity.INFO, Severity.UNKNOWN, Severity.PROBLEM


class Decider(StrEnum):
    """What decides which part of the path a finding is about, where its code alone does not."""

    CHAIN = "the last library of its chain"
    LIBRARY = "the library that it names"
    VERDICT = "the network that the collective took"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What lumiimg knows of a code."""

    text: str
    """One sentence, for the page."""
    part: Part | Decider | None
    """The part of the path that breaks, or is not known, by such a finding; None where it is about no single one."""
    static: tuple[Severity, ...] = ()
    """The severities that it has at level static; empty where it is not found there."""
    probe: tuple[Severity, ...] = ()
    """The severities that it has at level probe."""
    run: tuple[Severity, ...] = ()
    """The severities that it has at level run."""
    no: str | None = None
    """The sentence of an answer whose first problem it is; None where the sentence about TCP sockets fits."""
    replaced_by: Code | None = None
    """The good finding of a probe that takes the place of this one of files."""
    noted_beside: Code | None = None
    """The good finding of a probe beside which an obstacle or open question of files is only a note."""
    outlasts_probes: bool = False
    """Whether, as an open question, it stays open when cxi listens: RCCL may go past a plugin that works."""

    def severities(self, level: Level) -> tuple[Severity, ...]:
        """Return the severities that it has at a level."""
        return {Level.STATIC: self.static, Level.PROBE: self.probe, Level.RUN: self.run}[level]


MEANINGS: Mapping[Code, Meaning] = {
    Code.IMAGE_BINDS: Meaning(
        "A bind in the environment lies over files that the loader or RCCL reads.", None, static=(_OPEN,)
    ),
    Code.IMAGE_MUSL: Meaning(
        "The C library of the image is musl, whose loader is not modelled.", Part.RCCL, static=(_OPEN,)
    ),
    Code.IMAGE_PARTLY_READ: Meaning(
        "A part of the image could not be read or followed, such as a script that sets variables.",
        None,
        static=(_OPEN,),
        outlasts_probes=True,
    ),
    Code.RCCL_ABSENT: Meaning(
        "The image has no librccl.so.",
        Part.RCCL,
        static=(_BAD,),
        no="there is nothing here to check: no RCCL was found in this image",
    ),
    Code.RCCL_FOUND: Meaning(
        "An RCCL was found; its bytes name the plugin that it looks for and the net APIs that it takes.",
        Part.RCCL,
        static=(_INFO,),
    ),
    Code.RCCL_LOAD: Meaning(
        "The RCCL of the image cannot be loaded.",
        Part.RCCL,
        static=(_BAD,),
        probe=(_BAD,),
        no="NO: the RCCL of this image cannot be loaded",
        replaced_by=Code.RCCL_RUNS,
    ),
    Code.RCCL_NO_PLUGIN: Meaning(
        "RCCL ran in the container, took no plugin, and goes on with its own transport.", Part.PLUGIN, probe=(_BAD,)
    ),
    Code.RCCL_OPENS_PLUGIN: Meaning("RCCL ran in the container and opened its plugin.", Part.PLUGIN, probe=(_OK,)),
    Code.RCCL_PROBE: Meaning("RCCL was asked in the container and gave no answer.", Part.RCCL, probe=(_OPEN,)),
    Code.RCCL_RUNS: Meaning("RCCL was opened in the container.", Part.RCCL, probe=(_OK, _INFO)),
    Code.RCCL_SETTINGS: Meaning(
        "RCCL also takes variables from a file that could not be read.", None, static=(_OPEN,), outlasts_probes=True
    ),
    Code.RCCL_SEVERAL: Meaning("The image has more than one RCCL.", Part.RCCL, static=(_INFO,)),
    Code.RCCL_SILENT: Meaning(
        "This RCCL looks for its plugin only when it has a GPU, so that it says nothing without one.",
        Part.PLUGIN,
        probe=(_INFO,),
    ),
    Code.RCCL_UNKNOWN: Meaning(
        "The bytes of RCCL do not name the plugin that it looks for; a probe may have got its version.",
        Part.PLUGIN,
        static=(_OPEN,),
        probe=(_INFO,),
    ),
    Code.PLUGIN_ABSENT: Meaning(
        "There is no net plugin, under any name.",
        Part.PLUGIN,
        static=(_BAD, _OPEN),
        probe=(_BAD,),
        noted_beside=Code.PLUGIN_LOADS,
    ),
    Code.PLUGIN_API: Meaning(
        "The net APIs that the plugin exports, beside those that RCCL takes.",
        Part.PLUGIN,
        static=(_OK, _OPEN, _BAD),
        probe=(_BAD,),
        noted_beside=Code.PLUGIN_LOADS,
    ),
    Code.PLUGIN_CRASH: Meaning(
        "The process died of a signal while the plugin was at work.",
        Part.PLUGIN,
        probe=(_BAD,),
        no="NO: the plugin is taken, and brings its process down",
    ),
    Code.PLUGIN_DANGLING: Meaning(
        "The plugin is a link to a file that is not in the image.",
        Part.PLUGIN,
        static=(_BAD, _OPEN),
        noted_beside=Code.PLUGIN_LOADS,
    ),
    Code.PLUGIN_DEVICES: Meaning(
        "The plugin failed when it was asked for its devices.", Part.PROVIDER, probe=(_BAD, _OPEN)
    ),
    Code.PLUGIN_HANDSHAKE: Meaning(
        "The handshake with the plugin did not run to its end.", Part.PLUGIN, probe=(_OPEN,)
    ),
    Code.PLUGIN_HANG: Meaning(
        "The plugin did not come back from a call.",
        Part.PLUGIN,
        probe=(_BAD,),
        no="NO: the plugin is taken, and does not come back",
    ),
    Code.PLUGIN_INIT: Meaning("The plugin failed when it was initialised.", Part.PROVIDER, probe=(_BAD, _OPEN)),
    Code.PLUGIN_LISTEN: Meaning(
        "The plugin failed when it opened the NIC to listen.",
        Part.NIC,
        probe=(_BAD, _OPEN),
        no="NO: the plugin is taken, and fails when it opens the NIC: a job would end or fall back there",
    ),
    Code.PLUGIN_LOADS: Meaning(
        "Whether the plugin, with all its libraries, is loaded.", Decider.CHAIN, static=(_OK, _BAD), probe=(_OK, _BAD)
    ),
    Code.PLUGIN_NEEDS_HOST: Meaning(
        "The plugin needs libraries that must come from the host.",
        Decider.CHAIN,
        static=(_OPEN,),
        noted_beside=Code.PLUGIN_LOADS,
    ),
    Code.PLUGIN_NOT_ON_PATH: Meaning(
        "The plugin is in the image, but not in a folder where the loader looks.",
        Part.PLUGIN,
        static=(_BAD, _OPEN),
        noted_beside=Code.PLUGIN_LOADS,
    ),
    Code.PLUGIN_OTHER_NAME: Meaning(
        "The image has a plugin, under a name that this RCCL does not look for.",
        Part.PLUGIN,
        static=(_BAD, _OPEN),
        noted_beside=Code.PLUGIN_LOADS,
    ),
    Code.PLUGIN_PROPERTIES: Meaning(
        "The plugin failed when it was asked for the properties of a device.", Part.PROVIDER, probe=(_BAD, _OPEN)
    ),
    Code.PLUGIN_SYMBOLS: Meaning(
        "It is not known whether something defines every symbol that the plugin needs.",
        Part.PLUGIN,
        static=(_OPEN,),
        noted_beside=Code.PLUGIN_LOADS,
    ),
    Code.LIBRARY_CUT_OFF: Meaning(
        "A library of the path is shorter than its own header says: its process dies of SIGBUS.",
        Decider.LIBRARY,
        static=(_BAD,),
    ),
    Code.LIBRARY_NOT_FOR_ALL: Meaning(
        "Not everybody may read a library of the path.", Decider.LIBRARY, static=(_OPEN,)
    ),
    Code.FABRIC_MIXED: Meaning("Two copies of one library are in one process.", None, static=(_OPEN,)),
    Code.FABRIC_SEARCH_PATH_LEAK: Meaning(
        "A library of the path searches a folder that engines mount from the host.", None, static=(_OPEN,)
    ),
    Code.PROVIDER_CXI: Meaning(
        "The plugin selected the provider cxi and listens on a NIC.", Part.PROVIDER, probe=(_OK,)
    ),
    Code.PROVIDER_CXI_BUILT_IN: Meaning(
        "The libfabric of the path has the cxi provider.",
        Part.PROVIDER,
        static=(_INFO,),
        replaced_by=Code.PROVIDER_CXI,
    ),
    Code.PROVIDER_EXCLUDED: Meaning(
        "A variable keeps libfabric from using cxi.",
        Part.PROVIDER,
        static=(_BAD,),
        no="NO: a variable keeps libfabric from using Slingshot",
        replaced_by=Code.PROVIDER_CXI,
    ),
    Code.PROVIDER_NO_CXI: Meaning(
        "The libfabric of the path has no cxi provider: alone, it would use TCP.",
        Part.PROVIDER,
        static=(_OPEN,),
        replaced_by=Code.PROVIDER_CXI,
    ),
    Code.PROVIDER_NO_LIBFABRIC: Meaning(
        "The plugin does not use libfabric; whether it can use Slingshot is not known.",
        Part.LIBFABRIC,
        static=(_OPEN,),
        replaced_by=Code.PROVIDER_CXI,
    ),
    Code.PROVIDER_OTHER: Meaning(
        "The plugin works, but selected another provider than cxi.",
        Part.PROVIDER,
        probe=(_BAD, _OPEN),
        no="NO: here the plugin would carry the traffic over TCP, not over Slingshot",
    ),
    Code.PROVIDER_UNNAMED: Meaning(
        "The plugin works, and does not say which provider it selected.", Part.PROVIDER, probe=(_OPEN,)
    ),
    Code.NETWORK_FORCED: Meaning(
        "NCCL_NET names a network that is not the plugin's, or one that nobody knows.",
        Part.PLUGIN,
        static=(_BAD, _OPEN),
        no="NO: NCCL_NET tells RCCL to use another network",
        outlasts_probes=True,
    ),
    Code.BIND_LOADS: Meaning(
        "With libraries of the host bound, the plugin and all that it needs load.", None, static=(_OK,)
    ),
    Code.BIND_NOTE: Meaning("What else is to be known of the binds.", None, static=(_INFO,)),
    Code.BIND_REFUSED: Meaning(
        "No set of binds of the host's libraries loads in the image.",
        Decider.CHAIN,
        static=(_BAD,),
        no="NO: neither the image nor the host gives RCCL libraries that it could reach Slingshot with",
    ),
    Code.LOADER_LISTS: Meaning("What ld.so of the image finds for the plugin.", None, probe=(_INFO,)),
    Code.SIMULATED_NETWORK: Meaning(
        "The network that RCCL takes on a stand-in for HIP (`--simulate-gpu`).",
        Part.PLUGIN,
        probe=(_OK, _OPEN, _BAD),
        no="NO: in a simulation, with a stand-in for HIP, RCCL does not use the plugin",
    ),
    Code.PROBE_ENGINE: Meaning("The engine of the probes, and where their programs come from.", None, probe=(_INFO,)),
    Code.RUN_BANDWIDTH: Meaning(
        "The bandwidth of a collective, beside what the machine should give.",
        Part.NIC,
        run=(_OK, _INFO, _BAD),
        no="NO: a real collective was slower than it should be on this machine",
    ),
    Code.RUN_DATA_ERRORS: Meaning(
        "A collective gave wrong results.", None, run=(_BAD,), no="NO: a real collective gave wrong results"
    ),
    Code.RUN_ENVIRONMENT: Meaning("The variables of the site that the collective ran with.", None, run=(_INFO,)),
    Code.RUN_FAILED: Meaning(
        "A collective ended with an error.",
        Part.NIC,
        run=(_BAD, _OPEN),
        no="NO: a real collective failed on its network",
    ),
    Code.RUN_HANG: Meaning(
        "A collective did not end in time.",
        Part.NIC,
        run=(_BAD, _OPEN),
        no="NO: a real collective did not come to its end",
    ),
    Code.RUN_NETWORK: Meaning(
        "The network that carried a collective's traffic.",
        Decider.VERDICT,
        run=(_OK, _OPEN, _BAD),
        no="NO: a real collective did not go over Slingshot",
    ),
    Code.RUN_OTHER_RCCL: Meaning(
        "The collective ran with another RCCL than the one that is looked at.", None, run=(_OPEN,)
    ),
    Code.RUN_SELECTED: Meaning("On one node RCCL selected the fast network; nothing crossed it.", None, run=(_OK,)),
}
