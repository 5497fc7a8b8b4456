"""The options of the commands that work for jobs, and on many nodes, and their help."""

from __future__ import annotations

import argparse
from pathlib import Path

from lumiimg.cli import arguments

_MOST = 100_000
"""Nodes, and GPUs of one, that a job may be asked for."""


def job(parser: argparse.ArgumentParser) -> None:
    """Write a script for Slurm or PBS that runs a command in an image on a site:
    the cores and GPU of each rank, the variables for this image there, and the
    binds. At its end the script reports the network that was used. --annotate adds
    the reason for every choice.

    frameworks: ddp, fsdp, deepspeed, lightning   a rank per GPU that sees all GPUs
                vllm, ray       once per node; Ray connects several nodes
                plain           a rank per GPU that sees only its own (MPI, …)
    Without --framework: by the command, and whether the image has torch.

    examples:
      lumiimg job image.sif --site lumi -o job.sh -- python train.py
      lumiimg job image.sif --site lumi --nodes 4 --launch torchrun -- python x.py
      lumiimg job image.sif --site lumi --gpus 2 -- vllm serve MODEL
      lumiimg job image.sif --site lumi --bind /data -- python x.py --in=/data/x
      lumiimg job image.sif --site lumi --explain
    """
    parser.usage = "lumiimg job IMAGE [options] [--] COMMAND [ARGUMENT ...]"
    arguments.add_image(parser, "image, by the path that the job will see")
    arguments.add_machine(parser, "its rank binding and settings apply")
    parser.add_argument(
        "--nodes",
        metavar="N",
        type=arguments.number_to(_MOST),
        default=1,
        help="number of nodes: of the job (default: 1)",
    )
    parser.add_argument("--gpus", metavar="N", type=arguments.number_to(_MOST), help="GPUs per node (default: all)")
    parser.add_argument(
        "--framework",
        choices=("ddp", "fsdp", "deepspeed", "lightning", "vllm", "ray", "plain"),
        metavar="NAME",
        help="how to start the program (below)",
    )
    parser.add_argument(
        "--launch",
        choices=("srun", "torchrun"),
        default="srun",
        help="launcher of the ranks on a node (default: srun; under PBS mpiexec)",
    )
    parser.add_argument(
        "--partition",
        metavar="NAME",
        help="partition (default: the first of the site that fits, excluding test partitions)",
    )
    parser.add_argument("--exclusive", action="store_true", help="whole nodes, also in a partition that shares nodes")
    parser.add_argument("--account", metavar="NAME", help="project that is charged")
    parser.add_argument(
        "--time", metavar="TIME", help="time limit as for Slurm: minutes, HH:MM:SS, D-HH (default: 1 h)"
    )
    arguments.add_bind(parser, "added to the site's binds; also SRC:DST:ro")
    parser.add_argument(
        "--caches", metavar="DIR", help="folder for models and compiled kernels (default: the site's scratch)"
    )
    arguments.add_venv(parser)
    arguments.add_host(parser)
    arguments.add_output(parser, "the script, instead of printing it")
    parser.add_argument("--annotate", action="store_true", help="print the reason for each choice")
    parser.add_argument(
        "--robust",
        action="store_true",
        help="add guards, with reasons: for a requeue, a start inside another job, a folder where others write, "
        "clearing /tmp at the end",
    )
    parser.add_argument(
        "--explain", action="store_true", help="print how the cores of each rank are found, and no script"
    )
    arguments.add_output_options(parser, quiet="print only the script, or where it is, and errors")


def module(parser: argparse.ArgumentParser) -> None:
    """Write a module for an image. It binds what the image needs from the machine,
    sets the site's variables for jobs, and has wrappers for programs (python, pip,
    torchrun, vllm, start-shell, …). Each line has its reason.

    examples:
      lumiimg module vllm.sif -o modules --host host.json --site lumi
      lumiimg module vllm.sif -o modules --name vllm/0.10.1 --site lumi
    Only the binds, for scripts of your own: lumiimg bind vllm.sif --host host.json
    """
    arguments.add_image(parser, "a SIF, squashfs file or sandbox folder")
    arguments.add_output(parser, "the folder of your modules, for any number of images", "DIR", required=True)
    parser.add_argument(
        "--name",
        metavar="NAME[/VERSION]",
        help="name of the module (default: the file's name, and the day of its last change)",
    )
    arguments.add_host(parser)
    arguments.add_machine(parser, "its file systems are bound and its job variables set")
    parser.add_argument("--force", action="store_true", help="overwrite: a module of this name of another image")
    arguments.add_venv(parser)
    arguments.add_output_options(parser)


def trial(parser: argparse.ArgumentParser) -> None:
    """Try on real nodes what lumiimg says of them and of images, and put claims and
    facts side by side.

      lumiimg trial plan image.sif -o trial       writes down what it would do, what
                                                  that costs, and every prediction
      lumiimg trial run trial --sbatch='-A …'     submits the job; again: goes on
      lumiimg trial report trial                  the table, as far as it is

    Nothing is sent anywhere. The file of the report has no names of people,
    projects, nodes and folders: read it before you share it.
    """
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", dest="action", required=True)
    plan = actions.add_parser(
        "plan",
        help="write down what would be done, what it costs, and every prediction",
        description="Write the plan of a trial into a new folder, which all nodes must share.\n"
        "Nothing runs on nodes yet. Without an image, the site's own that lie on this machine\n"
        "are tried, of each ROCm the newest.",
    )
    plan.add_argument("images", metavar="IMAGE", type=Path, nargs="*", help="image to try")
    arguments.add_output(plan, "the new folder", metavar="DIR", required=True)
    arguments.add_machine(plan, "whose claims are tried (default: settings, this machine, lumi)")
    plan.add_argument(
        "--nodes",
        metavar="N",
        type=arguments.number_to(64, "number of nodes"),
        default=2,
        help="number of nodes: of each job (default: 2)",
    )
    plan.add_argument(
        "--node-minutes",
        metavar="N",
        type=arguments.number_to(100_000, "number of minutes"),
        help="that all jobs of the trial may take together, never more (default: twice what it takes as a rule)",
    )
    plan.add_argument("--build", action="store_true", help="also try a small build on the first image")
    arguments.add_output_options(plan)
    run = actions.add_parser(
        "run",
        help="submit the job that does what is left; inside a job, do it",
        description="Submit the job of a trial, or go on with it: steps that are done are not done\n"
        "again. The job is not waited for. Inside a job with enough nodes, the steps are done here.",
    )
    run.add_argument("folder", metavar="FOLDER", type=Path, help="of `trial plan`")
    arguments.add_sbatch(run)
    run.add_argument("--write-only", action="store_true", help="write the job script, and submit nothing")
    arguments.add_output_options(run)
    report = actions.add_parser(
        "report",
        help="print claims beside facts, and write the file to share",
        description="Print what was predicted beside what was measured, the differences first, and\n"
        "write it to FOLDER/trial.json.",
    )
    report.add_argument("folder", metavar="FOLDER", type=Path, help="of `trial plan`")
    arguments.add_output_options(report, verbose="every claim, with its source", html=True)


def node(parser: argparse.ArgumentParser) -> None:
    """Carry out the task in FOLDER on this node: `lumiimg check --nodes` and `lumiimg trial` do."""
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("--look", metavar="SITE", help="put there what this node shows of what the site's file says")
    parser.add_argument("--gpus-in", metavar="IMAGE", type=Path, help="print what the GPUs are for its runtime")
