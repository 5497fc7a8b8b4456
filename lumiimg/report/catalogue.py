"""What `list` and `show` print."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from lumiimg.catalog.age import age_of
from lumiimg.catalog.ledger import rows_of, trials_of
from lumiimg.catalog.named_images import age_in_name
from lumiimg.catalog.sites import Site, find_site, site_names
from lumiimg.catalog.toml_table import CatalogError
from lumiimg.errors import printable
from lumiimg.report.console import Console, console, fact, heading, headline, print_json, proposal, say
from lumiimg.report.json_builds import CatalogueEntry, Listing, ShownLayer, ShownRecipe
from lumiimg.report.reach import LEGEND
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumiimg.catalog.catalogue import Catalogue, Recipe
    from lumiimg.catalog.layers import Layer, Release

_WIDEST = 26
"""A name that leaves room for the text beside it; a longer one takes some of its line."""


def print_list(catalogue: Catalogue, environment: Mapping[str, str], *, as_json: bool) -> None:
    """Print every base, layer, recipe and site; what cannot be read is listed with its fault."""
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
    if as_json:
        print_json("list", Listing(tuple(entries)))
        return
    out = console()
    kinds = {kind: [entry for entry in entries if entry.kind == kind] for kind in ("base", "layer", "recipe", "site")}
    headline(out, ", ".join(count(len(found), kind) for kind, found in kinds.items()))
    width = max((len(entry.name) for entry in entries if len(entry.name) <= _WIDEST), default=0)
    for kind in (*kinds, "broken"):
        rows = [entry for entry in entries if entry.kind == kind]
        if not rows:
            continue
        heading(out, kind if kind == "broken" else f"{kind}s")
        for entry in rows:
            first = f"  {printable(entry.name):<{width}}  {entry.status:<10}  "
            say(out, entry.summary, first=first, rest=" " * (width + 16))
            if entry.old:
                say(out, entry.old, first=" " * (width + 16), rest=" " * (width + 16), style="yellow")
    out.print()
    say(out, LEGEND, style="dim")
    proposal(out, "lumiimg show NAME", word="more of one")
    proposal(out, "lumiimg explain --add LAYER --site SITE", word="what goes together")


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


def print_recipe(recipe: Recipe, *, as_json: bool) -> None:
    if as_json:
        print_json("show-recipe", ShownRecipe(recipe))
        return
    out = console()
    headline(out, f"{recipe.name} (recipe): {recipe.summary}")
    fact(out, "base", recipe.base)
    fact(out, "layers", ", ".join(recipe.add) or "none")
    if recipe.site:
        fact(out, "site", recipe.site)
    if recipe.fabric:
        fact(out, "fabric", recipe.fabric)
    for (layer, name), value in recipe.arguments.items():
        fact(out, "argument", f"{layer}.{name}={value}")
    proposal(out, f"lumiimg explain --recipe {recipe.name}", word="what comes out, and why")


def print_entry(layer: Layer, *, as_json: bool, read: Sequence[Release] = ()) -> None:
    """Print one base or layer, with how far it was tried, and releases that were read of it beside its rows.

    Raises CatalogError where a file of it cannot be read.
    """
    if as_json:
        trials = tuple(trial for row in rows_of(layer) for trial in trials_of(*row))
        print_json("show-layer", ShownLayer(layer, tuple(read), trials))
        return
    kind = "family of bases" if layer.variants else "base" if layer.is_base else "layer"
    out = console()
    headline(out, f"{layer.name} ({kind}, {layer.status}): {layer.summary}")
    if not layer.releases:
        _tried(out, layer, None)
    _members(out, layer)
    fact(out, "from", str(layer.folder))
    fact(out, "source", f"{layer.source} ({layer.date})")
    for title, values in (
        ("requires", list(map(str, layer.requires))),
        ("has", [f"{name} {version}" for name, version in layer.has.items()] if layer.is_base else []),
        ("provides", layer.provides),
        ("conflicts", layer.conflicts),
        ("bootstrap", [f"{entry.agent} {entry.origin}" for entry in layer.bootstraps]),
    ):
        if values:
            fact(out, title, ", ".join(values))
    for release in layer.releases:
        needs = f": on {', '.join(map(str, release.requires))}" if release.requires else ""
        brings = ", ".join(f"{name} {version}" for name, version in release.has.items() if name != layer.name)
        text = f"{release.version} ({release.status}){needs}{f'; brings {brings}' if brings else ''}"
        fact(out, "release", text)
        _tried(out, layer, release)
    if (rule := layer.unlisted) is not None:
        others = f"read from the package index where a version is named ({', '.join(rule.projects)} {rule.range})"
        fact(out, "others", others)
    for release in read:
        needs = ", ".join([*map(str, release.requires), *(f"made for {need}" for need in release.expects)])
        fact(out, "read", "; ".join([f"{release.version} on {release.read}: {needs or 'nothing'}", *release.doubts]))
    for trouble in layer.troubles:
        given = ", ".join([*map(str, trouble.given), *(f"not {need}" for need in trouble.unless)])
        fact(out, "trouble", f"{given}: {trouble.because}")
    for argument in layer.arguments.values():
        fact(out, "argument", f"{argument.name} = {argument.default!r}: {argument.help}")
    for source in layer.sources:
        where = f"only where it is given: --source {source.name}=FILE" if source.optional else source.url
        fact(out, "archive", f"{source.name}: {where}")
        for key, digest in source.sha256.items():
            say(out, f"{key}  sha256 {digest}", first=" " * 12)
    for name, value in layer.set_environment.items():
        fact(out, "sets", f"{name}={value}")
    for name, value in layer.prepend_environment.items():
        fact(out, "prepends", f"{name}={value}:…")


def _members(out: Console, layer: Layer) -> None:
    for variant in layer.variants:
        fact(out, "base", f"{variant.name} ({variant.status}): {variant.summary}")
        _tried(out, layer.member(variant.name), None)
    for known in layer.named.known if layer.named else ():
        fact(out, "known", f"{known.name} ({known.date}): {known.source}")


def _tried(out: Console, layer: Layer, release: Release | None) -> None:
    for trial in trials_of(layer, release):
        say(out, f"{trial.reach} {trial.date}: {trial.how}", first=" " * 12, rest=" " * 12, style="dim")
