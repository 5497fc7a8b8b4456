"""A job as the script that an expert of the site would write by hand: no line without a purpose that its reader shares.

What only some situations need (a job inside of another, a requeued one, what is left in /tmp) is in `script.py`; so are
torchrun and Ray, which start programs of their own on each node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lumiimg import __version__
from lumiimg.cluster.binds import spec
from lumiimg.cluster.job.container import SLURM, numbers, started, visible
from lumiimg.cluster.job.plan import JobPlan, JobSetting, SettingScope
from lumiimg.cluster.job.script import (
    AS_WRITTEN,
    image_word,
    job_script,
    refuse_unprintable,
    slurm_directives,
    srun_options,
)
from lumiimg.cluster.job.topology import RankBinding
from lumiimg.cluster.shell_quote import comment, value
from lumiimg.cluster.template import filled
from lumiimg.core.text import count, shell_quote

_COLUMNS = 100
_PLAIN = re.compile(r'"([\w./:,%@=+$-]*)"')
_EXPORT = "export "
_SET = re.compile(r" (\w+)=")
_NAMED = re.compile(r"\$\{?(\w+)")
_INSIDE = " " * 8


@dataclass(frozen=True, slots=True)
class JobScript:
    """A job script with its arithmetic."""

    plan: JobPlan
    script: str
    """The script."""

    @property
    def launch(self) -> str:
        """What starts the ranks: `srun`, `torchrun`, `ray`, `mpiexec`."""
        return "torchrun" if self.plan.torchrun else "ray" if self.plan.ray else self.plan.starter

    @property
    def binding(self) -> RankBinding:
        """To which cores ranks are bound."""
        return RankBinding(self.plan.binding, self.plan.topology.places if self.plan.topology is not None else ())


def script_of(plan: JobPlan, *, robust: bool, annotate: bool) -> JobScript:
    """Return a job with its script: in short, where Slurm runs it and its tasks are the ranks, unless it is `robust`.

    `annotate`: with the reason of each choice. Raises BadInputError for a path that no engine takes.
    """
    is_long = robust or plan.by_pbs or plan.torchrun or plan.ray
    return JobScript(plan, job_script(plan) if is_long else _short_script(plan, annotate=annotate))


def _short_script(plan: JobPlan, *, annotate: bool) -> str:
    refuse_unprintable(plan.binds)
    rank = [*_plain(numbers(plan, SLURM)), *_plain(visible(plan)), *_folder(plan)]
    rank += _exports([*plan.in_scope(SettingScope.NODE), *plan.in_scope(SettingScope.RANK)], plan)
    rank += _plain(started(plan, SLURM))
    inside = "\n".join(f"{_INSIDE}{line}" for line in _folded(rank)).replace("'", r"'\''")
    options = [option.strip() for option in ("--kill-on-bad-exit=1", *_plain(srun_options(plan, _masks(plan))))]
    reasons = list(_reasons(plan)) if annotate else []
    return filled(
        "job/short.sh",
        HEAD="\n".join(_head(plan, annotate=annotate)),
        DIRECTIVES="\n".join(_plain(slurm_directives(plan))),
        MODULES="\n".join(f"module load {shell_quote(module.name)}" for module in plan.site.modules),
        VARIABLES="\n".join(_folded(_exports(plan.in_scope(SettingScope.JOB), plan))),
        REASONS="\n".join(reasons),
        WRITTEN=AS_WRITTEN,
        STEP=" ".join(options),
        ENGINE=plan.program,
        BINDS=",".join(['--bind "$LUMIIMG_JOB"', *(shell_quote(spec(bind)) for bind in plan.binds)]),
        IMAGE=image_word(plan),
        RANK=inside,
        COMMAND=" ".join(map(shell_quote, plan.command)),
    )


def _head(plan: JobPlan, *, annotate: bool) -> Iterator[str]:
    shape = plan.shape
    what = "one rank per GPU" if plan.framework.task_a_gpu else "one program per node"
    told = f"{count(shape.nodes, 'node')} of {plan.site.name}, {count(shape.gpus, 'GPU')} each, {what}"
    yield from comment(f"{told}; lumiimg {__version__}, reasons: --annotate")
    if shape.account is None:
        yield from comment(f"Submit it with: {SLURM.submit}")
    if annotate:
        for note in plan.notes:
            yield from comment(f"Note: {note}.")


def _masks(plan: JobPlan) -> str:
    return ",".join(place.mask for place in plan.topology.places) if plan.topology is not None else ""


def _folder(plan: JobPlan) -> Iterator[str]:
    if plan.caches is not None:
        own = '[ -O "$caches" ] && [ ! -L "$caches" ] || { echo "another user has $caches" >&2; exit 1; }'
        yield f'caches={_short(value(plan.caches))}; mkdir -p -m 700 "$caches"; {own}'


def _exports(settings: Iterable[JobSetting], plan: JobPlan) -> Iterator[str]:
    """Yield what sets them, and what makes their folders."""
    folders = []
    for setting in settings:
        text = setting.value
        if plan.site.is_cache(text) and not setting.literal:
            text = f"$caches{text.removeprefix(plan.caches or '')}"
        yield f"export {setting.name}={_short(value(text, literal=setting.literal))}"
        if setting.folder:
            folders.append(_short(value(setting.folder)))
        elif plan.site.is_cache(setting.value):
            folders.append(f'"${setting.name}"')
    if folders:
        yield f"mkdir -p {' '.join(folders)}"


def _folded(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines with what sets variables joined as far as it fits: a shell reads a line whole before it sets any."""
    line = ""
    for text in lines:
        is_more = line.startswith(_EXPORT) and text.startswith(_EXPORT)
        if is_more and not {*_SET.findall(line)} & {*_NAMED.findall(text)} and len(line) + len(text) < _COLUMNS:
            line += text.removeprefix("export")
            continue
        if line:
            yield line
        line = text
    yield line


def _short(quoted: str) -> str:
    """Return a quoted value without its quotation marks, where it is one word without them."""
    plain = _PLAIN.fullmatch(quoted)
    return plain[1] if plain is not None and "$" not in plain[1] and plain[1] else quoted


def _plain(lines: Iterable[str]) -> Iterator[str]:
    return (line for line in lines if not line.lstrip().startswith("#") or line.startswith("#SBATCH"))


def _reasons(plan: JobPlan) -> Iterator[str]:
    for setting in plan.settings:
        source = f" ({setting.source})" if setting.source else ""
        yield from comment(f"{setting.name}: {setting.because}{source}")
    for bind in plan.binds:
        yield from comment(f"{bind.source}: {bind.reason}")
    yield from (line for line in started(plan, SLURM) if line.startswith("#"))
    yield from comment(plan.binding)
    if plan.topology is not None:
        yield from comment(f"the masks: the cores beside each GPU, one bit per core ({plan.topology.binding.source})")
