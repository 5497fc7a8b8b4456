"""`lumiimg job --profile`: the words by which the first rank is started, or why there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.cluster.job.frameworks import Framework, facts
from lumiimg.errors import BadInputError

if TYPE_CHECKING:
    from lumiimg.catalog.sites import Site


def profiled_by(program: str | None, framework: Framework, site: Site) -> tuple[tuple[str, ...], str | None]:
    """Return program and options, or none, and why; `program` is that of the image.

    Raises BadInputError where no rank is started by the job, or the GPUs are not AMD's.
    """
    known = facts().profiler
    if not framework.task_a_gpu:
        hint = "set VLLM_TORCH_PROFILER_DIR (vLLM docs, profiling)" if framework.name == "vllm" else None
        what = f"{framework.name} starts its workers itself: no rank can be profiled"
        raise BadInputError(what, where="--profile", hint=hint)
    if site.vendor is not None:
        what = f"{known.program} is for AMD's GPUs, and those of {site.name} are {site.vendor}'s"
        raise BadInputError(what, where="--profile", hint="leave it out")
    if program is not None:
        return (program, *known.options), None
    why = (
        f"the image has no {known.program} (ROCm 6.2 and later have it), so no rank is profiled; torch.profiler can be "
        "used in the program itself (LUMI-AI-Guide chapter 6): around a whole run, it would keep every event in memory"
    )
    return (), why
