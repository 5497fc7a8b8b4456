"""The file by which the Container Engine of CSCS starts a container (EDF, an environment definition file).

Source: eth-cscs/cscs-docs, software/container-engine/edf.md: TOML; `${NAME}` is expanded everywhere, `$$` is a dollar,
a name that is not set is an error; what `[env]` sets comes over the image's own environment.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.cluster.job.container import JobFile
from lumiimg.cluster.job.plan import SettingScope
from lumiimg.cluster.shell_quote import comment
from lumiimg.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.cluster.job.plan import JobPlan, JobSetting

EDF = "job.toml"
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}


def container_file(plan: JobPlan) -> JobFile:
    """Return the file. Raises BadInputError for a path that it cannot name."""
    image = plan.image if plan.image.startswith(("/", "./", "../")) else f"./{plan.image}"
    lines = [*comment("the squashfs, as it lies on the file system"), f"image = {toml_string(_literal(image))}", ""]
    lines += [*_mounts(plan), *comment("where the job was submitted"), 'workdir = "${SLURM_SUBMIT_DIR}"', ""]
    lines += ["[annotations]", *_annotations(plan), "", "[env]"]
    for setting in _fixed(plan):
        lines += [*comment(f"{setting.because} ({setting.source})" if setting.source else setting.because)]
        lines.append(f"{setting.name} = {toml_string(_literal(setting.value))}")
    about = "How the Container Engine starts the container: image, mounts, hooks of the machine, variables"
    return JobFile(EDF, about, "\n".join(lines).strip("\n") + "\n")


def without_edf(plan: JobPlan) -> JobPlan:
    """Return the job without the variables that the file sets."""
    fixed = set(_fixed(plan))
    return replace(plan, settings=tuple(setting for setting in plan.settings if setting not in fixed))


def _fixed(plan: JobPlan) -> tuple[JobSetting, ...]:
    """Return the variables of the container that depend on nothing: where the file is read, no rank has its number."""
    return tuple(s for s in plan.in_scope(SettingScope.NODE) if s.literal or "$" not in s.value)


def _mounts(plan: JobPlan) -> Iterator[str]:
    yield "mounts = ["
    yield from comment("where the job was submitted, with the folder of this job in it", "    ")
    yield '    "${SLURM_SUBMIT_DIR}:${SLURM_SUBMIT_DIR}",'
    yield '    "${LUMIIMG_JOB}:${LUMIIMG_JOB}",'
    for bind in plan.binds:
        for path in (bind.source, bind.target):
            if ":" in path:
                raise BadInputError("a path with a colon cannot be mounted by the Container Engine", where=path)
        yield from comment(bind.reason, "    ")
        flags = ":ro" if bind.read_only else ""
        yield f"    {toml_string(_literal(f'{bind.source}:{bind.target}{flags}'))},"
    yield "]"


def _annotations(plan: JobPlan) -> Iterator[str]:
    fits = {"any", "one" if plan.shape.nodes == 1 else "several"}
    for annotation in plan.site.annotations:
        if annotation.nodes in fits:
            yield from comment(f"{annotation.because} ({annotation.source})")
            yield f"{annotation.key} = {toml_string(_literal(annotation.value))}"


def _literal(text: str) -> str:
    """Return a text in which the engine expands nothing."""
    return text.replace("$", "$$")


def toml_string(text: str) -> str:
    """Return a basic string of TOML, on one line."""
    spelled = (_ESCAPES.get(c) or (c if c.isprintable() else f"\\U{ord(c):08x}") for c in text)
    return f'"{"".join(spelled)}"'
