"""Sign all objects of a SIF in place, by the engine, and verify the result. An
image that the key has signed already is only verified.

The engine asks for the passphrase of the key; in a job it reads it from
standard input. `apptainer key newpair` (or `singularity key newpair`) makes a
key; `apptainer key export FILE` writes its public half, for those who verify.

examples:
  lumiimg sign image.sif
  lumiimg sign image.sif --key 9C1F4A2B <passphrase-file

exit codes: 0 it is signed · 1 the engine refused · 2 not a SIF · 4 no engine
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lumiimg.cli.options import add_image, add_json, add_quiet
from lumiimg.cli.verify import answer
from lumiimg.errors import BadInputError, FailedError, MissingHereError

if TYPE_CHECKING:
    import argparse

    from lumiimg.engine.engine import Engine
    from lumiimg.engine.signing import PrivateKey

_LEAST_DIGITS = 8


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_image(parser, "a SIF")
    parser.add_argument(
        "--key", metavar="FINGERPRINT", help="key, or the end of its fingerprint, if the keyring has more than one"
    )
    add_quiet(parser)
    add_json(parser)


def execute(arguments: argparse.Namespace) -> int:
    from lumiimg.check.signed import signed_objects, verify
    from lumiimg.engine.engine import find_container_engine
    from lumiimg.engine.signing import private_keys, sign
    from lumiimg.report.console import console, say
    from lumiimg.report.machine import print_signed

    engine = find_container_engine(os.environ)
    image = arguments.image
    signers = {item.signer for item in signed_objects(image)}
    if not os.access(image, os.W_OK):
        raise FailedError("is not writable, and a signature is written into the image", where=str(image))
    key = _choose(private_keys(engine, os.environ), arguments.key, engine)
    if key.fingerprint not in signers:
        say(console(stderr=True, quiet=arguments.quiet), f"signing {image} as {key.owner}, {key.fingerprint}")
        sign(engine, image, key, os.environ)
    found = verify(engine, image, os.environ)
    print_signed(image, found, engine, as_json=arguments.json, quiet=arguments.quiet)
    return answer(found)


def _choose(keys: tuple[PrivateKey, ...], wanted: str | None, engine: Engine) -> PrivateKey:
    """Return the key that is asked for, or the only one.

    Raises MissingHereError where there is none, BadInputError where it is not clear which.
    """
    program = engine.path.name
    if not keys:
        raise MissingHereError(
            f"there is no private key in the keyring of {engine.name}",
            hint=f"`{program} key newpair` makes one, `{program} key import FILE` imports one",
        )
    end = (wanted or "").replace(" ", "").upper().removeprefix("0X")
    if wanted is not None and len(end) < _LEAST_DIGITS:
        raise BadInputError(f"fewer than {_LEAST_DIGITS} digits of a fingerprint", where=f"--key {wanted}")
    fitting = [key for key in keys if key.fingerprint.endswith(end)]
    if len(fitting) == 1:
        return fitting[0]
    listed = "; ".join(f"{key.owner}: {key.fingerprint}" for key in fitting or keys)
    if wanted is not None:
        what = "more than one key of the keyring" if fitting else "no key of the keyring"
        raise BadInputError(what, where=f"--key {wanted}", hint=f"there are {listed}")
    raise BadInputError(f"{len(keys)} private keys in the keyring", hint=f"--key names one: {listed}")
