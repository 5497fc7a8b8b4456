"""A ReFrame test of an image: `lumiimg check` on nodes of the machine, with the site's bandwidth as reference."""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg import __version__
from lumiimg.check.run.collective import same_everywhere
from lumiimg.cluster.binds import is_path
from lumiimg.cluster.module.modulefile import comment
from lumiimg.cluster.template import filled
from lumiimg.errors import BadInputError, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lumiimg.catalog.sites import Site, SiteBandwidth, SiteVariable
    from lumiimg.resolve.stack import Stack

TEST = "all_reduce_perf"
"""The program whose bandwidth is compared."""
_NODES = 2
"""The least on which the network is used."""


@dataclass(frozen=True, slots=True)
class ReframeTest:
    """One test, as it is written."""

    name: str
    options: tuple[str, ...]
    """Of lumiimg, up to those that say on which nodes."""
    nodes: int
    reference: SiteBandwidth | None
    variables: tuple[SiteVariable, ...]
    """Of the site, for this image, that jobs on several nodes set."""
    text: str


def reframe_test(image: Path, stack: Stack, host: Path | None, site: Site | None) -> ReframeTest:
    """Return the test of an image; `stack` is what it has. Raises BadInputError for a path that cannot be written."""
    options = ["check", str(image.absolute())]
    if host is not None:
        options += ["--host", str(host.absolute())]
    for word in options:
        if not is_path(word):
            raise BadInputError("a path with such characters cannot be in a test", where=word)
    stem = re.sub(r"[^a-z0-9]+", "_", image.stem.lower()).strip("_")
    name = f"lumiimg_{stem or 'image'}"
    known = next((b for b in site.bandwidths if (b.test, b.nodes) == (TEST, _NODES)), None) if site else None
    reference, source = {}, "none is known"
    if known is not None:
        lower = round(known.least_gb_s / known.gb_s - 1, 4)  # as ReFrame has it: the part that may be missing
        reference, source = {"*": {TEST: (known.gb_s, lower, None, "GB/s")}}, one_line(known.source)
    variables = tuple(same_everywhere(stack, site, nodes=_NODES)) if site else ()
    text = filled(
        "reframe_test.txt",
        VERSION=__version__,
        NAME=name,
        DESCR=ascii(f"{options[1]} uses the fast network on {_NODES} nodes"),
        NODES=str(_NODES),
        GPUS=str(len(site.binding.near) if site and site.binding and site.scheduler == "Slurm" else 0),
        TEST=ascii(TEST),
        VARIABLES="\n".join(_exports(variables)),
        SOURCE=textwrap.indent(comment("#", f"GB/s of the bus, by the site's facts: {source}"), "    "),
        REFERENCE=ascii(reference),
        # ReFrame puts them into its job script as they are
        OPTIONS=", ".join(ascii(shlex.quote(word)) for word in options),
    )
    return ReframeTest(name, tuple(options), _NODES, known, variables, text)


def _exports(variables: tuple[SiteVariable, ...]) -> Iterator[str]:
    """Yield `env_vars`: ReFrame writes `export NAME=VALUE` with the value as it is."""
    if not variables:
        return
    yield "    # what a job on several nodes sets; where the image sets one itself, that may come over it"
    yield "    env_vars = {"
    for item in variables:
        yield textwrap.indent(comment("#", f"{item.because} ({item.source})"), " " * 8)
        yield f"        {item.name!a}: {shlex.quote(item.value)!a},"
    yield "    }"
