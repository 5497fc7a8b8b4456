"""Secrets in the forms in which people write them, each made of two words that occur nowhere else."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from urllib.parse import quote

WORDS = ("Canary", "Yranac")
MARKS = ("", "@", "/", ":", "?", "@/:", "//", "%2F", "=", "+", "!", "~", "#")
"""Separators of the two words of a password."""
DIGEST = "sha256:" + "0123456789abcdef" * 4
LOGINS = (
    "https://me:{}@host.test/x-6.2.4.sif",
    "HTTPS:/me:{}@host.test/x-6.2.4.sif",
    "/here/https:/me:{}@host.test",
    "https://me@site.test:{}@host.test/x",
    "https://:{}@host.test",
    f"docker://me:{{}}@host.test/x@{DIGEST}",
    "git+https://me:{}@host.test/x.git",
)
VARIABLES = (
    "SSHPASS",
    "DB_PASS",
    "PGPASSWORD",
    "MYSQL_PWD",
    "HF_TOKEN",
    "HF_TOKEN_2",
    "WANDB_API_KEY",
    "X_PSW",
    "SINGULARITYENV_A_PW",
    "PAT",
    "APPTAINER_DOCKER_PASSWORD",
)
QUERY = ("pass", "pwd", "pw", "code", "password", "token", "sig", "key", "apikey", "access_token", "X-Amz-Signature")
IN_ONE_WORD = ("userPass", "dbPwd", "S3_KEY2TOKEN", "PMI_SHARED_SECRET")
NAMED = ("db_pass", "token", "client-secret", "secretAccessKey", "AccountKey", "api-key", "jwt", "ssh.passphrase")

SHAPES = (
    *(
        "hf_",
        "api_org_",
        "GR1348941",
        "xapp-",
        "xoxd-",
        "dckr_oat_",
        "github_pat_",
        "glpat-",
        "glptt-",
        "gldt-",
        "glrt-",
        "hvs.",
        "hvb.",
        "AIza",
        "ya29.",
        "GOCSPX-",
        "npm_",
    ),
    *("https://hooks.slack.com/services/T0/B0/", "https://discord.test/api/webhooks/1234567890123/"),
)
"""Prefixes of keys."""


def secrets() -> Iterator[str]:
    """Yield texts that contain a secret made of WORDS."""
    for form, mark in itertools.product(LOGINS, MARKS):
        yield form.format(mark.join(WORDS))
    for mark in MARKS:
        word = mark.join(WORDS)
        yield from (f"{name}={word}" for name in VARIABLES)
        yield from (f"{name}{index}={word}" for name in VARIABLES for index in ("[0]", "['x']", "+", "[0]+"))
        yield from (f"env[{name}]={word}" for name in VARIABLES)
        yield from (f'os.environ["{name}"]="{word}"' for name in VARIABLES)
        yield from (f"export {name}='{word} {word}'" for name in VARIABLES)
        yield from (repr(f"\"export {name}='{word} {word}'\"") for name in VARIABLES)
        yield from (f"a=1;{name}={word}" for name in VARIABLES)
        yield from (f"{before}{name}{sign}{word}" for name in VARIABLES for before, sign in (("#", " = "), ("", ":=")))
        yield from (f"ENV {name} {word}" for name in VARIABLES)
        yield from (f"setenv {name} '{word} {word}'" for name in VARIABLES)
        yield from (f'setenv("{name}", "{word}")' for name in VARIABLES)
        yield f"next=https%3A%2F%2Fme%3A{quote(word, safe='')}%40host.test%2Fx"
        yield from (f"next=https%3A%2F%2Fhost.test%3Fv%3D6.2.4%26{name}%3D{quote(word, safe='')}" for name in QUERY)
        yield from (f'"{name}": "{word}"' for name in (*NAMED, "pass", "pwd"))
        yield from (f'"{name}": "{word}"' for name in IN_ONE_WORD)
        yield from (f"{name} = {word}" for name in NAMED)
        yield from (f"run --{name} {word}" for name in (*NAMED, "pass"))
        yield from (f'["run", "--{name}", "{word}"]' for name in NAMED)
        yield from (f"{kind} {word}" for kind in ("Authorization:", "authorization: token", "Authorization: Bearer"))
        if not set(mark) & {"#"}:
            yield from (f"https://host.test/x?v=6.2.4&{name}={word}" for name in QUERY)
            yield from (f"https://host.test/x?v=6.2.4&amp;{name}={word}" for name in QUERY)
    body = "\n".join(WORDS)
    yield f"-----BEGIN OPENSSH PRIVATE KEY-----\n{body}\n-----END OPENSSH PRIVATE KEY-----"
    for key in ("RSA PRIVATE KEY", "PGP PRIVATE KEY BLOCK"):
        yield f"-----BEGIN {key}-----\nComment: a-b\n\n{body}\n-----END {key}-----"
        yield f"-----BEGIN {key}-----\n{''.join(WORDS) * 3}\n{''.join(WORDS) * 3}"
    yield from (f"{name}=-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----" for name in VARIABLES)
    yield from (f"{shape}{''.join(WORDS) * 3}" for shape in SHAPES)
    yield f'{{"auths": {{"host.test": {{"auth": "{"".join(WORDS)}="}}}}}}'


SECRETS = tuple(secrets())


def leaked(text: str) -> bool:
    return any(word in text for word in WORDS)
