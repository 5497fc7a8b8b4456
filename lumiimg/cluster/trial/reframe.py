"""A ReFrame test that repeats a trial: what it measured is the reference."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from lumiimg import __version__
from lumiimg.cluster.binds import is_path
from lumiimg.cluster.template import filled
from lumiimg.cluster.trial.values import ClaimOutcome
from lumiimg.errors import BadInputError

if TYPE_CHECKING:
    from lumiimg.catalog.sites import Site
    from lumiimg.cluster.trial.values import TrialPlan, TrialReport

_TENTH = -0.1
_NOT_PLAIN = re.compile(r"[^\w. -]")


def reframe_of(plan: TrialPlan, report: TrialReport, site: Site | None) -> str:
    """Return the test. Raises BadInputError where nothing was measured, or for a path that cannot be written."""
    if not report.measured:
        raise BadInputError("has measured nothing yet", where=f"trial {plan.id}", hint="lumiimg trial run FOLDER")
    words = ["lumiimg", "trial", "plan", *(image.path for image in plan.images), "-o", "trial"]
    words += ["--site", plan.site_name, "--nodes", f"{plan.nodes}", "--node-minutes", f"{plan.node_minutes}"]
    if wrong := next((word for word in words if not is_path(word)), None):
        raise BadInputError("a path with such characters cannot be in a test", where=wrong)
    site_title, day = _NOT_PLAIN.sub("?", plan.site), _NOT_PLAIN.sub("?", report.measured[:10])
    reference = {
        re.sub(r"[.-]", "_", row.id): (round(row.gb_s, 2), _TENTH, None, "GB/s")
        for row in report.rows
        if row.id.endswith(".bandwidth") and row.gb_s
    }
    known = sorted(row.id for row in report.rows if row.outcome is ClaimOutcome.DIFFERS)
    binding = site.binding if site is not None and site.scheduler == "Slurm" else None
    return filled(
        "trial_test.txt",
        VERSION=__version__,
        NAME=f"lumiimg_trial_{re.sub(r'[^a-z0-9]+', '_', plan.site.lower())}",
        SITE=site_title,
        DATE=day,
        DESCR=ascii(f"what lumiimg claims of {site_title} holds, as on {day}"),
        LIMIT=ascii(f"{-(-plan.node_minutes // plan.nodes)}m"),
        NODES=f"{plan.nodes}",
        GPUS=f"{len(binding.near) if binding is not None else 0}",
        PLAN=ascii(shlex.join(words)),
        KNOWN=ascii(known),
        REFERENCE=ascii(reference),
    )
