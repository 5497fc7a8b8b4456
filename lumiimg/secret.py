"""What looks like a secret: no child process gets it, no file that others read, no message.

A pattern knows the usual shapes, not every one: what is called otherwise, and looks like nothing, is not found. So
nothing rests on it alone (docs/security.md says what else keeps secrets where they are).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache

_compiled = cache(re.compile)
"""Patterns, when they are wanted: every command imports this module, few meet a secret."""
HIDDEN = "[hidden]"
"""What stands in the place of a secret."""
_NAME = (
    r"(?i)(?:TOKEN|PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIALS?|API_?KEY"
    r"|(?:^|_)(?:KEY|PAT|AUTH|AUTH_CONFIG|ASKPASS)|_PWD)$|^AWS_|_SECRET_|_PASSWORD_"  # PWD alone is a folder
)
_LAUNCHERS = ("SLURM", "SLINGSHOT_", "PMI", "PALS_", "PBS_", "PMIX_", "MUNGE_")
"""Their variables are a rank's way to its job, PMI_SHARED_SECRET too; they hold for one step."""
_ENGINES = ("SINGULARITY", "APPTAINER")
_INTO_CONTAINERS = ("SINGULARITYENV_", "APPTAINERENV_")
_OF_ENGINES = r"^(?:SINGULARITY|APPTAINER)_\w*(?:PASSWORD|PASSPHRASE)$"
_LEAST_CHARS = 6
# Sources: the vendors' documents on secret scanning; RFC 7519 (JWT), RFC 7468 (PEM).
_KNOWN_SHAPE = (
    r"hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}|xox[abprs]-[\w-]{10,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bsk-[\w-]{20,}|pypi-AgE[\w-]{20,}|\bnvapi-[\w-]{20,}|\bdckr_pat_[\w-]{20,}"
    r"|(?<![\w-])eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*|-----BEGIN [A-Z ]{0,40}PRIVATE KEY"
)
# the `git@` of a repository is everybody's, and what is before the @ of a digest is the name of an image
_LOGIN = r"(?<=://)(?!git@)[^\s/?#@]{1,1000}@(?!sha256:)"
_KEY_IN_QUERY = (
    r"(?i)(?:^|[_.-])(?:access|auth|api|private|secret|session)?(?:signature|sig|token|key|secret|password|passwd|credential"
    r"|auth|jwt)$|^x-(?:amz|goog)-"
)
_CALLED = r"token(?!s|iz)|secret|passw(?:or)?d|passphrase|credential|(?:api|access|private)[_-]?key"
_VALUE = r"\"[^\"]*\"|'[^']*'|\S+"
_NAMED = (
    # NAME=value, "name": value; the end of an address in a message, `https://h/token: the server …`, is none
    rf"(?i)((?:{_CALLED})[\w.-]{{0,40}}[\"']?\s{{0,3}}(?:=|(?<!/token):)\s{{0,3}})(?:{_VALUE})",
    # --name value
    rf"(?i)(--[\w-]{{0,30}}(?:{_CALLED})\s)(?:{_VALUE})",
    # RFC 7617, RFC 6750; with a digit, as "basic installation" is none
    r"(?i)\b((?:bearer|basic)\s)(?=[^\s\d]{0,100}\d)[\w.~+/=-]{8,}",
)
_MAY_BE_NAMED = r"(?i)token|secret|passw|passphrase|credential|key|bearer|basic"
_IN_QUERY = r"([?&;])([A-Za-z0-9_.-]{1,60})=([^&\s;'\"]{1,4000})"


def is_secret_name(name: str) -> bool:
    """Tell whether a variable of this name holds a secret, going by how people name them."""
    if name.startswith(_INTO_CONTAINERS):
        return is_secret_name(name.partition("_")[2])
    return not name.startswith((*_LAUNCHERS, *_ENGINES)) and _compiled(_NAME).search(name) is not None


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without its secrets; what engines and launchers are told by stays."""
    return {name: value for name, value in environment.items() if not is_secret_name(name)}


def has_secret(text: str) -> bool:
    """Tell whether a text holds a key of a known shape, or an address with a login."""
    return _compiled(_KNOWN_SHAPE).search(text) is not None or _compiled(_LOGIN).search(text) is not None


def has_key(address: str) -> bool:
    """Tell whether the query of an address is a key to what it names, as signed addresses of stores have it."""
    from urllib.parse import parse_qsl, urlsplit  # for errors, which all commands import, too much

    try:
        query = parse_qsl(urlsplit(address).query, keep_blank_values=True)
    except ValueError:
        return False
    return any(_compiled(_KEY_IN_QUERY).search(name) for name, _ in query)


def known_secrets(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secrets of an environment, those of proxies and of engines too, as texts to be hidden; not short ones,
    which stand in other words.
    """
    logins = (login[0][:-1] for value in environment.values() if (login := _compiled(_LOGIN).search(value)))
    named = (
        value for name, value in environment.items() if is_secret_name(name) or _compiled(_OF_ENGINES).search(name)
    )
    found = {part for login in logins for part in (login, login.partition(":")[2])} | {*named}
    return tuple(sorted((text for text in found if len(text) >= _LEAST_CHARS), key=len, reverse=True))


def hidden(text: str, known: Collection[str] = ()) -> str:
    """Return a text with the secrets in it replaced: those that are known, and what looks like one."""
    for secret in known:
        text = text.replace(secret, HIDDEN)
    if "://" in text:
        text = _compiled(_LOGIN).sub(f"{HIDDEN}@", text)
    if "=" in text:
        text = _compiled(_IN_QUERY).sub(_without_key, text)
    if _compiled(_MAY_BE_NAMED).search(text):  # a build prints millions of lines that have none of it
        for named in _NAMED:
            text = _compiled(named).sub(rf"\1{HIDDEN}", text)
    return _compiled(_KNOWN_SHAPE).sub(HIDDEN, text)


def _without_key(match: re.Match[str]) -> str:
    mark, name, _ = match.groups()
    return f"{mark}{name}={HIDDEN}" if _compiled(_KEY_IN_QUERY).search(name) else match[0]
