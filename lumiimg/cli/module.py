"""Write a module for an image."""

from __future__ import annotations

import argparse
import os

from lumiimg.cli.inputs import Inputs
from lumiimg.cli.output import Output
from lumiimg.cluster.module.folder import write_module
from lumiimg.cluster.module.plan import plan_module
from lumiimg.core.errors import ExitCode
from lumiimg.fabric.path import Fabric
from lumiimg.report.text import show, show_items
from lumiimg.report.views.binds import doubts, refusals_document
from lumiimg.report.views.made import module_document


def execute(arguments: argparse.Namespace) -> int:
    inputs = Inputs.from_arguments(arguments)
    module = plan_module(
        arguments.image, arguments.output, arguments.name, inputs.snapshot, inputs.site, os.environ, inputs.venv
    )
    if module.boundary is not None and module.boundary.fabric is Fabric.NONE:
        refusals = refusals_document(module.boundary, "module")
        show(refusals, quiet=arguments.quiet, verbose=arguments.verbose, stderr=True)
        return module.boundary.answer.exit_code
    write_module(module, force=arguments.force)
    Output.from_arguments(arguments).deliver(module_document(module), "module", module)
    if module.boundary is not None:
        show_items(doubts(module.boundary))
    return ExitCode.GOOD
