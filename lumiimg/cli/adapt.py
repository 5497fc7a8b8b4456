"""Read an image that someone else made, and build one on it with the layers that
it lacks to use the network of a site: libfabric with the cxi provider, the net
plugin. What the image has is neither put in again nor shadowed.

examples:
  lumiimg adapt vllm.sif --site lumi --dry-run
  lumiimg adapt vllm.sif --site lumi -o vllm-lumi.sif
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.cli import build
from lumiimg.cli.options import IMAGES
from lumiimg.cli.request import add_layers_and_sources, planned, puller
from lumiimg.errors import BadInputError, ExitCode

if TYPE_CHECKING:
    import argparse

    from lumiimg.findings import Finding


def configure_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("base", metavar="IMAGE", help=f"{IMAGES}, or an address: docker://…")
    add_layers_and_sources(parser)
    build.add_how(parser)
    parser.set_defaults(recipe=None, locked=False)


def execute(arguments: argparse.Namespace) -> int:
    from lumiimg.fabric.path import Fabric
    from lumiimg.findings import Code, Severity
    from lumiimg.report.build import print_doubts
    from lumiimg.report.console import console, headline, marked, print_json, remedies, say
    from lumiimg.resolve.decide import locked
    from lumiimg.resolve.image_base import read_foreign

    if not arguments.site:
        raise BadInputError("for which machine?", hint="name it: --site lumi, or a site file")
    read: list[Path] = []
    pull = puller(arguments)

    def pull_once(name: str) -> Path:
        read.append(pull(name))
        return read[-1]

    base = read_foreign(arguments.base, pull_once)
    request, plan = planned(arguments, images={arguments.base: base})
    out = console(stderr=True, quiet=arguments.quiet)
    has = ", ".join(f"{name} {base.has[name]}" for name in _TOLD if name in base.has)
    say(out, f"{arguments.base} has {has or 'nothing that is known here'}")
    against, of_files = _against(read[-1] if read else Path(arguments.base))
    for finding in against:
        marked(out, finding.severity.value, f"{finding.summary}; what is built on it sets that, too  [{finding.id}]")
        remedies(out, finding.remedy)
    lock = locked(plan)
    if lock.layers:  # they bring what its files lack, but a plugin that is there, and not found, stays so
        of_files = [finding for finding in of_files if finding.id is Code.PLUGIN_NOT_ON_PATH and "net-api" in base.has]
    for finding in of_files:
        marked(out, finding.severity.value, f"{finding.summary}  [{finding.id}]")
        remedies(out, finding.remedy)
    against += of_files
    if lock.layers:
        build.check_options(arguments)
        return build.make(arguments, lock, request)
    # nothing to add is an answer only where all that it rests on is known
    unknown = lock.fabric is Fabric.NONE and arguments.fabric != Fabric.NONE.value
    answer = ExitCode.UNDECIDED if lock.doubts or unknown or against else ExitCode.GOOD
    if unknown:
        sentence = f"nothing is added: what the network of {lock.site} needs is not known to lumiimg"
    elif any(finding.severity is Severity.PROBLEM for finding in against):
        answer = ExitCode.NO
        sentence = "nothing is added, and as it is, the image keeps RCCL off the site's network"
    elif lock.doubts or against:
        sentence = "nothing is added, and not all is known"
    else:
        sentence = "it lacks nothing that the site's network needs"
    if arguments.json:
        doubts = [*(finding.summary for finding in against), *(rule.because for rule in lock.doubts)]
        print_json("adapt", answer=sentence, doubts=doubts)
    kind = {ExitCode.NO: "problem", ExitCode.UNDECIDED: "unknown"}.get(answer, "ok")
    headline(out, f"{sentence}: nothing was built", kind)
    print_doubts(out, lock)
    return answer


def _against(path: Path) -> tuple[list[Finding], list[Finding]]:
    """Return what keeps RCCL off the network: what the image sets, which no layer takes away, and its files."""
    from lumiimg.check.opening import opened
    from lumiimg.check.static.files import check_static
    from lumiimg.check.static.variables import judge_plugin_name, judge_variables, read_variables
    from lumiimg.findings import Findings, Level, Severity

    found = Findings(Level.STATIC)
    with opened(path) as image:
        # by what the image has; one without an RCCL that loads gets its own by a layer, and is judged as well
        variables, static = read_variables(image, {}), check_static(image, {})
        judge_variables(variables, static.path, found)
        judge_plugin_name(variables, static.path, found)
    wanted = {Severity.PROBLEM, Severity.UNKNOWN}
    of_files = [finding for finding in static.findings if finding.severity in wanted and finding not in found.found]
    return [finding for finding in found.found if finding.severity in wanted], of_files


_TOLD = ("os", "glibc", "python", "rocm", "rccl", "torch", "vllm", "sglang", "net-api")
