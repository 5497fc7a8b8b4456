"""What the module file of an image sets."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from lumiimg.cluster.binds import spec
from lumiimg.cluster.module.modulefile import Act, ModuleFile, ModuleSetting
from lumiimg.cluster.module.plan import ImageModule, When, missing_hint
from lumiimg.fabric.path import Fabric

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumiimg.host.manifest import Bind, Variable

NO_USER_SITE = "PYTHONNOUSERSITE"


def module_file(module: ImageModule) -> ModuleFile:
    label = re.sub(r"[^A-Z0-9]", "", module.name.upper())
    settings = [
        ModuleSetting(Act.PREPEND, "PATH", str(module.home / "bin"), (f"wrappers: {', '.join(module.commands)}",)),
        ModuleSetting(Act.SET, "SIF", str(module.image), ("for commands of your own: singularity exec $SIF COMMAND",)),
        ModuleSetting(Act.SET, f"SIF{label}", str(module.image)),
        *_binding(module.engine, module.binds, module.container_variables),
    ]
    if module.python is not None:
        why = ("packages in ~/.local do not belong to an image: they are hidden",)
        settings.append(ModuleSetting(Act.SET, f"{module.engine}ENV_{NO_USER_SITE}", "1", why))
        if module.python.folder:
            whose = f"the environment {module.venv}" if module.venv else "the image"
            why = (f"{whose} has its Python there, and the image's own PATH does not lead to it: {module.python.path}",)
            settings.append(ModuleSetting(Act.PREPEND, f"{module.engine}ENV_PREPEND_PATH", module.python.folder, why))
    settings += [
        ModuleSetting(Act.SET, item.name, item.value, (f"{item.because} ({item.source})",))
        for item in module.variables(When.LOADED)
    ]
    return ModuleFile(
        title=module.title,
        origin=module.origin,
        usage=tuple(_usage(module)),
        settings=tuple(settings),
        notes=(*module.notes, *_variables_left(module)),
        name=module.name,
        host_files=module.host_files,
        missing_hint=missing_hint(module.taken),
    )


def _binding(engine: str, binds: Iterable[Bind], variables: Iterable[Variable]) -> Iterator[ModuleSetting]:
    for bind in binds:
        chain = (f"    {' -> '.join(bind.chain)}",) if len(bind.chain) > 1 else ()
        yield ModuleSetting(Act.BIND, f"{engine}_BIND", spec(bind), (f"{bind.source}: {bind.reason}", *chain))
    for item in variables:
        yield ModuleSetting(Act.SET, f"{engine}ENV_{item.name}", item.value, (f"{item.name}: {item.reason}",))


def _variables_left(module: ImageModule) -> Iterator[str]:
    for item in module.variables(When.RANK):
        made = f'; mkdir -p "{item.folder}"' if item.folder is not None else ""
        yield (
            f"{item.name} is set by the wrappers, as each rank has its own; in your scripts, for each rank: "
            f'export {item.name}="{item.value}"{made}  ({item.because})'
        )
    for item in module.variables(When.NEVER):
        yield f"{item.name}={item.value} is left out, {item.left_out} ({item.because})"


def _usage(module: ImageModule) -> Iterator[str]:
    yield f"Commands of the image: {', '.join(module.commands) or 'none that lumiimg knows'}"
    yield "Any other: singularity exec $SIF COMMAND"
    if module.venv:
        yield f"Packages of your own are those of {module.venv}; for others: lumiimg venv, then the module again"
    elif any(program.name.startswith("pip") for program in module.programs):
        command = shlex.join(["lumiimg", "venv", str(module.image), "NAME", "-o", "env.sqsh"])
        yield f"Packages of your own: {command}, then the module again with --venv env.sqsh"
    if not module.boundary or module.boundary.fabric is Fabric.NONE:
        return
    yield "Which network does a job use? NCCL_DEBUG=INFO, then: lumiimg log slurm-JOB.out"
