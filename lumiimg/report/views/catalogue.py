"""What `list` and `show` answer of the catalogue."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from lumiimg.catalog.age import age_of
from lumiimg.catalog.ledger import rows_of, trials_of
from lumiimg.catalog.named_images import age_in_name
from lumiimg.catalog.sites import Site, find_site, site_names
from lumiimg.catalog.toml_table import CatalogError
from lumiimg.findings import Advice
from lumiimg.report.document import Document, Facts, Section
from lumiimg.report.json_builds import CatalogueEntry, Listing, ShownLayer
from lumiimg.report.reach import LEGEND
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.catalog.layers import Layer, Release
    from lumiimg.report.json_builds import ShownRecipe


def listing_of(catalogue: Catalogue, environment: Mapping[str, str]) -> Listing:
    """Return every base, layer, recipe and site; what cannot be read is there with its fault."""
    entries: list[CatalogueEntry] = []
    for name in catalogue.layer_names():
        try:
            layer = catalogue.entry(name)
            of = layer.status, layer.summary, _age_of_images(layer)
            entries.append(CatalogueEntry("base" if layer.is_base else "layer", name, *of))
        except CatalogError as error:
            entries.append(CatalogueEntry("broken", name, "broken", str(error), None))
    for name in catalogue.recipe_names():
        try:
            recipe = catalogue.recipe(name)
            summary = f"{recipe.summary} ({' + '.join((recipe.base, *recipe.add))})"
            entries.append(CatalogueEntry("recipe", name, "", summary, None))
        except CatalogError as error:
            entries.append(CatalogueEntry("broken", name, "broken", str(error), None))
    for name in site_names(environment):
        try:
            site = find_site(name, environment)
            entries.append(CatalogueEntry("site", name, site.status or "", site.title, _age_of_site(site)))
        except CatalogError as error:
            entries.append(CatalogueEntry("broken", name, "broken", str(error), None))
    return Listing(tuple(entries))


def listing_document(listing: Listing) -> Document:
    """Return what the catalogue has."""
    kinds = ("base", "layer", "recipe", "site", "broken")
    of_kinds = {kind: [entry for entry in listing.entries if entry.kind == kind] for kind in kinds}
    return Document(
        command="list",
        subject="the catalogue",
        is_list=True,
        sentence=", ".join(count(len(of_kinds[kind]), kind) for kind in kinds[:-1]),
        summary=("more of one: lumiimg show NAME", "what goes together: lumiimg explain --add LAYER --site SITE"),
        sections=tuple(
            Section(kind if kind == "broken" else f"{kind}s", (Facts(tuple(_rows(entries))),), is_headed=True)
            for kind, entries in of_kinds.items()
            if entries
        ),
        closing=(LEGEND,),
    )


def _rows(entries: Sequence[CatalogueEntry]) -> Iterator[tuple[str, str]]:
    for entry in entries:
        status = f"  [{entry.status}]" if entry.status and entry.kind != "broken" else ""
        yield entry.name, f"{entry.summary}{status}"
        if entry.old:
            yield "", entry.old


def _age_of_site(site: Site) -> str | None:
    """Return what is old of what is known of a machine, each by its newest fact."""
    facts = {"network": site.fabric.date} if site.fabric else {}
    if site.driver is not None:
        facts["driver"] = max(site.driver.date, *(one.date for one in site.driver.evidence), dt.date.min)
    ages = [f"{name} {old}" for name, date in facts.items() if (old := age_of(date, site.date))]
    return f"what is known of it is old: {'; '.join(ages)}" if ages else None


def _age_of_images(layer: Layer) -> str | None:
    """Return how old the newest image is that is known of a base, where that is its name's and old."""
    old = age_in_name(layer.name) if layer.by_name else None
    return f"an image {old}: a newer one may be there" if old else None


def recipe_document(shown: ShownRecipe) -> Document:
    """Return what a recipe stands for."""
    recipe = shown.recipe
    rows = [("base", recipe.base), ("layers", ", ".join(recipe.add) or "none")]
    rows += [(title, value) for title, value in (("site", recipe.site), ("fabric", recipe.fabric)) if value]
    rows += [("argument", f"{name}={value}") for name, value in shown.arguments.items()]
    return Document(
        command="show",
        subject=recipe.name,
        is_list=True,
        sentence=f"{recipe.name} (recipe): {recipe.summary}",
        advice=Advice(next=f"lumiimg explain --recipe {recipe.name}", where="what comes out, and why"),
        sections=(Section("The recipe", (Facts(tuple(rows)),)),),
    )


def shown_layer(layer: Layer, read: Sequence[Release]) -> ShownLayer:
    """Return a layer with how far it was tried, and releases that were read of it beside its rows.

    Raises CatalogError where a file of it cannot be read.
    """
    return ShownLayer(layer, tuple(read), tuple(trial for row in rows_of(layer) for trial in trials_of(*row)))


def layer_document(shown: ShownLayer) -> Document:
    """Return one base or layer. Raises CatalogError where a file of it cannot be read."""
    layer = shown.layer
    kind = "family of bases" if layer.variants else shown.kind
    return Document(
        command="show",
        subject=layer.name,
        is_list=True,
        sentence=f"{layer.name} ({kind}, {layer.status}): {layer.summary}",
        sections=(Section("The layer", (Facts(tuple(_facts(shown))),)),),
    )


def _facts(shown: ShownLayer) -> Iterator[tuple[str, str]]:
    layer = shown.layer
    if not layer.releases:
        yield from _tried(layer, None)
    for variant in layer.variants:
        yield "base", f"{variant.name} ({variant.status}): {variant.summary}"
        yield from _tried(layer.member(variant.name), None)
    for known in shown.images:
        yield "known", f"{known.name} ({known.date}): {known.source}"
    yield "from", str(layer.folder)
    yield "source", f"{layer.source} ({layer.date})"
    for title, values in (
        ("requires", tuple(map(str, layer.requires))),
        ("has", tuple(f"{name} {version}" for name, version in layer.has.items()) if layer.is_base else ()),
        ("provides", layer.provides),
        ("conflicts", layer.conflicts),
        ("bootstrap", tuple(f"{entry.agent} {entry.origin}" for entry in layer.bootstraps)),
    ):
        if values:
            yield title, ", ".join(values)
    yield from _releases(shown)
    for trouble in layer.troubles:
        given = ", ".join([*map(str, trouble.given), *(f"not {need}" for need in trouble.unless)])
        yield "trouble", f"{given}: {trouble.because}"
    for argument in layer.arguments.values():
        yield "argument", f"{argument.name} = {argument.default!r}: {argument.help}"
    for source in layer.sources:
        where = f"only where it is given: --source {source.name}=FILE" if source.optional else source.url
        yield "archive", f"{source.name}: {where}"
        yield from (("", f"{key}  sha256 {digest}") for key, digest in source.sha256.items())
    yield from (("sets", f"{name}={value}") for name, value in layer.set_environment.items())
    yield from (("prepends", f"{name}={value}:…") for name, value in layer.prepend_environment.items())


def _releases(shown: ShownLayer) -> Iterator[tuple[str, str]]:
    layer = shown.layer
    for release in layer.releases:
        needs = f": on {', '.join(map(str, release.requires))}" if release.requires else ""
        brings = ", ".join(f"{name} {version}" for name, version in release.has.items() if name != layer.name)
        yield "release", f"{release.version} ({release.status}){needs}{f'; brings {brings}' if brings else ''}"
        yield from _tried(layer, release)
    if (rule := layer.unlisted) is not None:
        projects = f"{', '.join(rule.projects)} {rule.range}"
        yield "others", f"read from the package index where a version is named ({projects})"
    for release in shown.read:
        needs = ", ".join([*map(str, release.requires), *(f"made for {need}" for need in release.expects)])
        yield "read", "; ".join([f"{release.version} on {release.read}: {needs or 'nothing'}", *release.doubts])


def _tried(layer: Layer, release: Release | None) -> Iterator[tuple[str, str]]:
    for trial in trials_of(layer, release):
        yield "", f"{trial.reach} {trial.date}: {trial.how}"
