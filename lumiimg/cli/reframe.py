"""Print a test for ReFrame 4 that runs `lumiimg check IMAGE --nodes 2` in the
environment of a job there, and compares the bandwidth, if measured, with that
of the site.

example:
  lumiimg reframe vllm.sif --site lumi > vllm.py
  reframe -c vllm.py -r -S valid_systems=lumi:gpu

exit codes: 0 printed · 2 not an image, or a path that cannot be written
"""

from __future__ import annotations

import argparse
import sys

from lumiimg.cli.options import add_host, add_image, add_json, add_machine, site_of, snapshot_of
from lumiimg.errors import ExitCode


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_image(parser, "a SIF, squashfs file or sandbox folder")
    add_host(parser)
    add_machine(parser, "its bandwidth is the reference, and its variables are set")
    add_json(parser)


def execute(arguments: argparse.Namespace) -> int:
    from lumiimg.check.opening import opened
    from lumiimg.cluster.reframe import reframe_test
    from lumiimg.report.console import print_json
    from lumiimg.resolve.inventory import read_contents

    site = site_of(arguments)
    with opened(arguments.image) as image:
        stack = read_contents(image).stack
    snapshot_of(arguments)  # a file that is none is refused
    test = reframe_test(arguments.image, stack, arguments.host, site)
    if not arguments.json:
        sys.stdout.write(test.text)
        return ExitCode.GOOD
    command = ["lumiimg", *test.options, "--nodes", str(test.nodes), "--json"]
    environment = {variable.name: variable.value for variable in test.variables}
    print_json("reframe", test, command=command, environment=environment)
    return ExitCode.GOOD
