"""How a job is submitted from here: where to type it, and what Slurm is asked for."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.catalog.sites import Site

_GPUS = 8
"""Of a node, where the site does not say."""


def where_to_submit(environment: Mapping[str, str]) -> str | None:
    """Return where a job can be submitted from here, and with what; None: here, as it is."""
    lacks = [] if shutil.which("sbatch", path=environment.get("PATH")) else ["where jobs are submitted"]
    lacks += [] if environment.get("SBATCH_ACCOUNT") else ["with your project in SBATCH_ACCOUNT"]
    return ", ".join(lacks) or None


def sbatch_options(site: Site | None, environment: Mapping[str, str]) -> list[str]:
    """Return what Slurm must be asked for nodes with GPUs, where no variable says it: `-p dev-g …`."""
    near = site.binding if site is not None else None
    options = [f"--gpus-per-node={len(near.near) if near is not None else _GPUS}"]
    if site is not None and not environment.get("SBATCH_PARTITION"):
        ordered = sorted(site.partitions, key=lambda one: not one.debug)
        options[:0] = [f"-p {partition.name}" for partition in ordered[:1]]
    return options
