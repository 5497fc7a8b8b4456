"""What a side of a boundary needs beside what the other has, and what the findings say: the rules of one decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.fabric.path import Fabric
from lumiimg.findings import Code, Family, Finding, Severity
from lumiimg.resolve.rules import RuleOutcome, RuleResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.check.static.result import StaticResult
    from lumiimg.host.manifest import BindManifest, Loaded
    from lumiimg.host.margins import Margin

_PROVIDER_SOURCE = "libfabric prov/cxi/configure.m4: the built-in provider links libcxi"
_LOADER_SOURCE = "glibc elf/dl-load.c, elf/dl-version.c, modelled"
_VERSION_SOURCE = "glibc elf/dl-version.c: names of versions are compared before any code runs"
_FREE = "nothing that keeps RCCL off the fabric"
_SHOWN = 3
_OF_LOADING = frozenset({Code.PLUGIN_LOADS, Code.PLUGIN_NEEDS_HOST, Code.PROVIDER_NO_LIBFABRIC, Code.PROVIDER_NO_CXI})
"""What binds can mend: of a process with the image's files alone."""
_OF_THE_PROCESS = frozenset({Family.FABRIC, Family.LIBRARY})
"""Beside the plugin's own findings: of its libraries."""


_OUTCOMES = {Severity.PROBLEM: RuleOutcome.REFUSED, Severity.UNKNOWN: RuleOutcome.UNKNOWN}
"""Of the findings that keep an answer from being a yes."""


def is_finding(rule: RuleResult) -> bool:
    """Whether what there is, is the sentence of a finding, which stands alone."""
    return isinstance(rule.id, Code)


def words_of(rule: RuleResult) -> str:
    """Return what a comparison says."""
    return rule.have if is_finding(rule) else f"needs {rule.need}: {rule.have}"


def clause_of(rule: RuleResult) -> str:
    """Return what a comparison says, to stand behind a colon."""
    return rule.have if is_finding(rule) else f"{rule.need} is needed, {rule.have}"


def rules_of(
    static: StaticResult,
    manifest: BindManifest | None,
    loaded: Sequence[Loaded],
    missing: Sequence[str],
    margins: Sequence[Margin],
) -> Iterator[RuleResult]:
    """Yield what is compared, and what the findings say beside that: no finding that keeps a check from a yes is lost.

    `loaded`, `missing`, `margins`: the process as it is with the manifest; without one, with the image's files alone.
    """
    yield from _rules_of_rccl(static)
    for finding in static.findings:
        rule = _rule_of_finding(finding, static, manifest, missing)
        if rule is not None:
            yield rule
    if manifest is None:
        for name in missing:
            because = "the image does not have it; a snapshot shows whether a host has it"
            yield RuleResult("library", RuleOutcome.UNKNOWN, name, "nothing", because, "glibc elf/dl-load.c")
    elif manifest.fabric is Fabric.NONE:
        outcome = RuleOutcome.REFUSED if manifest.host_has_fabric else RuleOutcome.UNKNOWN
        for refusal in manifest.refusals:
            family = "glibc-gate" if refusal.need.startswith("GLIBC_") else "library"
            because = f"{refusal.attempt}: {' -> '.join(refusal.chain)}; {refusal.words}"
            yield RuleResult(family, outcome, refusal.need, refusal.have, because, _LOADER_SOURCE)
        if not manifest.host_has_fabric:
            yield RuleResult(
                "host-fabric",
                RuleOutcome.UNKNOWN,
                "a libfabric with the cxi provider",
                "the snapshot of the host has none",
                "was it taken on a compute node, with the modules of the job loaded?",
                _PROVIDER_SOURCE,
            )
        return
    provider = manifest.trial.provider if manifest is not None and manifest.trial is not None else None
    if provider is not None:
        item = next((item for item in loaded if item.object.path == provider), None)
        have = _whose(item) if item is not None else provider
        yield RuleResult(
            "cxi-provider", RuleOutcome.OK, "the cxi provider of libfabric", have, "it loads", _PROVIDER_SOURCE
        )
    yield from (_rule_of_margin(margin) for margin in margins if margin.crosses)


def _rules_of_rccl(static: StaticResult) -> Iterator[RuleResult]:
    """Yield what RCCL asks of the plugin; that it is not there, or not loaded, is a rule of its own."""
    fabric = static.path
    against = {finding.id: finding.severity for finding in static.findings if finding.severity in _OUTCOMES}
    for finding in static.findings:
        if finding.id.family is Family.RCCL and finding.severity is Severity.PROBLEM:
            have = finding.evidence[0] if finding.evidence else "there is none"
            yield RuleResult(
                "rccl", RuleOutcome.REFUSED, "an RCCL that loads", have, finding.summary, "glibc elf/dl-load.c"
            )
    if fabric.rccl is None or not fabric.plugin_files:
        return
    # where the search is not known as a whole, that nothing was found is open
    is_sure = any(code.family is Family.PLUGIN and severity is Severity.PROBLEM for code, severity in against.items())
    yield RuleResult(
        "plugin-name",
        RuleOutcome.OK if fabric.plugin else RuleOutcome.REFUSED if is_sure else RuleOutcome.UNKNOWN,
        f"a file called {' or '.join(fabric.plugin_files)}",
        fabric.plugin or "there is none that the loader finds",
        f"RCCL {fabric.rccl_version or '(unknown version)'} gives these names to dlopen",
        "strings in RCCL; src/net.cc",
    )
    if fabric.plugin is not None and fabric.accepts:
        yield RuleResult(
            "plugin-api",
            RuleOutcome.OK if fabric.plugin_api else _OUTCOMES[against.get(Code.PLUGIN_API, Severity.PROBLEM)],
            f"net API v{', v'.join(map(str, fabric.accepts))}",
            f"v{fabric.plugin_api}" if fabric.plugin_api else "none of these is exported",
            "RCCL asks the plugin for one symbol per version, in this order",
            "strings in RCCL; exported symbols of the plugin",
        )


def _rule_of_finding(
    finding: Finding, static: StaticResult, manifest: BindManifest | None, missing: Sequence[str]
) -> RuleResult | None:
    """Return what a finding keeps from being a yes; None where it is none that does, or another rule reports it."""
    path = static.path
    is_bound = manifest is not None and manifest.fabric is not Fabric.NONE
    told = (
        finding.id is Code.BIND_REFUSED
        or (finding.id.family is Family.RCCL and finding.severity is Severity.PROBLEM)
        or (finding.id.family is Family.PLUGIN and path.plugin is None and bool(path.plugin_files))
        or (finding.id is Code.PLUGIN_API and bool(path.accepts))
        or (finding.id in _OF_LOADING and not is_bound and (manifest is not None or bool(missing)))
    )
    outcome = _OUTCOMES.get(finding.severity)
    if outcome is None or told:
        return None
    if finding.id is Code.IMAGE_PARTLY_READ:
        because = "variables and files that are not seen may change the loader's search"
        return RuleResult("image", outcome, "an image that is read completely", finding.summary, because, "lumiimg")
    if finding.id is Code.PLUGIN_SYMBOLS:
        have = "; ".join(finding.evidence) or finding.summary
        because = "RCCL opens its plugin with RTLD_NOW: every symbol must be defined at once"
        return RuleResult("symbols", outcome, "every symbol of the plugin", have, because, _LOADER_SOURCE)
    if not is_bound and (finding.id in _OF_LOADING or finding.id.family in _OF_THE_PROCESS):
        outcome = RuleOutcome.UNKNOWN  # a library that is bound may take the place of this one
    because = finding.cause or "; ".join(finding.evidence[:_SHOWN])
    return RuleResult(finding.id, outcome, _FREE, finding.summary, because, finding.source or "lumiimg")


def _rule_of_margin(margin: Margin) -> RuleResult:
    family = {"GLIBC": "glibc-gate", "FABRIC": "libfabric-api", "LIBCXI": "libcxi"}.get(margin.family, "versions")
    return RuleResult(
        family,
        RuleOutcome.OK,
        f"{margin.needed} of {margin.provider_side}",
        f"up to {margin.offered}",
        f"{margin.library_side} needs it",
        _VERSION_SOURCE,
    )


def _whose(item: Loaded) -> str:
    return f"{item.host_path} of the host" if item.host_path else f"{item.object.path} of the image"
