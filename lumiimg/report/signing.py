"""What `sign` and `verify` say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.check.signed import SignatureVerdict
from lumiimg.report.console import console, detail, headline, print_json
from lumiimg.wording import count

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.check.signed import Signed
    from lumiimg.engine.engine import Engine

_MEANING = {
    SignatureVerdict.SIGNED: "all of it is as it was signed, by keys of the keyring here",
    SignatureVerdict.UNSIGNED: "not signed, or not all of it",
    SignatureVerdict.ALTERED: "not as it was signed",
    SignatureVerdict.UNKNOWN_KEY: "signed by a key that is not in the keyring here",
    SignatureVerdict.UNDECIDED: "the engine does not decide",
}
_KINDS = {SignatureVerdict.SIGNED: "ok", SignatureVerdict.UNSIGNED: "problem", SignatureVerdict.ALTERED: "problem"}


def print_signed(image: Path, found: Signed, engine: Engine, *, as_json: bool, quiet: bool = False) -> None:
    """Print who signed an image and what that covers, or what stands against it."""
    if as_json:
        print_json("verify", found, image=image, engine=engine)
        return
    out = console(quiet=quiet)
    headline(out, f"{image}: {found.verdict}: {_MEANING[found.verdict]}", _KINDS.get(found.verdict, "unknown"))
    for text in _lines(found, engine):
        detail(out, text)


def _lines(found: Signed, engine: Engine) -> list[str]:
    lines = [f"{engine.name}: {found.said}"] if found.said else []
    if found.verdict is SignatureVerdict.SIGNED:
        for signer in found.signers:
            keyring = "your keyring" if signer.is_users else "the keyring of this machine"
            lines.append(f"by {signer.name}, {signer.fingerprint} ({keyring})")
        lines.append(f"covers the header and {count(len(found.objects), 'object')}: {', '.join(found.objects)}")
    elif found.claimed and found.verdict is not SignatureVerdict.ALTERED:
        lines.append(f"the signature names {', '.join(found.claimed)}; anybody can write that")
        program = engine.path.name
        lines.append(
            f"no key server was asked; with a key from someone you trust: {program} key import FILE, or {program} key "
            f"pull {found.claimed[0]}"
        )
    return lines
