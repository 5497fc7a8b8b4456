"""Write a job script for an image on a site."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from lumiimg.catalog.sites import target_site
from lumiimg.cli.inputs import Inputs
from lumiimg.cli.output import Output
from lumiimg.cluster.job.image import read_image
from lumiimg.cluster.job.plan import plan_job
from lumiimg.cluster.job.script import script_of
from lumiimg.cluster.job.shape import JobRequest
from lumiimg.cluster.nodes.slurm import seconds
from lumiimg.core.errors import BadInputError, ExitCode
from lumiimg.core.files import refuse_places, write_text
from lumiimg.report.text import show_items
from lumiimg.report.views.binds import doubts
from lumiimg.report.views.made import job_document, notes_of_job


def execute(arguments: argparse.Namespace) -> int:
    refuse_places({"-o": arguments.output}, (arguments.image, arguments.host))
    time_s = _time_s(arguments.time) if arguments.time else None
    inputs = Inputs.from_arguments(arguments, target_site)
    asked = JobRequest(
        image=str(arguments.image.absolute()),
        command=tuple(arguments.program),
        nodes=arguments.nodes,
        gpus=arguments.gpus,
        partition=arguments.partition,
        account=arguments.account,
        time_s=time_s,
        exclusive=arguments.exclusive,
        framework=arguments.framework,
        torchrun=arguments.launch == "torchrun",
        binds=tuple(arguments.bind),
        caches=arguments.caches and str(Path(arguments.caches).absolute()),
        venv=inputs.venv,
    )
    image = read_image(asked, arguments.image, inputs.target, inputs.snapshot, os.environ)
    plan = plan_job(asked, image)
    if image.fit is not None and not arguments.quiet:
        show_items(doubts(image.fit))
    output, found = (
        Output.from_arguments(arguments),
        script_of(plan, robust=arguments.robust, annotate=arguments.annotate),
    )
    if arguments.output:
        write_text(arguments.output, found.script)
        arguments.output.chmod(0o755)
        return output.deliver(job_document(plan, arguments.output), "job", found)
    if not output.as_json("job", found):
        print(found.script, end="")
    if not arguments.quiet:
        show_items(notes_of_job(plan))
    return ExitCode.GOOD


def _time_s(text: str) -> int:
    if (found := seconds(text)) is None:
        hint = "write minutes, HH:MM:SS, D-HH, D-HH:MM:SS"
        raise BadInputError(f"{text!r} is not a valid time", where="--time", hint=hint)
    return found
