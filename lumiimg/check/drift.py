"""What an update of a machine does to images: they break, they need new binds, or nothing happens.

An image is modelled twice, with what the host offered before and with what it offers now. The old list of binds, as
in somebody's module or job script, is tried on the updated host.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lumiimg.check.context import open_for_check
from lumiimg.check.images import ImageAnswer
from lumiimg.check.registry import remedies_for
from lumiimg.check.static.commands import after_scan, bind_command, site_of, usable_remedies
from lumiimg.check.static.files import check_libraries
from lumiimg.core.errors import ExitCode, LumiimgError, UndecidedError
from lumiimg.core.findings import Answer, Finding, Remedy, Severity
from lumiimg.core.text import as_operand, count, shell_join, shell_quote
from lumiimg.engine.copies import each_apart
from lumiimg.fabric.path import HOST_LIB_DIR, Fabric
from lumiimg.host.bind import try_saved
from lumiimg.host.container_view import without_host_binds
from lumiimg.resolve.driver_rule import unknown_driver, window_of, window_on_node
from lumiimg.resolve.rules import RuleOutcome, RuleResult
from lumiimg.resolve.stack import stack_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lumiimg.catalog.sites import Site
    from lumiimg.check.context import ImageInContext
    from lumiimg.check.static.files import HostFit
    from lumiimg.host.drift import Drift
    from lumiimg.host.manifest import Refusal

_ADAPTED = "adapted.sif"
"""Output file that remedies in the registry use for an adapted image."""
_MAX_PARALLEL = 8
"""Maximum number of images read in parallel, as others use the login node too."""
_LOST = UndecidedError(
    "CANNOT TELL: lumiimg ended while reading this image, because of a bug or a lack of memory",
    hint="run it on this image alone to see why",
)
_ANSWERS: Mapping[Answer, Literal["fine", "breaks", "undecided"]] = {
    Answer.NO_OBSTACLE: "fine",
    Answer.NO: "breaks",
    Answer.UNDECIDED: "undecided",
}


class Fate(StrEnum):
    """What an update does to an image, worst first."""

    BREAKS = "breaks"
    """No binds make it load, or its driver no longer supports its ROCm."""
    STALE_BINDS = "stale-binds"
    """It loads with new binds; with the old ones it does not load or does not start."""
    UNKNOWN = "unknown"
    BROKEN_BEFORE = "broken-before"
    MENDED = "mended"
    """It did not load before; with new binds it does."""
    FINE = "fine"
    """No obstacle found, also with the old binds."""


@dataclass(frozen=True, slots=True)
class SavedBinds:
    """State of the binds that were made with the older snapshot."""

    gone: tuple[str, ...] = ()
    """Paths that they name and that no longer exist on the host."""
    lack: tuple[str, ...] = ()
    """Paths that must be bound now but were not before: device files that the engine hides."""
    refusal: Refusal | None = None
    """Why the remaining ones do not load; null if they do."""

    @property
    def hold(self) -> bool:
        """Whether the image starts and loads with them. If an engine skips a bind, a library may be missing."""
        return not self.gone and not self.lack and self.refusal is None


@dataclass(frozen=True, slots=True)
class ImageDrift:
    """One image before and after an update."""

    image: str
    """Name as the user gave it."""
    fate: Fate
    """What the update does to it."""
    before: HostFit
    """Account of it with the older snapshot."""
    now: HostFit
    """Account of it with the newer snapshot and new binds."""
    saved_binds: SavedBinds
    """State of the binds that were made with the older snapshot."""
    driver: tuple[RuleResult, ...]
    """Results of the rules on a changed GPU driver and the image's ROCm."""
    notes: tuple[str, ...]
    """Unknown facts, and changes that do not decide the fate."""
    remedies: tuple[Remedy, ...]
    """Remedies, a command or a sentence each; commands first."""

    @property
    def refused(self) -> tuple[Finding, ...]:
        """Problems with it now: only the new ones, if there are any."""
        old = {(finding.id, finding.summary) for finding in self.before.against}
        against = tuple(finding for finding in self.now.against if finding.severity is Severity.PROBLEM)
        return tuple(finding for finding in against if (finding.id, finding.summary) not in old) or against


@dataclass(frozen=True, slots=True)
class DriftResult:
    """What a host update does to images."""

    drift: Drift
    images: tuple[ImageDrift, ...]
    """The images that can be read."""
    unread: tuple[ImageAnswer, ...]
    """The images that cannot be read."""
    decided: Answer
    sentence: str
    """The answer as a sentence."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of the answer; bad input if an image cannot be read, unless the answer is no."""
        is_bad = any(image.exit_code is not ExitCode.UNDECIDED for image in self.unread)
        return ExitCode.BAD_INPUT if is_bad and self.decided is not Answer.NO else self.decided.exit_code

    @property
    def answer(self) -> Literal["fine", "breaks", "undecided"]:
        """The answer in a word; exit code: `fine` 0, `breaks` 1, `undecided` 3, or 2 if an image cannot be read."""
        return _ANSWERS[self.decided]


def drift_of(
    drift: Drift,
    paths: Sequence[Path],
    environment: Mapping[str, str],
    site: Site | None,
    machine: tuple[str, ...],
    how_far: Callable[[Sequence[Path]], Iterable[Path]],
) -> DriftResult:
    """Return what a drift does to images. Raises LumiimgError if there is only one, and it cannot be read.

    `machine`: the options that name the machine as it is now; without --host, it is this one. Differences between nodes
    of different kinds say nothing about an image. `how_far` yields once per path, and shows how many are done.
    """

    def outcome(path: Path) -> ImageDrift | ImageAnswer:
        try:
            return image_drift(path, environment, drift, site, machine)
        except LumiimgError as error:
            return ImageAnswer.from_error(path, error)  # it must not prevent an answer about the others

    found: dict[int, ImageDrift | ImageAnswer] = {}
    if not drift.kinds and len(paths) == 1:
        found[0] = image_drift(paths[0], environment, drift, site, machine)
    elif not drift.kinds:
        at_once = min(len(os.sched_getaffinity(0)), _MAX_PARALLEL)
        with closing(each_apart(outcome, paths, at_once)) as done:
            for _, (number, made) in zip(how_far(paths), done, strict=False):
                found[number] = made or ImageAnswer.from_error(paths[number], _LOST)
    in_order = [found[number] for number in sorted(found)]
    images = tuple(each for each in in_order if isinstance(each, ImageDrift))
    unread = tuple(each for each in in_order if isinstance(each, ImageAnswer))
    answer, sentence = _decide(drift, images) if images or not unread else (Answer.UNDECIDED, "CANNOT TELL")
    if unread:
        answer = Answer.UNDECIDED if answer is Answer.NO_OBSTACLE else answer
        sentence += f"; {count(len(unread), 'image')} cannot be read"
    return DriftResult(drift, images, unread, answer, sentence)


def _decide(drift: Drift, images: Sequence[ImageDrift]) -> tuple[Answer, str]:
    """Return the answer and its sentence: no if an image that was good no longer is."""
    fates, of_all = [image.fate for image in images], f"of {count(len(images), 'image')}"
    broken, stale, unknown = map(fates.count, (Fate.BREAKS, Fate.STALE_BINDS, Fate.UNKNOWN))
    if drift.kinds:
        return Answer.UNDECIDED, "CANNOT TELL: these are nodes of different kinds, so their differences are not drift"
    if broken or stale:
        parts = [f"{broken} {of_all} {'breaks' if broken == 1 else 'break'}"] if broken else []
        parts += [f"{stale} {of_all} {'needs' if stale == 1 else 'need'} new binds"] if stale else []
        return Answer.NO, "; ".join(parts)
    if unknown:
        return Answer.UNDECIDED, f"CANNOT TELL for {unknown} {of_all}"
    return Answer.NO_OBSTACLE, f"no image breaks, {of_all}"


def image_drift(
    path: Path, environment: Mapping[str, str], drift: Drift, site: Site | None, machine: tuple[str, ...]
) -> ImageDrift:
    """Return what a drift does to an image; variables of the user's `environment` reach the container.

    Raises BadInputError if it is not an image.
    """
    with open_for_check(path, without_host_binds(environment), drift.now, site, machine=machine) as context:
        before = check_libraries(replace(context, snapshot=drift.before), with_site=True)
        now = check_libraries(context, with_site=True)
        saved = _saved(context, drift, before, now)
        driver = tuple(_driver(context, drift)) if drift.driver_changed else ()
        fate = _fate(before, now, is_stale=not saved.hold, driver=driver)
        remedies = tuple(_remedies(context, fate, now, driver))
    notes = tuple(_notes(drift, before, now))
    return ImageDrift(str(path), fate, _without_process(before), _without_process(now), saved, driver, notes, remedies)


def _without_process(fit: HostFit) -> HostFit:
    """Return the fit without the modelled process, which refers to everything that was read from the image."""
    manifest = fit.manifest and replace(fit.manifest, trial=None, loaded=())
    return replace(fit, manifest=manifest, loaded=())


def _saved(context: ImageInContext, drift: Drift, before: HostFit, now: HostFit) -> SavedBinds:
    if before.manifest is None or now.manifest is None or now.fabric is Fabric.NONE:
        return SavedBinds()
    bound = {bind.target for bind in before.manifest.binds}
    lacks = [
        b.target for b in now.manifest.binds if b.target not in bound and not b.target.startswith(f"{HOST_LIB_DIR}/")
    ]
    gone, refusal = try_saved(before.manifest, context.image.root, context.inside.settings, drift.now)
    return SavedBinds(gone, tuple(lacks), refusal)


def _driver(context: ImageInContext, drift: Drift) -> Iterator[RuleResult]:
    """Yield what is known about the new driver and the image's ROCm; the window of another driver does not apply."""
    stack = stack_of(context.contents)
    before = f"the driver was {drift.before.gpu_driver or '(none)'} before"
    none = unknown_driver("the driver (none)", "lumiimg drift")
    is_known = drift.now.gpu_driver is not None
    for rule in window_on_node(stack, context.site, drift.now) if is_known else window_of(none, stack):
        is_open = rule.outcome is RuleOutcome.UNKNOWN
        yield replace(rule, because=f"{rule.because}; {before}") if is_open else rule


def _fate(before: HostFit, now: HostFit, *, is_stale: bool, driver: Sequence[RuleResult]) -> Fate:
    outcomes = {rule.outcome for rule in driver}
    if now.answer is Answer.NO:
        # an earlier problem does not excuse libraries that could be bound before, but no longer can
        is_lost = now.fabric is Fabric.NONE and before.fabric is not Fabric.NONE
        return Fate.BROKEN_BEFORE if before.answer is Answer.NO and not is_lost else Fate.BREAKS
    if RuleOutcome.REFUSED in outcomes:
        return Fate.BREAKS
    if is_stale and before.answer is not Answer.NO:
        return Fate.STALE_BINDS  # known, even if other facts are not
    if now.answer is Answer.UNDECIDED or RuleOutcome.UNKNOWN in outcomes:
        return Fate.UNKNOWN
    return Fate.MENDED if before.answer is Answer.NO else Fate.FINE


def _remedies(context: ImageInContext, fate: Fate, now: HostFit, driver: Sequence[RuleResult]) -> Iterator[Remedy]:
    outcomes = {rule.outcome for rule in driver}
    if fate in {Fate.STALE_BINDS, Fate.MENDED}:
        if "--host" in context.machine:
            yield Remedy(command=bind_command(context.name, context.machine))
        else:
            bind = bind_command(context.name, ("--host", "now.json", *context.machine))
            yield Remedy(command=after_scan(bind, "now.json"))
    elif fate in {Fate.BREAKS, Fate.UNKNOWN}:
        found = list(now.remedies)
        if fate is Fate.BREAKS and RuleOutcome.REFUSED in outcomes:
            found += remedies_for("image.driver", "refused")
        of_one = (_remedy_for_image(context, way) for way in dict.fromkeys(found))
        ways = usable_remedies(of_one, context.name, site_of(context.machine), context)
        yield from sorted(ways, key=lambda remedy: remedy.command is None)
    if fate is Fate.UNKNOWN and context.site is None and RuleOutcome.UNKNOWN in outcomes:
        yield Remedy("name the machine, so that its driver window applies: --site NAME (`lumiimg list`)")


def _remedy_for_image(context: ImageInContext, remedy: Remedy) -> Remedy:
    """Return a remedy for one of several images: with an output file of its own, and --program given to `check`."""
    check = shell_join(["lumiimg", "check", as_operand(context.name), *context.machine])
    text = remedy.text.replace(" --program PATH", f" `{check} --program PATH`")
    own = shell_quote(as_operand(f"{Path(context.name).stem}-{_ADAPTED}"))
    return Remedy(text, remedy.command and remedy.command.replace(f"-o {_ADAPTED}", f"-o {own}"), remedy.where)


def _notes(drift: Drift, before: HostFit, now: HostFit) -> Iterator[str]:
    if before.answer is Answer.UNDECIDED and now.answer is not Answer.UNDECIDED:
        yield "its state before is not known"
    if before.manifest is None or now.manifest is None:
        return
    if before.fabric is not now.fabric and Fabric.NONE not in {before.fabric, now.fabric}:
        yield f"the source of its fabric has changed: {before.fabric.value} before, {now.fabric.value} now"
    if now.carried.sentence:
        yield now.carried.sentence
    drivers = [(one.kernel, {(nic.driver, nic.firmware) for nic in one.nics}) for one in (drift.before, drift.now)]
    if now.fabric is Fabric.BUNDLED and drivers[0] != drivers[1]:
        yield "it has its own libcxi, and the kernel or NIC driver changed: only a run shows whether they fit"
