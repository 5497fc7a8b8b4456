"""The answer to a request: the stack and its lock, or why it is refused and the nearest request that works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from msgspec import structs

from lumiimg.catalog.layers import own_values
from lumiimg.core.errors import ExitCode, MissingHereError, RefusedError
from lumiimg.core.files import free_name
from lumiimg.core.findings import NO_ADVICE, Advice, Remedy, Severity
from lumiimg.core.text import count
from lumiimg.resolve.request import main_options, options_of
from lumiimg.resolve.rules import RuleOutcome, RuleResult, worst_first
from lumiimg.resolve.stack import PLUGIN_COMPONENT, Chosen, ReleasedLayer, Stack, job_variables

if TYPE_CHECKING:
    from lumiimg.catalog.launch import SiteVariable
    from lumiimg.catalog.layers import Layer
    from lumiimg.catalog.sites import Site
    from lumiimg.fabric.path import Fabric
    from lumiimg.resolve.lock import Lock
    from lumiimg.resolve.request import Request

_IMAGE = "image.sif"
"""Default output file of a build."""


@dataclass(frozen=True, slots=True)
class NewerRecipe:
    """A recipe of the same layers for the same machine, with newer releases."""

    recipe: str
    """Its name in the catalogue."""
    outcome: str
    """Its layers with their releases, and its base."""

    @property
    def sentence(self) -> str:
        """The command that uses it, for people."""
        return f"newer: {self.outcome}: lumiimg build --recipe {self.recipe}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a request would be built from, by which rules; or why not, and the nearest request that works."""

    asked: Request
    """The request that it answers. For the nearest that works: null if there is none."""
    base: Layer
    stack: Stack | None
    """None if the request is refused."""
    fabric: Fabric
    """Where the image gets libfabric with the cxi provider from; `none`: no site is named, or it has none."""
    rules: tuple[RuleResult, ...]
    """Results of all rules that were applied."""
    nearest: Plan | None = None
    """Plan of the nearest request that works, if this one is refused; None if there is none."""
    newer: NewerRecipe | None = None
    """For layers without a version on a named base: a recipe with newer releases; null if there is none."""
    site: Site | None = None
    """None if no machine is named."""
    lock: Lock | None = None
    """None if the request is refused, or its base is not available here."""
    missing: MissingHereError | None = None
    """Why the base is not available on this machine."""

    @property
    def refused(self) -> bool:
        return self.stack is None or any(rule.outcome is RuleOutcome.REFUSED for rule in self.rules)

    def require_lock(self, command: str = "build") -> Lock:
        """Return the lock. Raises RefusedError, with the nearest request of `command`, and MissingHereError."""
        if self.refused:
            refusal = next(rule for rule in self.rules if rule.outcome is RuleOutcome.REFUSED)
            is_taken = command == "build" and free_name(_IMAGE) != _IMAGE  # the default output
            nearest = self.nearest_by(command, _to_new_image() if is_taken else "")
            raise RefusedError(
                f"{refusal.because} (rule {refusal.id}: {refusal.need_and_have})",
                hint=nearest or f"see the reasons: lumiimg explain {options_of(self.asked)}",
            )
        if self.lock is None:
            raise self.missing or ValueError(self)
        return self.lock

    @property
    def decision(self) -> Literal["ok", "refused"]:
        """The exit code says the same: `ok` 0, `refused` 1."""
        return "refused" if self.refused else "ok"

    @property
    def exit_code(self) -> ExitCode:
        """The answer as an exit code."""
        if self.refused:
            return ExitCode.NO
        return ExitCode.MISSING_HERE if self.missing else ExitCode.GOOD

    @property
    def severity(self) -> Severity:
        """Severity of the worst outcome of a rule."""
        if self.refused:
            return Severity.PROBLEM
        return Severity.UNKNOWN if self.is_doubtful else Severity.OK

    @property
    def sentence(self) -> str:
        """The answer and the request."""
        answer = "refused"
        if not self.refused:
            among = "" if self.is_for_machine else " among the layers"
            answer = f"no obstacle found{among}{', with doubts' if self.is_doubtful else ''}"
        return f"{answer}: {main_options(self.asked)}{f' on {self.site.name}' if self.site else ''}"

    @property
    def advice(self) -> Advice:
        """The first reason, and a command; for a refusal, that of the nearest request that works."""
        why = next((rule.in_words for rule in worst_first(self.obstacles)), None)
        if self.refused:
            nearest = self.nearest_by("build", _to_new_image())
            if nearest is None:
                return Advice(why, "lumiimg list", "no similar request works")
            return Advice(why, nearest.command, nearest.text)
        command = f"lumiimg build {options_of(self.asked)}{_to_new_image()}"
        if self.missing:
            return Advice(f"the base is not available here: {self.missing}", command, "on a machine that has its base")
        return Advice(why, command)

    def nearest_by(self, command: str, output: str = "") -> Remedy | None:
        """Return a command for the nearest request that works, and what that leaves out; None if there is none."""
        if self.nearest is None:
            return None
        left = " and ".join(_left_out(self.asked, self.nearest.asked))
        without = f", without {left}" if left else ""
        where = ", on a machine that has its base" if self.nearest.missing else ""
        return Remedy(
            f"the nearest that works{without}{where}",
            f"lumiimg {command} {options_of(self.nearest.asked)}{output}",
        )

    @property
    def is_for_machine(self) -> bool:
        """Whether a machine is named, so that its driver and network were judged, too."""
        return self.site is not None and not self.site.is_any

    @property
    def layers(self) -> tuple[Chosen, ...]:
        """In build order; empty if the request is refused."""
        return self.stack.layers if self.stack else ()

    @property
    def base_and_layers(self) -> tuple[ReleasedLayer, ...]:
        """In build order."""
        return (ReleasedLayer(self.base, None, own_values(self.base, None)), *self.layers)

    @property
    def environment(self) -> tuple[SiteVariable, ...]:
        """Variables for jobs with such an image on the site."""
        if self.stack is None or self.site is None or self.refused:
            return ()
        return tuple(job_variables(self.stack, self.site))

    @property
    def is_doubtful(self) -> bool:
        """Whether a rule warns or could not decide."""
        return any(rule.outcome.severity is Severity.UNKNOWN for rule in self.rules)

    @property
    def obstacles(self) -> tuple[RuleResult, ...]:
        """Obstacles, known faults, and open questions."""
        return tuple(rule for rule in self.rules if rule.outcome is not RuleOutcome.OK)

    @property
    def plugin(self) -> str | None:
        """Layer or base that provides the net plugin; null if there is none."""
        offer = self.stack.offers.get(PLUGIN_COMPONENT) if self.stack else None
        return offer.by if offer else None

    @property
    def torch(self) -> str | None:
        """Version with the local part: `2.7.1+rocm6.2.4`; null if there is none."""
        return self.stack.version("torch") if self.stack else None

    @property
    def outcome(self) -> str:
        """The resulting image in a few words, if the request is not refused."""
        chosen = [layer.title for layer in self.layers if layer.version and layer.name != "pytorch"]
        parts = [f"fabric {self.fabric.value}", *([f"torch {self.torch}"] if self.torch else []), *chosen]
        return ", ".join(parts) + (" (with doubts)" if self.is_doubtful else "")


def _to_new_image() -> str:
    return f" -o {free_name(_IMAGE)}"


def _left_out(asked: Request, nearest: Request) -> list[str]:
    """Return the parts of a request that the nearest one lacks: layers, and all arguments and sources."""
    arguments = asked.arguments.items()  # a VERSION is also in the layers
    given = (f"--arg {name}" for name, value in arguments if f"{name.rpartition('.')[0]}=={value}" not in asked.add)
    layers = (name for name in asked.unpinned if name not in nearest.unpinned)
    return [*layers, *given, *(f"--source {name}" for name in asked.sources)]


@dataclass(frozen=True, slots=True)
class PossibleBases:
    """The bases on which layers can be put."""

    request: Request
    site: Site | None
    bases: tuple[Plan, ...]
    """Plans on bases that fit, those without doubts first."""
    others: tuple[Plan, ...]
    """Plans on bases that refuse the request, those with the fewest obstacles first."""
    newer: NewerRecipe | None = None
    """A recipe with newer releases than the first of these bases; null if there is none."""

    @property
    def exit_code(self) -> ExitCode:
        """0 if a base fits, else 1."""
        return ExitCode.GOOD if self.bases else ExitCode.NO

    @property
    def asked(self) -> str:
        """Layers and site."""
        return f"{' + '.join(self.request.add)}{f' on {self.site.name}' if self.site else ''}"

    @property
    def sentence(self) -> str:
        """How many bases fit, and how many of them without doubts."""
        number = len(self.bases)
        if not number:
            return f"no base in the catalogue works with {self.asked}"
        taken = f"{count(number, 'base')} in the catalogue {'works' if number == 1 else 'work'} with {self.asked}"
        sure = sum(not plan.is_doubtful for plan in self.bases)
        some = f"{sure} of them " if sure < number else ""
        return f"{taken}, {some}without doubts" if sure else taken

    @property
    def advice(self) -> Advice:
        """The next step: a newer recipe, else a base, preferably one available here; without any, the nearest."""
        if self.newer is not None:
            return Advice(None, f"lumiimg explain --recipe {self.newer.recipe}", f"newer, {self.newer.outcome}")
        is_here = (plan for plan in self.bases if plan.missing is None)
        shown = next(iter((*is_here, *self.bases, *self.others)), None)
        if shown is None:
            return NO_ADVICE
        command = f"lumiimg explain {options_of(structs.replace(self.request, base=shown.base.name))}"
        return Advice(None, command, "more about one" if self.bases else "why not")
