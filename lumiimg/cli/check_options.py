"""The options of the commands that say what holds of an image, a log or a node, and their help."""

from __future__ import annotations

import argparse
from pathlib import Path

from lumiimg.cli import arguments


def check(parser: argparse.ArgumentParser) -> None:
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
    """
    parser.add_argument("images", metavar="IMAGE", type=Path, nargs="+", help=arguments.IMAGES)
    arguments.add_host(parser)
    arguments.add_program(parser)
    arguments.add_venv(parser)
    parser.add_argument("--level", choices=("static", "probe", "run"), help="highest level of the check")
    arguments.add_machine(parser, "run with the settings of its jobs, and compare the bandwidth with its reference")
    parser.add_argument(
        "--nodes",
        metavar="N",
        type=arguments.number_to(999_999, "number of nodes"),
        help="number of nodes: run the probes and a collective on N nodes of this job; outside a job, submit one",
    )
    arguments.add_sbatch(parser, ", time of the job that --nodes submits")
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
    arguments.add_output_options(parser, verbose="everything that was checked", html=True, junit=True)


def log(parser: argparse.ArgumentParser) -> None:
    """Read what NCCL, RCCL, their OFI plugin and libfabric printed, and say which
    network carried the traffic.

    FILE may be compressed (gzip, zstd, xz, bzip2), a folder of logs (torchrun's, or
    what NCCL_DEBUG_FILE wrote), or - for standard input; all are read as one job.
    Beside or without a log: dumps of PyTorch's flight recorder, the output of
    ncclras, sacct or seff. Each is known by its content.
    The log needs NCCL_DEBUG=INFO in the job's environment: without it RCCL says
    almost nothing.
    """
    parser.add_argument("paths", metavar="FILE", nargs="*", help="a job's output: files, folders; - for standard input")
    parser.add_argument(
        "--image",
        metavar="IMAGE",
        type=Path,
        help="image: that of the job, to find the library that made the plugin fail",
    )
    arguments.add_host(parser)
    arguments.add_machine(parser, "its expected bandwidth is the reference")
    parser.add_argument("--follow", action="store_true", help="follow a running job and print changes, until Ctrl-C")
    parser.add_argument("--signatures", action="store_true", help="list the known messages, and exit")
    arguments.add_output_options(parser, verbose="all causes, all nodes, the job's variables", html=True, junit=True)


def explain(parser: argparse.ArgumentParser) -> None:
    """Of an image: which library comes from where on the way from RCCL to the NIC,
    which versions each side needs and has, and what margin is left; with --site,
    whether the GPU there runs the image's code.
    Of a request (--base, --add): what would be chosen, by which rule, from which
    fact; what stands against it, and the nearest request that works.

    examples:
      lumiimg explain image.sif --host host.json
      lumiimg explain image.sif --site lumi        # whether its GPU runs the code
      lumiimg explain *.sif --host host.json       # equal answers as one group
      lumiimg explain --base rocm-6.4.4 --add vllm --fabric bundled --site lumi
      lumiimg explain --add vllm --site lumi       # on which bases?
    """
    parser.add_argument("images", metavar="IMAGE", type=Path, nargs="*", help=arguments.IMAGES)
    arguments.add_program(parser)
    arguments.add_request(parser, "of a request")
    arguments.add_offline(parser)
    parser.set_defaults(jobs=1)
    arguments.add_output_options(parser, verbose="every need, source and pair of versions", html=True)


def bind(parser: argparse.ArgumentParser) -> None:
    """Compute what must be bound from a machine for an image to use its fabric.
    The binds are tried in a model of ld.so, with versions; they never include the
    C library or /usr/lib64.

    formats: shell        exports to source (the default), each line's reason above
             singularity  options, for eval "apptainer exec $(lumiimg bind …) …"
             json         everything, with what was tried
    """
    arguments.add_image(parser)
    arguments.add_host(parser, required=True)
    arguments.add_program(parser)
    arguments.add_machine(parser, "its own binds are added")
    parser.add_argument(
        "--format",
        choices=("shell", "singularity", "json"),
        default="shell",
        help="format: for a shell (default), the engine, a program",
    )
    arguments.add_output_options(parser, quiet="print only the binds, and errors")


def ldd(parser: argparse.ArgumentParser) -> None:
    """List what ld.so would load for files of an image, without running anything.

    A program is given to ld.so, as by `ld.so --list PROGRAM`. If the kernel starts
    it by its name, $ORIGIN may be another folder, and the libraries may differ:
    then both are shown.

    Not counted: variables of your shell, and what is on the host where engines
    mount unasked (your home, /tmp, /dev): files of the image there are not seen.
    Name what your job has by --env and --bind. With --all, files with the names of
    text files (x.py, x.h, x.json) are not opened.
    """
    arguments.add_image(parser)
    parser.add_argument("paths", metavar="PATH", nargs="*", help="programs and libraries, by their paths in the image")
    parser.add_argument("--all", action="store_true", help="every program and library of the image")
    arguments.add_host(parser)
    arguments.add_bind(parser, "of the --host snapshot, or else of this machine")
    arguments.add_repeated(parser, "--env", "K=V", "variable to set, as by the engine's --env (may be repeated)")
    parser.add_argument("--cwd", metavar="DIR", default="/", help="working directory of the process (default: /)")
    arguments.add_output_options(parser, verbose="with --all or many files, also those that load")


def drift(parser: argparse.ArgumentParser) -> None:
    """Compare a node with an earlier snapshot of one of its kind, and say which
    images, and which binds made for them, still work.

    examples:
      lumiimg drift host.json --image *.sif --site lumi     on a compute node
      lumiimg drift november.json today.json --image vllm.sif
    """
    parser.add_argument(
        "before", metavar="BEFORE", type=Path, help="node snapshot that the images were checked with (`host scan`)"
    )
    parser.add_argument(
        "now", metavar="NOW", type=Path, nargs="?", help="node snapshot of today (default: this machine is scanned)"
    )
    parser.add_argument(
        "--image",
        metavar="IMAGE",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        help="image: one to judge (may be repeated)",
    )
    arguments.add_machine(parser, "its binds and driver window apply")
    arguments.add_output_options(parser, verbose="every change", html=True)


def host(parser: argparse.ArgumentParser) -> None:
    """Look at what this machine offers to a container."""
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", dest="action", required=True)
    scan = actions.add_parser(
        "scan",
        help="record the fabric libraries, NICs, driver and engine of this node",
        description="Record what this node offers: libfabric, libcxi and all that they need,\n"
        "NICs, GPU driver, container engine. `lumiimg bind` and `lumiimg explain` read\n"
        "the file on any machine.",
        epilog="Take it where the jobs run, with the modules of the job loaded:\n"
        "  srun -p small-g --gpus=1 lumiimg host scan -o host.json",
    )
    scan.add_argument("-o", "--output", metavar="FILE", help="output: the snapshot; - for standard output")
    include = "library, or folder of libraries, that the scan would not find (may be repeated)"
    arguments.add_repeated(scan, "--include", "PATH", include, Path)
    arguments.add_output_options(scan)


def bench(parser: argparse.ArgumentParser) -> None:
    """Count what programs ask of file systems."""
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", dest="action", required=True)
    imports = actions.add_parser(
        "import",
        help="count the metadata operations of an import from a folder, a venv or an image",
        description="Count the system calls of `import torch` with strace: opens, stats, failed\n"
        "lookups; and how many of them reach the file system that holds the folder\n"
        "of packages, virtual environment or image. It prints no times: the counts\n"
        "hold on any machine. The module is imported once before, which may leave\n"
        "bytecode behind.",
        epilog="examples:\n  lumiimg bench import image.sif\n"
        "  lumiimg bench import /project/me/site-packages venv image.sif",
    )
    imports.add_argument(
        "paths", metavar="PLACE", type=Path, nargs="+", help="a folder of packages, a virtual environment, or an image"
    )
    imports.add_argument("--module", metavar="NAME", default="torch", help="module to import (default: torch)")
    imports.add_argument(
        "--python", metavar="PROGRAM", help="Python interpreter for folders of packages (default: python3)"
    )
    arguments.add_output_options(imports)
