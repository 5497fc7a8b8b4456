"""Evidence of the first kind: from the files of the image, nothing run.

The path that a collective's bytes take is followed file by file, as ld.so would: the RCCL that a program gets, the
plugin that this RCCL opens (by the names in its own bytes), everything that the plugin pulls in, and whether the
libfabric among it has the cxi provider. What may come from the host at run time is said to be open, not wrong.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from lumiimg.check.static.duplicates import judge_process
from lumiimg.check.static.evidence import StaticResult
from lumiimg.check.static.plugin import judge_plugin
from lumiimg.check.static.plugin_search import load_plugin
from lumiimg.check.static.rccl import load_rccl, read_path
from lumiimg.check.static.variables import judge_binds, judge_no_plugin_wanted, judge_variables, read_variables
from lumiimg.fabric.names import RCCL_OR_PLUGIN
from lumiimg.fabric.path import FabricPath
from lumiimg.fabric.provider import PROVIDER_PATH
from lumiimg.fabric.rccl import PLUGIN_VARIABLE
from lumiimg.findings import Code, Findings, Level, Severity
from lumiimg.host.container_view import see_inside
from lumiimg.host.ldd import refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.image import Image

_FIND_LIMIT = 200


def check_static(image: Image, environment: Mapping[str, str]) -> StaticResult:
    """Follow the fabric path through the image's files.

    `environment` is the user's: variables of it reach the container, and some of them change what is loaded.

    Raises BadInputError only where the image itself cannot be read; a broken library in it is a finding.
    """
    found = Findings(Level.STATIC)
    for warning in image.warnings:
        found.add(
            Code.IMAGE_PARTLY_READ,
            Severity.UNKNOWN,
            warning,
            remedy=("what it comes to in a job: `lumiimg check IMAGE --level run` on nodes with GPUs",),
        )
    if (musl := refusal(image.root)) is not None:
        found.add(
            Code.IMAGE_MUSL,
            Severity.UNKNOWN,
            musl,
            remedy=("use a base with glibc: RCCL and the host's fabric libraries are built for it",),
        )
        return StaticResult(findings=tuple(found.found))
    files = sorted(islice(image.root.find(RCCL_OR_PLUGIN), _FIND_LIMIT))
    process, rccl, file = load_rccl(image, see_inside(image, environment).settings, files, found)
    if rccl is None:
        return StaticResult(FabricPath(rccl=file), findings=tuple(found.found))
    variables = read_variables(image, environment)
    path, library = read_path(image, rccl, variables.get(PLUGIN_VARIABLE), found)
    outcome = load_plugin(variables, process, rccl, files, path, library, found)
    result = StaticResult(
        path=path,
        loader=process.system.loader,
        start=process.objects[0].path,
        provider_path=variables.get(PROVIDER_PATH),
    )
    if outcome is not None and outcome.root is not None:
        result = judge_plugin(image.root, outcome, process, result, found)
        judge_process(image.root, process, found)
    judge_no_plugin_wanted(variables, result.path, found)
    judge_variables(variables, result.path, found)
    judge_binds(environment, process, found)
    return replace(result, findings=tuple(found.found))
