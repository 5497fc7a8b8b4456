"""What keeps somebody else's image off a site's network, and whether the layers that it lacks change that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.check.context import open_for_check
from lumiimg.check.registry import Findings
from lumiimg.check.static.files import check_files
from lumiimg.check.static.variables import as_doubts, judge_plugin_name, judge_variables
from lumiimg.core.findings import Answer, Finding, Level, Severity
from lumiimg.fabric.path import Fabric
from lumiimg.resolve.stack import OWN_PACKAGES, PLUGIN_COMPONENT

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.catalog.layers import Layer
    from lumiimg.host.snapshot import Snapshot
    from lumiimg.resolve.lock import Lock

_COUNT = {Severity.PROBLEM, Severity.UNKNOWN}


@dataclass(frozen=True, slots=True)
class Objections:
    """What of an image is in the way of RCCL's network."""

    settings: tuple[Finding, ...]
    """What the image sets. No layer takes that away."""
    files: tuple[Finding, ...]
    """What its files come to."""

    def left_by(self, lock: Lock, base: Layer) -> Objections:
        """Return what the layers of the lock leave: they bring what the files lack; a plugin that is there stays."""
        layers = [layer for layer in lock.layers if layer.name != OWN_PACKAGES]
        if not layers:
            return self
        brings = any(PLUGIN_COMPONENT in layer.layer.provides for layer in layers)
        stays = {"plugin.not-on-path"} if "net-api" in base.has else set()
        stays |= {"bind.refused"} if lock.fabric is Fabric.HOST and not brings else set()
        return Objections(self.settings, tuple(finding for finding in self.files if finding.id in stays))

    @property
    def all(self) -> tuple[Finding, ...]:
        """Settings, then files."""
        return (*self.settings, *self.files)

    @property
    def binds_refused(self) -> bool:
        """Whether none of the node's libraries loads."""
        return any(found.id == "bind.refused" and found.severity is Severity.PROBLEM for found in self.files)


@dataclass(frozen=True, slots=True)
class NothingAdded:
    """Why nothing is built on an image: it lacks nothing, it cannot be judged, or its own settings prevent it."""

    answer: Answer
    sentence: str
    """A sentence; the exit code says the same."""
    doubts: tuple[str, ...]
    """What is not known, and the image's own settings that prevent it, a sentence each."""


def objections_of(image: Path, snapshot: Snapshot | None) -> Objections:
    """Read what an image sets, and what its files come to; `snapshot` is of a node whose libraries are bound."""
    found = Findings(Level.STATIC)
    with open_for_check(image, snapshot=snapshot) as context:
        # by what the image has; one without an RCCL that loads gets its own by a layer, and is judged as well
        variables, static = context.variables, check_files(context).static
        judge_variables(variables, static.path, found)
        judge_plugin_name(variables, static.path, found, for_layers=True)
        settings = as_doubts(found.found, variables)
    files = (finding for finding in static.findings if finding.severity in _COUNT and finding not in settings)
    return Objections(tuple(finding for finding in settings if finding.severity in _COUNT), tuple(files))


def nothing_added(lock: Lock, left: Objections, *, wants_fabric: bool) -> NothingAdded:
    """Return the answer where no layer is added: it is good only where all that it rests on is known."""
    answer = Answer.UNDECIDED if lock.doubts or left.all else Answer.NO_OBSTACLE
    if lock.fabric is Fabric.NONE and wants_fabric:
        answer = Answer.UNDECIDED
        sentence = f"what the network of {lock.site} needs is not known to lumiimg"
    elif left.binds_refused:
        answer = Answer.NO
        sentence = "none of the node's libraries loads in it, and the layers that it lacks do not change that"
    elif any(finding.severity is Severity.PROBLEM for finding in left.all):
        answer = Answer.NO
        sentence = "as it is, the image keeps RCCL off the site's network"
    elif answer is Answer.UNDECIDED:
        sentence = "some facts are not known"
    else:
        sentence = "it has everything that the site's network needs"
    doubts = (*(finding.summary for finding in left.all), *(rule.because for rule in lock.doubts))
    return NothingAdded(answer, sentence, doubts)
