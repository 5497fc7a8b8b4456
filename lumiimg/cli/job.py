"""Write a job script for an image on a site."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from lumiimg.catalog.site_choice import site_to_make_for
from lumiimg.catalog.sites import Site
from lumiimg.check.context import open_for_check
from lumiimg.check.static.boundary import study
from lumiimg.check.static.gpu_code import gpu_owner, judge_gpu_code
from lumiimg.check.static.machine import wrong_processors
from lumiimg.cli.inputs import Inputs
from lumiimg.cluster.job.gpu_notes import notes_of_gpu
from lumiimg.cluster.job.mounts import absent_paths
from lumiimg.cluster.job.plan import JobPlan, JobRequest, by_carried, loading, plan_job
from lumiimg.cluster.job.script import job_script
from lumiimg.cluster.job.shape import ShapeRequest, seconds
from lumiimg.cluster.job.short import is_enough, short_script
from lumiimg.errors import BadInputError, ExitCode, RefusedError
from lumiimg.files import refuse_places, write_text
from lumiimg.host.carried_manifest import MANIFEST_PATH
from lumiimg.host.job_process import loaded_in_jobs
from lumiimg.host.snapshot import Snapshot
from lumiimg.report.console import print_json
from lumiimg.report.job import explain_job, print_job
from lumiimg.report.text import show_items
from lumiimg.report.views.compatibility import doubts
from lumiimg.resolve.driver_rule import driver_of_node
from lumiimg.resolve.image_python import note_of_program, python_of
from lumiimg.resolve.inventory import read_contents
from lumiimg.resolve.stack import Stack
from lumiimg.resolve.venv import notes_of_venv


def _time_s(text: str) -> int:
    if (found := seconds(text)) is None:
        hint = "write minutes, HH:MM:SS, D-HH, D-HH:MM:SS"
        raise BadInputError(f"{text!r} is not a valid time", where="--time", hint=hint)
    return found


def execute(arguments: argparse.Namespace) -> int:
    refuse_places({"-o": arguments.output}, (arguments.image, arguments.host))
    inputs = Inputs.of(arguments, site_to_make_for)
    site, snapshot = inputs.target, inputs.snapshot
    request, stack, carries = _request(arguments, inputs)
    manifest = None
    if snapshot is not None or carries:
        boundary = study(arguments.image, os.environ, snapshot, site)
        if snapshot is not None:
            manifest = loading(boundary)
        else:
            manifest, of_manifest = by_carried(boundary, site)
            request = replace(request, of_manifest=of_manifest)
        if manifest is not None and snapshot is not None:
            show_items(doubts(boundary), stderr=True)
    plan = plan_job(request, stack, _as_seen(site, snapshot), manifest)
    script = _script(plan, arguments)
    if arguments.json:
        print_json("job", plan=plan, script=script)
    if arguments.explain:
        explain_job(plan, stderr=arguments.json)
        return ExitCode.GOOD
    if arguments.output:
        write_text(arguments.output, script)
        arguments.output.chmod(0o755)
    elif not arguments.json:
        print(script, end="")
    print_job(plan, arguments.output)
    return ExitCode.GOOD


def _request(arguments: argparse.Namespace, inputs: Inputs) -> tuple[JobRequest, Stack, bool]:
    """Return what is asked for with what the image says of it, what it has, and whether it carries a manifest."""
    wish = ShapeRequest(
        nodes=arguments.nodes,
        gpus=arguments.gpus,
        partition=arguments.partition,
        account=arguments.account,
        time_s=arguments.time and _time_s(arguments.time),
        exclusive=arguments.exclusive,
    )
    words = tuple(arguments.program) or (("true",) if arguments.explain else ())
    caches = arguments.caches and str(Path(arguments.caches).absolute())
    venv = inputs.venv
    with open_for_check(arguments.image, venv=venv) as context:
        image, whole = context.plain, context.image
        if (lacking := wrong_processors(image, (), None, inputs.site)) is not None:
            raise RefusedError(lacking, where=str(arguments.image), hint="build the image, or pull it, for them")
        contents = read_contents(image)
        python = python_of(image, contents)
        owner = gpu_owner(inputs.site, inputs.snapshot)
        request = JobRequest(
            image=str(arguments.image.absolute()),
            command=words,
            wish=wish,
            framework=arguments.framework,
            torchrun=arguments.launch == "torchrun",
            python=python,
            binds=tuple(arguments.bind),
            absent=absent_paths([*words, *filter(None, [caches])], whole.root, _mounted()),
            note=note_of_program(words[0], whole, python) if words else None,
            variables=image.environment,
            of_gpu=tuple(notes_of_gpu(judge_gpu_code(image, os.environ, loaded_in_jobs(image), owner))),
            caches=caches,
            venv=venv,
            of_venv=tuple(notes_of_venv(venv, arguments.image, contents.has)) if venv else (),
        )
        return request, contents.stack_with(venv.packages if venv else {}), image.root.exists(MANIFEST_PATH)


def _script(plan: JobPlan, arguments: argparse.Namespace) -> str:
    if arguments.robust or not is_enough(plan):
        return job_script(plan)
    return short_script(plan, annotate=arguments.annotate)


def _mounted() -> tuple[str, str]:
    """Return what engines mount by themselves."""
    return os.getcwd(), os.path.expanduser("~")  # noqa: PTH109, PTH111


def _as_seen(site: Site, snapshot: Snapshot | None) -> Site:
    """Return a site with the driver that was seen on one of its nodes."""
    return replace(site, driver=driver_of_node(site.driver, snapshot)) if snapshot is not None else site
