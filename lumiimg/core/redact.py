"""What looks like a secret: no child process gets it, no file that others read, no message.

A pattern knows the usual shapes, not every one: what is called otherwise, and looks like nothing, is not found. So
nothing rests on it alone (docs/security.md says what else keeps secrets where they are).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from functools import cache

_compiled = cache(re.compile)
"""Patterns, when they are wanted: every command imports this module, few meet a secret."""
HIDDEN = "[hidden]"
"""What stands in the place of a secret."""
# Names, their words parted by `_`, by how they end.
_ANYWHERE = (
    r"(?i)(?:TOKEN|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|SECRET|CREDENTIALS?|JWT|AUTHORIZATION|_(?:PASS|PWD|PW|PSW)"
    r"|(?:SSH|DB|PG)PASS|(?:API|ACCESS|ACCOUNT|PRIVATE|SECRET)_?KEY)_?\d{0,3}$"
)
_SHORT = r"(?i)^(?:PASS|PWD|PW)$"  # `PASS: test_x` is not a secret, nor is `pwd=/home/me`
_OF_VARIABLES = (
    r"(?i)(?:(?<!BY)(?<!COM)PASS|(?:^|_)(?:KEY|PAT|AUTH|AUTH_CONFIG|ASKPASS))$|_SECRET_|_PASSWORD_"
    r"|^AWS_(?!(?:DEFAULT_)?(?:REGION|PROFILE|OUTPUT)$)"
)
_OF_QUERIES = (
    r"(?i)(?:^|_)(?:SIGNATURE|SIG|PAT|(?:API|SECRET|SESSION)?(?:KEY|AUTH))$"
    r"|^(?:(?:AUTH|AUTHORIZATION|ACCESS|DEVICE)_)?CODE$|^X_(?:AMZ|GOOG)_"
)
_LAUNCHERS = ("SLURM", "SLINGSHOT_", "PMI", "PALS_", "PBS_", "PMIX_", "MUNGE_")
"""Their variables are a rank's way to its job, PMI_SHARED_SECRET too; they hold for one step."""
_ENGINES = ("SINGULARITY", "APPTAINER")
_INTO_CONTAINERS = ("SINGULARITYENV_", "APPTAINERENV_")
_OF_ENGINES = r"^(?:SINGULARITY|APPTAINER)_\w*(?:PASSWORD|PASSPHRASE)$"
_LEAST_CHARS, _SHORT_CHARS = 6, 12
"""Of a secret of the environment that is hidden at all, and of one that is hidden within other words, too."""
# to its end; of a key that is cut off, the lines that look like it
_PRIVATE_KEY = (
    r" [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?(?:-----(?:(?:(?!-----)[\s\S]){0,20000}-----END [A-Z ]{0,40}"
    r"PRIVATE KEY(?: BLOCK)?|(?:(?:\s|\\[nr])*[A-Za-z0-9+/=]{20,})*+))?"
)
# What is before a token, what it begins with, and the rest. The quick look is for the beginnings: each text that has a
# token has one of them. Sources: the vendors' documents on secret scanning; RFC 7519 (JWT), RFC 7468 (PEM).
_GITLAB = ("pat-", "ptt-", "dt-", "rt-", "rtr-", "cbt-", "ft-", "imt-", "agent-", "soat-", "ffct-", "wt-", "oas-")
_SHAPES = (
    *(("", mark, r"[A-Za-z0-9]{20,}") for mark in ("hf_", "api_org_")),
    *(("", f"gh{kind}_", r"[A-Za-z0-9]{30,}") for kind in "pousr"),
    ("", "github_pat_", r"\w{30,}"),
    *(("", f"gl{kind}", r"[\w-]{20,}(?:\.\w{2}\.\w{9})?") for kind in _GITLAB),
    ("", "GR1348941", r"[\w-]{20,}"),
    *(("", f"{kind}-", r"[\w-]{10,}") for kind in ("xoxa", "xoxb", "xoxc", "xoxd", "xoxp", "xoxr", "xoxs", "xapp")),
    *((r"\b", key, r"[A-Z0-9]{16}\b") for key in ("AKIA", "ASIA")),
    *((r"\b", key, r"[\w-]{20,}") for key in ("sk-", "nvapi-", "GOCSPX-", "hvs.", "hvb.", "hvr.")),
    *((r"\b", key, r"[\w-]{20,}") for key in ("wandb_v1_", "gsk_", "glsa_", "sk_live_", "rk_live_")),
    *((r"\b", f"dckr_{kind}_", r"[\w-]{20,}") for kind in ("pat", "oat")),
    ("", "pypi-AgE", r"[\w-]{20,}"),
    (r"(?<![\w-])", "eyJ", r"[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*"),
    (r"\b", "AIza", r"[\w-]{30,}"),
    (r"\b", "ya29.", r"[\w-]{16,}"),
    (r"\b", "npm_", r"[A-Za-z0-9]{30,}"),
    *((r"(?<=hooks\.slack\.com)", f"/{kind}/", r"[\w/+-]{10,}") for kind in ("services", "workflows", "triggers")),
    (r"(?<=/api)", "/webhooks/", r"\d{10,}/[\w-]{20,}"),
    ("", "-----BEGIN", _PRIVATE_KEY),
)
_MARKS = tuple(mark for _, mark, _ in _SHAPES)
_KNOWN_SHAPE = "|".join(before + re.escape(mark) + rest for before, mark, rest in _SHAPES)
# The `git@` of a repository is everybody's, and what is before the @ of a digest is the name of an image. A password
# may hold what ends a host (`/`, `@`), where it is not a port; pathlib makes one slash of two.
_SCHEMES = ("http", "https", "ftp", "docker", "oras", "library", "shub", "ssh", "s3")
_LOGIN = (
    rf"(?i)(:/(?:/|{'|'.join(f'(?<={scheme}:/)' for scheme in _SCHEMES)}))(?!git@|\[[\da-f:.]+\])"
    r"(?:[^\s/?#:]{0,200}:(?!\d{1,5}(?:[/?#]|$))[^\s\"<>]{0,1000}|[^\s/?#@]{1,1000})@(?!sha256:)"
)
_ENCODED_LOGIN = (
    r"(?i)(%3A%2F%2F)(?!git%40)(?:(?:(?!%2F|%3F|%23|%3A)[^\s\"'<>&]){0,200}%3A(?!\d{1,5}(?:%2F|%3F|$))[^\s\"'<>&]{0,300}"
    r"|(?:(?!%2F|%3F|%23|%26|%40)[^\s\"'<>&]){1,300})%40(?!sha256)"
)
# NAME=value, NAME[0]=value, NAME+=value, "name": value, ["name"] = value, --name value, "--name", "value", ?name=value
_NAMED = (
    r"(?<![\w.-])(?P<name>[\w.-]++)(?P<sign>"
    r"(?:\[(?P<index>[^\]\n]{0,40})\](?=\+?=))?"
    r"[\"'\]\\]{0,3}[ \t]{0,3}\+?[=:]{1,2}[ \t]{0,3}|[\"'],[ \t]?(?=[\"'])|[ \t]{1,3})"
)
_QUOTED = r"\"(?:\\.|[^\"\\\n]){0,2000}+\"|'(?:\\.|[^'\\\n]){0,2000}+'"
_ESCAPED = r"\\'[^'\n]{0,2000}\\'|\\\"[^\"\n]{0,2000}\\\""
# a word of a shell, with all its quotes, in JSON up to a comma; not `<not set>`, nor what dpkg says, `passwd:amd64`,
# nor what shells say of a name without a value
_VALUE = (
    r"(?i)(?!<[\w ]{1,40}>|(?:all|amd64|arm64)(?:[\s,:'\"]|$)"
    r"|(?:unbound|undefined)\s+variable|(?:parameter\s+(?:null\s+or\s+)?)?not\s+set)"
    r"(?:\[hidden\]|(?:(?:bearer|basic|token)[ \t]+)?"
    rf"(?:(?:{_QUOTED})(?=[,;:}}\])])|(?=\S)(?:{_QUOTED}|{_ESCAPED}|[^\s\"']++)*+\S*))"
)
_ENCODED = r"(?i)(?:(?<=%3F)|(?<=%26)|(?<![\w.%-]))(?P<name>[\w.-]++)%3D(?:[^\s\"'<>&%]|%(?!26))+"
# lines of a Dockerfile, a C shell, a module: a name and the rest
_SET = (
    r"(?i)\b((?:ENV|setenv)(?:[ \t]+|[ \t]*\([ \t]*[\"'])(?P<name>[A-Z_]\w*)(?:[\"'][ \t]*,|[ \t])[ \t]*)"
    r"(?=\S)[^\n=][^\n]*"
)
_DOCKERS_AUTH = r"(\"auth\\?\"\s{0,9}:\s{0,9}\\?\")(?=[^\"]{0,200}[A-Z\d=])[\w+/=.-]{8,}"
_QUERY = frozenset("?&;#")
_VALUE_IN_QUERY = rf"[^&\s;'\"]+|{_QUOTED}"
# RFC 7617, RFC 6750; with a digit, as "basic installation" is none
_BEARER = r"(?i)\b((?:bearer|basic)\s)(?=[^\s\d]{0,100}\d)[\w.~+/=-]{8,}"
_NAME_PARTS = (
    *("token", "secret", "pass", "pwd", "psw", "pw", "credential", "key", "auth", "jwt", "bearer", "basic", "aws_"),
)
"""One of these, in small letters, is in each text that names a secret, but for these two: `PAT` is in many words."""
_IN_QUERY = r"[?&;#][\w.-]+="
_IS_PAT = r"(?<![a-z])pat(?![a-z])"


def is_secret_name(name: str) -> bool:
    """Tell whether a variable of this name holds a secret, going by how people name them."""
    if name.startswith(_INTO_CONTAINERS):
        return is_secret_name(name.partition("_")[2])
    if name.startswith(_ENGINES):
        return _is_of_engine(name)
    return not name.startswith(_LAUNCHERS) and _is_called(name, _ANYWHERE, _OF_VARIABLES)


def _is_of_engine(name: str) -> bool:
    return _compiled(_OF_ENGINES).search(name) is not None


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without its secrets; what engines and launchers read stays."""
    return {name: value for name, value in environment.items() if _is_of_engine(name) or not is_secret_name(name)}


def has_login(text: str) -> bool:
    """Tell whether there is an address with a login in a text."""
    return _compiled(_LOGIN).search(text) is not None


def has_key(address: str) -> bool:
    """Tell whether the query of an address is a key to what it names, as signed addresses of stores have it."""
    from urllib.parse import parse_qsl, urlsplit  # for errors, which all commands import, too much

    try:
        query = parse_qsl(urlsplit(address).query, keep_blank_values=True)
    except ValueError:
        return False
    return any(_is_called(name, _ANYWHERE, _SHORT, _OF_QUERIES) for name, _ in query)


def known_secrets(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secrets of an environment, those of proxies and of engines too, as texts to be hidden; not short ones,
    which stand in other words, and no files that are here: SSH_ASKPASS names a program.
    """
    from pathlib import Path  # for --help too much

    logins = (
        login[0][len(login[1]) : -1] for value in environment.values() if (login := _compiled(_LOGIN).search(value))
    )
    named = (
        value
        for name, value in environment.items()
        if is_secret_name(name) and not (value.startswith("/") and Path(value).exists())
    )
    found = {part for login in logins for part in (login, login.partition(":")[2])} | {*named}
    found = {text for text in found if len(text) >= _LEAST_CHARS}
    return tuple(sorted({form for text in found for form in (text, *_encoded(text))}, key=len, reverse=True))


def _encoded(text: str) -> tuple[str, str]:
    """Return a text as it stands in an address (RFC 3986 section 2.1)."""
    upper = _compiled(r"[^\w.~-]|[^\x00-\x7f]").sub(
        lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogateescape")), text
    )
    return upper, _compiled("%[0-9A-F]{2}").sub(lambda found: found[0].lower(), upper)


@cache
def secrets_here() -> tuple[str, ...]:
    """Return the secrets of this process's environment."""
    return known_secrets(os.environ)


def redact(text: str, known: Collection[str] = ()) -> str:
    """Return a text with the secrets in it replaced: those that are known, and what looks like one."""
    for secret in known:
        if len(secret) >= _SHORT_CHARS:
            text = text.replace(secret, HIDDEN)
        elif secret in text:  # within a word it is one of the language
            text = _compiled(rf"(?<!\w){re.escape(secret)}(?!\w)").sub(HIDDEN, text)
    if any(map(text.__contains__, _MARKS)):  # to look for these takes a tenth of the time
        text = _compiled(_KNOWN_SHAPE).sub(HIDDEN, text)  # first: a key has several lines, what is named may have one
    if ":/" in text:
        text = _compiled(_LOGIN).sub(rf"\1{HIDDEN}@", text)
    if "%" in text:
        text = _compiled(_ENCODED).sub(_without_encoded, text)
        text = _compiled(_ENCODED_LOGIN).sub(rf"\1{HIDDEN}%40", text)
    if _may_be_named(text):  # a build prints millions of lines that have none of it
        text = _compiled(_SET).sub(_without_set, text)
        text = _compiled(_DOCKERS_AUTH).sub(rf"\1{HIDDEN}", text)
        text = _compiled(_BEARER).sub(rf"\1{HIDDEN}", _without_named(text))
    return text


def _may_be_named(text: str) -> bool:
    small = text.casefold()
    return (
        any(map(small.__contains__, _NAME_PARTS))
        or ("=" in text and _compiled(_IN_QUERY).search(text) is not None)
        or ("pat" in small and _compiled(_IS_PAT).search(small) is not None)
    )


def _is_called(name: str, *patterns: str) -> bool:
    parted = _compiled(r"[.-]|(?<=[a-z\d])(?=[A-Z])").sub("_", name)
    return any(_compiled(pattern).search(parted) for pattern in patterns)


def _without_encoded(found: re.Match[str]) -> str:
    is_secret = _is_called(found["name"], _ANYWHERE, _SHORT, _OF_QUERIES)
    return f"{found['name']}%3D{HIDDEN}" if is_secret else found[0]


def _without_set(found: re.Match[str]) -> str:
    return f"{found[1]}{HIDDEN}" if is_secret_name(found["name"].upper()) else found[0]


def _without_named(text: str) -> str:
    """Return a text without the values that stand behind the name of a secret."""
    parts, end = [], 0
    for found in _compiled(_NAMED).finditer(text):
        before = text[found.start() - 1 : found.start()]
        first = text[found.end() : found.end() + 1]
        names = (found["name"], (found["index"] or "").strip("\"'\\"))
        if found.start() < end or not any(_is_named(before, name, found["sign"], first) for name in names):
            continue
        if value := _compiled(_VALUE_IN_QUERY if before in _QUERY else _VALUE).match(text, found.end()):
            parts += [text[end : found.end()], HIDDEN]
            end = value.end()
    return "".join((*parts, text[end:]))


def _is_named(before: str, name: str, sign: str, first: str) -> bool:
    """Tell whether a value is a secret by its name, the sign between them, and the letters before and behind."""
    plain = name.lstrip("-")
    if before in _QUERY:
        return "=" in sign and _is_called(name, _ANYWHERE, _SHORT, _OF_QUERIES)
    if sign.isspace() or "," in sign:
        return name.startswith("--") and first != "-" and _is_called(plain, _ANYWHERE, _SHORT)
    if before == "/" and ":" in sign:  # the end of a path in a message, `https://h/token: the server …`
        return False
    if "=" in sign and plain.isupper():
        return is_secret_name(plain)
    is_short = _is_called(plain, _SHORT) and first not in {"/", "~"}
    return _is_called(plain, _ANYWHERE) or (is_short and not sign.startswith(":"))
