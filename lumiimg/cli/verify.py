"""Verify the PGP signatures of a SIF, by the engine, with the keys of its keyring
(yours and the machine's). No key server is asked.

exit codes: 0 every object is as it was signed, by a key of the keyring here
            1 it is not signed, or was altered since
            3 the key is not in the keyring here
            4 there is no container engine
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lumiimg.cli.options import add_image, add_json, add_quiet
from lumiimg.errors import ExitCode

if TYPE_CHECKING:
    import argparse

    from lumiimg.check.signed import Signed


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_image(parser, "a SIF")
    add_quiet(parser)
    add_json(parser)


def execute(arguments: argparse.Namespace) -> int:
    from lumiimg.check.signed import signed_objects, verify
    from lumiimg.engine.engine import find_container_engine
    from lumiimg.report.machine import print_signed

    signed_objects(arguments.image)  # what is not a SIF is bad input on a machine without an engine, too
    engine = find_container_engine(os.environ)
    found = verify(engine, arguments.image, os.environ)
    print_signed(arguments.image, found, engine, as_json=arguments.json, quiet=arguments.quiet)
    return answer(found)


def answer(found: Signed) -> ExitCode:
    """Return the exit code of what was found."""
    from lumiimg.check.signed import SignatureVerdict

    if found.verdict is SignatureVerdict.SIGNED:
        return ExitCode.GOOD
    return ExitCode.NO if found.verdict in {SignatureVerdict.UNSIGNED, SignatureVerdict.ALTERED} else ExitCode.UNDECIDED
