"""Jobs and their endings, composed from parts (tests/fixtures/job-endings.toml, job-deaths.toml), with the known truth.

Four ranks on two nodes print the messages of an NCCL version up to some stage. Then some of them die, or none does.
What the other ranks, the launcher and Slurm print about it follows.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from tests.shared.composed_jobs import LAUNCHERS
from tests.shared.job_deaths import DEATHS, EXITED

DATA: dict[str, Any] = tomllib.loads((Path(__file__).parents[1] / "fixtures/job-endings.toml").read_text())
VERSIONS: dict[str, Any] = DATA["version"]
NETWORKS: dict[str, Any] = DATA["network"]
STAGES = ("before init", "in init", "connected", "in a collective", "at exit")
RANKS = range(4)
_OF_EVERYTHING = (
    "time",
    "logging",
    "CloudWatch",
    "kubectl",
    "compose",
    "CRI",
    "journal",
    "Docker",
    "journald",
    "CRLF",
    "red",
)
LABELS = {
    "srun": ("none", *_OF_EVERYTHING),
    "srun -l": ("srun -l",),
    "mpirun": ("Open MPI", "Open MPI 5", "PALS"),
    "torchrun": ("torchrun",),
    "pdsh": ("pdsh", "pdsh by address"),
    "Ray": ("Ray", "Ray in colour", "vLLM"),
    "none": ("none", *_OF_EVERYTHING),
}
"""Prefixes (LAUNCHERS) of the ranks' lines by launcher; those of `_OF_EVERYTHING` also precede the launcher's own."""
_DYING = ((0,), (3,), (1,), (2, 3), (0, 1, 2, 3))
_NAMES_RANKS = ("srun -l", "Open MPI", "Open MPI 5", "PALS")
"""Prefixes in LAUNCHERS that name the rank."""
_MAY_FOLLOW = ("meeting", "unknown", "MPI abort")
"""Deaths whose messages may also be the consequence of another death."""
_SAYS_LITTLE = ("nothing", "store")
"""Consequences after which the job may have continued."""


class Line(NamedTuple):
    """A line of a job, before a launcher adds its prefix."""

    by: int | None
    """The rank that prints it; None for the launcher."""
    line: str
    after: int = 0
    """What it follows: 1 for everything that ranks print while alive, 2 for all lines of the ranks that died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """A job and the truth about it."""

    name: str
    launcher: str
    label: str
    script: tuple[Line, ...]
    """Lines of all ranks and the launcher; those of one rank are in order."""
    verdict: str
    """The verdict on its network, if it was connected."""
    connected: bool
    how: str
    ids: frozenset[str] = frozenset()
    """Signatures of which any names what ended the job; none if nothing did."""
    dying: tuple[int, ...] = ()
    names_rank: bool = False
    """Whether the log says which rank died."""
    words: str = ""
    """Words of the fatal message, for deaths that may lack a signature."""
    order_is_known: bool = True
    """Whether the cause is clear without the order of the lines, which one file per rank does not show."""

    @property
    def survivors(self) -> set[int]:
        """Return the ranks that did not die, and may be reported as losing another rank or waiting for it."""
        return {*RANKS} - {*self.dying}

    def log(self, seed: int) -> list[str]:
        """Return its lines interleaved: those of each rank in order, and the consequences of a death after it."""
        chance = random.Random(seed)  # noqa: S311 - an order that can be repeated
        waiting = {by: [one for one in self.script if one.by == by] for by in (*RANKS, None)}
        lines = []
        while any(waiting.values()):
            heads = {by: of[0].after for by, of in waiting.items() if of}
            over = 2 if all(heads.get(rank, 2) == 2 for rank in self.dying or RANKS) else min(heads.values())
            ready = [waiting[by] for by, after in heads.items() if after <= over]
            reported = chance.choice(ready).pop(0)
            is_bare = reported.by is None and self.label not in _OF_EVERYTHING
            lines.append(reported.line if is_bare else LAUNCHERS[self.label](reported.by or 0, reported.line))
        return lines

    def files(self) -> dict[str, list[str]]:
        """Return one file per rank, without a launcher's prefix, and the launcher's own file."""
        by: dict[str, list[str]] = {}
        for one in self.script:
            by.setdefault("job.out" if one.by is None else f"job.{one.by}.out", []).append(one.line)
        return by


class _Death(NamedTuple):
    name: str
    ids: set[str]
    lines: list[str]
    """Lines of the rank that dies; `@` precedes the key of a WARN of the version."""
    status: int = 1
    launched: Sequence[str] = ()
    """Slurm's own messages for this death, if any."""
    at: str = ""
    """The only possible stage, if there is just one."""

    @property
    def of_nccl(self) -> bool:
        return self.at != ""


_ALSO = {"segfault": {"plugin-crash"}}
_DEATHS = [
    _Death(name, set(of["ids"]), of.get("rank", []), of.get("status", 1), (), of.get("at", ""))
    for name, of in DATA["death"].items()
]
_DEATHS += [
    _Death(
        name,
        {of.id, *_ALSO.get(name, ())},
        of.rank,
        -11 if name == "segfault" else 1,
        () if of.launcher == EXITED else of.launcher,
    )
    for name, of in DEATHS.items()
    if of.id not in ("time-limit", "cancelled", "node-failed")
]


def composed(seed: int) -> EndedJob:
    """Return the job of a seed."""
    chance = random.Random(seed)  # noqa: S311 - a job that can be composed again
    launcher, version = chance.choice([*LABELS]), chance.choice([*VERSIONS])
    label = chance.choice(LABELS[launcher])
    networks = [chance.choice([*NETWORKS, ""])] * 2
    if networks[0] not in ("", "one node") and chance.random() < 0.1:
        networks[1] = "socket"
    kind = chance.choices(("death", "silent", "outside", "completed", "runs", "refused"), (60, 8, 12, 8, 8, 4))[0]
    job = EndedJob(
        name=", ".join((launcher, label, version, *networks, kind)),
        launcher=launcher,
        label=label,
        script=(),
        verdict=NETWORKS[networks[0]]["verdict"] if networks[0] else "none",
        connected=False,
        how=kind,
    )
    if networks[0] != networks[1]:
        job = replace(job, verdict="mixed")
    if kind == "refused":
        report = Line(None, chance.choice(DATA["refused"]["says"]))
        return replace(job, script=(report,), ids=frozenset(DATA["refused"]["ids"]), how="died", verdict="none")
    job = (_that_dies if kind in ("death", "silent") else _that_goes_on)(job, version, networks, chance)
    return replace(job, script=tuple(map(_on_one_node, job.script))) if job.verdict == "intra-node-only" else job


def _on_one_node(script: Line) -> Line:
    line = script.line.replace("nid005102", "nid005101").replace("nNodes 2 localRanks 2", "nNodes 1 localRanks 4")
    return script._replace(line=line.replace("[send] via NET/Socket/0", "via P2P/CUMEM"))


def _that_goes_on(job: EndedJob, version: str, networks: list[str], chance: random.Random) -> EndedJob:
    """Return a job that completed, still runs, or was ended from outside."""
    stage = STAGES[4] if job.how == "completed" else chance.choice(STAGES[2:4] if job.how == "runs" else STAGES[:4])
    lines = [one for rank in RANKS for one in _life(version, networks, rank, stage)]
    if job.how == "outside":
        name, outside = chance.choice([*DATA["outside"].items()])
        lines += [Line(None, line, after=2) for line in outside["says"]]
        job = replace(job, name=f"{job.name}, {name}", ids=frozenset(outside["ids"]), how=outside["ids"][0])
    return replace(job, name=f"{job.name}, {stage}", script=tuple(lines), connected=_connects(stage, networks))


def _that_dies(job: EndedJob, version: str, networks: list[str], chance: random.Random) -> EndedJob:
    """Return a job that the death of a rank ended; if that was silent, the log shows only its consequences."""
    is_silent, of_slurm = job.how == "silent", job.launcher.startswith("srun")
    fitting = (of for of in _DEATHS if (of.lines or of_slurm or not of.launched) and (networks[0] or not of.of_nccl))
    death = _DEATHS[0] if is_silent else chance.choice([*fitting])
    is_silent |= not death.lines and job.launcher == "none"
    stage = death.at or chance.choice(STAGES)
    dying = chance.choice(_DYING[:4] if is_silent else _DYING)
    others = [rank for rank in RANKS if rank not in dying]
    waits = STAGES[1] if stage == STAGES[0] and chance.random() < 0.5 else stage
    lines = [one for rank in others for one in _life(version, networks, rank, waits)]
    for rank in dying:
        lines += _life(version, networks, rank, stage, ends=False)
        lines += [one._replace(after=job.launcher == "none") for one in _lines(version, rank, death.lines)]
    consequences: dict[str, list[str]] = DATA["consequence"][
        "connected" if _connects(stage, networks) else "not connected"
    ]
    consequence = chance.choice([one for one in consequences if not is_silent or one not in _SAYS_LITTLE])
    lines += [one._replace(after=2) for rank in others for one in _lines(version, rank, consequences[consequence])]
    family = "srun" if of_slurm else job.launcher
    is_reported = family in DATA["launched"] and not is_silent
    if is_reported:
        for rank in dying:
            launched = (of_slurm and death.launched) or DATA["launched"][family][str(death.status)]
            lines += _of_launcher(launched, rank)
        if not of_slurm or chance.random() < 0.6:
            lines += _of_launcher(DATA["cleaned"].get(family, ()), dying[0], status=death.status, others=others)
    follows = {*DATA["follows"][consequence]}
    # a later line may come from another rank of its node
    waited = not death.lines and (consequence == "watchdog" or (waits == STAGES[0] and job.label not in _NAMES_RANKS))
    names_rank = (
        is_reported and not waited and not death.launched and (of_slurm or (family == "mpirun" and death.status == -9))
    )
    ids = death.ids if death.lines else {*death.ids, *(follows & {"rank-behind"})} if is_reported else follows
    if is_reported and not death.lines and not death.launched and not names_rank:
        ids = {*ids, *follows, "step-ended", "peer-gone", "ray-worker-ended", "first-to-fail"}
    return replace(
        job,
        name=f"{job.name}, {death.name}, {stage}, {dying}, {consequence}",
        script=tuple(lines),
        connected=_connects(stage, networks),
        how="died",
        ids=frozenset(ids),
        dying=dying,
        names_rank=job.label in _NAMES_RANKS if death.lines else names_rank,
        order_is_known=bool(names_rank or death.lines) and death.name not in _MAY_FOLLOW,
    )


def after_healthy(version: str, warn: str) -> EndedJob:
    """Return a job that was connected over Slingshot until a WARN, from `fatal` or of the version, ended it."""
    lines = [one for rank in RANKS for one in _life(version, ["ofi cxi"] * 2, rank, "in a collective")]
    words = DATA["fatal"].get(warn) or VERSIONS[version][warn]
    lines += [one._replace(after=2) for one in _warned(version, 3, words)]
    return EndedJob(
        name=f"{version}, {warn}",
        launcher="srun",
        label="none",
        script=tuple(lines),
        verdict="ofi-cxi",
        connected=True,
        how="died",
        words=words[1],
    )


def _connects(stage: str, networks: list[str]) -> bool:
    return bool(networks[0]) and stage not in STAGES[:2]


def _life(version: str, networks: list[str], rank: int, stage: str, *, ends: bool = True) -> Iterator[Line]:
    """Yield what a rank prints until it reaches a stage, and at its exit if it `ends` normally."""
    of, network, come = VERSIONS[version], networks[rank // 2], STAGES.index(stage)
    if network and come:
        how = NETWORKS[network]
        first = [line for part in how["says"] for line in (of[part[1:]] if part.startswith("@") else [part])]
        yield from _info(rank, (*of["begun"], *first, *of["chosen"], *of["start"]), network=how["name"])
        if come > 1:
            to = (rank + 1) % 4
            via = f"[send] via NET/{how['via']}" if rank % 2 else "via P2P/CUMEM"
            channel = f"Channel 00/0 : {rank}[{rank % 2}] -> {to}[{to % 2}] {via}"
            yield from _info(rank, (*of["complete"], channel, of["connected"]))
    if come > 2:
        yield from (Line(rank, f"step {step} loss 2.3{step}") for step in range(3) if not rank)
    if come > 3 and ends and network:
        yield from _info(rank, of["destroyed"])


def _lines(version: str, rank: int, lines: Iterable[str]) -> Iterator[Line]:
    for line in lines:
        if line.startswith("@"):
            yield from _warned(version, rank, VERSIONS[version].get(line[1:]) or DATA["fatal"][line[1:]])
        else:
            yield Line(rank, _filled(line, rank))


def _warned(version: str, rank: int, words: list[str]) -> Iterator[Line]:
    place, text, *trace = words
    origin = _filled("{node}:{pid}:{pid} [{local}] ", rank)
    warn = VERSIONS[version]["of_warn"].replace("{place}", origin + place).replace("{text}", text)
    yield from (Line(rank, line) for line in warn.split("\n"))
    yield from _info(rank, trace)


def _info(rank: int, texts: Iterable[str], network: str = "") -> Iterator[Line]:
    for text in texts:
        line = "{node}:{pid}:{pid} [{local}] NCCL INFO " + text.replace("{network}", network)
        yield Line(rank, _filled(line, rank))


def _of_launcher(lines: Iterable[str], rank: int, *, status: int = 0, others: Iterable[int] = ()) -> list[Line]:
    names = ",".join(map(str, others))
    return [
        Line(None, _filled(line, rank, status=status, others=names), after=2)
        for line in lines
        if names or "{others}" not in line
    ]


def _filled(line: str, rank: int, **more: object) -> str:
    local, node = rank % 2, f"nid00510{1 + rank // 2}"
    comm = f"comm 0x55{rank} rank {rank} nranks 4 cudaDev {local} nvmlDev {local} busId {local}6000"
    values = {"rank": rank, "node": node, "local": local, "pid": 4710 + rank, "other": 3 - rank, "comm": comm, **more}
    for name, value in values.items():
        line = line.replace(f"{{{name}}}", str(value))
    return line
