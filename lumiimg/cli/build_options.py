"""The options of the commands that make something of a base, a lock or an image, and their help."""

from __future__ import annotations

import argparse
from pathlib import Path

from lumiimg.cli import arguments


def build(parser: argparse.ArgumentParser) -> None:
    r"""Build an image from a base and layers, each from a definition file.

    examples:
      lumiimg build --base rocm-6.2.4 --add vllm       # for LUMI, or this machine
      lumiimg build --base debian-13 --add netprobe --site generic -o demo.sif
      lumiimg build --recipe demo --dry-run
      lumiimg build --base debian-13 --add aws-ofi-nccl --site generic \
          --source aws-ofi-nccl=aws-ofi-nccl-1.21.1.tar.gz -o plugin.sif
      lumiimg build --recipe demo --definitions defs/   # files for another machine
      lumiimg build --recipe demo --why netprobe     # why would it be built again?
    """
    arguments.add_request(parser)
    how = _add_build_options(parser)
    how.add_argument(
        "--fresh",
        action="store_true",
        help="build without the cache: the base, with today's packages, and what stands on it if it differs",
    )
    how.add_argument(
        "--why",
        metavar="LAYER",
        help="only say whether this layer is in the cache and, if not, how it differs from the nearest one there",
    )
    how.add_argument("--locked", action="store_true", help="build exactly what the lock says, or fail")
    how.add_argument(
        "--trust-lock",
        action="store_true",
        help="with --locked, also accept sources in the lock that are not from the catalogue; each is listed first",
    )


def adapt(parser: argparse.ArgumentParser) -> None:
    """Read an image that someone else made, and build one on it with the layers that
    it lacks to use the network of a site: libfabric with the cxi provider, the net
    plugin. Nothing that the image has is installed again or hidden.

    examples:
      lumiimg adapt vllm.sif --site lumi --dry-run
      lumiimg adapt vllm.sif --site lumi -o vllm-lumi.sif
    """
    parser.add_argument("base", metavar="IMAGE", help=f"{arguments.IMAGES}, or an address: docker://…")
    arguments.add_layers_and_sources(parser)
    _add_build_options(parser)
    parser.set_defaults(recipe=None, locked=False, trust_lock=False, why=None, fresh=False, exclude_newer=None)


def _add_build_options(parser: argparse.ArgumentParser) -> arguments.Options:
    """Add the options that tell how it is built."""
    how = parser.add_argument_group("how")
    arguments.add_output(how, "the image (default: RECIPE.sif, or image.sif)")
    how.add_argument(
        "--lock",
        metavar="FILE",
        type=Path,
        help="lock file to write; with --locked, to read (lumiimg.lock)",
    )
    arguments.add_offline(how)
    how.add_argument("--dry-run", action="store_true", help="only print what would be built; needs no engine")
    how.add_argument(
        "--definitions",
        metavar="DIR",
        type=Path,
        help="only write the definition files and the files that they need, to DIR",
    )
    _add_result(how)
    return how


def _add_result(how: arguments.Options) -> None:
    """Add the options that say what comes out, and how it is reported."""
    how.add_argument("--force", action="store_true", help="overwrite: the output file")
    how.add_argument(
        "--strategy",
        choices=("overlay", "sandbox"),
        help="how to build layers: on overlays, or in one folder (default: the first that works)",
    )
    arguments.add_jobs(how)
    how.add_argument(
        "--manifest",
        metavar="FILE",
        type=Path,
        help="also write the bind manifest of the image to FILE (with --definitions, the planned one)",
    )
    arguments.add_output_options(how, verbose="the whole plan, and what the engine prints", html=True)


def lock(parser: argparse.ArgumentParser) -> None:
    """Resolve every version, address and digest of an image, and write them to a
    lock. `lumiimg build --locked` builds from the lock alone. Entries of an
    existing lock are kept where they still fit.

    examples:
      lumiimg lock --base rocm-6.4.4 --add vllm --fabric bundled --site lumi
      lumiimg lock --upgrade numpy      # of what lumiimg.lock was made from
      lumiimg build --locked -o vllm.sif
    """
    arguments.add_request(parser)
    how = parser.add_argument_group("how")
    arguments.add_output(how, f"the lock ({arguments.LOCK})", default=Path(arguments.LOCK))
    what = "layer or Python distribution to upgrade to its newest version; all: everything (may be repeated)"
    arguments.add_repeated(how, "--upgrade", "NAME", what)
    arguments.add_offline(how)
    arguments.add_jobs(how)
    arguments.add_output_options(how)


def rebuild(parser: argparse.ArgumentParser) -> None:
    """Build an image of lumiimg again from the image alone: it carries its
    definitions, the files of its layers, and the digest and address of every
    source. Layers in the cache are used; compile caches are not. The image cannot
    make lumiimg read a file of this machine, or run anything outside the image.

    examples:
      lumiimg rebuild old.sif -o new.sif
      lumiimg rebuild old.sif -o new.sif --fresh    # what comes out differently?
      lumiimg rebuild old.sif -o new.sif --base theirs.sif
    """
    arguments.add_image(parser, "image built by lumiimg")
    arguments.add_output(parser, "the image", required=True)
    parser.add_argument("--base", metavar="FILE", type=Path, help="starting point: the file or folder it was built on")
    arguments.add_mirror(parser)
    arguments.add_host(parser, ": for the bind manifest, like the snapshot of the old image")
    arguments.add_offline(parser)
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="build without the cache: all of it, and compare the files; exits 1 if they differ",
    )
    _add_result(parser)
    parser.set_defaults(recipe=None, dry_run=False, definitions=None, lock=None)


def venv(parser: argparse.ArgumentParser) -> None:
    """Make a Python environment over an image, with packages of your own: a squashfs
    file that jobs bind, or a folder. What the image has stays as it is: torch,
    triton, all of it. A requirement that would replace any is refused.

    examples:
      lumiimg venv image.sif -r requirements.txt -o env.sqsh
      lumiimg venv image.sif optuna 'datasets>=3' -o env.sqsh
      lumiimg job image.sif --venv env.sqsh --site lumi -o job.sh -- python x.py
    Also for `lumiimg check` and `lumiimg module`: --venv env.sqsh
    """
    arguments.add_image(parser, "a SIF, squashfs file or sandbox folder")
    parser.add_argument(
        "packages", metavar="PACKAGE", nargs="*", help="package, with a version if need be: optuna==4.5"
    )
    arguments.add_requirements(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE|DIR/", required=True, help="output: a squashfs file; with a slash, a new folder"
    )
    parser.add_argument("--force", action="store_true", help="overwrite: the output file")
    arguments.add_newest(parser)
    arguments.add_mirror(parser)
    arguments.add_offline(parser)
    arguments.add_jobs(parser)
    arguments.add_output_options(parser)


def diff(parser: argparse.ArgumentParser) -> None:
    """Show how two locks differ: base, layers, releases, sources, Python
    distributions; or in which files two images differ: kind, mode, owner, content,
    hard links, device numbers, extended attributes, time.
    """
    parser.add_argument("old", metavar="A", type=Path, help="the one before: a lock, or an image")
    parser.add_argument("new", metavar="B", type=Path, help="the one after")
    arguments.add_output_options(parser)


def cache(parser: argparse.ArgumentParser) -> None:
    """Manage the layers that were built before, images that were unpacked where
    there is no FUSE, and layers of OCI images that were unpacked to be read. The
    cache may be deleted at any time. LUMIIMG_CACHE, or `cache` in config.toml,
    names its folder.

    examples:
      lumiimg cache ls
      lumiimg cache prune --keep 20G          # the longest unused go first
      lumiimg cache rm "vllm (compiled)"      # it is compiled again the next time
    """
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", dest="action", required=True)
    listing = actions.add_parser("ls", help="list its contents")
    verify = actions.add_parser("verify", help="read everything and verify the digest of each layer")
    prune = actions.add_parser("prune", help="remove damaged layers, then others until the cache is small enough")
    prune.add_argument(
        "--keep", metavar="SIZE", default=None, help="size to keep: 20G, 500M, 0 (default: all undamaged layers)"
    )
    rm = actions.add_parser("rm", help="remove layers by name or key")
    rm.add_argument(
        "layers", metavar="NAME|KEY", nargs="+", help='as `cache ls` prints them: vllm, "vllm (compiled)", 1f3a5b'
    )
    for action in (listing, verify, prune, rm):
        arguments.add_output_options(action)


def doctor(parser: argparse.ArgumentParser) -> None:
    """Try what a build needs: each engine, with what is known about its version, a
    container, debootstrap, user namespaces, overlays, FUSE, squashfs-tools, proot;
    room on disk and in memory.
    A build takes the first engine that starts a container: apptainer, singularity,
    the kernel's own, or the one that LUMIIMG_ENGINE names. A check takes the first
    that is here, as jobs do.
    Builds on this machine use the result until the machine restarts. The last line
    is the command to go on with: a build, or what gets what is missing.
    """
    arguments.add_output_options(parser)
