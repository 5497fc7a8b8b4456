"""The script that activates a virtual environment, as CPython's venv writes it: known by all that it does.

Those of uv and of older releases of virtualenv are not among them: Apptainer 1.4.5 cannot read them, and bash can.
Source: CPython Lib/venv/scripts/common/activate, Lib/venv/__init__.py (replace_variables).
"""

from __future__ import annotations

import hashlib
import re

from lumiimg.core.toml import package_toml

_KNOWN = frozenset[str](package_toml(__package__, "shell.toml")["activation"]["digests"])
_FOLDER = re.compile(r"""(?m)^[ \t]*(?:export )?VIRTUAL_ENV=(["']?)(/[\w./@+-]*)\1$""")
_COMMENT = re.compile(r"(?m)^[ \t]*(?:#.*)?\n|[ \t]+$")
_PROMPT = re.compile(r"""(?m)^([ \t]*(?:PS1|VIRTUAL_ENV_PROMPT)=)(?:["'(\w. @+-]|\)(?=[ "])|\$\{PS1:-\})*$""")
"""What only the prompt is made of."""
_BIN = re.compile(r'\$VIRTUAL_ENV/"?bin"?:\$PATH')


def activated(text: str) -> str | None:
    """Return the folder of the environment that a script activates; None for any other script."""
    folders = {found[2] for found in _FOLDER.finditer(text)}
    if len(folders) != 1:
        return None
    (folder,) = folders
    return folder if shape_digest(text) in _KNOWN else None


def shape_digest(text: str) -> str:
    """Return the digest of a script without comments, its prompt, and where it is."""
    cut = _COMMENT.sub("", text.replace("\r", "\0"))
    cut = _BIN.sub("$VIRTUAL_ENV/bin:$PATH", _PROMPT.sub(r"\1", cut))
    for _, folder in set(_FOLDER.findall(cut)):
        cut = re.sub(rf"""(VIRTUAL_ENV=|cygpath )(["']?){re.escape(folder)}\2""", r"\1", cut)
    return hashlib.sha256(cut.encode("utf-8", "surrogateescape")).hexdigest()[:20]
