"""A ReFrame test of an image: `lumiimg check` on nodes of the machine, with the site's bandwidth as reference."""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lumiimg import __version__
from lumiimg.check.run.collective import same_everywhere
from lumiimg.cluster.binds import is_path
from lumiimg.cluster.module.modulefile import comment
from lumiimg.errors import BadInputError, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from lumiimg.catalog.sites import Site, SiteBandwidth, SiteVariable
    from lumiimg.resolve.stack import Stack

TEST = "all_reduce_perf"
"""The program whose bandwidth is compared."""
_NODES = 2
"""The least on which the network is used."""
_TEXT = '''\
"""Does an image use the fast network here, on several nodes?

Made by lumiimg @VERSION@ for ReFrame 4. Its own job script needs `lumiimg` on PATH; the step on all nodes is started by
lumiimg itself. Where the tests run is said as for any test: `reframe -c FILE -r -S valid_systems=lumi:gpu`.
"""

import json
import os

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.backends import getlauncher


@rfm.simple_test
class @NAME@(rfm.RunOnlyRegressionTest):
    descr = @DESCR@
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    tags = {"lumiimg", "containers", "network"}
    time_limit = "15m"
    executable = "lumiimg"
    nodes = variable(int, value=@NODES@)
    gpus_per_node = variable(int, value=@GPUS@)
@VARIABLES@
    test = @TEST@
@SOURCE@
    reference = @REFERENCE@

    @run_after("init")
    def shape(self):
        self.num_tasks = self.nodes
        self.num_tasks_per_node = 1
        self.executable_opts = [@OPTIONS@, "--nodes", str(self.nodes), "--json"]
        self.postrun_cmds = ['echo "lumiimg ended with $?"']

    @run_before("run")
    def one_process(self):
        self.job.launcher = getlauncher("local")()
        if self.gpus_per_node:
            self.job.options += [f"--gpus-per-node={self.gpus_per_node}"]

    @sanity_function
    def answer(self):
        meaning = {
            0: "no obstacle was found",
            1: "the image does not use the fast network, or not on all nodes",
            2: "wrong usage: is this lumiimg another one than wrote the test?",
            3: "it cannot be decided from what was seen",
            4: "something that the check needs is missing here (Slurm, a container engine)",
        }
        code = sn.evaluate(sn.extractsingle(r"^lumiimg ended with (\\d+)$", self.stdout, 1, int))
        return sn.assert_eq(code, 0, msg=f"lumiimg check: {meaning.get(code, 'it did not run')} (exit {code})")

    @run_before("performance")
    def measured(self):
        best = max(self.bandwidths(), default=None)
        self.perf_variables = {}
        if best is not None:
            self.perf_variables[self.test] = sn.make_performance_function(sn.defer(best), "GB/s")

    def bandwidths(self):
        """Yield what the check measured: nothing without GPUs, and nothing is then compared."""
        try:
            with open(os.path.join(self.stagedir, sn.evaluate(self.stdout)), encoding="utf-8") as stream:
                text = stream.read()
            pending = [json.JSONDecoder().raw_decode(text[text.index("{") :])[0]]
        except (OSError, ValueError):
            return
        while pending:
            item = pending.pop()
            if isinstance(item, dict):
                if item.get("name") == self.test and isinstance(item.get("best_gb_s"), (int, float)):
                    yield item["best_gb_s"]
                pending.extend(item.values())
            elif isinstance(item, list):
                pending.extend(item)
'''


@dataclass(frozen=True, slots=True)
class ReframeTest:
    """One test, as it is written."""

    name: str
    """Of its class."""
    options: tuple[str, ...]
    """Of lumiimg, up to those that say on which nodes."""
    nodes: int
    gpus: int
    """Of a node, to be asked for; 0 where that is not known."""
    reference: SiteBandwidth | None
    variables: tuple[SiteVariable, ...]
    """Of the site, for this image, that jobs on several nodes set."""
    text: str = ""


def reframe_test(image: Path, stack: Stack, host: Path | None, site: Site | None) -> ReframeTest:
    """Return the test of an image; `stack` is what it has. Raises BadInputError for a path that cannot be written."""
    options = ["check", str(image.absolute())]
    if host is not None:
        options += ["--host", str(host.absolute())]
    for word in options:
        if not is_path(word):
            raise BadInputError("a path with such characters cannot be in a test", where=word)
    stem = re.sub(r"[^a-z0-9]+", "_", image.stem.lower()).strip("_")
    test = ReframeTest(
        name=f"lumiimg_{stem or 'image'}",
        options=tuple(options),
        nodes=_NODES,
        gpus=len(site.binding.near) if site and site.binding and site.scheduler == "Slurm" else 0,
        reference=next((b for b in site.bandwidths if (b.test, b.nodes) == (TEST, _NODES)), None) if site else None,
        variables=tuple(same_everywhere(stack, site, nodes=_NODES)) if site else (),
    )
    return replace(test, text=_text(test))


def _exports(variables: Iterable[SiteVariable]) -> Iterator[str]:
    """Yield `env_vars`: ReFrame writes `export NAME=VALUE` with the value as it is."""
    if not (found := tuple(variables)):
        return
    yield "    # what a job on several nodes sets; where the image sets one itself, that may come over it"
    yield "    env_vars = {"
    for item in found:
        yield textwrap.indent(comment("#", f"{item.because} ({item.source})"), " " * 8)
        yield f"        {item.name!a}: {shlex.quote(item.value)!a},"
    yield "    }"


def _text(test: ReframeTest) -> str:
    reference, source = {}, "none is known"
    if (known := test.reference) is not None:
        lower = round(known.least_gb_s / known.gb_s - 1, 4)  # as ReFrame has it: the part that may be missing
        reference, source = {"*": {TEST: (known.gb_s, lower, None, "GB/s")}}, one_line(known.source)
    values = {
        "VERSION": __version__,
        "NAME": test.name,
        "DESCR": ascii(f"{test.options[1]} uses the fast network on {test.nodes} nodes"),
        "NODES": str(test.nodes),
        "GPUS": str(test.gpus),
        "TEST": ascii(TEST),
        "VARIABLES": "\n".join(_exports(test.variables)),
        "SOURCE": textwrap.indent(comment("#", f"GB/s of the bus, by the site's facts: {source}"), "    "),
        "REFERENCE": ascii(reference),
        # ReFrame puts them into its job script as they are
        "OPTIONS": ", ".join(ascii(shlex.quote(word)) for word in test.options),
    }
    text = _TEXT if test.variables else _TEXT.replace("@VARIABLES@\n", "")
    return re.sub("@([A-Z]+)@", lambda match: values[match[1]], text)
