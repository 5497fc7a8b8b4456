"""Write a module for an image. It binds what the image needs from the machine,
sets the site's variables for jobs, and has wrappers for programs (python, pip,
torchrun, vllm, start-shell, …). Each line has its reason.

examples:
  lumiimg module vllm.sif -o modules --host host.json --site lumi
  lumiimg module vllm.sif -o modules --name vllm/0.10.1 --site lumi
Only the binds, for scripts of your own: lumiimg bind vllm.sif --host host.json

exit codes: 0 written: modulefiles/NAME/VERSION(.lua), software/NAME/VERSION
            1 no set of binds loads, or a path cannot be written there
            2 not an image, no snapshot, or the name is that of something else
            3 which libraries must be bound cannot be decided
"""

from __future__ import annotations

import argparse
import os

from lumiimg.cli import options
from lumiimg.errors import ExitCode


def configure_parser(parser: argparse.ArgumentParser) -> None:
    options.add_image(parser, "a SIF, squashfs file or sandbox folder")
    options.add_output(parser, "the folder of your modules, for any number of images", "DIR", required=True)
    parser.add_argument(
        "--name",
        metavar="NAME[/VERSION]",
        help="name of the module (default: the file's name, and the day of its last change)",
    )
    options.add_host(parser)
    options.add_machine(parser, "its file systems are bound and its job variables set")
    parser.add_argument("--force", action="store_true", help="overwrite: a module of this name of another image")
    options.add_venv(parser)
    options.add_quiet(parser)
    options.add_json(parser)


def execute(arguments: argparse.Namespace) -> int:
    from lumiimg.cluster.module.folder import write_module
    from lumiimg.cluster.module.plan import plan_module
    from lumiimg.fabric.path import Fabric
    from lumiimg.report.boundary import print_doubts, print_refusals
    from lumiimg.report.console import print_json
    from lumiimg.report.module import json_keys, print_module

    site, snapshot = options.site_of(arguments), options.snapshot_of(arguments)
    module = plan_module(
        arguments.image, arguments.output, arguments.name, snapshot, site, os.environ, options.venv_of(arguments)
    )
    if module.boundary is not None and module.boundary.fabric is Fabric.NONE:
        print_refusals(module.boundary)
        return module.boundary.decision.exit_code
    write_module(module, arguments.output, force=arguments.force)
    if arguments.json:
        print_json("module", module, **json_keys(module, arguments.output))
    print_module(module, arguments.output, quiet=arguments.quiet, stderr=arguments.json)
    if module.boundary is not None:
        print_doubts(module.boundary)
    return ExitCode.GOOD
