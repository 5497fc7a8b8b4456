"""Explain a request: what would be chosen, or on which bases its layers can be put."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.cli.output import Output
from lumiimg.cli.request import read_request, resolve_context, resolve_request
from lumiimg.cli.sources import open_sources
from lumiimg.errors import ExitCode
from lumiimg.report.json_builds import ExplainedRequest, PossibleBase, PossibleBases
from lumiimg.report.views.request import bases_document, request_document
from lumiimg.resolve.decide import working
from lumiimg.resolve.pin import with_taken
from lumiimg.resolve.plan import outcome_of


def execute(arguments: argparse.Namespace, output: Output) -> int:
    return _request(arguments, output) if arguments.base or arguments.recipe else _bases(arguments, output)


def _request(arguments: argparse.Namespace, output: Output) -> int:
    request, plan = resolve_request(arguments)
    if plan.lock is not None and plan.lock.own is not None and not arguments.offline:
        plan = with_taken(plan, plan.lock, open_sources(arguments), request.until)
    code = ExitCode.NO if plan.refused else ExitCode.MISSING_HERE if plan.missing else ExitCode.GOOD
    return output.deliver(request_document(plan), "explain-request", ExplainedRequest(plan), code)


def _bases(arguments: argparse.Namespace, output: Output) -> int:
    """Report on which bases of the catalogue the layers can be put that are asked for."""
    catalogue = open_catalogue(os.environ, arguments.layers)
    request = read_request(arguments, catalogue, needs_base=False)
    ground = resolve_context(arguments, request, catalogue)
    plans, others = working(request, ground)
    free = [] if plans else working(replace(request.plainly(), add=request.unpinned), ground)[0]
    document = bases_document(plans, request, ground.site, others=others, free=free)
    bases = tuple(PossibleBase(plan.base.name, plan.is_doubtful, outcome_of(plan)) for plan in plans)
    code = ExitCode.GOOD if plans else ExitCode.NO
    return output.deliver(document, "explain-bases", PossibleBases(bases), code)
