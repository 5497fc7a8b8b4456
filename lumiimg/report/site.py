"""What `show` prints of a site."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.catalog.questions import open_for
from lumiimg.cluster.job.topology import ranges
from lumiimg.report.console import Console, console, fact, headline, print_json, say
from lumiimg.report.json_builds import ShownSite
from lumiimg.report.views.request import when_of
from lumiimg.wording import count

if TYPE_CHECKING:
    from lumiimg.catalog.drivers import SiteDriver
    from lumiimg.catalog.sites import Site, SiteBinding, SiteFabric, SiteIdentity, SitePartition

NEVER_RUN = "documented by others, with their sources below; this project has never run anything on this machine"


def print_site(site: Site, *, as_json: bool) -> None:
    """Print what is known of a machine, each fact with its source and date."""
    questions = open_for(site.name)
    if as_json:
        print_json("show-site", ShownSite(site, tuple(questions)))
        return
    out = console()
    headline(out, f"{site.name}: {site.title}")
    if site.status == "documented":
        fact(out, "status", NEVER_RUN, style="yellow")
    for question in questions:
        told = f"{question.about}: lumiimg says {question.predicted}, a trial measured {question.measured}"
        _fact(out, "open", told, f"{question.trial}, {question.date}")
    _fact(out, "GPUs", site.arch or (f"of {site.vendor}" if site.vendor else "not known"), f"{site.source}")
    if site.identity is not None:
        _identity(out, site.identity)
    if site.driver is not None:
        _driver(out, site.driver)
    if site.fabric is not None:
        _network(out, site.fabric)
    for title, value in (("processors", site.processors), ("scheduler", site.scheduler), ("engine", site.engine)):
        if value:
            _fact(out, title, value, "")
    for part in site.partitions:
        _fact(out, "partition", _limits(part), part.source)
    if site.binding is not None:
        _cores(out, site.binding)
    for bind in site.binds:
        _fact(out, "bind", f"{bind.path}: {bind.reason}", bind.source or "")
    for variable in site.variables:
        given = "".join(f"  # with {need}" for need in variable.given)
        given += "".join(f"  # not with {need}" for need in variable.unless)
        _fact(out, "variable", f"{variable.name}={variable.value}{when_of(variable)}{given}", "")
        _reason(out, f"{variable.because} ({variable.source})")
    _for_jobs(out, site)


def _for_jobs(out: Console, site: Site) -> None:
    for module in site.modules:
        _fact(out, "module", f"{module.name}: {module.because}", module.source)
    for option in site.options:
        _fact(out, "option", f"{option.value}{when_of(option)}: {option.because}", option.source)
    for note in site.annotations:
        _fact(out, "container", f'{note.key} = "{note.value}"{when_of(note)}: {note.because}', note.source)
    for tried in site.measured:
        value = f"={tried.value}" if tried.value else ""
        _fact(out, tried.effect, f"{tried.name}{value}: {tried.because}", f"{tried.source}, {tried.date}")
    for advice in site.advice:
        _fact(out, "advice", advice.text, advice.source)


def _identity(out: Console, identity: SiteIdentity) -> None:
    signs = ", ".join((*identity.variables, *(f"a node {name}" for name in identity.nodes)))
    _fact(out, "known by", signs, identity.source)


def _driver(out: Console, driver: SiteDriver) -> None:
    serves = f"{driver.name} serves {driver.rocm}"
    doubt = f"; {driver.doubtful}: {driver.trouble}" if driver.doubtful else ""
    _fact(out, "driver", f"{serves}{doubt}", f"{driver.rank}: {driver.source}, {driver.date}")
    for seen in driver.evidence:
        _fact(out, "", f"ROCm {seen.rocm} runs there: {seen.text}", f"{seen.rank}: {seen.source}, {seen.date}")


def _network(out: Console, fabric: SiteFabric) -> None:
    asks = f"which asks for glibc {fabric.glibc}" if fabric.glibc else "which glibc it asks for is not documented"
    told = f"Slingshot {fabric.slingshot}, libfabric {fabric.libfabric}, {asks}"
    _fact(out, "fabric", told, f"{fabric.source}, {fabric.date}")


def _limits(part: SitePartition) -> str:
    nodes = f"up to {count(part.nodes, 'node')}"
    if part.least_nodes > 1:
        nodes = f"{part.least_nodes} to {count(part.nodes, 'node')}"
    steps = "".join(f"; {step.hours:g} h up to {count(step.nodes, 'node')}" for step in part.steps)
    whole = ", nodes of its own" if part.whole_nodes else ""
    tests = "; for tests" if part.debug else ""
    return f"{part.name}: {nodes}, {part.hours:g} h{whole}{steps}{tests}"


def _cores(out: Console, binding: SiteBinding) -> None:
    near = "; ".join(f"GPU {gpu}: {ranges(cores)}" for gpu, cores in enumerate(_near(binding)))
    kept = f"; kept for the system: {', '.join(map(str, binding.reserved))}" if binding.reserved else ""
    _fact(out, "cores", f"{near}{kept}", binding.source)
    if binding.spared:
        near = "; ".join(f"GPU {gpu}: {ranges(cores)}" for gpu, cores in enumerate(_near(binding, sparing=True)))
        _fact(out, "", f"{near}: room for {binding.spared_for}", "")


def _near(binding: SiteBinding, *, sparing: bool = False) -> list[tuple[int, ...]]:
    return [binding.cores_near(gpu, sparing=sparing) for gpu in range(len(binding.near))]


def _fact(out: Console, title: str, text: str, source: str) -> None:
    fact(out, title, text)
    if source:
        _reason(out, source)


def _reason(out: Console, text: str) -> None:
    say(out, text, first=" " * 12, style="dim")
