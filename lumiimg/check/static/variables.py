"""The variables that keep RCCL off the fabric, and the findings that depend on those that only a shell knows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.check.registry import finding_types, remedies_for
from lumiimg.core.findings import Finding, Remedy, Severity
from lumiimg.engine.binds import binds_of
from lumiimg.fabric.path import HOST_LIB_DIR, LAYER_PLUGINS
from lumiimg.fabric.process import LibfabricConf, allows, may_be_called
from lumiimg.fabric.rccl import CONF, PLUGIN_VARIABLE, Rccl
from lumiimg.host.python_process import STARTING
from lumiimg.joblog import vocabulary

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from lumiimg.check.registry import FindingDetails, Findings
    from lumiimg.elf import Process
    from lumiimg.fabric.path import FabricPath
    from lumiimg.host.rccl_process import Variables

_CONF_VARIABLE = "NCCL_CONF_FILE"
_NO_FILE = LibfabricConf()
_GROUPS = {
    "process": ("PATH", *STARTING, "VLLM_NCCL_SO_PATH", "SGLANG_NCCL_SO_PATH"),
    "loader": ("LD_LIBRARY_PATH", "LD_PRELOAD"),
}
"""Groups of variables: those that decide what jobs start and whose RCCL that opens, and where the loader looks."""


def as_doubts(findings: Iterable[Finding], variables: Variables, given: Collection[str] = ()) -> tuple[Finding, ...]:
    """Return findings, with open questions instead of the problems that depend on uncertain variables.

    `given`: variables that binds or the user decide, not a script of the image.
    """
    return tuple(_as_doubt(finding, variables, given) for finding in findings)


def _as_doubt(finding: Finding, variables: Variables, given: Collection[str]) -> Finding:
    hangs_on = (name for each in finding_types()[finding.id].hangs_on for name in _GROUPS.get(each, (each,)))
    names = [name for name in hangs_on if name not in given and variables.is_unsure(name)]
    is_in_no_process = finding.id == "rccl.absent" and finding.where is None
    code = variables.code_not_followed
    if finding.severity is not Severity.PROBLEM or not (names or code) or is_in_no_process:
        return finding
    description = variables.image.description
    cause = f"{code} may change it: Python runs that code, which lumiimg does not follow"
    if names:
        of, why = f"what the image's scripts do to {' and '.join(names)}", description.doubts.get(names[0])
        if description.lost:
            of, why = "what the image's scripts set", description.lost
        cause = f"{of} cannot be known without running them: {why}"
    remedy = (Remedy("run them", "lumiimg check {image} --level probe"),)
    return replace(finding, severity=Severity.UNKNOWN, cause=cause, remedy=remedy)


def judge_binds(environment: Mapping[str, str], process: Process, found: Findings) -> None:
    """Judge the environment's binds over what the loader or RCCL reads: the image's files do not show their effect."""
    searched = [CONF, *(process.config.library_path or "").split(":"), *process.loader.directories]
    searched += [loaded.path for loaded in process.objects]
    for name, binds in binds_of(environment):
        over = [str(bind) for bind in binds if any(_overlap(bind.target, path) for path in searched if path)]
        if over:
            found.add("image.binds", Severity.UNKNOWN, names={"variable": name}, evidence=over)


def _overlap(target: str, path: str) -> bool:
    one, other = f"{target.rstrip('/')}/", f"{path.rstrip('/')}/"
    is_ours = any(each.startswith(f"{HOST_LIB_DIR}/") for each in (one, other))
    return (one.startswith(other) or other.startswith(one)) and not is_ours


def judge_variables(
    variables: Variables, path: FabricPath, found: Findings, of_libfabric: LibfabricConf = _NO_FILE
) -> None:
    """Judge the variables that keep RCCL or libfabric off the fabric, for a path whose plugin was looked for."""
    _judge_network(variables, path.plugin, found)
    name = "FI_PROVIDER"
    providers, shown, remedy = variables.get(name), variables.shown(name), variables.set_to(name, "cxi")
    if of_libfabric.decides(name, variables.get):
        providers, where = of_libfabric.values[name], of_libfabric.path
        shown, remedy = f"{name}={providers} in {where}", Remedy(f"take {name} out of the image's {where}")
    if providers is not None and not allows(providers, "cxi"):
        found.add("provider.excluded", Severity.PROBLEM, names={"variable": shown}, remedy=(remedy,))
    named = variables.get(_CONF_VARIABLE) if Rccl(path.rccl_version).reads_named_conf else None
    if named or variables.unread:
        cause = None if named else variables.unread
        found.add("rccl.settings", Severity.UNKNOWN, where=named or CONF, cause=cause)


def judge_plugin_name(variables: Variables, path: FabricPath, found: Findings, *, for_layers: bool = False) -> None:
    """Judge whether NCCL_NET_PLUGIN keeps RCCL from any plugin; `for_layers`: from any that a layer would add."""
    if path.named_by is None:
        return
    asked = path.plugin_files if path.named_by else ()
    if Rccl(path.rccl_version).opens_none(path.named_by):
        reason = "no-name"
    elif for_layers and asked and path.plugin is None and not {*LAYER_PLUGINS} & {*asked}:
        reason = "no-layer"
    else:
        return
    names = {"variable": variables.shown(PLUGIN_VARIABLE), "version": str(path.rccl_version)}
    names["names"] = " or ".join(asked)
    without = (variables.without(PLUGIN_VARIABLE),)
    found.add("plugin.other-name", Severity.PROBLEM, reason=reason, names=names, remedy=without)


def _judge_network(variables: Variables, plugin: str | None, found: Findings) -> None:
    """Judge NCCL_NET: RCCL compares it with the names of its networks, and fails if none of them matches."""
    name = variables.get("NCCL_NET")
    if name is None:
        return
    family = vocabulary().networks.get(name.lower())
    names = {"variable": variables.shown("NCCL_NET"), "plugin": plugin or "the image"}
    ways = [variables.without("NCCL_NET")]
    if family in {"socket", "ib"}:
        ways += remedies_for("network.forced", family)
        found.add("network.forced", Severity.PROBLEM, reason=family, names=names, remedy=tuple(ways))
    elif plugin is None and family == "ofi":
        pass  # the missing plugin is a finding of its own
    elif not name or plugin is None or not may_be_called(variables.image.root, plugin, name, of_ofi=family == "ofi"):
        details: FindingDetails = {"where": plugin, "remedy": tuple(ways)}
        found.add("network.forced", Severity.UNKNOWN, reason="not-called-so", names=names, **details)
