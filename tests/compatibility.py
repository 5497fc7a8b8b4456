"""Writes docs/compatibility.md from the catalogue: `make docs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.sites import find_site
from tests.reference import cell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.catalog.catalogue import Catalogue

HOME = {"HOME": "/nonexistent"}
SITES = ("lumi", "frontier", "aurora", "alps", "generic")


def main() -> None:
    print("\n".join(compatibility()))


def compatibility() -> Iterator[str]:
    catalogue = open_catalogue(HOME)
    yield "# What goes with what"
    yield "\nWritten by `make docs` from `layers/` and the sites; `lumiimg explain --base … --add … --site …` decides by the same data."
    yield "What is unproved is documented elsewhere, and was never built end to end by this project."
    yield from bases(catalogue)
    yield from releases(catalogue)
    yield from troubles(catalogue)
    yield from sites()


def bases(catalogue: Catalogue) -> Iterator[str]:
    yield "\n## Bases\n\n| base | system | glibc | Python | ROCm | RCCL | torch | status |\n|---|---|---|---|---|---|---|---|"
    for name in catalogue.base_names():
        base = catalogue.base(name)
        versions = " | ".join(base.has.get(key, "") for key in ("os", "glibc", "python", "rocm", "rccl", "torch"))
        yield f"| {name} | {versions} | {base.status} |"


def releases(catalogue: Catalogue) -> Iterator[str]:
    yield "\n## Releases of layers, the preferred first\n\n| layer | release | needs | brings | status | source |\n|---|---|---|---|---|---|"
    for name in catalogue.layer_names():
        layer = catalogue.entry(name)
        for release in layer.releases:
            needs = ", ".join(map(str, (*layer.requires, *release.requires)))
            brings = ", ".join(f"{key} {value}" for key, value in release.has.items())
            yield f"| {name} | {release.version} | {cell(needs)} | {cell(brings)} | {release.status} | {cell(release.source)} |"


def troubles(catalogue: Catalogue) -> Iterator[str]:
    yield "\n## Known troubles\n\n| with | outcome | because | source |\n|---|---|---|---|"
    told = set()
    for name in catalogue.layer_names():
        entry = catalogue.entry(name)
        for trouble in entry.troubles:
            given = ", ".join([entry.folder.name, *map(str, trouble.given)])
            row = f"| {cell(given)} | {'refused' if trouble.refused else 'warning'} | {cell(trouble.because)} | {cell(trouble.source)} |"
            if row not in told:
                told.add(row)
                yield row


def sites() -> Iterator[str]:
    yield "\n## Sites\n\n| site | GPUs | ROCm that the driver serves | libfabric | Slingshot | glibc that the host's libraries ask for |\n|---|---|---|---|---|---|"
    for name in SITES:
        site = find_site(name, HOME)
        driver = f"{site.driver.rocm} ({site.driver.date})" if site.driver else "not known" if site.arch else ""
        fabric = site.fabric
        rest = f"{fabric.libfabric} | {fabric.slingshot} | {fabric.glibc} ({fabric.date})" if fabric else " | | "
        yield f"| {name} | {site.arch or ''} | {driver} | {rest} |"


if __name__ == "__main__":
    main()
