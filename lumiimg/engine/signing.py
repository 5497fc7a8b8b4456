"""The engine's own PGP signatures: the keys of its keyring, signing, and what it says of an image's signatures.

A signature is an object of the SIF itself; it covers the header and every object of a group by digest
(apptainer/sif, `pkg/integrity`). Apptainer keeps keys in ~/.apptainer/keys (APPTAINER_KEYSDIR), SingularityCE in
~/.singularity/sypgp (SINGULARITY_SYPGPDIR).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lumiimg.engine.engine import PROBE_TIMEOUT_S, Engine, clean_environment
from lumiimg.engine.failures import explain, telling_line
from lumiimg.engine.process import run, run_attached
from lumiimg.errors import FailedError, one_line

_KEY = re.compile(r"^(\d+)\)", re.MULTILINE)
_OWNER = re.compile(r"User:\s*(.*)")
_FINGERPRINT = re.compile(r"Fingerprint:\s*([0-9A-Fa-f]{40,64})\s*$", re.MULTILINE)
_FATAL = re.compile(r"^(?:\x1b\[[0-9;]*m)?FATAL:?\s*(?P<said>.*?)(?:\x1b\[[0-9;]*m)?\s*$", re.MULTILINE)
_SAID_CHARS = 300
_MAX_ENTRIES = 20_000
"""One for each object and signature; a SIF of the engines has room for 48 objects."""


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """A key of the keyring that can sign."""

    index: int
    """Its place in the keyring, by which the engine takes it."""
    owner: str
    fingerprint: str
    """In capitals."""


@dataclass(frozen=True, slots=True)
class Signer:
    """Whom the engine names as the maker of a signature."""

    name: str
    """As the key says."""
    fingerprint: str
    """In capitals."""
    is_users: bool
    """Whether the key is in the user's own keyring; else it is in that of the machine (global-pgp-public)."""
    verified: int
    """Objects that are as they were signed."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What the engine said of the signatures of an image."""

    holds: bool
    """Whether it found all of them good, and each object covered."""
    signers: tuple[Signer, ...]
    said: str
    """What stands against it, in the engine's words."""


def private_keys(engine: Engine, environment: Mapping[str, str]) -> tuple[PrivateKey, ...]:
    """Return the keys that can sign. Raises FailedError if the engine cannot read its keyring."""
    completed = run(
        [engine.path, "key", "list", "--secret"], env=clean_environment(environment), timeout_s=PROBE_TIMEOUT_S
    )
    if not completed.ok:
        raise FailedError(
            f"{engine.name} cannot read its keyring: {one_line(telling_line(completed.output))[:_SAID_CHARS]}"
        )
    keys = []
    _, *parts = _KEY.split(completed.output)
    for index, text in zip(parts[::2], parts[1::2], strict=True):
        owner, fingerprint = _OWNER.search(text), _FINGERPRINT.search(text)
        if fingerprint is not None:
            keys.append(PrivateKey(int(index), owner[1].strip() if owner else "", fingerprint[1].upper()))
    return tuple(keys)


def sign(engine: Engine, image: Path, key: PrivateKey, environment: Mapping[str, str]) -> None:
    """Add a signature of `key` over all objects to an image; the engine asks for the passphrase itself.

    Raises FailedError if it does not sign.
    """
    completed = run_attached(
        [engine.path, "sign", "--keyidx", str(key.index), image.absolute()], env=clean_environment(environment)
    )
    if completed.ok:
        return
    known = explain(completed.output)
    what = known.meaning if known else f"{engine.name} does not sign it: {_last_words(completed.output)}"
    raise FailedError(what, where=str(image), hint=known.remedy if known else None)


def verify(engine: Engine, image: Path, environment: Mapping[str, str]) -> Verification:
    """Ask the engine about the signatures of an image, by the keys that are here: no key server is asked."""
    completed = run([engine.path, "verify", "--local", "--json", image.absolute()], env=clean_environment(environment))
    entries, rest = _entries(completed.output)
    if entries is None:
        return Verification(holds=False, signers=(), said=_last_words(completed.output))
    is_whole = all(entry.get("KeyCheck") is True and entry.get("DataCheck") is True for entry in entries)
    holds = completed.ok and bool(entries) and is_whole
    return Verification(holds, _signers(entries), "" if holds else _last_words(rest))


def _entries(output: str) -> tuple[list[dict[str, Any]] | None, str]:
    """Return what is said of each object and signature, and what stands behind that; None where it cannot be read.

    It is one JSON object, whose first brace is alone in its line.
    """
    start = 0 if output.startswith("{\n") else output.find("\n{\n") + 1
    try:
        document, end = json.JSONDecoder().raw_decode(output, start)
        listed = document["SignerKeys"] or []
        entries = [item["Signer"] for item in listed]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None, output
    readable = len(entries) <= _MAX_ENTRIES and all(isinstance(entry, dict) for entry in entries)
    return (entries if readable else None), output[end:]


def _signers(entries: list[dict[str, Any]]) -> tuple[Signer, ...]:
    found: dict[str, Signer] = {}
    for entry in entries:
        if entry.get("KeyCheck") is not True:
            continue
        name, fingerprint = f"{entry.get('Name')}"[:_SAID_CHARS], f"{entry.get('Fingerprint')}"[:_SAID_CHARS].upper()
        before = found[fingerprint].verified if fingerprint in found else 0
        is_whole = entry.get("DataCheck") is True
        found[fingerprint] = Signer(name, fingerprint, entry.get("KeyLocal") is True, before + is_whole)
    return tuple(found.values())


def _last_words(output: str) -> str:
    fatal = _FATAL.findall(output)
    return one_line(fatal[-1] if fatal else telling_line(output))[:_SAID_CHARS]
