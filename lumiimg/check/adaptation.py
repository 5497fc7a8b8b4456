"""Find what keeps a third-party image off a site's network, and whether adding its missing layers changes that."""

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
    """Findings about an image that keep RCCL, or may keep it, from using the network."""

    settings: tuple[Finding, ...]
    """Findings about variables that the image sets. No layer removes those."""
    files: tuple[Finding, ...]
    """Findings about its files."""

    def left_by(self, lock: Lock, base: Layer) -> Objections:
        """Return the objections left with the lock's layers: these add missing files but keep an existing plugin."""
        layers = [layer for layer in lock.layers if layer.name != OWN_PACKAGES]
        if not layers:
            return self
        brings = any(PLUGIN_COMPONENT in layer.layer.provides for layer in layers)
        stays = {"plugin.not-on-path"} if "net-api" in base.has else set()
        stays |= {"bind.refused"} if lock.fabric is Fabric.HOST and not brings else set()
        return Objections(self.settings, tuple(finding for finding in self.files if finding.id in stays))

    @property
    def all(self) -> tuple[Finding, ...]:
        """Objections about settings, then those about files."""
        return (*self.settings, *self.files)

    @property
    def binds_refused(self) -> bool:
        """Whether none of the node's libraries loads in the image."""
        return any(found.id == "bind.refused" and found.severity is Severity.PROBLEM for found in self.files)


@dataclass(frozen=True, slots=True)
class NothingAdded:
    """Why nothing is built on an image: it lacks nothing, it cannot be judged, or its own settings prevent it."""

    answer: Answer
    sentence: str
    """The answer as a sentence; the exit code says the same."""
    doubts: tuple[str, ...]
    """Unknown facts, and the image's own settings that prevent it, one sentence each."""


def objections_of(image: Path, snapshot: Snapshot | None) -> Objections:
    """Return the objections to an image's settings and files; `snapshot` describes a node whose libraries are bound."""
    found = Findings(Level.STATIC)
    with open_for_check(image, snapshot=snapshot) as context:
        # judged by what the image contains; without an RCCL that loads, it gets one from a layer, and is judged as well
        variables, static = context.variables, check_files(context).static
        judge_variables(variables, static.path, found)
        judge_plugin_name(variables, static.path, found, for_layers=True)
        settings = as_doubts(found.found, variables)
    files = (finding for finding in static.findings if finding.severity in _COUNT and finding not in settings)
    return Objections(tuple(finding for finding in settings if finding.severity in _COUNT), tuple(files))


def nothing_added(lock: Lock, left: Objections, *, wants_fabric: bool) -> NothingAdded:
    """Return the answer if no layer is added: no obstacle only if everything that it depends on is known."""
    answer = Answer.UNDECIDED if lock.doubts or left.all else Answer.NO_OBSTACLE
    if lock.fabric is Fabric.NONE and wants_fabric:
        answer = Answer.UNDECIDED
        sentence = f"lumiimg does not know what the network of {lock.site} needs"
    elif left.binds_refused:
        answer = Answer.NO
        sentence = "none of the node's libraries loads in the image, and adding its missing layers does not change that"
    elif any(finding.severity is Severity.PROBLEM for finding in left.all):
        answer = Answer.NO
        sentence = "as it is, the image keeps RCCL off the site's network"
    elif answer is Answer.UNDECIDED:
        sentence = "some facts are not known"
    else:
        sentence = "it has everything that the site's network needs"
    doubts = (*(finding.summary for finding in left.all), *(rule.because for rule in lock.doubts))
    return NothingAdded(answer, sentence, doubts)
