"""Hide what looks like a secret from child processes, from files that others read, and from messages.

Hidden are
- the value of a variable, a key or an option whose name ends like those of secrets (`HF_TOKEN`, `db-password`,
  `API_KEY`, `AWS_…`), as written in shells, JSON, command lines, Dockerfiles and the queries of URLs;
- a token of a known form: with a vendor's prefix, JSON web tokens, private keys, Docker's logins, `Bearer …`;
- the login in a URL; all three also in a URL that is the query of another one, in %-escapes;
- the value of such a variable of this process, and its proxy's login, of 6 characters or more, wherever it occurs.

Not hidden is a secret with another name and no known form, after a short option (`-p pw`), in XML or base64, or printed
in pieces. So nothing relies on this alone (docs/security.md describes what else protects secrets).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from functools import cache

HIDDEN = "[hidden]"
"""Replacement of a secret."""
_MIN_CHARS, _SHORT_CHARS = 6, 12
"""Minimum lengths of a secret in the environment: to be hidden at all, and to be hidden within other words, too."""
_ENGINES = ("SINGULARITY_", "APPTAINER_")
"""Prefixes of variables for the engine, which logs in with them."""

# Endings of the names of secrets.
_WORD = (
    r"(?i:token|passw(?:or)?d|passphrase|passcode|secret|credentials?|jwt|authorization|(?:ssh|db|pg)pass"
    r"|(?:[_.-]|(?-i:(?<=[a-z\d])(?=[A-Z])))(?:pass|pwd|psw|pw)"
    r"|(?:api|access|account|private|secret|session)[_.-]?key)[_.-]?\d{0,3}"
)
# The variables of launchers, PMI_SHARED_SECRET too, connect a rank to its job; they are valid for one step.
_NOT_OF_LAUNCHERS = r"(?:(?:SINGULARITY|APPTAINER)ENV_)?+(?!SLURM|SLINGSHOT_|PMI|PALS_|PBS_|MUNGE_)"
_NAME = rf"{_NOT_OF_LAUNCHERS}[\w.-]*{_WORD}"
_SHORT = r"(?i:pass|pwd|pw)"
_VARIABLE = (
    rf"{_NOT_OF_LAUNCHERS}(?:[A-Z\d_]*(?:{_WORD}|(?<!BY)(?<!COM)PASS)"
    r"|(?=[A-Z\d_]*_(?:SECRET|PASSWORD)_)[A-Z\d_]++|(?:[A-Z\d_]*[_\d])?(?:KEY|PAT|AUTH|AUTH_CONFIG|ASKPASS)"
    r"|AWS_(?!(?:DEFAULT_)?(?:REGION|PROFILE|OUTPUT)\b)[A-Z\d_]+)"
)
_IN_QUERY = (
    rf"(?i:{_NAME}|{_SHORT}|(?:[\w.-]*[_.-])?(?:signature|sig|pat|key|auth)"
    r"|(?:(?:auth|authorization|access|device)[_-])?code|x-(?:amz|goog)-[\w-]+)"
)

# What precedes a token, its prefixes, and the rest. Sources: the vendors' documents on secret scanning; RFC 7519 (JWT),
# RFC 7468 (PEM). A private key extends to its end, or to that of the text.
_TOKENS = (
    ("", "hf_ api_org_ ghp_ gho_ ghu_ ghs_ ghr_ npm_", r"[A-Za-z0-9]{20,}"),
    ("", "github_pat_ GR1348941 pypi-AgE glpat- glptt- gldt- glrt- glrtr- glcbt- glft- glimt-", r"[\w.-]{20,}"),
    ("", "glagent- glsoat- glffct- glwt- gloas-", r"[\w.-]{20,}"),
    ("", "xoxa- xoxb- xoxc- xoxd- xoxp- xoxr- xoxs- xapp-", r"[\w-]{10,}"),
    (r"\b", "sk- nvapi- GOCSPX- hvs. hvb. hvr. wandb_v1_ gsk_ glsa_ sk_live_ rk_live_ AIza", r"[\w-]{20,}"),
    (r"\b", "dckr_pat_ dckr_oat_ ya29.", r"[\w-]{16,}"),
    (r"\b", "AKIA ASIA", r"[A-Z0-9]{16}\b"),
    (r"(?<![\w-])", "eyJ", r"[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*"),
    (r"(?<=hooks\.slack\.com)", "/services/ /workflows/ /triggers/", r"[\w/+-]{10,}"),
    (r"(?<=/api)", "/webhooks/", r"\d{10,}/[\w-]{20,}"),
    ("", "-----BEGIN", r"[A-Z ]{1,40}PRIVATE KEY[\s\S]*?(?:-----END[A-Z ]{1,40}PRIVATE KEY(?: BLOCK)?-----|\Z)"),
)

# A shell word with all its quotes, in JSON up to a comma; not `<not set>`, nor dpkg's `passwd:amd64`, nor the messages
# of shells about a name without a value.
_QUOTED = r"\"(?:\\.|[^\"\\\n]){0,2000}+\"|'(?:\\.|[^'\\\n]){0,2000}+'"
_ESCAPED = r"\\'[^'\n]{0,2000}\\'|\\\"[^\"\n]{0,2000}\\\""
_VALUE = (
    r"(?i:(?!<[\w ]{1,40}>|(?:all|amd64|arm64)(?:[\s,:'\"]|$)"
    r"|(?:unbound|undefined)\s+variable|(?:parameter\s+(?:null\s+or\s+)?)?not\s+set)(?:(?:bearer|basic|token)[ \t]+)?)"
    rf"(?:\[hidden\]|(?:{_QUOTED})(?=[,;:}}\])])|(?=\S)(?:{_QUOTED}|{_ESCAPED}|[^\s\"']++)*+\S*)"
)
_CLOSED = r"(?:\[[^\]\n]{0,40}\](?=\+?=))?[\"'\]\\]{0,3}[ \t]{0,3}"
"""Text between a name and its sign: an index, the end of quotes."""
_SET = rf"{_CLOSED}[+:]?==?+[ \t]{{0,3}}"
_NAMED = (
    rf"(?<![\w.-])(?:(?=[\w.-]++{_CLOSED}[+:=])(?:"  # few words have a sign after them
    rf"-*+(?:{_NAME}|{_VARIABLE}){_SET}"  # NAME=x, NAME[0]+=x, env["name"] = x
    rf"|(?<!/)[\w.-]*{_WORD}{_CLOSED}::?[ \t]{{0,3}}"  # "name": x; not what follows a path, `https://host/token: …`
    rf"|-{{0,2}}{_SHORT}(?!:){_CLOSED}\+?[=:]{{1,2}}[ \t]{{0,3}}(?![/~\s]))"  # not `PASS: test_x`, nor `pwd=/home/me`
    rf"|--(?:[\w.-]*{_WORD}|{_SHORT})(?:[\"'],[ \t]?(?=[\"'])|[ \t]{{1,3}}(?![-=:])))"  # --name x, "--name", "x"
)
# The `git@` of a repository is public, and the text before the @ of a digest is the name of an image. A password may
# contain what ends a host (`/`, `@`), unless it is a port; pathlib turns two slashes into one.
_LOGIN = (
    r"(?i)(://|(?:https?|ftp|docker|oras|library|shub|ssh|s3):/)(?!git@|\[[\da-f:.]+\])"
    r"((?:[^\s/?#:]{0,200}:(?!\d{1,5}(?:[/?#]|$))[^\s\"<>]{0,1000}|[^\s/?#@]{1,1000}))(?=@(?!sha256:))"
)
_KEY_IN_QUERY = rf"([?&;#]{_IN_QUERY}{_SET})(?:[^&\s'\"]+|{_QUOTED})"
_RULES = tuple(
    (tuple(marks.split()), pattern)
    for marks, pattern in (
        *(
            (marks, rf"{before}()(?:{'|'.join(map(re.escape, marks.split()))}){rest}")
            for before, marks, rest in _TOKENS
        ),
        (":/", _LOGIN),
        # RFC 7617, RFC 6750; with a digit, as "basic installation" is not a secret
        ("bearer basic", r"(\b(?i:bearer|basic)\s)(?=[^\s\d]{0,100}\d)[\w.~+/=-]{8,}"),
        ("=", _KEY_IN_QUERY),
        # lines of a Dockerfile, a C shell, a module
        ("ENV setenv", rf"(\b(?:ENV|setenv)[ \t(\"']+(?i:{_VARIABLE})[\"',]*[ \t]+)[^\s=][^\n]*"),
        ("token pass secret credential jwt authorization pw psw key auth aws_ PAT", rf"({_NAMED}){_VALUE}"),
        ("auth", r"(\"auth\\?\"\s{0,9}:\s{0,9}\\?\")(?=[^\"]{0,200}[A-Z\d=])[\w+/=.-]{8,}"),
    )
)
"""Each rule has marks, of which every text that it changes contains one (small letters stand for both cases), and a
pattern: what it matches after group 1 is hidden."""
_compiled = cache(re.compile)
"""Compiles patterns on demand: every command imports this module, few meet a secret."""


def is_secret_name(name: str) -> bool:
    """Return whether a variable of this name holds a secret, judged by common names."""
    return _compiled(_VARIABLE, re.IGNORECASE).fullmatch(name) is not None


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without its secrets; what engines and launchers read stays."""
    return {name: text for name, text in environment.items() if name.startswith(_ENGINES) or not is_secret_name(name)}


def has_login(text: str) -> bool:
    """Return whether a text contains a URL with a login."""
    return _compiled(_LOGIN).search(text) is not None


def has_key(address: str) -> bool:
    """Return whether the query of a URL grants access to what it names, as in signed URLs of stores."""
    return _compiled(_KEY_IN_QUERY).search(address) is not None


def known_secrets(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secrets of an environment, those of proxies and of engines too, as texts to be hidden; not short ones,
    which occur in other words, and not paths of existing files: SSH_ASKPASS names a program.
    """
    from pathlib import Path  # too slow for --help
    from urllib.parse import quote

    found = {
        value
        for name, value in environment.items()
        if is_secret_name(name) and not (value.startswith("/") and Path(value).exists())
    }
    for login in filter(None, map(_compiled(_LOGIN).search, environment.values())):
        found |= {login[2], login[2].partition(":")[2]}
    found = {text for text in found if len(text) >= _MIN_CHARS}
    escaped = {quote(text, safe="", errors="surrogateescape") for text in found}
    lower = {_compiled("%..").sub(lambda byte: byte[0].lower(), text) for text in escaped}
    return tuple(sorted(found | escaped | lower, key=len, reverse=True))


@cache
def secrets_here() -> tuple[str, ...]:
    """Return the secrets of this process's environment."""
    return known_secrets(os.environ)


def redact(text: str, known: Collection[str] = ()) -> str:
    """Return a text with its secrets replaced: those that are known, and what looks like one."""
    for secret in known:
        if len(secret) >= _SHORT_CHARS:
            text = text.replace(secret, HIDDEN)
        elif secret in text:  # within other words it is an ordinary word
            text = _compiled(rf"(?<!\w){re.escape(secret)}(?!\w)").sub(HIDDEN, text)
    text = _without_shapes(text)
    if "%3" in text:
        text = _compiled(r"[^\s\"'<>&=]++").sub(_without_escaped, text)
    return text


def _without_shapes(text: str) -> str:
    seen = text + text.casefold()
    for marks, pattern in _RULES:
        if any(map(seen.__contains__, marks)):  # millions of lines have none, and checking for these is cheap
            text = _compiled(pattern).sub(rf"\1{HIDDEN}", text)
    return text


def _without_escaped(found: re.Match[str]) -> str:
    from urllib.parse import quote, unquote

    plain = unquote(found[0], errors="surrogateescape") if "%3" in found[0] else ""
    text = _without_shapes(plain)
    return found[0] if text == plain else quote(text, safe="[]", errors="surrogateescape")
