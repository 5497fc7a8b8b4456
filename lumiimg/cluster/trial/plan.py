"""The plan of a trial: its steps, what they cost, and all that lumiimg predicts, before anything is run."""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets
from typing import TYPE_CHECKING

from lumiimg import __version__
from lumiimg.build.provenance import read_plan
from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.ledger import content_of
from lumiimg.check.context import open_for_check
from lumiimg.check.pipeline import check_image
from lumiimg.cluster.trial.claims import NODES, SLURM, ImageOnSite, of_image, of_site
from lumiimg.cluster.trial.model import SCHEMA, TrialImage, TrialPlan, TrialStep, TriedRow, usual_minutes
from lumiimg.core.errors import BadInputError, LumiimgError
from lumiimg.core.findings import Level
from lumiimg.resolve.lock import layer_digest
from lumiimg.resolve.stack import stack_of
from lumiimg.resolve.venv import mark_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from lumiimg.catalog.sites import Site

_MOST_IMAGES = 20
_LEAST_NODES = 2
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
) -> TrialPlan:
    """Return the plan; `site_name` is the site as --site takes it anywhere. `node_minutes`: None for what it may take.

    Raises BadInputError for what is not an image, or for less time than the first steps take.
    """
    if len(paths) > _MOST_IMAGES:
        raise BadInputError(f"{len(paths)} images; {_MOST_IMAGES} are the limit of a trial")
    if nodes < _LEAST_NODES:
        raise BadInputError("is too few: a network is used from two nodes on", where=f"--nodes {nodes}")
    of_nodes, of_images = [*_of_site(nodes, site_name)], list[TrialStep]()
    claims, images = [*of_site(site)], list[TrialImage]()
    for number, path in enumerate(paths, 1):
        with open_for_check(path, environment, site=site) as context:
            stack = stack_of(context.contents)
            report = check_image(context, Level.STATIC)
            image = ImageOnSite(number, report, context.image.root, stack, site, nodes)
            claims += of_image(image)
        of_images += _of_image(image, path.absolute(), site_name)
        images.append(TrialImage(content=content(path), rows=rows_in(path), rocm=stack.version("rocm")))
    # what decides most comes first, for all images, then what is tried one by one
    steps = [*of_nodes, *sorted(of_images, key=lambda step: _ORDER.index(step.name.split(".")[1]))]
    least = usual_minutes(of_nodes, nodes)
    if node_minutes is not None and node_minutes < least:
        raise BadInputError(f"is less than the first step takes: {least}", where=f"--node-minutes {node_minutes}")
    return TrialPlan(
        schema=SCHEMA,
        id=secrets.token_hex(4),
        made=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        tool=__version__,
        site=site.name,
        nodes=nodes,
        node_minutes=node_minutes or 2 * usual_minutes(steps, nodes),
        images=tuple(images),
        site_name=site_name,
        paths=tuple(str(path.absolute()) for path in paths),
        steps=tuple(steps),
        claims=tuple(claim for claim in claims if claim.step in {step.name for step in steps}),
    )


def _of_site(nodes: int, site_name: str) -> Iterator[TrialStep]:
    yield TrialStep(name=SLURM, kind="slurm", about="what Slurm says of its partitions", nodes=1, minutes=1, limit=2)
    words, about = ("node", f"{FOLDER}/nodes", "--look", site_name), "what each node shows of itself"
    yield TrialStep(name=NODES, kind="nodes", about=about, words=words, nodes=nodes, minutes=1, limit=5)


_ORDER = ("probe", "run", "gpus", "socket", "one-node", "one-node-vni", "alone", "without", "with", "again")


def _of_image(image: ImageOnSite, path: Path, site_name: str) -> Iterator[TrialStep]:
    number, vni, ran = image.number, image.vni, f"image-{image.number}.run"

    def step(
        key: str,
        about: str,
        level: Level = Level.RUN,
        *more: str,
        nodes: int = image.nodes,
        sets: dict[str, str] | None = None,
        after: str | None = None,
    ) -> TrialStep:
        words = ("check", str(path), "--site", site_name, "--nodes", str(nodes), "--level", level, *more, "--json")
        return TrialStep(
            name=f"image-{number}.{key}",
            about=f"image {number}: {about}",
            words=words,
            image=number,
            nodes=image.nodes,
            minutes=3 if level is Level.RUN else 2,
            limit=15,
            sets=sets or {},
            after=after,
        )

    yield step("probe", "what its loader, its RCCL and its plugin do on the nodes", Level.PROBE)
    yield step("run", f"an all-reduce on {image.nodes} nodes, as jobs there run it")
    yield TrialStep(
        name=f"image-{number}.gpus",
        kind="gpus",
        about=f"image {number}: what its runtime says of the GPUs",
        words=("node", f"{FOLDER}/nodes", "--look", site_name, "--gpus-in", str(path)),
        image=number,
        nodes=1,
        minutes=1,
        limit=6,
    )
    yield step("socket", "the same over TCP", sets={"NCCL_NET": "Socket"}, after=ran)
    sets = {vni.name: vni.value} if vni is not None else {}
    if vni is not None:
        yield step("one-node", "the probes in a step on one node, without a VNI", Level.PROBE, nodes=1)
        yield step("one-node-vni", f"the same with {vni.name}={vni.value}", Level.PROBE, nodes=1, sets=sets)
    yield step("alone", "an all-reduce on one node", nodes=1, sets=sets)
    for left in image.left_out:
        words = ("--leave-out", left.name)
        yield step(f"without.{left.name}", f"an all-reduce without {left.name}", Level.RUN, *words, after=ran)
    for tried in image.set_beside:
        about, sets = f"an all-reduce with {tried.name}={tried.value}", {tried.name: tried.value or ""}
        yield step(f"with.{tried.name}", about, sets=sets, after=ran)
    yield step("again", "the first all-reduce again: how far two runs differ", after=ran)


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
