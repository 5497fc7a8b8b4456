"""What `show` prints of a site."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lumiimg.errors import one_line
from lumiimg.report.console import console, print_json, wrapped
from lumiimg.report.plan import variable_data, when_of
from lumiimg.wording import count

if TYPE_CHECKING:
    from rich.console import Console

    from lumiimg.catalog.sites import Site, SiteBinding

SCHEMA = 1


def print_site(site: Site, *, as_json: bool) -> None:
    """Print what is known of a machine, each fact with its source and date."""
    if as_json:
        print_json({"schema": SCHEMA, **_data(site)})
        return
    out = console()
    out.print(one_line(f"{site.name}: {site.title}"), style="bold", soft_wrap=True)
    _fact(out, "GPUs", site.arch or (f"of {site.vendor}" if site.vendor else "not known"), f"{site.source}")
    if site.driver is not None:
        serves = f"{site.driver.name} serves {site.driver.rocm}"
        doubt = f"; {site.driver.doubtful}: {site.driver.trouble}" if site.driver.doubtful else ""
        _fact(out, "driver", f"{serves}{doubt}", f"{site.driver.source}, {site.driver.date}")
    if site.fabric is not None:
        fabric = site.fabric
        told = f"Slingshot {fabric.slingshot}, libfabric {fabric.libfabric}, which asks for glibc {fabric.glibc}"
        _fact(out, "fabric", told, f"{fabric.source}, {fabric.date}")
    for title, value in (("scheduler", site.scheduler), ("engine", site.engine)):
        if value:
            _fact(out, title, value, "")
    for part in site.partitions:
        whole = ", nodes of its own" if part.whole_nodes else ""
        limits = f"{part.name}: up to {count(part.nodes, 'node')}, {part.hours:g} h{whole}"
        _fact(out, "partition", limits, part.source)
    if site.binding is not None:
        near = "; ".join(f"GPU {gpu}: {_range(site.binding, gpu)}" for gpu in range(len(site.binding.near)))
        _fact(out, "cores", near, site.binding.source)
    for bind in site.binds:
        _fact(out, "bind", f"{bind.path}: {bind.reason}", "")
    for variable in site.variables:
        given = "".join(f"  # with {need}" for need in variable.given)
        given += "".join(f"  # not with {need}" for need in variable.unless)
        _fact(out, "variable", f"{variable.name}={variable.value}{when_of(variable)}{given}", "")
        _reason(out, f"{variable.because} ({variable.source})")
    for advice in site.advice:
        _fact(out, "building", advice.text, advice.source)


def _range(binding: SiteBinding, gpu: int) -> str:
    cores = binding.cores_near(gpu)
    return f"{cores[0]}-{cores[-1]}" if cores else "none"


def _fact(out: Console, title: str, text: str, source: str) -> None:
    out.print(wrapped(out, one_line(text), first=f"  {title:<10}", rest=" " * 14))
    if source:
        _reason(out, source)


def _reason(out: Console, text: str) -> None:
    out.print(wrapped(out, one_line(text), first=" " * 12, rest=" " * 14), style="dim")


def _data(site: Site) -> dict[str, Any]:
    driver, fabric, binding = site.driver, site.fabric, site.binding
    return {
        "name": site.name,
        "kind": "site",
        "title": site.title,
        "arch": site.arch,
        "vendor": site.vendor,
        "scheduler": site.scheduler,
        "engine": site.engine,
        "driver": driver
        and {
            "name": driver.name,
            "rocm": f"{driver.rocm}",
            "doubtful": f"{driver.doubtful}" if driver.doubtful else None,
            "source": driver.source,
            "date": driver.date.isoformat(),
        },
        "fabric": fabric
        and {
            "slingshot": fabric.slingshot,
            "libfabric": fabric.libfabric,
            "glibc": fabric.glibc,
            "source": fabric.source,
            "date": fabric.date.isoformat(),
        },
        "partitions": [
            {"name": part.name, "nodes": part.nodes, "hours": part.hours, "whole_nodes": part.whole_nodes}
            for part in site.partitions
        ],
        "cores": binding and [list(binding.cores_near(gpu)) for gpu in range(len(binding.near))],
        "binds": [{"path": bind.path, "reason": bind.reason} for bind in site.binds],
        "environment": [
            variable_data(each) | {"given": list(map(str, each.given)), "unless": list(map(str, each.unless))}
            for each in site.variables
        ],
        "advice": [{"text": advice.text, "source": advice.source} for advice in site.advice],
    }
