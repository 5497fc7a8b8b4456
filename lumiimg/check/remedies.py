"""What to do about a boundary that does not hold."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from lumiimg.host.manifest import Fabric

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.check.boundary import Boundary

_GLIBC = re.compile(r"GLIBC_2\.(\d+) ")


@cache
def _glibc_of_distributions() -> dict[str, str]:
    text = resources.files(__package__).joinpath("distributions.toml").read_text("utf-8")
    return dict(tomllib.loads(text)["glibc"])


def remedies(boundary: Boundary) -> Iterator[str]:
    """Yield sentences, nearest way first; none where nothing is wrong."""
    refused = [rule for rule in boundary.rules if rule.outcome == "refused"]
    minors = [int(found[1]) for rule in refused if (found := _GLIBC.match(rule.need + " "))]
    if boundary.manifest is not None and boundary.manifest.fabric is Fabric.NONE and refused:
        yield (
            "bundle the fabric: build libcxi, and libfabric with its cxi provider, in the image, in the versions of "
            "the machine's Slingshot release; then nothing of the host's libraries is bound"
        )
    if minors:
        enough = [
            f"{name} (glibc {version})"
            for name, version in _glibc_of_distributions().items()
            if int(version.split(".")[1]) >= max(minors)
        ]
        yield f"or start from a base with glibc 2.{max(minors)} or newer: {', '.join(enough) or 'none is known here'}"
    if any(rule.need.startswith("FABRIC_") for rule in refused):
        yield (
            "or build the plugin against the headers of the host's libfabric: with newer headers it needs "
            "a newer libfabric"
        )
    if any(rule.id == "plugin-name" for rule in refused):
        yield "add a net plugin to the image: `lumiimg list` shows those that lumiimg builds"
    if any(rule.outcome == "unknown" for rule in boundary.rules):
        yield "on a compute node, with the job's modules: `lumiimg host scan -o host.json`; then here: --host host.json"
