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
from lumiimg.core.errors import RefusedError
from lumiimg.host.container_view import without_ours
from lumiimg.host.image_manifest import MANIFEST_PATH
from lumiimg.host.job_process import loaded_in_jobs
from lumiimg.host.processors import gpu_of_machine, wrong_processors
from lumiimg.inventory.gpu_fit import account_of_gpu
from lumiimg.inventory.python import note_of_program
from lumiimg.resolve.driver_rule import driver_of_node
from lumiimg.resolve.stack import stack_of
from lumiimg.resolve.venv import notes_of_venv

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lumiimg.catalog.sites import Site
    from lumiimg.check.context import ImageInContext
    from lumiimg.check.static.files import HostFit
    from lumiimg.host.snapshot import Snapshot


def plan_for_image(
    asked: JobRequest, image: Path, site: Site, snapshot: Snapshot | None, environment: Mapping[str, str]
) -> tuple[JobPlan, HostFit | None]:
    """Return the plan, and what was found beside the node, if one was looked at and something is bound from it.

    Raises as `plan_job` does; RefusedError for an image for other processors.
    """
    with open_for_check(image, without_ours(environment), snapshot, site, venv=asked.venv) as context:
        alone = replace(context, image=context.plain, venv=None) if asked.venv else context
        if (lacking := wrong_processors(alone.image, (), None, site)) is not None:
            raise RefusedError(lacking, where=str(image), hint="build the image, or pull it, for them")
        is_looked_at = snapshot is not None or alone.image.root.exists(MANIFEST_PATH)
        fit = check_files(alone, with_site=True) if is_looked_at else None
        request = _with_image(asked, context, alone)
        stack = stack_of(alone.contents, asked.venv.packages if asked.venv else None)
    manifest = None
    if fit is not None and snapshot is not None:
        manifest = loading(fit)
        site = structs.replace(site, driver=driver_of_node(site.driver, snapshot))
    elif fit is not None:
        manifest, of_manifest = by_carried(fit, site)
        request = replace(request, of_manifest=of_manifest)
    return plan_job(request, stack, site, manifest), fit if manifest is not None else None


def _with_image(asked: JobRequest, context: ImageInContext, alone: ImageInContext) -> JobRequest:
    """Return what is asked for with what the image says of it; `alone`: the same image without an environment."""
    loaded = loaded_in_jobs(alone.image)
    gpu = account_of_gpu(alone.contents, gpu_of_machine(alone.snapshot, alone.site), alone.variable, loaded)
    words, venv, python = asked.command, asked.venv, alone.contents.python
    mounted = os.getcwd(), os.path.expanduser("~")  # noqa: PTH109, PTH111 - what engines mount by themselves
    return replace(
        asked,
        python=python,
        absent=absent_paths([*words, *filter(None, [asked.caches])], context.image.root, mounted),
        note=note_of_program(words[0], context.image, python) if words else None,
        variables=alone.image.environment,
        of_gpu=tuple(notes_of_gpu(gpu)),
        of_venv=tuple(notes_of_venv(venv, context.path, alone.contents.has)) if venv else (),
    )
