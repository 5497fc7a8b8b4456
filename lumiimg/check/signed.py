"""Who signed an image, and whether all of it is as it was signed.

The engine judges the signatures. Two things it does not look at are judged here: whether it spoke of as many objects as
the file has, and whether these stand in the order in which they were signed. A signature covers each descriptor, but
not its place in the table, and by the place an engine decides which layer lies over which.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING

from lumiimg.engine import signing
from lumiimg.image.sif import OVERLAY, PRIMARY_SYSTEM, DataObject, DataType, Sif, read_sif_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lumiimg.engine.engine import Engine
    from lumiimg.engine.signing import Signer, Verification


class SignatureVerdict(StrEnum):
    """What is known of the signatures."""

    SIGNED = "signed"
    UNSIGNED = "unsigned"
    ALTERED = "altered"
    UNKNOWN_KEY = "unknown key"
    UNDECIDED = "undecided"


# apptainer/sif, pkg/integrity/verify.go, metadata.go, select.go; go-crypto, openpgp/errors
_ALTERED = (
    r"integrity compromised|object not signed|signed object not found|not associated with object group|"
    r"fingerprint in descriptor does not|signature object \d+ not valid|signature not valid"
)
_VERDICTS = (
    (re.compile(r"signature made by unknown entity"), SignatureVerdict.UNKNOWN_KEY),
    (re.compile(r"key material not provided|key expired|revoked"), SignatureVerdict.UNDECIDED),
    (re.compile(_ALTERED), SignatureVerdict.ALTERED),
    (re.compile(r"signature not found|no object groups? found"), SignatureVerdict.UNSIGNED),
)
"""What the engine says of a signature that does not hold; the first that is found counts."""


@dataclass(frozen=True, slots=True)
class Signed:
    """The answer about one image."""

    verdict: SignatureVerdict
    signers: tuple[Signer, ...]
    """Of signatures that hold; of no meaning where something was altered."""
    claimed: tuple[str, ...]
    """Fingerprints that the signatures name; anybody can write them."""
    objects: tuple[str, ...]
    """What a signature must cover, in words."""
    said: str
    """What stands against it."""


def signed_objects(image: Path) -> tuple[DataObject, ...]:
    """Return the signatures of an image. Raises ImageError for what is not a SIF."""
    return _signatures(read_sif_file(image))


def verify(engine: Engine, image: Path, environment: Mapping[str, str]) -> Signed:
    """Have the engine verify an image, by the keys of its keyring alone. Raises ImageError for what is not a SIF."""
    sif = read_sif_file(image)
    signatures = _signatures(sif)
    covered = tuple(item for item in sif.objects if item.data_type != DataType.SIGNATURE)
    claimed = tuple(dict.fromkeys(item.signer for item in signatures if item.signer))
    objects = tuple(map(_in_words, covered))
    if not signatures:
        return Signed(SignatureVerdict.UNSIGNED, (), claimed, objects, "")
    found = signing.verify(engine, image, environment)
    verdict, said = _judge(found, covered)
    return Signed(verdict, found.signers, claimed, objects, said)


def _judge(found: Verification, covered: tuple[DataObject, ...]) -> tuple[SignatureVerdict, str]:
    if found.holds:
        if any(before.identifier >= after.identifier for before, after in pairwise(covered)):
            return SignatureVerdict.ALTERED, "its objects are in another order than they were signed"
        if sum(signer.verified for signer in found.signers) < len(covered):
            return SignatureVerdict.UNDECIDED, "the engine names fewer objects than the image has"
        return SignatureVerdict.SIGNED, ""
    verdicts = (verdict for said, verdict in _VERDICTS if said.search(found.said))
    return next(verdicts, SignatureVerdict.UNDECIDED), found.said


def _signatures(sif: Sif) -> tuple[DataObject, ...]:
    return tuple(item for item in sif.objects if item.data_type == DataType.SIGNATURE)


def _in_words(item: DataObject) -> str:
    if item.data_type == DataType.DEFINITION:
        return "definition"
    if item.partition_type == PRIMARY_SYSTEM:
        return "root file system"
    return "layer" if item.partition_type == OVERLAY else item.name or f"object {item.identifier}"
