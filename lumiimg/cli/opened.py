"""Images as they are looked at: with the program, the environment and the machine that the options name."""

from __future__ import annotations

import argparse
import os
from contextlib import AbstractContextManager
from pathlib import Path

from lumiimg.build.provenance import asked_for
from lumiimg.check.context import ImageInContext, open_for_check
from lumiimg.check.pipeline import CheckReport, explain_image
from lumiimg.check.static.host_fit import without_ours
from lumiimg.cli.inputs import Inputs


def opened(
    image: Path, arguments: argparse.Namespace, inputs: Inputs, *, as_here: bool = True
) -> AbstractContextManager[ImageInContext]:
    """Open an image; `as_here`: with the variables of this shell that engines take into a container."""
    return open_for_check(
        image,
        os.environ if as_here else without_ours(os.environ),
        inputs.snapshot,
        inputs.site,
        program=arguments.starts,
        venv=inputs.venv,
        machine=inputs.words(),
        built_with=asked_for(image),
    )


def explained(image: Path, arguments: argparse.Namespace, inputs: Inputs) -> CheckReport:
    """Look at an image beside the machine that is named."""
    with opened(image, arguments, inputs, as_here=False) as context:
        return explain_image(context)
