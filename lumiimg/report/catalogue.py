"""What `list` and `show` print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lumiimg.catalog.sites import find_site, site_names
from lumiimg.catalog.table import CatalogError
from lumiimg.errors import one_line
from lumiimg.report.console import console, print_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.catalog.layers import Layer
    from lumiimg.catalog.recipes import Recipe


def print_list(catalogue: Catalogue, environment: Mapping[str, str], *, as_json: bool) -> None:
    """Print every base, layer, recipe and site; what cannot be read is listed with its fault."""
    entries: list[tuple[str, str, str, str]] = []
    for name in catalogue.layer_names():
        try:
            layer = catalogue.entry(name)
            entries.append(("base" if layer.is_base else "layer", name, layer.status, layer.summary))
        except CatalogError as error:
            entries.append(("broken", name, "broken", str(error)))
    for name in catalogue.recipe_names():
        try:
            recipe = catalogue.recipe(name)
            entries.append(("recipe", name, "", f"{recipe.summary} ({' + '.join((recipe.base, *recipe.add))})"))
        except CatalogError as error:
            entries.append(("broken", name, "broken", str(error)))
    for name in site_names(environment):
        try:
            site = find_site(name, environment)
            entries.append(("site", name, site.status or "", site.title))
        except CatalogError as error:
            entries.append(("broken", name, "broken", str(error)))
    if as_json:
        keys = ("kind", "name", "status", "summary")
        print_json("list", {"entries": [dict(zip(keys, entry, strict=True)) for entry in entries]})
        return
    from rich.table import Table  # noqa: PLC0415

    for kind, title in (
        ("base", "bases"),
        ("layer", "layers"),
        ("recipe", "recipes"),
        ("site", "sites"),
        ("broken", "broken"),
    ):
        rows = [entry for entry in entries if entry[0] == kind]
        if not rows:
            continue
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        for _, name, status, summary in rows:
            table.add_row(f"  {name}", status, one_line(summary))
        out = console()
        out.print(title, style="bold")
        out.print(table)
    out = console()
    out.print("\nunproved: documented, never built end to end (a site: nothing ever run there) by the project")
    out.print("more of one: lumiimg show NAME    what goes together: lumiimg explain --add LAYER --site SITE")


def print_recipe(recipe: Recipe, *, as_json: bool) -> None:
    """Print one recipe."""
    if as_json:
        print_json(
            "show-recipe",
            {
                "name": recipe.name,
                "kind": "recipe",
                "summary": recipe.summary,
                "base": recipe.base,
                "add": list(recipe.add),
                "site": recipe.site,
                "arguments": {f"{layer}.{name}": value for (layer, name), value in recipe.arguments.items()},
            },
        )
        return
    print(f"{recipe.name} (recipe): {one_line(recipe.summary)}")
    print(f"  base      {one_line(recipe.base)}")
    print(f"  layers    {one_line(', '.join(recipe.add)) or 'none'}")
    if recipe.site:
        print(f"  site      {one_line(recipe.site)}")
    for (layer, name), value in recipe.arguments.items():
        print(f"  argument  {one_line(f'{layer}.{name}={value}')}")
    print(f"what comes out, and why: lumiimg explain --recipe {recipe.name}")


def print_entry(layer: Layer, *, as_json: bool) -> None:
    """Print one base or layer."""
    if as_json:
        print_json("show-layer", _entry_data(layer))
        return
    kind = "family of bases" if layer.variants else "base" if layer.is_base else "layer"
    print(f"{layer.name} ({kind}, {layer.status}): {one_line(layer.summary)}")
    for variant in layer.variants:
        print(f"  base      {one_line(variant.name)} ({variant.status}): {one_line(variant.summary)}")
    print(f"  from      {one_line(str(layer.folder))}")
    print(f"  source    {one_line(layer.source)} ({layer.date})")
    for title, values in (
        ("requires", list(map(str, layer.requires))),
        ("has", [f"{name} {version}" for name, version in layer.has.items()] if layer.is_base else []),
        ("provides", layer.provides),
        ("conflicts", layer.conflicts),
        ("bootstrap", [f"{entry.agent} {entry.origin}" for entry in layer.bootstraps]),
    ):
        if values:
            print(f"  {title:<9} {one_line(', '.join(values))}")
    for release in layer.releases:
        needs = f": on {', '.join(map(str, release.requires))}" if release.requires else ""
        brings = ", ".join(f"{name} {version}" for name, version in release.has.items() if name != layer.name)
        text = f"{release.version} ({release.status}){needs}{f'; brings {brings}' if brings else ''}"
        print(f"  release   {one_line(text)}")
    for trouble in layer.troubles:
        given = ", ".join([*map(str, trouble.given), *(f"not {need}" for need in trouble.unless)])
        print(f"  trouble   {one_line(given)}: {one_line(trouble.because)}")
    for argument in layer.arguments.values():
        print(f"  argument  {argument.name} = {argument.default!r}: {one_line(argument.help)}")
    for source in layer.sources:
        where = f"only where it is given: --source {source.name}=FILE" if source.optional else one_line(source.url)
        print(f"  archive   {source.name}: {where}")
        for key, digest in source.sha256.items():
            print(f"            {one_line(key)}  sha256 {digest}")
    for name, value in layer.set_environment.items():
        print(f"  sets      {name}={one_line(value)}")
    for name, value in layer.prepend_environment.items():
        print(f"  prepends  {name}={one_line(value)}:…")


def _entry_data(layer: Layer) -> dict[str, Any]:
    return {
        "name": layer.name,
        "kind": "base" if layer.is_base else "layer",
        "status": layer.status,
        "summary": layer.summary,
        "source": layer.source,
        "date": layer.date.isoformat(),
        "folder": str(layer.folder),
        "requires": list(map(str, layer.requires)),
        "has": dict(layer.has),
        "provides": list(layer.provides),
        "releases": [
            {"version": r.version, "status": r.status, "requires": list(map(str, r.requires)), "source": r.source}
            for r in layer.releases
        ],
        "conflicts": list(layer.conflicts),
        "arguments": {a.name: {"default": a.default, "help": a.help} for a in layer.arguments.values()},
        "sources": {s.name: {"url": s.url, "sha256": dict(s.sha256)} for s in layer.sources},
        "environment": {"set": dict(layer.set_environment), "prepend": dict(layer.prepend_environment)},
    }
