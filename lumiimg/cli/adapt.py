"""Build an image on one that someone else made, with the layers that it lacks."""

from __future__ import annotations

import argparse
from pathlib import Path

from lumiimg.catalog.site_choice import site_to_make_for
from lumiimg.check.context import open_for_check
from lumiimg.check.pipeline import check_files
from lumiimg.check.registry import Findings
from lumiimg.check.static.commands import concluded
from lumiimg.check.static.variables import doubted, judge_plugin_name, judge_variables, read_variables
from lumiimg.cli import build
from lumiimg.cli.inputs import Inputs
from lumiimg.cli.request import image_fetcher, resolve_request
from lumiimg.errors import ExitCode
from lumiimg.fabric.path import Fabric
from lumiimg.findings import Code, Finding, Level, Severity
from lumiimg.host.snapshot import Snapshot
from lumiimg.report.console import Console, console, marked, print_json, remedies, say
from lumiimg.report.document import Document, severity_of
from lumiimg.report.text import show
from lumiimg.report.views.build import doubts_section
from lumiimg.resolve.decide import locked
from lumiimg.resolve.image_base import read_foreign
from lumiimg.resolve.stack import OWN_PACKAGES, PLUGIN_COMPONENT


def execute(arguments: argparse.Namespace) -> int:
    inputs = Inputs.of(arguments, site_to_make_for)
    site = inputs.target
    read: list[Path] = []
    pull = image_fetcher(arguments)

    def pull_once(name: str) -> Path:
        read.append(pull(name))
        return read[-1]

    base = read_foreign(arguments.base, pull_once, site)
    request, plan = resolve_request(arguments, images={arguments.base: base})
    out = console(stderr=True, quiet=arguments.quiet)
    has = ", ".join(f"{name} {base.has[name]}" for name in _TOLD if name in base.has)
    say(out, f"{arguments.base} has {has or 'nothing that is known here'}")
    against, of_files = _against(read[-1] if read else Path(arguments.base), inputs.snapshot)
    for finding in against:
        _show(out, finding, arguments.base, site.name, "; an image built on it sets that, too")
    lock = locked(plan)
    if layers := [layer for layer in lock.layers if layer.name != OWN_PACKAGES]:
        # they bring what its files lack, but a plugin that is there stays as it is
        brings = any(PLUGIN_COMPONENT in layer.layer.provides for layer in layers)
        stays = {Code.PLUGIN_NOT_ON_PATH} if "net-api" in base.has else set()
        stays |= {Code.BIND_REFUSED} if lock.fabric is Fabric.HOST and not brings else set()
        of_files = [finding for finding in of_files if finding.id in stays]
    for finding in of_files:
        _show(out, finding, arguments.base, site.name)
    against += of_files
    refused = any(finding.id is Code.BIND_REFUSED and finding.severity is Severity.PROBLEM for finding in of_files)
    if lock.layers and not refused:
        build.check_options(arguments)
        return build.make(arguments, lock, request)
    # nothing to add is an answer only where all that it rests on is known
    unknown = lock.fabric is Fabric.NONE and arguments.fabric != Fabric.NONE.value
    answer = ExitCode.UNDECIDED if lock.doubts or unknown or against else ExitCode.GOOD
    if unknown:
        sentence = f"nothing is added: what the network of {lock.site} needs is not known to lumiimg"
    elif refused:
        answer = ExitCode.NO
        sentence = "none of the node's libraries loads in it, and the layers that it lacks do not change that"
    elif any(finding.severity is Severity.PROBLEM for finding in against):
        answer = ExitCode.NO
        sentence = "nothing is added, and as it is, the image keeps RCCL off the site's network"
    elif lock.doubts or against:
        sentence = "nothing is added, and some facts are not known"
    else:
        sentence = "it has everything that the site's network needs"
    doubts = [*(finding.summary for finding in against), *(rule.because for rule in lock.doubts)]
    if arguments.json:
        print_json("adapt", answer=sentence, doubts=doubts)
    whole, sections = f"{sentence}: nothing was built", (doubts_section(lock),)
    document = Document("adapt", arguments.base, severity_of(answer), whole, sections=sections)
    show(document, quiet=arguments.quiet, verbose=True, stderr=True)
    return answer


def _show(out: Console, finding: Finding, image: str, site: str, note: str = "") -> None:
    marked(out, finding.severity.value, f"{finding.summary}{note}  [{finding.id}]")
    remedies(out, concluded(finding.remedy, image, site))


def _against(path: Path, snapshot: Snapshot | None) -> tuple[list[Finding], list[Finding]]:
    """Return what keeps RCCL off the network: what the image sets, which no layer takes away, and its files.
    `snapshot` is of a node whose libraries are bound.
    """
    found = Findings(Level.STATIC)
    with open_for_check(path, snapshot=snapshot) as context:
        # by what the image has; one without an RCCL that loads gets its own by a layer, and is judged as well
        variables, static = read_variables(context.image, {}), check_files(context).static
        judge_variables(variables, static.path, found)
        judge_plugin_name(variables, static.path, found)
        of_variables = doubted(found.found, variables)
    wanted = {Severity.PROBLEM, Severity.UNKNOWN}
    of_files = [finding for finding in static.findings if finding.severity in wanted and finding not in of_variables]
    return [finding for finding in of_variables if finding.severity in wanted], of_files


_TOLD = ("os", "glibc", "python", "rocm", "rccl", "torch", "vllm", "sglang", "net-api")
