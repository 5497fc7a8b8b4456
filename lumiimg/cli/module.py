"""Write a module for an image."""

from __future__ import annotations

import argparse
import os

from lumiimg.cli.inputs import Inputs
from lumiimg.cluster.module.folder import write_module
from lumiimg.cluster.module.plan import plan_module
from lumiimg.errors import ExitCode
from lumiimg.fabric.path import Fabric
from lumiimg.report.module import print_json_of, print_module
from lumiimg.report.text import show, show_items
from lumiimg.report.views.compatibility import doubts, refusals_document


def execute(arguments: argparse.Namespace) -> int:
    inputs = Inputs.of(arguments)
    module = plan_module(
        arguments.image, arguments.output, arguments.name, inputs.snapshot, inputs.site, os.environ, inputs.venv
    )
    if module.boundary is not None and module.boundary.fabric is Fabric.NONE:
        show(refusals_document(module.boundary, "module"), stderr=True)
        return module.boundary.answer.exit_code
    write_module(module, arguments.output, force=arguments.force)
    if arguments.json:
        print_json_of(module, arguments.output)
    print_module(module, arguments.output, quiet=arguments.quiet, stderr=arguments.json)
    if module.boundary is not None:
        show_items(doubts(module.boundary), stderr=True)
    return ExitCode.GOOD
