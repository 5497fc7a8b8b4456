"""What of a Dockerfile's steps a layer cannot carry over, and whether going on without it would be wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lumiimg.definition.docker.dockerfile import Stage
from lumiimg.definition.docker.steps import DockerStep, mount_of
from lumiimg.definition.docker.substitution import Value, is_open, text_of

NO_EFFECT = {
    "CMD": "a layer starts nothing: singularity exec image.sif COMMAND",
    "ENTRYPOINT": "a layer starts nothing: singularity exec image.sif COMMAND",
    "EXPOSE": "a Singularity container has the ports of the machine",
    "HEALTHCHECK": "nothing monitors a Singularity container",
    "LABEL": "lumiimg writes the labels",
    "MAINTAINER": "lumiimg writes the labels",
    "ONBUILD": "for a stage that starts from this one",
    "STOPSIGNAL": "only the job stops a Singularity container",
    "VOLUME": "bind a folder when the container is started",
}
_DOES = frozenset({"ADD", "COPY", "RUN", "WORKDIR"})


def left_out(step: DockerStep) -> Iterator[tuple[str, bool]]:
    """Yield what of a step a layer cannot carry over, and whether going on without it would be wrong."""
    if step.withheld:
        yield step.withheld, step.keyword in _DOES
    elif step.keyword in NO_EFFECT:
        yield NO_EFFECT[step.keyword], False
    elif step.keyword == "USER":
        name = text_of(step.values[0][1] or ())
        if name.split(":")[0] not in {"root", "0"}:
            yield f"the steps behind it ran as {name}; a layer is built as root, and run as whoever starts it", False
    elif step.keyword in {"COPY", "ADD"}:
        yield from _copy_left_out(step)
    elif step.keyword == "RUN":
        yield from _run_left_out(step)


def sources_of(step: DockerStep) -> list[Value]:
    """Return what COPY or ADD takes, but for its heredocs."""
    names = {word for heredoc in step.instruction.heredocs for word in (f"<<{heredoc.name}", f"<<-{heredoc.name}")}
    return [value or () for _, value in step.values[:-1] if text_of(value or ()) not in names]


def is_download(step: DockerStep) -> bool:
    """Whether a step is ADD of one address: a source archive of the layer."""
    sources = sources_of(step)
    if step.keyword != "ADD" or len(sources) != 1 or step.instruction.heredocs or is_open(sources[0]):
        return False
    url = text_of(sources[0])
    # .git is a repository, which Docker would clone.
    return url.startswith(("https://", "http://")) and url.isprintable() and not re.search(r"\.git(#|$)|[\s{}]", url)


def _copy_left_out(step: DockerStep) -> Iterator[tuple[str, bool]]:
    sources = sources_of(step)
    if not sources or is_download(step):
        return
    for origin in step.sources:
        if isinstance(origin, Stage):
            yield f"files of the stage {origin.label} (line {origin.line}), which is not built here", True
        else:
            yield f"files of the image {origin or 'that an argument names'}, which is not read here", True
        return
    kind = "a repository or an address" if "://" in text_of(sources[0]) else "files of the build context"
    yield f"{kind}: name them in `files` of layer.toml, and copy them from $LAYER_FILES", True


def _run_left_out(step: DockerStep) -> Iterator[tuple[str, bool]]:
    for name, value in step.instruction.flags:
        mount = mount_of(value) if name == "mount" else {}
        kind = mount.get("type", "")
        is_required = mount.get("required", "false") in {"", "true", "1"}
        if name == "security":
            yield f"--security={value}: an engine without root does not have it", False
        elif name != "mount" or kind in {"cache", "tmpfs"}:
            continue  # faster with it, the same without
        elif kind in {"secret", "ssh"}:
            yield f"the {kind} of --mount={value}: not available in a build", is_required
        else:
            origin = next((source for source in step.sources if mount.get("from")), None)
            where = f"the stage {origin.label} (line {origin.line})" if isinstance(origin, Stage) else origin
            yield f"--mount={value}: files of {where or 'the build context'}, which are not here", True
