"""What to do about a boundary that does not hold."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from lumiimg.fabric.names import LIBCXI, LIBFABRIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.host.manifest import Refusal

_GLIBC = re.compile(r"GLIBC_2\.(\d+)\b")
_LIBRARY = re.compile(r"[^ /]+\.so(\.[0-9.]+)?")


@cache
def _glibc_of_distributions() -> dict[str, str]:
    text = resources.files(__package__).joinpath("distributions.toml").read_text("utf-8")
    return dict(tomllib.loads(text)["glibc"])


def remedies(refusals: Sequence[Refusal]) -> Iterator[str]:
    """Yield sentences, nearest way first, for attempts that do not load."""
    for name in sorted({refusal.need for refusal in refusals if _LIBRARY.fullmatch(refusal.need)}):
        if name not in {LIBFABRIC, LIBCXI}:
            yield f"install {name} in the image, or record the host's: `lumiimg host scan --include PATH`"
    if any(refusal.of_host for refusal in refusals):
        yield (
            "bundle the fabric: build libcxi, and libfabric with its cxi provider, in the image, in the versions of "
            "the machine's Slingshot release; then nothing of the host's libraries is bound"
        )
    minors = [int(found[1]) for refusal in refusals if (found := _GLIBC.match(refusal.need))]
    if minors:
        enough = [
            f"{name} (glibc {version})"
            for name, version in _glibc_of_distributions().items()
            if int(version.split(".")[1]) >= max(minors)
        ]
        yield f"start from a base with glibc 2.{max(minors)} or newer: {', '.join(enough) or 'none is known here'}"
    if any(refusal.need.startswith("FABRIC_") for refusal in refusals):
        yield (
            "build the plugin against the headers of the host's libfabric: with newer headers it needs "
            "a newer libfabric"
        )
