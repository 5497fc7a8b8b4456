r"""Check whether RCCL in an image would use Slingshot: what its loader would
load, and what its own plugin and RCCL do in the container.

levels: static  from the files of the image, nothing run
        probe   programs run in the container, without a GPU
        run     a real collective on the GPUs of this node, or of all: the
                image's own rccl-tests, its torch, or a program of lumiimg
Without --level: the highest that works here. See docs/explanation/levels.md for
what each level proves.

--nodes checks many nodes at once, by Slurm. Identical nodes are reported as one
group. Level run needs GPUs: request them (--gpus-per-node) here or in --sbatch:
  salloc --nodes=4 --gpus-per-node=8; lumiimg check image.sif --nodes 4
  lumiimg check image.sif --nodes 64 \
      --sbatch='-p standard-g -A project_XXX --gpus-per-node=8'

Of several images, equal answers are reported as one group, and --json prints a
line for each: lumiimg check *.sif --level static

exit codes: 0 no obstacle found at this level
            1 no: RCCL would not use the fast network
            2 not an image
            3 cannot be decided from here; of several nodes, one gave no answer,
              or they have no GPUs for the level that was asked for; Slurm did
              not take the job of --nodes, or ended it before the answer
            4 no engine or no GPU for the level that was asked for; no Slurm for
              --nodes
            of several images, that of the worst: 1, 2, 4, 3, 0
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.cli import options
from lumiimg.errors import BadInputError, printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumiimg.check.answer import CheckReport
    from lumiimg.cli.output import Output
    from lumiimg.cluster.nodes.check import NodesReport
    from lumiimg.cluster.nodes.watch import Waiting

_SOON_S, _LATER_S = 5.0, 30.0
"""Between two lines that say how far a check is: where more nodes have answered, and where none has."""


def configure_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("images", metavar="IMAGE", type=Path, nargs="+", help=options.IMAGES)
    options.add_host(parser)
    options.add_program(parser)
    options.add_venv(parser)
    parser.add_argument("--level", choices=("static", "probe", "run"), help="highest level of the check")
    options.add_machine(parser, "run with the settings of its jobs, and compare the bandwidth with its reference")
    parser.add_argument(
        "--nodes",
        metavar="N",
        type=options.number_to(999_999, "number of nodes"),
        help="number of nodes: run the probes and a collective on N nodes of this job; outside a job, submit one",
    )
    parser.add_argument(
        "--sbatch",
        metavar="OPTIONS",
        default="",
        help="options for sbatch: partition, account, GPUs, time of the job that --nodes submits",
    )
    parser.add_argument(
        "--simulate-gpu",
        action="store_true",
        help="let RCCL choose its network on a stand-in for HIP: a simulation for RCCL "
        "2.22 and later (ROCm 6.4), which looks for its plugin only with a GPU",
    )
    # for the job that --nodes submits: the report as far as it is, should the job end before it is whole
    parser.add_argument("--so-far", metavar="FILE", type=Path, help=argparse.SUPPRESS)
    # for a trial, which asks what each variable of the site does
    parser.add_argument("--leave-out", metavar="NAME", help=argparse.SUPPRESS)
    options.add_junit(parser)
    options.add_page(parser)
    options.add_quiet(parser)
    options.add_verbose(parser, "everything that was checked")
    options.add_json(parser)


def execute(arguments: argparse.Namespace) -> int:
    from lumiimg.cli.output import Output
    from lumiimg.report.views.check import check_document

    output = Output.of(arguments, (*arguments.images, arguments.host))
    if len(arguments.images) > 1:
        return _several(arguments, output)
    if arguments.nodes is not None:
        return _on_nodes(arguments, output)
    report = _checker(arguments)(arguments.images[0])
    if arguments.html:
        from lumiimg.files import write_text
        from lumiimg.report.html.check import check_page

        write_text(arguments.html, check_page(report))
    return output.deliver(check_document(report), "check", report, report.answer.exit_code)


def _checker(arguments: argparse.Namespace) -> Callable[[Path], CheckReport]:
    """Return what checks an image on this machine. Raises BadInputError."""
    from lumiimg.build.provenance import asked_for
    from lumiimg.check.pipeline import check_image
    from lumiimg.findings import Level

    if arguments.sbatch:
        raise BadInputError("is for the job that --nodes submits", where="--sbatch", hint="add --nodes N")
    level = Level(arguments.level) if arguments.level else None
    if arguments.simulate_gpu and level is Level.STATIC:
        raise BadInputError("--simulate-gpu runs programs, and --level static runs none", hint="leave one of them out")
    snapshot, site, venv = options.snapshot_of(arguments), options.site_of(arguments), options.venv_of(arguments)

    def check(image: Path) -> CheckReport:
        return check_image(
            image,
            os.environ,
            level,
            snapshot,
            simulate=arguments.simulate_gpu,
            site=site,
            program=arguments.starts,
            machine=options.machine_options(arguments, anywhere=False),
            built_with=asked_for(image),
            venv=venv,
        )

    return check


def _several(arguments: argparse.Namespace, output: Output) -> int:
    from lumiimg.report.console import print_json_line
    from lumiimg.report.views.images import ImageAnswer, of_check

    given = {"--nodes": arguments.nodes, "--junit": arguments.junit}
    if option := next((option for option, value in given.items() if value is not None), None):
        raise BadInputError("is for one image", where=option, hint="leave it out, or name one image")
    check = _checker(arguments)

    def answer(image: Path) -> ImageAnswer:
        report = check(image)
        if arguments.json:
            print_json_line("check", report)
        return of_check(report)

    return output.each("check", arguments.images, answer)


def _on_nodes(arguments: argparse.Namespace, output: Output) -> int:
    """Check on the nodes of the job that this is in, else of one that is submitted for it."""
    from lumiimg.cluster.nodes.slurm import find_allocation
    from lumiimg.files import write_text
    from lumiimg.findings import Level
    from lumiimg.report.schema import json_text
    from lumiimg.report.views.check import nodes_document

    if arguments.level == "static":
        raise BadInputError("the files of an image are the same on all nodes", where="--nodes", hint="leave it out")
    snapshot, site = options.snapshot_of(arguments), options.site_of(arguments)
    allocation = find_allocation(os.environ)
    if allocation is None:
        report = _by_job(arguments)
    else:
        if arguments.sbatch:
            raise BadInputError(f"this is job {allocation.job} already", where="--sbatch", hint="leave it out")
        from lumiimg.build.provenance import asked_for
        from lumiimg.cluster.nodes.check import check_nodes
        from lumiimg.cluster.nodes.request import NodesRequest

        request = NodesRequest(
            image=arguments.images[0].absolute(),
            nodes=arguments.nodes,
            level=Level(arguments.level) if arguments.level else None,
            snapshot=snapshot,
            site=site,
            simulate=arguments.simulate_gpu,
            program=arguments.starts,
            machine=options.machine_options(arguments, anywhere=False),
            built_with=asked_for(arguments.images[0]),
            venv=options.venv_of(arguments),
            without=arguments.leave_out,
        )

        def keep(report: NodesReport) -> None:
            if arguments.so_far:
                write_text(arguments.so_far, json_text("check-nodes", report))

        report = check_nodes(request, allocation, os.environ, _waiting_line(arguments.nodes), keep)
    from lumiimg.cluster.nodes.check import paths_of

    paths = paths_of(report, arguments.images[0], os.environ) if arguments.html else ()
    if arguments.html:
        from lumiimg.report.html.check import nodes_page

        write_text(arguments.html, nodes_page(report, paths))
    return output.deliver(nodes_document(report, paths), "check-nodes", report, report.answer.exit_code)


def _by_job(arguments: argparse.Namespace) -> NodesReport:
    from lumiimg.check.opening import opened
    from lumiimg.cluster.nodes.submit import check_by_job

    try:
        for_sbatch = shlex.split(arguments.sbatch)
    except ValueError as error:
        raise BadInputError(f"is not a valid list of options: {error}", where="--sbatch") from error
    options.venv_of(arguments)
    with opened(arguments.images[0]):
        pass  # what is not an image is reported now, not when the job has waited for its nodes
    words = ["check", str(arguments.images[0].absolute()), "--nodes", str(arguments.nodes), "--json"]
    words += ["--program", arguments.starts] if arguments.starts else []
    words += ["--venv", str(arguments.venv.absolute())] if arguments.venv else []
    words += ["--simulate-gpu"] if arguments.simulate_gpu else []
    words += ["--level", arguments.level] if arguments.level else []
    words += options.machine_options(arguments)

    def submitted(job: str) -> None:
        print(f"job {printable(job)} is submitted; waiting for it (Ctrl-C cancels it)", file=sys.stderr, flush=True)

    return check_by_job(words, arguments.nodes, for_sbatch, os.environ, submitted)


def _waiting_line(nodes: int) -> Callable[[Waiting], None]:
    """Return what prints how far a check is: sooner where more nodes have answered."""
    from lumiimg.nccl.node_names import folded
    from lumiimg.report.console import console, cut, say

    out = console(stderr=True)
    told_at, answered = time.monotonic(), 0

    def tell(waiting: Waiting) -> None:
        nonlocal told_at, answered
        now = time.monotonic()
        if waiting.nodes and now - told_at >= (_SOON_S if waiting.answered > answered else _LATER_S):
            told_at, answered = now, waiting.answered
            until = time.strftime("%H:%M:%S", time.localtime(time.time() + waiting.seconds))
            names = cut(out, folded(waiting.nodes), "  ")
            say(out, f"{answered} of {nodes} nodes have answered; waiting until {until} at the latest for {names}")

    return tell
