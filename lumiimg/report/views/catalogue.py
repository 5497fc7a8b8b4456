"""Answers of `list` and `show` about the catalogue and sites, and of `schema` about the kinds of JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.catalog.ledger import LEGEND, status_of, trials_of
from lumiimg.core.findings import Advice
from lumiimg.core.text import count, ranges
from lumiimg.report.document import Document, facts_section

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumiimg.catalog.catalogue import Recipe
    from lumiimg.catalog.drivers import SiteDriver
    from lumiimg.catalog.layers import Layer
    from lumiimg.catalog.releases import Release
    from lumiimg.catalog.shown import Listing, ShownLayer
    from lumiimg.catalog.sites import Site
    from lumiimg.report.json_output import Schemas

_KINDS = {"base": "bases", "layer": "layers", "recipe": "recipes", "site": "sites", "broken": "broken"}
"""Kinds of entries with their titles, in display order."""
_NEVER_RUN = "from public documents, listed below; this project has never run anything on this machine"
_Fact = tuple[str, str, str]
"""A name, what is known about it, and its source; empty if the text contains it."""


def listing_document(listing: Listing) -> Document:
    """Return the list of what the catalogue contains."""
    kinds = [entry.kind for entry in listing.entries]
    return Document(
        "list",
        "the catalogue",
        ", ".join(count(kinds.count(kind), kind) for kind in ("base", "layer", "recipe", "site")),
        summary=("details: lumiimg show NAME", "what fits together: lumiimg explain --add LAYER --site SITE"),
        sections=tuple(facts_section(title, _rows(listing, kind), is_headed=True) for kind, title in _KINDS.items()),
        closing=(LEGEND,),
        is_list=True,
    )


def _rows(listing: Listing, kind: str) -> Iterator[tuple[str, str]]:
    for entry in listing.entries:
        if entry.kind == kind:
            status = f"  [{entry.status}]" if entry.status not in {"", "broken"} else ""
            yield entry.name, f"{entry.summary}{status}"


def schemas_document(listed: Schemas) -> Document:
    """Return the list of all schemas."""
    hints = ("details: lumiimg schema NAME", "as tables: docs/reference/json.md")
    sections = (facts_section("Schemas", ((one.name, one.summary) for one in listed.schemas)),)
    sentence = count(len(listed.schemas), "schema")
    return Document("schema", "schemas", sentence, summary=hints, sections=sections, is_list=True)


# -- a recipe, a layer --


def recipe_document(recipe: Recipe) -> Document:
    """Return the request that a recipe stands for."""
    rows = [("base", recipe.base), ("layers", ", ".join(recipe.add) or "none")]
    rows += [("site", recipe.site or ""), ("fabric", recipe.fabric)]
    rows += [("argument", f"{name}={value}") for name, value in recipe.options.items()]
    return Document(
        "show",
        recipe.name,
        f"{recipe.name} (recipe): {recipe.summary}",
        advice=Advice(next=f"lumiimg explain --recipe {recipe.name}", where="to see the result, and why"),
        sections=(facts_section("The recipe", rows),),
        is_list=True,
    )


def layer_document(shown: ShownLayer) -> Document:
    """Return one base or layer. Raises DecodeError if one of its files cannot be read."""
    layer = shown.layer
    kind = "family of bases" if layer.variants else layer.kind
    sentence = f"{layer.name} ({kind}, {shown.status}): {layer.summary}"
    return Document("show", layer.name, sentence, sections=(facts_section("The layer", _facts(shown)),), is_list=True)


def _facts(shown: ShownLayer) -> Iterator[tuple[str, str]]:
    layer = shown.layer
    if not layer.releases:
        yield from _tried(layer, None)
    for variant in layer.variants:
        member = layer.member(variant.name)
        yield "base", f"{variant.name} ({status_of(member)}): {variant.summary}"
        yield from _tried(member, None)
    yield "from", str(layer.folder)
    yield "source", f"{layer.source} ({layer.date})"
    yield "requires", ", ".join(map(str, layer.requires))
    yield "has", _versions(layer.has) if layer.is_base else ""
    yield "provides", ", ".join(layer.provides)
    yield "conflicts", ", ".join(layer.conflicts)
    yield "bootstrap", ", ".join(f"{entry.agent} {entry.origin}" for entry in layer.bootstraps)
    yield from _releases(shown)
    for trouble in layer.troubles:
        given = ", ".join([*map(str, trouble.given), *(f"not {need}" for need in trouble.unless)])
        yield "trouble", f"{given}: {trouble.because}"
    for name, argument in layer.arguments.items():
        yield "argument", f"{name} = {argument.default!r}: {argument.help}"
    for source in layer.sources:
        where = f"only if you give it: --source {source.name}=FILE" if source.optional else source.url
        yield "archive", f"{source.name}: {where}"
        yield from (("", f"{key}  sha256 {digest}") for key, digest in source.sha256.items())
    yield from (("sets", f"{name}={value}") for name, value in layer.environment.set.items())
    yield from (("prepends", f"{name}={value}:…") for name, value in layer.environment.prepend.items())


def _releases(shown: ShownLayer) -> Iterator[tuple[str, str]]:
    layer = shown.layer
    for one in shown.releases:
        release = one.release
        needs = f": on {', '.join(map(str, release.requires))}" if release.requires else ""
        brings = _versions({name: version for name, version in release.has.items() if name != layer.name})
        yield "release", f"{release.version} ({one.status}){needs}{f'; includes {brings}' if brings else ''}"
        yield from _tried(layer, release)
    if (rule := layer.unlisted) is not None:
        projects = f"{', '.join(rule.projects)} {rule.range}"
        yield "others", f"from the package index, if you name a version ({projects})"


def _versions(components: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in components.items())


def _tried(layer: Layer, release: Release | None) -> Iterator[tuple[str, str]]:
    for trial in trials_of(layer, release):
        yield "", f"{trial.reach} {trial.date}: {trial.how}"


# -- a site --


def site_document(site: Site) -> Document:
    """Return what is known about a machine, each fact with its source and date."""
    facts = (*_machine(site), *_cores(site), *_for_jobs(site))
    rows = (row for name, text, source in facts for row in ((name, text), ("", source)))
    sentence, sections = f"{site.name}: {site.title}", (facts_section("The site", rows),)
    return Document("show", site.name, sentence, sections=sections, is_list=True)


def _machine(site: Site) -> Iterator[_Fact]:
    if site.status == "documented":
        yield "status", _NEVER_RUN, ""
    yield "GPUs", site.arch or (f"of {site.vendor}" if site.vendor else "not known"), str(site.source)
    if (identity := site.identity) is not None:
        signs = ", ".join((*identity.variables, *(f"node name {name}" for name in identity.nodes)))
        yield "known by", signs, identity.source
    if site.driver is not None:
        yield from _driver(site.driver)
    if (fabric := site.fabric) is not None:
        asks = f"which needs glibc {fabric.glibc}" if fabric.glibc else "which glibc it needs is not documented"
        text = f"Slingshot {fabric.slingshot or 'not known'}, libfabric {fabric.libfabric or 'not known'}, {asks}"
        yield "fabric", text, f"{fabric.source}, {fabric.date}"
    for title, value in (("processors", site.processors), ("scheduler", site.scheduler), ("engine", site.engine)):
        yield title, value or "", ""
    yield from (("partition", f"{part.name}: {part.limits}", part.source) for part in site.partitions)


def _driver(driver: SiteDriver) -> Iterator[_Fact]:
    yield "driver", f"{driver.name} serves {driver.rocm}", f"{driver.rank}: {driver.source}, {driver.date}"
    for seen in driver.evidence:
        yield "", f"ROCm {seen.rocm} runs there: {seen.text}", f"{seen.rank}: {seen.source}, {seen.date}"


def _cores(site: Site) -> Iterator[_Fact]:
    if (binding := site.binding) is not None:
        kept = f"; reserved for the system: {ranges(binding.reserved)}" if binding.reserved else ""
        yield "cores", f"{_near(site.cores)}{kept}", binding.source
        if binding.spared:
            yield "", f"{_near(site.cores_sparing)}: room for {binding.spared_for}", ""


def _near(cores: Sequence[Sequence[int]] | None) -> str:
    return "; ".join(f"GPU {gpu}: {ranges(near)}" for gpu, near in enumerate(cores or ()))


def _for_jobs(site: Site) -> Iterator[_Fact]:
    for bind in site.binds:
        yield "bind", f"{bind.path}: {bind.reason}", bind.source or ""
    for variable in site.variables:
        needs = (
            *(f"  # with {need}" for need in variable.given),
            *(f"  # not with {need}" for need in variable.unless),
        )
        text = f"{variable.name}={variable.value}{variable.nodes.note}{''.join(needs)}"
        yield "variable", text, f"{variable.because} ({variable.source})"
    for module in site.modules:
        yield "module", f"{module.name}: {module.because}", module.source
    for option in site.options:
        yield "option", f"{option.value}{option.nodes.note}: {option.because}", option.source
    for tried in site.measured:
        value = f"={tried.value}" if tried.value else ""
        yield tried.effect, f"{tried.name}{value}: {tried.because}", f"{tried.source}, {tried.date}"
    yield from (("advice", advice.text, advice.source) for advice in site.advice)
