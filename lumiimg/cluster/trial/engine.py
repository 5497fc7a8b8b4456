"""What the engine of the nodes does, against what differences.toml says of its family."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.cluster.trial.reading import NOT_KNOWN, ClaimReading
from lumiimg.cluster.trial.values import Claim, TrialStep
from lumiimg.engine.behaviour import tried_differences

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lumiimg.catalog.sites import Site
    from lumiimg.engine.behaviour import Behaviour

_ENGINE = "engine"
"""What its claims begin with."""
STEP = f"image-1.{_ENGINE}"
"""Name of the step; what it starts is the first image."""


def of_engine(site: Site) -> Iterator[Claim]:
    """Yield what the engine that a site names is expected to show; nothing of one that the table does not have."""
    for row in tried_differences():
        if site.engine is not None and (shown := row.of(site.engine)) is not None:
            yield Claim(
                id=f"{_ENGINE}.{row.id}",
                about=f"container engine: {row.what}",
                predicted=shown,
                source=f"engine/differences.toml: {row.source}",
                date=f"{row.date}",
                step=STEP,
            )


def engine_step(image: Path, looks: str, site: Site) -> Iterator[TrialStep]:
    """Yield the step that tries it with an image, where there is something to compare it with."""
    if any(of_engine(site)):
        about = "image 1: what the container engine does with it, where SingularityCE and Apptainer differ"
        words = ("node", looks, "--engine-in", f"{image}")
        yield TrialStep(name=STEP, about=about, words=words, nodes=1, minutes=1, limit=5)


def shown_by(behaviour: Behaviour | None, claim: Claim, expected: str | None) -> ClaimReading:
    """Return what the engine showed of a claim; `expected`: the engine that the claims are of."""
    if behaviour is None:
        return ClaimReading(None, "nothing was printed")
    families = [name.partition(" ")[0] for name in (behaviour.engine, expected or "")]
    if families[0] != families[1]:
        return ClaimReading(None, f"the claim is of {families[1] or 'no engine'}, and this is {behaviour.engine}")
    found = next((one for one in behaviour.shown if f"{_ENGINE}.{one.id}" == claim.id), None)
    if found is None:
        return ClaimReading(None, NOT_KNOWN)
    return ClaimReading(found.answer, found.why)
