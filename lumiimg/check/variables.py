"""Variables as they are in the container, and those that take RCCL off the fabric."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.errors import BadInputError
from lumiimg.findings import Severity
from lumiimg.host.inside import parse_binds, variable_of
from lumiimg.host.manifest import PRIVATE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.check.evidence import StaticResult
    from lumiimg.elf.loader import Process
    from lumiimg.image import Image


def judge_binds(environment: Mapping[str, str], process: Process, result: StaticResult) -> None:
    """Say that a bind in the environment lies over what the loader searches: the files alone do not show it."""
    searched = [*(process.settings.library_path or "").split(":"), *process.system.directories]
    searched += [loaded.path for loaded in process.objects]
    for name in ("APPTAINER_BIND", "APPTAINER_BINDPATH", "SINGULARITY_BIND", "SINGULARITY_BINDPATH"):
        try:
            binds = parse_binds(environment.get(name, ""))
        except BadInputError:
            continue  # the engine refuses it, and says so
        over = [str(bind) for bind in binds if any(_overlap(bind.target, path) for path in searched if path)]
        if over:
            result.findings.add(
                "image.binds",
                Severity.UNKNOWN,
                f"{name} puts files of the host over what the loader searches; the image's files alone do not show it",
                evidence=tuple(over[:8]),
                remedy=("`lumiimg check --level probe` runs with it; `lumiimg ldd --bind` models it",),
            )


def _overlap(target: str, path: str) -> bool:
    one, other = f"{target.rstrip('/')}/", f"{path.rstrip('/')}/"
    return (one.startswith(other) or other.startswith(one)) and not one.startswith(f"{PRIVATE}/")


def judge_variables(image: Image, environment: Mapping[str, str], result: StaticResult) -> None:
    """Judge what is set in the image or by the user and takes RCCL or libfabric off the fabric."""
    forced = variable_of("NCCL_NET", image, environment)
    if forced and forced.lower() in {"socket", "ib"}:
        result.findings.add(
            "network.forced",
            Severity.PROBLEM,
            f"NCCL_NET={forced} makes RCCL use its own transport, whatever plugin there is",
            remedy=("unset NCCL_NET; on one node alone it may stay",),
            source="NCCL src/net.cc ncclNetInit",
        )
    providers = variable_of("FI_PROVIDER", image, environment)
    if providers and not _allows_cxi(providers):
        result.findings.add(
            "provider.excluded",
            Severity.PROBLEM,
            f"FI_PROVIDER={providers} keeps libfabric from using cxi",
            remedy=("unset FI_PROVIDER, or FI_PROVIDER=cxi",),
            source="fabric(7), FI_PROVIDER",
        )


def _allows_cxi(providers: str) -> bool:
    """Whether a filter of libfabric lets cxi through: names with commas, or after `^` those that are left out."""
    left_out = providers.startswith("^")
    names = {name.strip().lower() for name in providers.lstrip("^").split(",")}
    return ("cxi" in names) != left_out
