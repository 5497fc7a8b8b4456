"""Print the binds from a machine that an image needs to use its fabric."""

from __future__ import annotations

import argparse
from typing import cast

from lumiimg.check.pipeline import explain_image
from lumiimg.check.static.files import BoundImage
from lumiimg.cli.inputs import Inputs
from lumiimg.cluster.binds import manifest_text, refuse_unsafe
from lumiimg.core.errors import ExitCode
from lumiimg.host.snapshot import Snapshot
from lumiimg.report.json_output import write_json
from lumiimg.report.text import show, show_items
from lumiimg.report.views.binds import doubts, refusals_document


def execute(arguments: argparse.Namespace) -> int:
    inputs = Inputs.from_arguments(arguments)
    snapshot = cast("Snapshot", inputs.snapshot)  # --host is required
    with inputs.open(arguments.image, arguments, as_here=False) as context:
        bound = BoundImage(explain_image(context).files)
    fit = bound.of
    if arguments.json or arguments.format == "json":
        refuse_unsafe(bound.manifest.binds, bound.manifest.variables, "json")
        write_json("bind", bound)
    else:
        print(manifest_text(bound, snapshot, arguments.format), end="")
    if bound.is_refused:
        show(refusals_document(fit, "bind"), quiet=arguments.quiet, verbose=arguments.verbose, stderr=True)
        return fit.answer.exit_code
    if not arguments.quiet:
        show_items(doubts(fit))
    return ExitCode.GOOD
