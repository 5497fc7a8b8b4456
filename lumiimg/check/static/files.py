"""Evidence of the first kind: from the files of the image, nothing run.

The path that a collective's bytes take is followed file by file, as ld.so would: the RCCL that a program gets, the
plugin that this RCCL opens (by the names in its own bytes), everything that the plugin pulls in, and whether the
libfabric among it has the cxi provider. What may come from the host at run time is said to be open, not wrong.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from lumiimg.check.static.duplicates import judge_process
from lumiimg.check.static.evidence import StaticResult
from lumiimg.check.static.plugin import judge_plugin, load_plugin
from lumiimg.check.static.rccl import load_rccl, read_facts
from lumiimg.check.static.variables import judge_binds, judge_variables, read_variables
from lumiimg.fabric.names import RCCL_OR_PLUGIN
from lumiimg.fabric.provider import PROVIDER_PATH
from lumiimg.fabric.rccl import PLUGIN_VARIABLE
from lumiimg.findings import Code, Severity
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
    result = StaticResult()
    for warning in image.warnings:
        result.findings.add(
            Code.IMAGE_PARTLY_READ,
            Severity.UNKNOWN,
            warning,
            remedy=("what it comes to in a job: `lumiimg check IMAGE --level run` on nodes with GPUs",),
        )
    if (musl := refusal(image.root)) is not None:
        result.findings.add(
            Code.IMAGE_MUSL,
            Severity.UNKNOWN,
            musl,
            remedy=("use a base with glibc: RCCL and the host's fabric libraries are built for it",),
        )
        return result
    files = sorted(islice(image.root.find(RCCL_OR_PLUGIN), _FIND_LIMIT))
    process, rccl = load_rccl(image, see_inside(image, environment).settings, files, result)
    if rccl is None:
        return result
    variables = read_variables(image, environment)
    read_facts(image, rccl, result, named=variables.get(PLUGIN_VARIABLE))
    result.without_name = variables.without(PLUGIN_VARIABLE, result.without_name)
    result.start, result.loader = process.objects[0].path, process.system.loader
    result.provider_path = variables.get(PROVIDER_PATH)
    outcome = load_plugin(image, process, rccl, files, result)
    if outcome is not None and outcome.root is not None:
        judge_plugin(image.root, outcome, process, result)
        judge_process(image.root, process, result)
    judge_variables(variables, result)
    judge_binds(environment, process, result)
    return result
