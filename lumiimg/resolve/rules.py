"""The compatibility rules: each a function of a stack and a site that returns result, reason and source.

Layers (rule 6) and torch (rule 5) are matched when the stack is put together (search.py); here they are reported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from lumiimg.catalog.needs import version_of
from lumiimg.core.findings import Severity
from lumiimg.fabric.path import Fabric
from lumiimg.fabric.rccl import generation_of, rccl_table
from lumiimg.resolve.stack import ARCH, Chosen, Stack, as_offered, given_in, is_gpu, troubles_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lumiimg.catalog.layers import Layer
    from lumiimg.catalog.sites import Site

FIRST_WITH_CXI = "1.21"
CXI = "libfabric NEWS: prov/cxi from 1.21.0 on"
_NET_API = re.compile(r"[0-9]{1,2}")
_RCCL_TABLE = "lumiimg/fabric/rccl.toml: RCCL and NCCL run and read by release"


class RuleOutcome(StrEnum):
    """The outcome of a rule."""

    OK = "ok"
    WARNING = "warning"
    """It may work; its known faults are reported."""
    UNKNOWN = "unknown"
    """A fact that would decide it is missing."""
    REFUSED = "refused"

    @property
    def severity(self) -> Severity:
        """Its weight in an answer."""
        ends = {RuleOutcome.OK: Severity.OK, RuleOutcome.REFUSED: Severity.PROBLEM}
        return ends.get(self, Severity.UNKNOWN)

    @property
    def word(self) -> str:
        """Beginning of a sentence that states it; empty if the mark shows it."""
        return {RuleOutcome.WARNING: "warning: ", RuleOutcome.UNKNOWN: "not known: "}.get(self, "")


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The result of one rule."""

    id: str
    """Stable name of the rule: `glibc-gate`."""
    outcome: RuleOutcome
    """Its outcome: `warning` is a known doubt, `unknown` lacks a fact that would decide it."""
    need: str
    """What is needed, with its version or number; for a finding, that there is no obstacle."""
    have: str
    """What is present, with its version or number; for a finding, its text."""
    because: str
    """The reason, as a sentence; empty if nothing more is known."""
    source: str
    """Source of the rule or of its numbers."""

    @property
    def need_and_have(self) -> str:
        """What is needed and what is present; for something that must be absent, only that it is present."""
        is_name = self.need == "nothing" or self.need.startswith("not ")
        return self.have if is_name else f"needs {self.need}, has {self.have}"

    @property
    def in_words(self) -> str:
        """Text of a result that is not ok: both sides if they can be compared, and the reason."""
        is_doubt_of_layer = self.id == "layers" and self.outcome is RuleOutcome.UNKNOWN
        is_compared = self.have not in {self.need_and_have, "none"} and not is_doubt_of_layer
        need_and_have = self.need_and_have if is_compared or not self.because else ""
        return self.outcome.word + ": ".join(filter(None, (need_and_have, self.because)))


def worst_first(results: Iterable[RuleResult]) -> list[RuleResult]:
    """Return the results sorted by outcome: refused, unknown, warning, ok."""
    return sorted(results, key=lambda result: list(RuleOutcome).index(result.outcome), reverse=True)


NO_MACHINE = RuleResult(
    "fabric",
    RuleOutcome.WARNING,
    "a machine",
    "none",
    "no machine is named: no net plugin is added, and RCCL would use TCP between nodes (--site lumi)",
    "RCCL src/net.cc, ncclNetInit: without a plugin its own transports",
)
"""Result of a request for GPUs that names no machine."""


def glibc_gate(stack: Stack, site: Site, *, asked: Fabric | None) -> tuple[Fabric, RuleResult | None]:
    """Rule 1: the host's libraries load in the image only if its C library is as new as they require.

    `asked` is the user's choice, None for whatever is possible. Source: version needs in glibc elf/dl-version.c.
    """
    if site.fabric is None:
        return Fabric.NONE, None if site.arch is None and site.vendor is None else _no_fabric(site)
    if asked is Fabric.NONE:
        because, source = "you asked for no fabric: RCCL uses TCP", site.fabric.source
        return asked, RuleResult("fabric", RuleOutcome.WARNING, "libfabric with cxi", "no fabric", because, source)
    floor, version, is_host = site.fabric.glibc, stack.version("glibc"), asked is Fabric.HOST
    need = f"glibc >= {floor}" if floor else "the glibc that the host's libraries need"
    have = f"glibc {version or '(not known)'}"
    fits = _at_least(version, floor)
    fabric, outcome = asked or Fabric.BUNDLED, RuleOutcome.OK
    if {"libcxi", "libfabric"} <= stack.offers.keys():
        fabric, outcome = Fabric.BUNDLED, RuleOutcome.REFUSED if is_host else RuleOutcome.OK
        need, have = "no libcxi in the base" if is_host else "libcxi in the base", "libfabric and libcxi of the base"
        because = "the base has its own libfabric and libcxi: nothing from the host is bound"
    elif asked is Fabric.BUNDLED:
        need, because = "nothing from the host", "you asked for a bundled fabric, which loads nothing from the host"
    elif fits is None:
        outcome = RuleOutcome.REFUSED if is_host else RuleOutcome.UNKNOWN
        because = "the C library of the base is not known, so it is not known whether the host's libraries load in it"
        if floor is None:
            because = (
                f"the C library that libfabric and libcxi of {site.name} need is not documented; a snapshot of "
                "a node shows it (lumiimg host scan)"
            )
    elif fits:
        fabric, host = Fabric.HOST, " ".join(filter(None, ("the host's libfabric", site.fabric.libfabric)))
        because = f"{host} and libcxi load in the image; last confirmed on {site.fabric.date}"
    else:
        outcome = RuleOutcome.REFUSED if is_host else RuleOutcome.OK
        instead = "" if is_host else ": libcxi and libfabric are built in the image"
        because = f"the host's libfabric and libcxi need GLIBC_{floor}, which the image does not have{instead}"
    source = f"{site.fabric.source} ({site.fabric.date}); glibc elf/dl-version.c"
    return fabric, RuleResult("glibc-gate", outcome, need, have, because, source)


def _no_fabric(site: Site) -> RuleResult:
    because = (
        f"the libfabric and libcxi of {site.name} are not known to this project, so none are added: RCCL uses TCP"
        if site.vendor is None
        else f"the project has no fabric for images of {site.vendor}'s GPUs; `lumiimg show {site.name}` says how"
        " to bind the machine's own"
    )
    return RuleResult("fabric", RuleOutcome.UNKNOWN, "libfabric with cxi", "no fabric", because, site.source)


def torch_kind(stack: Stack) -> Iterator[RuleResult]:
    """Rule 5: a torch that is already present must be one for ROCm. Source: the local version of its wheels."""
    version = stack.version("torch") or ""
    if version.partition("+")[2].startswith(("cu", "cpu", "xpu")):
        because = "this torch was not built for ROCm: it would see no GPU"
        need, have, source = "a torch for ROCm", f"torch {version}", "download.pytorch.org"
        yield RuleResult("torch", RuleOutcome.REFUSED, need, have, because, source)


def plugin_abi(stack: Stack) -> RuleResult | None:
    """Rule 3: RCCL loads a net plugin only with an API and a file name that it knows (net.cc, plugin/net.cc)."""
    if "net-api" not in stack.offers:
        return None
    newest, oldest, version = stack.version("net-api"), stack.version("net-api-oldest"), stack.version("rccl")
    plugin, outcome, need = stack.offers["net-api"].by, RuleOutcome.UNKNOWN, "a net API that RCCL takes"
    generation = generation_of(version) if version else None
    offered = range(int(oldest or newest), int(newest) + 1) if newest else range(0)
    have = f"{plugin}: v{newest}" if len(offered) == 1 else f"{plugin}: v{oldest} to v{newest}"
    if not offered:
        have = f"{plugin} (net API not known)"
        because = "the net API versions that it exports are not known: it is not built from the usual source"
    elif generation is None:
        because = "the image's RCCL version is not known" if version is None else f"RCCL {version} is not in the table"
    else:
        need = f"RCCL {version} takes {', '.join(f'v{api}' for api in generation.accepts)}"
        common = next((api for api in generation.accepts if api in offered), None)
        outcome = RuleOutcome.REFUSED if common is None else RuleOutcome.OK
        because = f"RCCL cannot load this plugin and falls back to TCP; {rccl_table().remedy_for_old_api}"
        if common is not None:
            installs = ", which the layer installs" if any(chosen.name == plugin for chosen in stack.layers) else ""
            because = f"both support v{common}; RCCL looks for {' or '.join(generation.files)}{installs}"
    return RuleResult("plugin-abi", outcome, need, have, because, _RCCL_TABLE)


def compiled_for(stack: Stack, site: Site, arguments: Mapping[str, str]) -> Iterator[RuleResult]:
    """Rule 6: code compiled for a GPU must be for the site's GPU (LLVM AMDGPUUsage); `arguments` are the user's."""
    others: dict[str, list[str]] = {}
    for chosen in stack.layers:
        name, is_wheel = chosen.name, chosen.release is not None and chosen.release.wheels
        value = chosen.arguments.get(ARCH, "")
        is_chosen = site.arch is None and f"{name}.{ARCH}" in arguments  # by the user, who knows the machine
        if is_gpu(value) and site.arch not in value.split(";") and not is_wheel and not is_chosen:
            others.setdefault(value, []).append(name)
    for value, names in others.items():
        have = f"{', '.join(names)} for {value}"
        options = [f"--arg {name}.{ARCH}" for name in names]
        if site.arch is not None:
            because = f"code for {value} does not run on the GPUs of {site.name}"
            if all(f"{name}.{ARCH}" in arguments for name in names):
                because += f": leave out {' and '.join(options)}, or name {site.arch} as well"
            yield RuleResult("layers", RuleOutcome.REFUSED, f"code for {site.arch}", have, because, site.source)
        elif site.vendor is None:
            need = f"code for the GPUs of {site.name}"
            yours = " ".join(f"{option}=GPU" for option in options)
            because = f"{site.name} may have any GPU, and GPU code runs only on its own GPU type: name yours ({yours})"
            yield RuleResult("layers", RuleOutcome.UNKNOWN, need, have, because, site.source)


def fabric_versions(stack: Stack, site: Site, fabric: Fabric) -> RuleResult | None:
    """Rule 4: libcxi speaks to the host's driver, so a bundled one should be from the host's Slingshot release."""
    if site.fabric is None or fabric is Fabric.NONE:
        return None
    libfabric, release, of_host = stack.version("libfabric"), stack.version("slingshot"), site.fabric.slingshot
    if fabric is Fabric.BUNDLED and _at_least(libfabric, FIRST_WITH_CXI) is False:
        because = f"libfabric has the cxi provider from {FIRST_WITH_CXI} on: this one would use TCP"
        need = f"libfabric >= {FIRST_WITH_CXI}"
        return RuleResult("fabric", RuleOutcome.REFUSED, need, f"libfabric {libfabric}", because, CXI)
    have = f"Slingshot {release}"
    if fabric is Fabric.HOST:
        outcome, because = RuleOutcome.OK, "libfabric, its cxi provider and libcxi are the host's own"
        have = " ".join(filter(None, ("libfabric", libfabric, "of the host")))
    elif of_host is None or release is None:
        whose = "host's Slingshot release" if of_host is None else "Slingshot release of the image's libcxi"
        outcome, because = RuleOutcome.UNKNOWN, f"the {whose} is not known; libcxi and driver must match"
        have = f"libcxi of Slingshot {release}" if release else "libcxi (release not known)"
    elif release == of_host:
        because = f"libcxi and driver are from the same release; libfabric {libfabric or '?'} has the cxi provider"
        outcome = RuleOutcome.OK
    else:
        outcome, because = RuleOutcome.WARNING, "libcxi from a release other than the driver's is known to misbehave"
    source = f"{site.fabric.source} ({site.fabric.date}); HewlettPackard/shs-libcxi#18 (newer libcxi misbehaves)"
    need = f"Slingshot {of_host or '(release not known)'}"
    return RuleResult("fabric", outcome, need, have, because, source)


def layers_chosen(stack: Stack) -> Iterator[RuleResult]:
    """Rules 5 and 6: the chosen layers, their releases and the reasons; and their known faults."""
    for chosen in stack.layers:
        is_torch, source = chosen.name == "pytorch", chosen.release.source if chosen.release else chosen.layer.source
        have = name = f"torch {stack.version('torch')}" if is_torch else chosen.title
        needs, doubts = chosen.layer.needs_of(chosen.release), list[str]()
        if chosen.unknown:
            needs = tuple(need for need, _ in chosen.unknown)
            have = ", ".join(as_offered(need, offer) for need, offer in chosen.unknown)
            which = dict.fromkeys(f"which {need.component} {offer.by} has" for need, offer in chosen.unknown)
            doubts.append(f"it requires {', '.join(needs)}, and {' and '.join(which)} is not known")
        doubts += _of_unlisted(chosen, stack)
        if chosen.release is not None and chosen.others:
            doubts.append(f"nothing is known about this release with another {' and '.join(chosen.others)}")
        outcome = RuleOutcome.UNKNOWN if doubts else RuleOutcome.OK
        because = f"{name} ({chosen.because}): {'; '.join(doubts)}" if doubts else chosen.because
        need = ", ".join(needs) or "nothing"
        yield RuleResult("torch" if is_torch else "layers", outcome, need, have, because, source)
    yield from _troubles((chosen.layer for chosen in stack.layers), stack, refused=False)


def _of_unlisted(chosen: Chosen, stack: Stack) -> Iterator[str]:
    """Yield the doubts about a release that was read or derived, and the missing expectations of any release."""
    release = chosen.release
    if release is None:
        return
    if release.read is not None:
        read = f"read from the package index on {release.read}"
        yield f"{read}; never tried; `lumiimg lock` resolves its packages"
    yield from release.doubts
    for need in release.expects:
        offer = stack.offers.get(need.component)
        if offer is None or not need.holds_for(offer.version):
            yield f"it is made for {need}, and the image has {as_offered(need, offer)}"


def base_troubles(base: Layer, stack: Stack) -> Iterator[RuleResult]:
    """Yield known faults of the base, on this site and with these layers."""
    for refused in (True, False):
        yield from _troubles((base,), stack, refused=refused)


def _troubles(layers: Iterable[Layer], stack: Stack, *, refused: bool) -> Iterator[RuleResult]:
    for trouble in troubles_of(layers, stack, refused=refused):
        given = ", ".join(map(str, trouble.given))
        outcome = RuleOutcome.REFUSED if refused else RuleOutcome.WARNING
        have = given_in(stack, trouble)
        need = " or ".join(map(str, trouble.unless)) or f"not {given}"
        yield RuleResult(trouble.rule, outcome, need, have, trouble.because, trouble.source)


def _at_least(have: str | None, need: str | None) -> bool | None:
    here, least = version_of(have), version_of(need)
    return None if here is None or least is None else here >= least
