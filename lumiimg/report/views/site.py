"""What `show` answers of a site."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.cluster.job.topology import ranges
from lumiimg.report.document import Document, Facts, Section
from lumiimg.report.views.request import when_of
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.catalog.drivers import SiteDriver
    from lumiimg.catalog.shown import ShownSite
    from lumiimg.catalog.sites import Site, SitePartition

NEVER_RUN = "documented by others, with their sources below; this project has never run anything on this machine"
_Fact = tuple[str, str, str]
"""A name, what is known of it, and where from; empty where the text says it."""


def site_document(shown: ShownSite) -> Document:
    """Return what is known of a machine, each fact with its source and date."""
    facts = (*_machine(shown), *_for_jobs(shown.site))
    rows = [row for name, text, source in facts for row in ((name, text), ("", source)) if row[1]]
    return Document(
        command="show",
        subject=shown.site.name,
        is_list=True,
        sentence=f"{shown.site.name}: {shown.site.title}",
        sections=(Section("The site", (Facts(tuple(rows)),)),),
    )


def _machine(shown: ShownSite) -> Iterator[_Fact]:
    site = shown.site
    if site.status == "documented":
        yield "status", NEVER_RUN, ""
    for question in shown.questions:
        answers = f"lumiimg says {question.predicted}, a trial measured {question.measured}"
        yield "open", f"{question.about}: {answers}", f"{question.trial}, {question.date}"
    yield "GPUs", site.arch or (f"of {site.vendor}" if site.vendor else "not known"), str(site.source)
    if (identity := site.identity) is not None:
        signs = ", ".join((*identity.variables, *(f"a node {name}" for name in identity.nodes)))
        yield "known by", signs, identity.source
    if site.driver is not None:
        yield from _driver(site.driver)
    if (fabric := site.fabric) is not None:
        asks = f"which asks for glibc {fabric.glibc}" if fabric.glibc else "which glibc it asks for is not documented"
        text = f"Slingshot {fabric.slingshot}, libfabric {fabric.libfabric}, {asks}"
        yield "fabric", text, f"{fabric.source}, {fabric.date}"
    for title, value in (("processors", site.processors), ("scheduler", site.scheduler), ("engine", site.engine)):
        yield title, value or "", ""
    for part in site.partitions:
        yield "partition", _limits(part), part.source
    yield from _cores(shown)


def _for_jobs(site: Site) -> Iterator[_Fact]:
    for bind in site.binds:
        yield "bind", f"{bind.path}: {bind.reason}", bind.source or ""
    for variable in site.variables:
        given = "".join(f"  # with {need}" for need in variable.given)
        given += "".join(f"  # not with {need}" for need in variable.unless)
        text = f"{variable.name}={variable.value}{when_of(variable)}{given}"
        yield "variable", text, f"{variable.because} ({variable.source})"
    for module in site.modules:
        yield "module", f"{module.name}: {module.because}", module.source
    for option in site.options:
        yield "option", f"{option.value}{when_of(option)}: {option.because}", option.source
    for note in site.annotations:
        yield "container", f'{note.key} = "{note.value}"{when_of(note)}: {note.because}', note.source
    for tried in site.measured:
        value = f"={tried.value}" if tried.value else ""
        yield tried.effect, f"{tried.name}{value}: {tried.because}", f"{tried.source}, {tried.date}"
    for advice in site.advice:
        yield "advice", advice.text, advice.source


def _driver(driver: SiteDriver) -> Iterator[_Fact]:
    doubt = f"; {driver.doubtful}: {driver.trouble}" if driver.doubtful else ""
    text = f"{driver.name} serves {driver.rocm}{doubt}"
    yield "driver", text, f"{driver.rank}: {driver.source}, {driver.date}"
    for seen in driver.evidence:
        yield "", f"ROCm {seen.rocm} runs there: {seen.text}", f"{seen.rank}: {seen.source}, {seen.date}"


def _limits(part: SitePartition) -> str:
    nodes = f"up to {count(part.nodes, 'node')}"
    if part.least_nodes > 1:
        nodes = f"{part.least_nodes} to {count(part.nodes, 'node')}"
    steps = "".join(f"; {step.hours:g} h up to {count(step.nodes, 'node')}" for step in part.steps)
    whole = ", nodes of its own" if part.whole_nodes else ""
    tests = "; for tests" if part.debug else ""
    return f"{part.name}: {nodes}, {part.hours:g} h{whole}{steps}{tests}"


def _cores(shown: ShownSite) -> Iterator[_Fact]:
    binding = shown.site.binding
    if binding is None or shown.cores is None:
        return
    kept = f"; kept for the system: {', '.join(map(str, binding.reserved))}" if binding.reserved else ""
    yield "cores", f"{_near(shown.cores)}{kept}", binding.source
    if binding.spared and shown.cores_sparing is not None:
        yield "", f"{_near(shown.cores_sparing)}: room for {binding.spared_for}", ""


def _near(cores: Sequence[Sequence[int]]) -> str:
    return "; ".join(f"GPU {gpu}: {ranges(near)}" for gpu, near in enumerate(cores))
