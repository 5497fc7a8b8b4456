"""What a job on a site has in its environment, for a collective that is to show what a job would see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.findings import Code, Severity
from lumiimg.resolve.inventory import read_contents
from lumiimg.resolve.mpi import read_by_srun
from lumiimg.resolve.rules import environment as variables_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumiimg.catalog.sites import Site, SiteVariable
    from lumiimg.engine.engine import Engine
    from lumiimg.findings import Findings
    from lumiimg.image import Image
    from lumiimg.resolve.stack import Stack


def same_everywhere(stack: Stack, site: Site, *, nodes: int) -> Iterator[SiteVariable]:
    """Yield the variables of jobs on so many nodes that are the same in all ranks, and the container's alone."""
    fits = {"any", "one" if nodes == 1 else "several"}
    for variable in variables_of(stack, site):
        of_container = not variable.ranks and "$" not in variable.value and not read_by_srun(variable.name)
        if variable.nodes in fits and of_container:
            yield variable


def missing_here(
    engine: Engine, image: Image, site: Site | None, environment: Mapping[str, str], *, nodes: int
) -> tuple[SiteVariable, ...]:
    """Return those of a site's variables that are not set here: whoever has set one meant it."""
    if site is None:
        return ()
    wanted = same_everywhere(read_contents(image).stack, site, nodes=nodes)
    prefixes = ("", f"{engine.prefix}ENV_")
    return tuple(v for v in wanted if not any(f"{prefix}{v.name}" in environment for prefix in prefixes))


def with_variables(engine: Engine, environment: Mapping[str, str], variables: Sequence[SiteVariable]) -> dict[str, str]:
    """Return the engine's environment that sets them in the container, over what the image sets, as a job does."""
    return {**environment, **{f"{engine.prefix}ENV_{v.name}": v.value for v in variables}}


def tell(findings: Findings, site: Site | None, variables: Sequence[SiteVariable]) -> None:
    """Add what was set to the findings of a run."""
    if site is not None and variables:
        names = ", ".join(f"{v.name}={v.value}" for v in variables)
        what = f"it ran with what a job on {site.name} sets: {names}"
        findings.add(Code.RUN_ENVIRONMENT, Severity.INFO, what, source=site.source)
