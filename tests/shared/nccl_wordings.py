"""Each version's wording of each outcome: what a careful engineer reads in it, the reader reads.

The logs are put together here from the messages of each family of versions. Two ranks on two nodes print them, one
message after the other, as a launcher collects them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

GLIBC = "/lib64/libc.so.6: version `GLIBC_2.38' not found (required by /opt/plug/{file})"
MISSING = "libcxi.so.1: cannot open shared object file: No such file or directory"
NOT_THERE = "{file}: cannot open shared object file: No such file or directory"
ENOSYS = "Couldn't open a fabric access domain. RC: -38, ERROR: Function not implemented"


class Say(NamedTuple):
    """A message, and who prints it how."""

    text: str
    how: str = "info"
    """`info` and `warn` of the library, `plugin` (its INFO) and `plugin-warn`, `bare` (rank 0 only, no prefix)."""


@dataclass(frozen=True)
class Plugin:
    """What a plugin says of itself."""

    opening: tuple[str, ...]
    provider: str
    no_provider: tuple[Say, ...]
    no_provider_cause: str
    network: str = "AWS Libfabric"


def _warned(*texts: str) -> tuple[Say, ...]:
    return tuple(Say(f"NET/OFI {text}", "plugin-warn") for text in texts)


RCCL_140 = Plugin(
    opening=(
        "NET/OFI Using aws-ofi-rccl 1.4.0",
        "NET/OFI Setting FI_EFA_FORK_SAFE environment variable to 1",
    ),
    provider="NET/OFI Selected Provider is {provider}",
    no_provider=_warned("Couldn't find any optimal provider", "aws-ofi-rccl initialization failed"),
    no_provider_cause="no-provider",
)
RCCL_MASTER = Plugin(
    opening=("NET/OFI Using aws-ofi-rccl 1.2.0",),
    provider="NET/OFI Selected Provider is {provider}",
    no_provider=_warned("Couldn't find any optimal provider", "aws-ofi-rccl initialization failed"),
    no_provider_cause="no-provider",
)
NCCL_13 = Plugin(
    opening=("NET/OFI Using aws-ofi-nccl 1.3.0",),
    provider="NET/OFI Selected Provider is {provider}",
    no_provider=_warned("OFI call failed with RC -61, No data available", "aws-ofi-nccl initialization failed"),
    no_provider_cause="no-provider",
)
NCCL_16 = Plugin(
    opening=("NET/OFI Using aws-ofi-nccl 1.6.0",),
    provider="NET/OFI Selected Provider is {provider} (found 4 nics)",
    no_provider=_warned("Couldn't find any optimal provider", "aws-ofi-nccl initialization failed"),
    no_provider_cause="no-provider",
)
NCCL_19 = Plugin(
    opening=(
        "NET/OFI Initializing aws-ofi-nccl 1.9.2-aws",
        "NET/OFI Using Libfabric version 1.22",
        "NET/OFI Using CUDA driver version 12020",
        "NET/OFI Using transport protocol SENDRECV",
    ),
    provider="NET/OFI Selected Provider is {provider} (found 4 nics)",
    no_provider=_warned("OFI fi_getinfo() call failed: No data available", "aws-ofi-nccl initialization failed"),
    no_provider_cause="no-provider",
)
_NO_PROTOCOL = (
    Say("NET/OFI No eligible providers were found", "plugin"),
    *_warned(
        "Failed to initialize rdma protocol",
        "Unable to find a protocol that worked.  Failing initialization.",
        "aws-ofi-nccl initialization failed",
        "Initializing plugin failed",
    ),
)
NCCL_118 = Plugin(
    opening=(
        "NET/OFI Initializing aws-ofi-nccl 1.18.0",
        "NET/OFI Using Libfabric version 1.22",
        "NET/OFI Plugin selected platform: Default",
        "NET/OFI Using transport protocol SENDRECV (platform set)",
        "NET/OFI No eligible providers were found",
    ),
    provider="NET/OFI Selected provider is {provider}, fabric is {provider} (found 4 nics)",
    no_provider=_NO_PROTOCOL,
    no_provider_cause="no-protocol",
    network="Libfabric",
)
NCCL_121 = Plugin(
    opening=(
        "NET/OFI Initializing aws-ofi-nccl 1.21.1",
        "NET/OFI Using Libfabric version 2.3",
        "NET/OFI Requesting progress model AUTO",
        "NET/OFI Using transport protocol SENDRECV (platform set)",
    ),
    provider=NCCL_118.provider,
    no_provider=(*_NO_PROTOCOL, *_warned("Finalizing already finalized plugin")),
    no_provider_cause="no-protocol",
    network="Libfabric",
)


@dataclass(frozen=True)
class Family:
    """What versions that speak alike print. `{file}` is the plugin's name, `{error}` what the loader says."""

    banner: tuple[Say, ...]
    file: str
    absent: tuple[str, ...]
    broken: tuple[str, ...]
    """For all other errors of the loader; where it is `absent` the library does not tell them apart."""
    plugin: Plugin | None
    loaded: tuple[str, ...] = ()
    """Empty where the version loads a plugin in silence."""
    refused: tuple[str, ...] = ()
    """For a plugin that offers none of the APIs; empty where that is not told."""
    absent_cause: str = "plugin-absent"
    refused_cause: str = "plugin-no-symbol"
    chosen: tuple[str, ...] = ("Using network {network}",)
    fallen: tuple[str, ...] = ()
    """After the failure of init(), before IB and Socket are tried."""
    died: str = "Error: network AWS Libfabric not found."
    comm: tuple[str, ...] = ()
    channel: str = "Channel 00 : {a}[c1000] -> {b}[c1000] [send] via NET/{network}/0{gdr}"
    connected: str = "Connected all rings"
    warn: str = "{host}:4242:4300 [0] {place} NCCL WARN {text}"
    plugin_info: str = "{host}:4242:4300 [0] NCCL INFO {text}"
    plugin_warn: str | None = None
    """As `warn`, unless told otherwise."""
    without: frozenset[str] = field(default=frozenset())
    """Outcomes that cannot be; why is told beside."""

    @property
    def rccl(self) -> bool:
        return "RCCL" in self.banner[0].text or "rccl" in self.file

    @property
    def tells_nodes(self) -> bool:
        return any("nNodes" in line for line in self.comm)

    @property
    def tells_errors(self) -> bool:
        return self.broken != self.absent


def _printed(*texts: str) -> tuple[Say, ...]:
    return tuple(Say(text, "bare") for text in texts)


def _missed(*versions: int) -> tuple[str, ...]:
    return tuple(f"NET/Plugin: Failed to find ncclNetPlugin_v{n} symbol." for n in versions)


def _loaded(name: str, version: int, *missed: int) -> tuple[str, ...]:
    collnet = "NET/Plugin: Failed to find ncclCollNetPlugin symbol (>= v5). ncclCollNetPlugin symbols v4 and lower are not supported."
    return (*_missed(*missed), f"NET/Plugin: Loaded net plugin {name} (v{version})", collnet)


OLD_RCCL_BANNER = "RCCL version {}+hip{} HEAD:45b618a+"
RCCL_BLOCK = (
    "RCCL version : {}-HEAD:9a0e6a1",
    "HIP version  : 6.3.42134-a9a80e791",
    "ROCm version : 6.3.3.0-74-cbc70b5",
    "Hostname     : nid005101",
    "Librccl path : /opt/rocm/lib/librccl.so.1",
)
OLD_COMM = ("comm 0x55e2 rank {rank} nranks 16 cudaDev 0 busId c1000 - Init COMPLETE",)
COMM_217 = (
    "comm 0x55e2 rank {rank} nranks 16 cudaDev 0 nvmlDev 0 busId c1000 commId 0xb1de7f4e3c5a - Init START",
    "comm 0x55e2 rank {rank} nranks 16 cudaDev 0 nvmlDev 0 busId c1000 commId 0xb1de7f4e3c5a - Init COMPLETE",
)
COMM_221 = (
    "ncclCommInitRank comm 0x55e2 rank {rank} nranks 16 cudaDev 0 nvmlDev 0 busId c1000 commId 0xb1de7f4e3c5a - Init START",
    "comm 0x55e2 rank {rank} nRanks 16 nNodes {nodes} localRanks 8 localRank 0 MNNVL 0",
)
COMM_RCCL_221 = (
    "ncclCommInitRank comm 0x55e2 rank {rank} nranks 16 cudaDev 0 busId c1000 commId 0xb1de7f4e3c5a - Init START",
    "comm 0x55e2 rank {rank} nRanks 16 nNodes {nodes} localRanks 8 localRank 0 MNNVL 0",
)
COMM_229 = ("[Rank {rank}] " + COMM_221[0], COMM_221[1])
RINGS_224 = "Connected all rings, use ring PXN 0 GDR 1"
CHANNEL_212 = "Channel 00/0 : {a}[c1000] -> {b}[c1000] [send] via NET/{network}/0{gdr}"
CHANNEL_217 = "Channel 00/0 : {a}[0] -> {b}[0] [send] via NET/{network}/0{gdr}"
CHANNEL_RCCL = CHANNEL_212 + " comm 0x55e2 nRanks 16"
STAMPED = "[2026-11-21 06:16:47] {host}:4242:4300 [0] {place} NCCL WARN {text}"

NPF_OLD = ("NET/Plugin : No plugin found ({file}).",)
NPF = ("NET/Plugin : No plugin found ({file}), using internal implementation",)
LOAD_217 = (
    "NET/Plugin : Plugin load ({file}) returned 2 : {error}",
    "NET/Plugin : No plugin found, using internal implementation",
)
LOAD_219 = ("NET/Plugin : dlerror={error} No plugin found ({file}), using internal implementation",)
ABSENT_221 = (
    "NET/Plugin: No plugin found ({file})",
    "NET/Plugin: Plugin load returned 2 : {error} : when loading {file}",
    "NET/Plugin: Using internal network plugin.",
)
BROKEN_221 = (
    "NET/Plugin: Plugin load returned 0 : {error} when loading {file}",
    "NET/Plugin: Plugin load returned 0 : (null) : when loading {file}",
    "NET/Plugin: Using internal network plugin.",
)
ABSENT_222 = ("NET/Plugin: Could not find: {file}. Using internal network plugin.",)
BROKEN_222 = ("NET/Plugin: {error}", "NET/Plugin: Using internal network plugin.")
ABSENT_226 = ("NET/Plugin: Could not find: {file}. Using internal net plugin.",)
BROKEN_226 = ("NET/Plugin: {error}", "NET/Plugin: Using internal net plugin.")
TOO_OLD_213 = (*_missed(6), "NET/Plugin: Failed to find ncclNetPlugin symbol (v4 or v5).")
TOO_OLD = (
    "NET/Plugin: Failed to find ncclNetPlugin symbol (>= v5). ncclNetPlugin symbols v4 and lower are not supported."
)
CHOSEN_227 = ("Initialized NET plugin {network}", "Assigned NET plugin {network} to comm", "Using network {network}")
DIED_227 = "Failed to initialize any NET plugin"

# No machine has both AMD GPUs and EFA.
NO_EFA = frozenset({"efa"})

FAMILIES: dict[str, Family] = {
    # 2.3 speaks of a failure only, prints no line for a plugin that it loads, and knows no NCCL_NET.
    "nccl-2.3": Family(
        banner=_printed("NCCL version 2.3.7+cuda10.0"),
        file="libnccl-net.so",
        absent=("Unable to load {file} : {error}",),
        broken=("Unable to load {file} : {error}", ""),
        plugin=None,
        chosen=("Using internal Network {network}",),
        comm=("comm 0x55e2 rank {rank} nranks 16",),
        channel="Channel 00 : {a} -> {b} [send] via NET/{network}/0{gdr}",
        without=frozenset({"forced"}),
    ),
    "nccl-2.4-2.11": Family(
        banner=_printed("NCCL version 2.10.3+cuda11.3"),
        file="libnccl-net.so",
        absent=NPF_OLD,
        broken=NPF_OLD,
        absent_cause="plugin-not-loaded",
        plugin=NCCL_13,
        loaded=_missed(4),
        comm=OLD_COMM,
    ),
    "nccl-2.12": Family(
        banner=_printed("NCCL version 2.12.12+cuda11.6"),
        file="libnccl-net.so",
        absent=NPF,
        broken=NPF,
        absent_cause="plugin-not-loaded",
        plugin=NCCL_13,
        comm=OLD_COMM,
        channel=CHANNEL_212,
    ),
    "nccl-2.14-2.16": Family(
        banner=_printed("NCCL version 2.16.2+cuda11.8"),
        file="libnccl-net.so",
        absent=NPF,
        broken=NPF,
        absent_cause="plugin-not-loaded",
        plugin=NCCL_16,
        refused=TOO_OLD_213,
        comm=OLD_COMM,
        channel=CHANNEL_212,
    ),
    # The same versions where the loader leaves errno alone (newer glibc): the branch that prints its text.
    "nccl-2.14-2.16, newer glibc": Family(
        banner=_printed("NCCL version 2.16.2+cuda11.8"),
        file="libnccl-net.so",
        absent=("NET/Plugin : Plugin load returned 0 : {error}.",),
        broken=("NET/Plugin : Plugin load returned 0 : {error}.", ""),
        plugin=NCCL_16,
        refused=TOO_OLD_213,
        comm=OLD_COMM,
        channel=CHANNEL_212,
    ),
    "nccl-2.17-2.18": Family(
        banner=_printed("NCCL version 2.18.5+cuda12.2"),
        file="libnccl-net.so",
        absent=LOAD_217,
        broken=(*LOAD_217, ""),
        plugin=NCCL_19,
        refused=TOO_OLD_213,
        comm=COMM_217,
        channel=CHANNEL_217,
    ),
    "nccl-2.19-2.20": Family(
        banner=_printed("NCCL version 2.20.5+cuda12.4"),
        file="libnccl-net.so",
        absent=LOAD_219,
        broken=(*LOAD_219, ""),
        plugin=NCCL_19,
        refused=(*_missed(8, 7, 6), TOO_OLD),
        comm=COMM_217,
        channel=CHANNEL_217,
    ),
    "nccl-2.21": Family(
        banner=_printed("NCCL version 2.21.5+cuda12.4"),
        file="libnccl-net.so",
        absent=ABSENT_221,
        broken=BROKEN_221,
        plugin=NCCL_19,
        refused=(*_missed(8, 7, 6), TOO_OLD),
        comm=COMM_221,
        channel=CHANNEL_217,
    ),
    "nccl-2.22-2.23": Family(
        banner=_printed("NCCL version 2.23.4+cuda12.6"),
        file="libnccl-net.so",
        absent=ABSENT_222,
        broken=BROKEN_222,
        plugin=NCCL_118,
        loaded=_missed(9),
        refused=(*_missed(9, 8, 7, 6), TOO_OLD),
        comm=COMM_221,
        channel=CHANNEL_217,
    ),
    "nccl-2.24-2.25": Family(
        banner=(Say("NCCL version 2.25.1+cuda12.8"),),
        file="libnccl-net.so",
        absent=ABSENT_222,
        broken=BROKEN_222,
        plugin=NCCL_118,
        loaded=_loaded("Libfabric", 9),
        refused=(*_missed(9, 8, 7, 6), TOO_OLD),
        comm=COMM_221,
        channel=CHANNEL_217,
        connected=RINGS_224,
    ),
    "nccl-2.26": Family(
        banner=(Say("NCCL version 2.26.2+cuda12.2"),),
        file="libnccl-net.so",
        absent=ABSENT_226,
        broken=BROKEN_226,
        plugin=NCCL_118,
        loaded=_loaded("Libfabric", 10),
        refused=_missed(10, 9, 8, 7, 6),
        refused_cause="plugin-api-too-old",
        comm=COMM_221,
        channel=CHANNEL_217,
        connected=RINGS_224,
        warn=STAMPED,
    ),
    "nccl-2.27": Family(
        banner=(Say("NCCL version 2.27.7+cuda12.9"),),
        file="libnccl-net.so",
        absent=("NET/Plugin: Could not find: {file}. ",),
        broken=("NET/Plugin: {error}",),
        plugin=NCCL_121,
        loaded=(*_loaded("Libfabric", 10), "Successfully loaded external plugin libnccl-net.so"),
        refused=_missed(10, 9, 8, 7, 6),
        refused_cause="plugin-api-too-old",
        chosen=CHOSEN_227,
        died=DIED_227,
        comm=COMM_221,
        channel=CHANNEL_217,
        connected=RINGS_224,
        warn=STAMPED,
    ),
    "nccl-2.28": Family(
        banner=(Say("NCCL version 2.28.9+cuda13.0"),),
        file="libnccl-net.so",
        absent=("NET/Plugin: Could not find: {file}",),
        broken=("NET/Plugin: {file}: {error}",),
        plugin=NCCL_121,
        loaded=(
            *_loaded("Libfabric", 11),
            "Successfully loaded external network plugin /opt/plug/libnccl-net.so",
        ),
        refused=(*_missed(11, 10, 9, 8, 7, 6), "External network plugin /opt/plug/libnccl-net.so is unsupported"),
        refused_cause="plugin-api-too-old",
        chosen=CHOSEN_227,
        fallen=("Failed to initialize NET plugin Libfabric",),
        died=DIED_227,
        comm=COMM_221,
        channel=CHANNEL_217,
        connected=RINGS_224,
        warn=STAMPED,
    ),
    "nccl-2.30": Family(
        banner=(Say("NCCL version 2.30.1+cuda13.1"), Say("NCCL git version HEAD ebd1e92")),
        file="libnccl-net.so",
        absent=("NET/Plugin: Could not find: {file}", "ENV/Plugin: Could not find: libnccl-env.so"),
        broken=("NET/Plugin: {file}: {error}",),
        plugin=NCCL_121,
        loaded=(
            *_loaded("Libfabric", 12),
            "Successfully loaded external network plugin /opt/plug/libnccl-net.so",
            "GIN/Plugin: Could not find: libnccl-gin.so",
        ),
        refused=(*_missed(11, 10, 9, 8, 7, 6), "External network plugin /opt/plug/libnccl-net.so is unsupported"),
        refused_cause="plugin-api-too-old",
        chosen=CHOSEN_227,
        fallen=("Failed to initialize NET plugin Libfabric",),
        died=DIED_227,
        comm=COMM_229,
        channel=CHANNEL_217 + "/Shared",
        connected=RINGS_224,
        warn=STAMPED,
    ),
    # The plugin for cxi (aws-ofi-rccl 1.4.0) offers v5 only, which these do not take.
    "rccl-2.7-2.10": Family(
        banner=_printed(OLD_RCCL_BANNER.format("2.10.3", "4.5")),
        file="librccl-net.so",
        absent=NPF_OLD,
        broken=NPF_OLD,
        absent_cause="plugin-not-loaded",
        plugin=RCCL_MASTER,
        loaded=_missed(4),
        comm=OLD_COMM,
        channel="Channel 00 : {a}[c1000] -> {b}[c1000] [send] via NET/{network}/0{gdr} comm 0x55e2 nRanks 16",
        without=NO_EFA | {"cxi", "domain", "cut-selected"},
    ),
    "rccl-2.12-2.16": Family(
        banner=_printed(OLD_RCCL_BANNER.format("2.16.5", "5.6")),
        file="librccl-net.so",
        absent=NPF,
        broken=NPF,
        absent_cause="plugin-not-loaded",
        plugin=RCCL_140,
        loaded=_loaded("AWS Libfabric", 5, 6),
        refused=TOO_OLD_213,
        comm=OLD_COMM,
        channel=CHANNEL_RCCL,
        without=NO_EFA,
    ),
    "rccl-2.17-2.18": Family(
        banner=_printed(OLD_RCCL_BANNER.format("2.18.6", "6.1")),
        file="librccl-net.so",
        absent=LOAD_217,
        broken=(*LOAD_217, ""),
        plugin=RCCL_140,
        loaded=_loaded("AWS Libfabric", 5, 6),
        refused=TOO_OLD_213,
        comm=COMM_217,
        channel=CHANNEL_RCCL,
        without=NO_EFA,
    ),
    "rccl-2.20.5": Family(
        banner=_printed(OLD_RCCL_BANNER.format("2.20.5", "6.2")),
        file="librccl-net.so",
        absent=LOAD_219,
        broken=(*LOAD_219, ""),
        plugin=RCCL_140,
        loaded=_loaded("AWS Libfabric", 5, 8, 7, 6),
        refused=(*_missed(8, 7, 6), TOO_OLD),
        comm=COMM_217,
        channel=CHANNEL_RCCL,
        without=NO_EFA,
    ),
    "rccl-2.21.5": Family(
        banner=_printed(*(line.format("2.21.5") for line in RCCL_BLOCK)),
        file="librccl-net.so",
        absent=ABSENT_221,
        broken=BROKEN_221,
        plugin=RCCL_140,
        loaded=_loaded("AWS Libfabric", 5, 8, 7, 6),
        refused=(*_missed(8, 7, 6), TOO_OLD),
        comm=COMM_RCCL_221,
        channel=CHANNEL_RCCL,
        without=NO_EFA,
    ),
    "rccl-2.22.3": Family(
        banner=_printed(*(line.format("2.22.3") for line in RCCL_BLOCK)),
        file="librccl-net.so",
        absent=ABSENT_222,
        broken=BROKEN_222,
        plugin=NCCL_118,
        refused=(*_missed(8, 7, 6), TOO_OLD),
        comm=COMM_RCCL_221,
        channel=CHANNEL_RCCL,
        without=NO_EFA,
    ),
    # One message, of which only the first line has a prefix.
    "rccl-2.26.6": Family(
        banner=(Say(RCCL_BLOCK[0].format("2.26.6")), *_printed(*RCCL_BLOCK[1:])),
        file="librccl-net.so",
        absent=ABSENT_226,
        broken=BROKEN_226,
        plugin=NCCL_118,
        loaded=_loaded("Libfabric", 10),
        refused=_missed(10, 9, 8, 7, 6),
        refused_cause="plugin-api-too-old",
        comm=COMM_RCCL_221,
        channel=CHANNEL_RCCL,
        connected=RINGS_224,
        warn=STAMPED,
        without=NO_EFA,
    ),
    # The plugin's levels are shifted by one: its INFO comes as WARN, its WARN without any prefix.
    "rccl-2.27.7": Family(
        banner=(Say(RCCL_BLOCK[0].format("2.27.7")), *_printed(*RCCL_BLOCK[1:])),
        file="libnccl-net.so",
        absent=("NET/Plugin: Could not find: {file}. ",),
        absent_cause="plugin-file-name",
        broken=("NET/Plugin: {error}",),
        plugin=NCCL_118,
        loaded=(
            "Plugin name set by env to librccl-net.so",
            *_loaded("Libfabric", 10),
            "Successfully loaded external plugin librccl-net.so",
        ),
        refused=_missed(10, 9, 8, 7, 6),
        refused_cause="plugin-api-too-old",
        chosen=CHOSEN_227,
        died=DIED_227,
        comm=COMM_RCCL_221,
        channel=CHANNEL_RCCL,
        connected=RINGS_224,
        warn=STAMPED,
        plugin_info="\n[2026-11-21 06:16:47] {host}:4242:4300 [0] int nccl_net_ofi_create_plugin(nccl_net_ofi_plugin_t**):334 NCCL WARN {text}",
        plugin_warn="{text}",
        without=NO_EFA,
    ),
    "rccl-develop": Family(
        banner=(Say(RCCL_BLOCK[0].format("2.30.1")), *_printed(*RCCL_BLOCK[1:])),
        file="librccl-net.so",
        absent=(
            "ncclOsDlopen({file}) failed: {error}",
            "NET/Plugin: Could not find: {file}",
        ),
        broken=("ncclOsDlopen({file}) failed: {error}", "NET/Plugin: {file}: {error}"),
        plugin=NCCL_121,
        loaded=(
            *_loaded("Libfabric", 11),
            "Successfully loaded external network plugin /opt/plug/librccl-net.so",
        ),
        refused=(*_missed(11, 10, 9, 8, 7, 6), "External network plugin /opt/plug/librccl-net.so is unsupported"),
        refused_cause="plugin-api-too-old",
        chosen=CHOSEN_227,
        fallen=("Failed to initialize NET plugin Libfabric",),
        died=DIED_227,
        comm=COMM_229,
        channel=CHANNEL_RCCL,
        connected=RINGS_224,
        warn=STAMPED,
        without=NO_EFA,
    ),
}


@dataclass(frozen=True)
class Outcome:
    """How a job ended, and what is to be read in its log."""

    messages: Callable[[Family], Iterator[Say]]
    verdict: str
    cause: Callable[[Family], str | None]
    confidence: str | None = None
    needs_plugin: bool = False
    one_node: bool = False


def _library(*texts: str, error: str = "", network: str = "") -> Iterator[Say]:
    for text in texts:
        if text:
            yield Say(text.replace("{error}", error).replace("{network}", network))


def _started(family: Family) -> Iterator[Say]:
    yield from family.banner
    yield Say("Bootstrap : Using hsn0:10.253.1.200<0>")


def _connected(family: Family, network: str, *, gdr: bool = False) -> Iterator[Say]:
    yield from _library(*family.chosen, network=network)
    yield from _library(*family.comm)
    yield Say(family.channel.replace("{network}", network).replace("{gdr}", "/GDRDMA" if gdr else ""))
    yield Say("Channel 01/0 : {a}[c1000] -> {b}[c6000] via P2P/IPC")
    if family.chosen[0] != "Using internal Network {network}":
        yield Say(family.connected)


def _over_sockets(family: Family) -> Iterator[Say]:
    yield Say("NET/IB : No device found.")
    yield Say("NET/Socket : Using [0]hsn0:10.253.1.200<0> [1]hsn1:10.253.1.201<0>")
    yield from _connected(family, "Socket")


def _plugin(family: Family) -> Plugin:
    assert family.plugin is not None
    return family.plugin


def _opened(family: Family) -> Iterator[Say]:
    yield from _library(*family.loaded)
    for text in _plugin(family).opening:
        yield Say(text, "plugin")


def _selected(family: Family, provider: str) -> Iterator[Say]:
    yield from _started(family)
    yield from _opened(family)
    yield Say(_plugin(family).provider.replace("{provider}", provider), "plugin")


def _used(provider: str) -> Callable[[Family], Iterator[Say]]:
    def said(family: Family) -> Iterator[Say]:
        yield from _selected(family, provider)
        yield from _connected(family, _plugin(family).network, gdr=provider != "tcp")

    return said


def _absent(family: Family) -> Iterator[Say]:
    yield from _started(family)
    yield from _library(*family.absent, error=NOT_THERE)


def _absent_then_socket(family: Family) -> Iterator[Say]:
    yield from _absent(family)
    yield from _over_sockets(family)


def _broken(error: str) -> Callable[[Family], Iterator[Say]]:
    def said(family: Family) -> Iterator[Say]:
        yield from _started(family)
        yield from _library(*family.broken, error=error)
        yield from _over_sockets(family)

    return said


def _refused(family: Family) -> Iterator[Say]:
    yield from _started(family)
    yield from _library(*family.refused)
    yield from _over_sockets(family)


def _init_failed(family: Family) -> Iterator[Say]:
    yield from _started(family)
    yield from _opened(family)
    yield from _plugin(family).no_provider
    yield Say("plugin/net.cc:118 -> 2")
    yield from _library(*family.fallen)
    yield from _over_sockets(family)


def _domain(family: Family) -> Iterator[Say]:
    yield from _selected(family, "cxi")
    yield from _library(*family.chosen, network=_plugin(family).network)
    yield from _library(*family.comm)
    yield Say(f"NET/OFI {ENOSYS}", "plugin-warn")
    yield Say("transport/net.cc:829 -> 2")


def _forced(family: Family) -> Iterator[Say]:
    yield from _absent(family)
    yield Say("NCCL_NET set by environment to AWS Libfabric")
    yield Say("NET/IB : No device found.")
    yield Say(family.died, "warn")
    yield Say("group.cc:75 -> 5 [Async thread]")


def _over_ib(family: Family) -> Iterator[Say]:
    yield from _absent(family)
    yield Say("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:10.1.1.1<0>")
    yield from _connected(family, "IB", gdr=True)


def _on_one_node(family: Family) -> Iterator[Say]:
    yield from _library(*family.comm)
    yield Say("Channel 00/0 : {a}[c1000] -> {b}[c6000] via P2P/IPC")
    yield Say("Channel 01/0 : {a}[c1000] -> {b}[c6000] via SHM/direct/direct")
    yield Say(family.connected)


def _shared_memory_only(family: Family) -> Iterator[Say]:
    yield from family.banner
    yield from _on_one_node(family)


def _single_node_socket(family: Family) -> Iterator[Say]:
    yield from _absent(family)
    yield Say("NET/Socket : Using [0]hsn0:10.253.1.200<0>")
    yield from _library(*family.chosen, network="Socket")
    yield from _on_one_node(family)


def _cut_opened(family: Family) -> Iterator[Say]:
    yield from _started(family)
    yield from _opened(family)


def _cut_selected(family: Family) -> Iterator[Say]:
    yield from _selected(family, "cxi")


def _cut_cause(family: Family) -> str:
    """Where the first of the plugin's protocols has failed and no more is seen, that is worth a word."""
    silent = not any("No eligible providers" in line for line in _plugin(family).opening)
    return "provider-not-named" if silent else "no-eligible-provider"


def _if_told(cause: str) -> Callable[[Family], str]:
    return lambda family: cause if family.tells_errors else family.absent_cause


OUTCOMES: dict[str, Outcome] = {
    "cxi": Outcome(_used("cxi"), "ofi-cxi", lambda _: None, "proved", needs_plugin=True),
    "tcp": Outcome(_used("tcp"), "ofi-other", lambda _: "provider-not-fast", "proved", needs_plugin=True),
    "efa": Outcome(_used("efa"), "ofi-efa", lambda _: None, "proved", needs_plugin=True),
    "absent": Outcome(_absent_then_socket, "socket", lambda f: f.absent_cause, "proved"),
    "dependency": Outcome(_broken(MISSING), "socket", _if_told("dependency-missing"), "proved"),
    "glibc": Outcome(_broken(GLIBC), "socket", _if_told("glibc-too-old"), "proved"),
    "refused": Outcome(_refused, "socket", lambda f: f.refused_cause, "proved"),
    "init": Outcome(_init_failed, "socket", lambda f: _plugin(f).no_provider_cause, "proved", needs_plugin=True),
    "domain": Outcome(_domain, "plugin-init-error", lambda _: "cxi-no-service", "proved", needs_plugin=True),
    "forced": Outcome(_forced, "plugin-missing", lambda f: f.absent_cause),
    "ib": Outcome(_over_ib, "ib", lambda f: f.absent_cause, "proved"),
    "shared-memory": Outcome(
        _shared_memory_only,
        "intra-node-only",
        lambda f: "nothing-crosses" if f.tells_nodes else "nothing-decided",
        "likely",
        one_node=True,
    ),
    # Versions before 2.21 print no number of nodes: there nothing tells that the job stays on one.
    "single-node": Outcome(
        _single_node_socket,
        "socket",
        lambda f: "nothing-crosses" if f.tells_nodes else f.absent_cause,
        one_node=True,
    ),
    "cut-absent": Outcome(_absent, "plugin-missing", lambda f: f.absent_cause),
    "cut-opened": Outcome(_cut_opened, "ofi-other", _cut_cause, "likely", needs_plugin=True),
    "cut-selected": Outcome(_cut_selected, "ofi-cxi", lambda _: "traffic-not-shown", "likely", needs_plugin=True),
}


def outcomes(family: Family) -> dict[str, Outcome]:
    """Return the outcomes of which a family of versions says something, by their names."""
    return {
        kind: outcome
        for kind, outcome in OUTCOMES.items()
        if kind not in family.without
        and not (outcome.needs_plugin and family.plugin is None)
        and not (kind == "refused" and not family.refused)  # 2.12 and older print nothing about it
    }


def written(family: Family, outcome: Outcome) -> list[str]:
    """Return the log: each message by rank 0, then by rank 8 on the other node."""
    hosts = ("nid005101", "nid005101" if outcome.one_node else "nid005102")
    lines: list[str] = []
    for say in outcome.messages(family):
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
