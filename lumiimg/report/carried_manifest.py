"""The bind manifest that an image carries, as `show` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.fabric.path import Fabric
from lumiimg.host.carried_manifest import Basis, CarriedManifest, SettledBy
from lumiimg.report.console import Console, detail, fact, heading, say

if TYPE_CHECKING:
    from lumiimg.host.margins import Margin

_MAX_LINES = 100
_SETTLED = {
    SettledBy.HOST: "settled with the snapshot of {}",
    SettledBy.SITE: "settled with what is published of {}",
    SettledBy.NOTHING: "no machine's fabric was known",
}
_BASIS = {Basis.IMAGE: "read from the files of the image", Basis.PLAN: "planned before it was built"}


def print_manifest(out: Console, manifest: CarriedManifest) -> None:
    """Print which libraries of the host the image wants, where, why, and what else it needs there."""
    number = len(manifest.libraries)
    wanted = f"{number or 'no'} {'library' if number == 1 else 'libraries'} of the host"
    refused = ", which do not load in it" if number and manifest.fabric is Fabric.NONE else ""
    heading(out, f"bind manifest: {wanted}{refused}, {_BASIS[manifest.basis]}")
    detail(out, manifest.because)
    detail(out, _SETTLED[manifest.settled_by].format(manifest.machine))
    for library in manifest.libraries[:_MAX_LINES]:
        fact(out, "library", f"{library.soname} at {library.target}: {library.reason}")
        if library.host_path:
            detail(out, f"    from {library.host_path}")
        if len(library.chain) > 1:
            detail(out, f"    {' -> '.join(library.chain)}")
    for margin in manifest.versions[:_MAX_LINES]:
        fact(out, "version", version_line(margin))
    for device in manifest.devices[:_MAX_LINES]:
        fact(out, "device", f"{device.path}: {device.reason}")
    for variable in manifest.variables[:_MAX_LINES]:
        value = f"={variable.value}" if variable.value is not None else ""
        fact(out, "variable", f"{variable.name}{value}: {variable.reason}")
    for doubt in manifest.doubts[:_MAX_LINES]:
        fact(out, "open", doubt)
    parts = (manifest.libraries, manifest.versions, manifest.devices, manifest.variables, manifest.doubts)
    if any(len(part) > _MAX_LINES for part in parts):
        say(out, "more than is shown here; --json has all", first="  ")


def version_line(margin: Margin) -> str:
    """Return what one side needs of the other, and has."""
    have = f"it has up to {margin.family}_{margin.have}" if margin.have else "not seen"
    return f"{margin.library_side} needs {margin.family}_{margin.need} of {margin.provider_side}: {have}"
