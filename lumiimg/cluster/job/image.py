"""The plan of a job from its image: what somebody asks for, with what the image, the site and a node say of it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from lumiimg.check.context import open_for_check
from lumiimg.check.static.files import check_files
from lumiimg.cluster.job.gpu_notes import notes_of_gpu
from lumiimg.cluster.job.mounts import absent_paths
from lumiimg.cluster.job.plan import JobPlan, JobRequest, by_carried, loading, plan_job
from lumiimg.errors import RefusedError
from lumiimg.host.container_view import variable_of, without_ours
from lumiimg.host.image_manifest import MANIFEST_PATH
from lumiimg.host.job_process import loaded_in_jobs
from lumiimg.host.processors import gpu_of_machine, wrong_processors
from lumiimg.inventory.components import Inventory
from lumiimg.inventory.gpu_fit import account_of_gpu
from lumiimg.inventory.python import note_of_program
from lumiimg.resolve.driver_rule import driver_of_node
from lumiimg.resolve.stack import Stack, stack_of
from lumiimg.resolve.venv import notes_of_venv

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lumiimg.catalog.sites import Site
    from lumiimg.check.static.files import HostFit
    from lumiimg.host.snapshot import Snapshot


def plan_for_image(
    asked: JobRequest, image: Path, site: Site, snapshot: Snapshot | None, environment: Mapping[str, str]
) -> tuple[JobPlan, HostFit | None]:
    """Return the plan, and what was found beside the node, if one was looked at and something is bound from it.

    Raises as `plan_job` does; RefusedError for an image for other processors.
    """
    request, stack, carries_manifest = _with_image(asked, image, site, snapshot, environment)
    manifest = fit = None
    if snapshot is not None:
        fit = _fit(image, environment, snapshot, site)
        manifest = loading(fit)
        site = structs.replace(site, driver=driver_of_node(site.driver, snapshot))
    elif carries_manifest:
        manifest, of_manifest = by_carried(_fit(image, environment, None, site), site)
        request = replace(request, of_manifest=of_manifest)
    return plan_job(request, stack, site, manifest), fit if manifest is not None else None


def _fit(path: Path, environment: Mapping[str, str], snapshot: Snapshot | None, site: Site) -> HostFit:
    with open_for_check(path, without_ours(environment), snapshot, site) as context:
        return check_files(context, with_site=True)


def _with_image(
    asked: JobRequest, path: Path, site: Site, snapshot: Snapshot | None, environment: Mapping[str, str]
) -> tuple[JobRequest, Stack, bool]:
    """Return what is asked for with what the image says of it, what it has, and whether it carries a manifest."""
    words, venv = asked.command, asked.venv
    with open_for_check(path, venv=venv) as context:
        image, whole = context.plain, context.image
        if (lacking := wrong_processors(image, (), None, site)) is not None:
            raise RefusedError(lacking, where=str(path), hint="build the image, or pull it, for them")
        contents = Inventory(image)
        gpu = account_of_gpu(
            contents,
            gpu_of_machine(snapshot, site),
            lambda name: variable_of(name, image, environment),
            loaded_in_jobs(image),
        )
        mounted = os.getcwd(), os.path.expanduser("~")  # noqa: PTH109, PTH111 - what engines mount by themselves
        request = replace(
            asked,
            python=contents.python,
            absent=absent_paths([*words, *filter(None, [asked.caches])], whole.root, mounted),
            note=note_of_program(words[0], whole, contents.python) if words else None,
            variables=image.environment,
            of_gpu=tuple(notes_of_gpu(gpu)),
            of_venv=tuple(notes_of_venv(venv, path, contents.has)) if venv else (),
        )
        return request, stack_of(contents, venv.packages if venv else None), image.root.exists(MANIFEST_PATH)
