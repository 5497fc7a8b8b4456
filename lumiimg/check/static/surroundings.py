"""What stands against an image, whatever its libraries are: the machine that it is for, and a Python bound over it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.check.registry import Findings
from lumiimg.elf.system import facts_at, loader_of
from lumiimg.findings import Code, Finding, Level, Severity
from lumiimg.host.snapshot_tree import MACHINES
from lumiimg.resolve.driver_rule import driver_window, window_on_node
from lumiimg.resolve.inventory import read_contents
from lumiimg.resolve.rules import RuleOutcome, RuleResult
from lumiimg.resolve.venv import VenvFault, faults_of, made_again

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.catalog.sites import Site
    from lumiimg.check.context import ImageInContext
    from lumiimg.check.static.process import StaticResult
    from lumiimg.host.snapshot import Snapshot
    from lumiimg.image import Image

_OF_GO = {"amd64": "x86_64", "arm64": "aarch64", "386": "i686"}
"""Architectures as images name them, and as `uname -m` does."""
_OF_ROCM = "x86_64"
"""Of every machine with ROCm: AMD publishes it for no other. ROCm's system requirements, 2026."""
_OF_VENV = {
    VenvFault.OTHER_PYTHON: (Code.PROGRAM_VENV_PYTHON, Severity.PROBLEM, None),
    VenvFault.OWN_TORCH: (Code.PROGRAM_VENV_TORCH, Severity.PROBLEM, "own"),
    VenvFault.OWN_PART: (Code.PROGRAM_VENV_TORCH, Severity.UNKNOWN, "part"),
    VenvFault.OTHER_IMAGE: (Code.PROGRAM_VENV_IMAGE, Severity.UNKNOWN, None),
    VenvFault.NOT_KNOWN: (Code.PROGRAM_VENV_IMAGE, Severity.UNKNOWN, None),
}


def findings_of_venv(context: ImageInContext) -> tuple[Finding, ...]:
    """Return what stands against an environment that jobs bind over the image."""
    found, venv = Findings(Level.STATIC), context.venv
    if venv is None:
        return ()
    for fault, what in faults_of(venv, context.path, read_contents(context.plain).has):
        code, severity, reason = _OF_VENV[fault]
        again = (made_again(venv, context.path),)
        found.add(code, severity, what, reason=reason, where=str(venv.path), remedy=again)
    return tuple(found.found)


def findings_of_machine(context: ImageInContext, static: StaticResult) -> tuple[Finding, ...]:
    """Return what stands against the image on the processors of a machine, and with the driver of its GPUs."""
    found, snapshot = Findings(Level.STATIC), context.snapshot
    lacking = wrong_processors(context.image, (static.job.program,) if static.job else (), snapshot, context.site)
    if lacking is not None:
        found.add(Code.IMAGE_ARCHITECTURE, Severity.PROBLEM, lacking)
    is_seen = snapshot is not None and snapshot.gpu_driver is not None
    for rule in _driver(context):
        what = f"{rule.have}: {rule.because}"
        if rule.outcome is RuleOutcome.OK:
            found.add(Code.IMAGE_DRIVER, Severity.INFO, what, source=rule.source)
            continue
        severity, reason = Severity.UNKNOWN, "seen" if is_seen else "not-seen"
        if rule.outcome is RuleOutcome.REFUSED:
            severity, reason = Severity.PROBLEM, "refused"
        found.add(Code.IMAGE_DRIVER, severity, what, reason=reason, cause=f"needed: {rule.need}", source=rule.source)
    return tuple(found.found)


def _driver(context: ImageInContext) -> Iterator[RuleResult]:
    """Yield what is known of the driver: what was seen on a node counts without a site, too."""
    snapshot, site = context.snapshot, context.site
    if snapshot is not None:
        for rule in window_on_node(context.contents.stack, site, snapshot):
            # without a site the question is the network's, and a driver that nobody knows leaves it as it is
            if site is not None or rule.outcome is not RuleOutcome.UNKNOWN:
                yield rule
    elif site is not None:
        yield from driver_window(context.contents.stack, site)


def wrong_processors(image: Image, files: Sequence[str], snapshot: Snapshot | None, site: Site | None) -> str | None:
    """Return why the processors of a machine do not run an image: by what it says of itself, and by its programs.

    Of a node what was seen counts, else what is known of the site; without either, what ROCm is for.
    """
    if snapshot is not None:
        wanted, whose = snapshot.architecture, snapshot.host
    elif site is not None and site.processors is not None:
        wanted, whose = site.processors, site.name
    else:
        wanted, whose = _OF_ROCM, "machines with ROCm"
    said = _OF_GO.get(image.architecture or "", image.architecture)
    if said not in {None, wanted}:
        return f"the image says that it is for {said}, but {whose} has {wanted}"
    root = image.root
    for path in (*files, *filter(None, [loader_of(root)])):
        if (facts := facts_at(root, path)) is not None:
            machine = MACHINES.get(facts.machine, f"another machine (e_machine {facts.machine})")
            if facts.elf_class == 64 and machine == wanted:
                return None
            bits = "" if facts.elf_class == 64 else f" with {facts.elf_class} bits"
            return f"{path} is for {machine}{bits}, and {whose} has {wanted}"
    return None
