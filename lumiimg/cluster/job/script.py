"""What job scripts have in common, whatever the scheduler: head, folder, variables, files, container, log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg import __version__
from lumiimg.cluster.binds import spec
from lumiimg.cluster.job.container import files
from lumiimg.cluster.job.plan import SettingScope
from lumiimg.cluster.shell_quote import comment, value, word
from lumiimg.cluster.template import filled
from lumiimg.errors import BadInputError
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumiimg.catalog.launch import SiteOption
    from lumiimg.cluster.job.container import JobFile, Scheduler
    from lumiimg.cluster.job.plan import JobPlan

# what a user writes is meant as it is: `$` and `\` in single quotes, quotation marks of a text
_AS_WRITTEN = "# shellcheck disable=SC1003,SC1110,SC1111,SC1112,SC2016"


def render(
    name: str,
    plan: JobPlan,
    scheduler: Scheduler,
    *,
    submit: str,
    number: str,
    log: str,
    once: str,
    **own: Iterable[str],
) -> str:
    """Return the script of the file `name` with all that is known of the job; `own` is for its scheduler alone.

    `submit`: the command, where the account is missing. `number`: the job's, and `log`: what is read at the end, in
    words of bash. `once`: what starts a program once on each node.

    Raises BadInputError for a path that no engine takes.
    """
    written = files(plan, scheduler)
    parts = {
        "HEAD": _head(plan, submit),
        "MODULES": _modules(plan),
        "PROGRAM": _program(plan),
        "VARIABLES": _variables(plan),
        "BINDS": _binds(plan),
        "CLEAR": _clear(plan, once),
        **own,
    }
    return filled(
        name,
        FOLDER=filled("job/folder.sh", NUMBER=number),
        FILES="\n\n".join(map(_heredoc, written)),
        FIRST=written[0].name,
        ENGINE=plan.program,
        TASKS=str(plan.tasks),
        LOG=filled("job/log.sh", LOG=log),
        **{key: "\n".join(lines) for key, lines in parts.items()},
    )


def _head(plan: JobPlan, submit: str) -> Iterator[str]:
    """Yield what the job is, and what to know of it."""
    shape, site = plan.shape, plan.site
    how = "torchrun" if plan.torchrun else "Ray" if plan.ray else plan.starter
    what = "a rank a GPU" if plan.framework.task_a_gpu else "one program"
    told = f"{plan.framework.title}: {count(shape.nodes, 'node')} of {site.name}, {count(shape.gpus, 'GPU')} each; "
    yield from comment(f"{told}{what}, started by {how}")
    yield from comment(f"{plan.framework.because} ({plan.chosen})")
    never = f"; never run on {site.name} by the project" if site.status == "unproved" else ""
    yield from comment(f"Written by lumiimg {__version__} from what is known of {site.name} ({site.date}){never}.")
    for note in plan.notes:
        yield from comment(f"Note: {note}.")
    for advice in site.advice:
        if advice.job:
            yield from comment(f"{site.name}: {advice.text} ({advice.source}).")
    if shape.account is None:
        yield from comment(f"Submit it with: {submit}")


def options(plan: JobPlan) -> list[SiteOption]:
    """Return what the site wants the scheduler to be told of such a job."""
    fits = {"any", "one" if plan.shape.nodes == 1 else "several"}
    return [option for option in plan.site.options if option.nodes in fits]


def _modules(plan: JobPlan) -> Iterator[str]:
    """Yield what makes the engine be there. Before `set -u`: modules are written without it in mind."""
    for module in plan.site.modules:
        yield from comment(f"{module.because} ({module.source})")
        yield f"module load {word(module.name)}"


def _program(plan: JobPlan) -> Iterator[str]:
    """Yield the command and the image, as words of bash."""
    yield from (_AS_WRITTEN, f"image={word(_path(plan.image))}")
    yield from (_AS_WRITTEN, f"command=({' '.join(map(word, plan.command))})")


def _variables(plan: JobPlan) -> Iterator[str]:
    """Yield what is set once, in the script."""
    if any("$USER" in setting.value for setting in plan.settings) or plan.ray:
        yield from comment("folders are named by it, and a job that was submitted with few variables has none")
        yield 'export USER="${USER:-$(id -un)}"'
    for setting in plan.in_scope(SettingScope.JOB):
        yield from comment(f"{setting.because} ({setting.source})")
        yield f"export {setting.name}={value(setting.value, literal=setting.literal)}"


def _heredoc(file: JobFile) -> str:
    """Return the writing of a file of the job."""
    end = f"END_OF_{file.name.upper().replace('.', '_')}"
    about = "\n".join(comment(file.about))
    return f"{about}\ncat >\"$LUMIIMG_JOB/{file.name}\" <<'{end}'\n{file.text}{end}"


def _binds(plan: JobPlan) -> Iterator[str]:
    for bind in plan.binds:
        if not spec(bind).isprintable():
            raise BadInputError("a path with such characters cannot be bound", where=bind.source)
        yield from comment(bind.reason, "    ")
        yield f"    --bind {word(spec(bind))}"


def _clear(plan: JobPlan, once: str) -> Iterator[str]:
    """Yield the removal of what the job has left on its nodes."""
    if plan.leftovers:
        yield from comment("what the job has in /tmp goes with it, on every node; that of a job that is killed stays")
        yield f"{once} rm -rf {' '.join(map(value, plan.leftovers))} || true"


def _path(path: str) -> str:
    """Return a path that is no option."""
    return f"./{path}" if path.startswith("-") else path
