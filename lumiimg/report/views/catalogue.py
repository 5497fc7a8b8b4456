"""What `list` and `show` answer of the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.catalog.ledger import trials_of
from lumiimg.findings import Advice
from lumiimg.report.document import Document, Facts, Section
from lumiimg.report.reach import LEGEND
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.catalog.layers import Layer, Release
    from lumiimg.catalog.shown import CatalogueEntry, Listing, ShownLayer, ShownRecipe


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
