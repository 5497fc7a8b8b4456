"""The plan of a trial: its steps, what they cost, and all that lumiimg predicts, before anything is run."""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg import __version__
from lumiimg.build.provenance import read_plan
from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.ledger import content_of
from lumiimg.check.context import open_for_check
from lumiimg.check.pipeline import check_image
from lumiimg.cluster.trial.claims import HERE, NODES, VNI, left_out, of_build, of_image, of_site, set_beside
from lumiimg.cluster.trial.values import SCHEMA, TrialImage, TrialPlan, TrialStep, TriedRow
from lumiimg.core.errors import BadInputError, LumiimgError
from lumiimg.core.findings import Level
from lumiimg.resolve.lock import layer_digest
from lumiimg.resolve.stack import Stack, stack_of
from lumiimg.resolve.venv import mark_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from lumiimg.catalog.sites import Site

_MOST_IMAGES = 20
_LEAST_NODES = 2
_AROUND = 2
"""Minutes of a job before its first step and behind its last."""
HOST = "{host}"
"""In the words of a step: the snapshot of the first node."""
FOLDER = "{folder}"
"""In the words of a step: the folder of the trial."""


def plan_trial(
    paths: Sequence[Path],
    site: Site,
    site_name: str,
    environment: Mapping[str, str],
    *,
    nodes: int,
    node_minutes: int | None,
    builds: bool | None,
    build: bool,
) -> TrialPlan:
    """Return the plan; `site_name` is the site as --site takes it anywhere. `node_minutes`: None for what it may take.

    `build`: whether a small build is tried; `builds`: whether that will work, as `lumiimg doctor` says.

    Raises BadInputError for what is not an image, or for less time than the first steps take.
    """
    if len(paths) > _MOST_IMAGES:
        raise BadInputError(f"{len(paths)} images; {_MOST_IMAGES} are the limit of a trial")
    if nodes < _LEAST_NODES:
        raise BadInputError("is too few: a network is used from two nodes on", where=f"--nodes {nodes}")
    steps, claims, images = [*_of_nodes(nodes, site_name)], [*of_site(site)], []
    for number, path in enumerate(paths, 1):
        with open_for_check(path, environment, site=site) as context:
            report, stack = check_image(context, Level.STATIC), stack_of(context.contents)
            claims += of_image(number, report, context.image.root, stack, site, nodes)
        steps += _of_image(number, path.absolute(), stack, site, site_name, nodes)
        images.append(
            TrialImage(
                path=str(path.absolute()),
                content=content(path),
                rows=rows_in(path),
                rocm=stack.version("rocm"),
            )
        )
    if build and paths:
        steps.append(_build(paths[0].absolute()))
        claims.append(of_build(builds))
    steps.sort(key=lambda step: _rank(step.name))
    claims = [claim for claim in claims if claim.step in {step.name for step in steps}]
    most = sum(step.limit * nodes for step in steps if step.nodes) + _AROUND * nodes
    least = sum(step.minutes * nodes for step in steps if step.name == NODES) + _AROUND * nodes
    if node_minutes is not None and node_minutes < least:
        raise BadInputError(f"is less than the first step takes: {least}", where=f"--node-minutes {node_minutes}")
    return TrialPlan(
        schema=SCHEMA,
        id=secrets.token_hex(4),
        made=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        tool=__version__,
        site=site.name,
        nodes=nodes,
        node_minutes=node_minutes or min(most, 2 * usual_minutes(steps, nodes)),
        images=tuple(images),
        steps=tuple(steps),
        claims=tuple(claims),
    )


def job_name(plan: TrialPlan) -> str:
    """Return the name of a trial's jobs."""
    return f"lumiimg-trial-{plan.id}"


def usual_minutes(steps: Sequence[TrialStep], nodes: int) -> int:
    """Return the node minutes that steps take as a rule, in one job."""
    return sum(step.minutes for step in steps if step.nodes) * nodes + _AROUND * nodes


def _of_nodes(nodes: int, site_name: str) -> Iterator[TrialStep]:
    yield TrialStep(name=HERE, about="what Slurm says of its partitions, here", words=(), nodes=0, minutes=1, limit=2)
    words = ("node", f"{FOLDER}/looks", "--look", site_name)
    about = "what each node shows of itself"
    yield TrialStep(name=NODES, about=about, words=words, nodes=nodes, minutes=1, limit=5, everywhere=True)


def _of_image(number: int, path: Path, stack: Stack, site: Site, site_name: str, nodes: int) -> Iterator[TrialStep]:
    name, on_nodes = f"image-{number}", ("--nodes", f"{nodes}")
    words = ("check", f"{path}", "--site", site_name, "--host", HOST, "--json")
    probe, run = ("--level", "probe"), ("--level", "run")

    def step(key: str, about: str, more: tuple[str, ...], **options: object) -> TrialStep:
        plain = TrialStep(
            name=f"{name}.{key}",
            about=f"image {number}: {about}",
            words=(*words, *more),
            nodes=nodes,
            minutes=3,
            limit=15,
        )
        return replace(plain, **options)  # type: ignore[arg-type]

    yield step("probe", "what its loader, its RCCL and its plugin do on the nodes", (*on_nodes, *probe), minutes=2)
    yield step("run", f"an all-reduce on {nodes} nodes, as jobs there run it", (*on_nodes, *run))
    ran = {"after": f"{name}.run"}
    of_gpus = ("node", f"{FOLDER}/looks", "--look", site_name, "--gpus-in", f"{path}")
    yield step("gpus", "what its runtime says of the GPUs", (), words=of_gpus, nodes=1, minutes=1, limit=6)
    socket = {"NCCL_NET": "Socket"}
    yield step("socket", "the same over TCP", (*on_nodes, *run), sets=socket, **ran)
    vni = next((v for v in site.variables if v.name == VNI and v.nodes == "one"), None)
    one, sets = ("--nodes", "1"), {vni.name: vni.value} if vni is not None else {}
    if vni is not None:
        yield step("one-node", "the probes in a step on one node, without a VNI", (*one, *probe), minutes=2)
        about = f"the same with {vni.name}={vni.value}"
        yield step("one-node-vni", about, (*one, *probe), minutes=2, sets=sets)
    yield step("alone", "an all-reduce on one node", (*one, *run), sets=sets)
    for variable in left_out(stack, site):
        more = (*on_nodes, *run, "--leave-out", variable.name)
        yield step(f"without.{variable.name}", f"an all-reduce without {variable.name}", more, **ran)
    for tried in set_beside(stack, site):
        sets = {tried.name: tried.value or ""}
        about = f"an all-reduce with {tried.name}={tried.value}"
        yield step(f"with.{tried.name}", about, (*on_nodes, *run), sets=sets, **ran)
    yield step("again", "the first all-reduce again: how far two runs differ", (*on_nodes, *run), **ran)


def _build(image: Path) -> TrialStep:
    words = ("build", "--base", f"{image}", "--add", "netprobe", "--site", "generic", "-o", f"{FOLDER}/built.sif")
    about = "a small build, on image 1, where the trial is started"
    return TrialStep(name="build", about=about, words=(*words, "--json"), nodes=0, minutes=5, limit=60)


_ORDER = (
    HERE,
    NODES,
    "build",
    "probe",
    "run",
    "gpus",
    "socket",
    "one-node",
    "one-node-vni",
    "alone",
    "without",
    "with",
    "again",
)


def _rank(name: str) -> int:
    """Return the place of a step: what decides most comes first, for all images, then what is tried one by one."""
    return _ORDER.index([*name.split("."), name][1])


def content(path: Path) -> str:
    """Return what an image is known by, without reading all of it; a folder by its inode. Raises BadInputError."""
    try:
        mark = mark_of(path)
        return (mark or hashlib.sha256(f"{path.stat().st_ino}".encode()).hexdigest())[:16]
    except OSError as error:
        raise BadInputError(f"cannot be read: {error.strerror}", where=str(path)) from error


def rows_in(path: Path) -> tuple[TriedRow, ...]:
    """Return the rows of today's catalogue that an image of lumiimg was built of; nothing of others' images.

    Of the catalogue that comes with lumiimg: the names of a user's own layers are nobody else's.
    """
    found = []
    try:
        plan = read_plan(path)
        catalogue = open_catalogue({})
        for entry in plan.stack if plan else ():
            layer = catalogue.entry(entry.name)
            releases = [row for row in layer.releases if row.version == entry.release]
            if entry.layer != layer_digest(layer) or len(releases) > 1:
                continue  # changed since, or two rows of one version: which one is not known here
            release = releases[0] if releases else None
            found.append(TriedRow(layer.name, release.version if release else "", content_of(layer, release, "run")))
    except (LumiimgError, OSError):
        return ()
    return tuple(found)
