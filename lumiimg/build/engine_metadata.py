"""What an engine writes into an image, written here: equal to what Apptainer 1.4.5 writes, file by file.

    base   begin_base      folders, links and scripts of its own, what the config of an OCI image says
           (%post)
           write_facts     labels, the definition, environment, scripts
    layer  begin_layer     what of that its base does not have
           (%post)
           write_facts

Sources: apptainer 1.4.5, `internal/pkg/build/sources/base_environment.go`, `conveyorPacker_oci.go`, `metadata.go` and
`apps/apps.go`; its texts are in `apptainer/`, with their licence. tests/engine/test_metadata.py holds all of it against
the engine itself, and lists what is otherwise.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import stat
from contextlib import contextmanager
from importlib import resources
from typing import TYPE_CHECKING

from lumiimg.build.go_text import go_json, go_quote, whole
from lumiimg.build.layer_root import OWN, LayerRoot
from lumiimg.build.safe_fs import is_opaque, mode_of, new_file, read_file
from lumiimg.definition.engine_reader import EngineDefinition, read_labels
from lumiimg.errors import FailedError
from lumiimg.files import EPOCH
from lumiimg.image import FileKind, RootFileSystem
from lumiimg.image.oci.document import typed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from importlib.resources.abc import Traversable
    from pathlib import Path


VERSION = "1.4.5"
"""Of the Apptainer that writes the same; labels name it."""
LABELS = f"{OWN}/labels.json"
ENVIRONMENT = f"{OWN}/env/90-environment.sh"
POST_LABELS = "/.build.labels"
"""Where a script puts labels while it runs: APPTAINER_LABELS is set to it."""
_RUNSCRIPT = f"{OWN}/runscript"
_HELP = f"{OWN}/runscript.help"
_DEFINITION, _HISTORY = f"{OWN}/Singularity", f"{OWN}/bootstrap_history"
_FOLDERS = (f"{OWN}/libs", f"{OWN}/actions", f"{OWN}/env")
_MOUNT_POINTS = ("/dev", "/proc", "/root", "/var/tmp", "/tmp", "/etc", "/sys", "/home")  # noqa: S108 - of the image
_LINKS = {
    "/singularity": "runscript",
    "/.run": "actions/run",
    "/.exec": "actions/exec",
    "/.test": "actions/test",
    "/.shell": "actions/shell",
    "/environment": "env/90-environment.sh",
}
_EMPTY = ("/etc/hosts", "/etc/resolv.conf")
"""An engine mounts the machine's over them."""
_TEXTS = (
    *(f"actions/{name}" for name in ("exec", "run", "shell", "start", "test")),
    *(f"env/{name}.sh" for name in ("01-base", "90-environment", "95-apps", "99-base", "99-runtimevars")),
    "runscript",
    "startscript",
)
_VARIABLE = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_IF = re.compile(
    r"\s*\{\{- if \.Prepend(\w+) \}\}(.*?)(?:\s*\{\{- else if \.Prepend(\w+) \}\}(.*?))?\s*\{\{- end \}\}", re.DOTALL
)
_PREPEND = re.compile(r"\{\{ \.Prepend(\w+) \}\}")
_SCHEMA = "org.label-schema"
_DATE = f"{_SCHEMA}.build-date"
_LIMIT_BYTES = 8 << 20


def begin_base(root: LayerRoot, image_config: Mapping[str, object] | None = None) -> None:
    """Write what comes before the script of a base; `image_config` is `config` of an OCI image's config, else None.

    Raises ImageError for a config of other types than it is to have.
    """
    _begin(root, replaces=True)
    if image_config is None:
        _write(root, _RUNSCRIPT, "#!/bin/sh\n", 0o755)
        return
    entrypoint, command, variables = (_texts(image_config, name) for name in ("Entrypoint", "Cmd", "Env"))
    _write(root, _RUNSCRIPT, _oci_runscript(entrypoint, command), 0o755)
    _write(root, f"{OWN}/env/10-docker2singularity.sh", "#!/bin/sh\n" + "".join(map(_export, variables)), 0o755)
    labels = image_config.get("Labels")
    known = {name: typed(value, str, name, "Labels") for name, value in typed(labels, dict, "Labels", "config").items()}
    _write(root, LABELS, _labels_json(known) if labels is not None else "null", _mode(root, LABELS, 0o644))


def begin_layer(root: LayerRoot) -> None:
    """Write what comes before the script of a layer, or of a base that is an image already: what it does not have."""
    _begin(root, replaces=False)


@contextmanager
def kept(layers: Sequence[str], root: Path, below: RootFileSystem) -> Iterator[None]:
    """Have a script, which is run meanwhile, leave an image its environment, in a root folder or in an overlay's upper.

    Raises FailedError where it took that away: by the engine alone such a build fails, or makes an image that has none.
    """
    had = below.is_file(LABELS) and below.resolve(LABELS) == LABELS
    was_here = mode_of(root, LABELS) is not None
    yield
    if not had:
        return
    above, labels = mode_of(root, OWN), mode_of(root, LABELS)
    if labels is None and not was_here:  # an overlay shows the folder of the layers below
        is_there = above is None or (stat.S_ISDIR(above) and not is_opaque(root / OWN.removeprefix("/")))
    else:
        is_there = labels is not None and stat.S_ISREG(labels)
    if not is_there:
        raise FailedError(
            f"layer {', '.join(layers)}: its script takes {LABELS} away, or the folder",
            hint="engines keep the environment of all layers there: the script must keep files that it did not create",
        )


def write_facts(root: LayerRoot, definition: EngineDefinition) -> None:
    """Write what comes after the script: what the definition says of the image. Raises FailedError."""
    sections = definition.sections
    if "help" in sections and root.stat(_HELP) is None:
        _write(root, _HELP, f"{sections['help'].text}\n", 0o644)
    _write(root, LABELS, _labels_json(_labels(root, definition)), _mode(root, LABELS, 0o644))
    if root.stat(POST_LABELS) is not None:
        root.remove(POST_LABELS)
    _write_definition(root, definition.text)
    if "environment" in sections:
        known = root.read(ENVIRONMENT)
        before = b"#!/bin/sh\n" if known is None else known
        root.write(
            ENVIRONMENT, before + f"\n{sections['environment'].text}\n".encode(), _mode(root, ENVIRONMENT, 0o755)
        )
    for name in ("startscript", "runscript", "test"):
        if name in sections:
            path = f"{OWN}/{name}"
            _write(root, path, sections[name].script, _mode(root, path, 0o755))


def add_label(root: LayerRoot, name: str, value: str) -> None:
    """Give an image one more label. Raises FailedError for labels that no engine has written."""
    _write(root, LABELS, _labels_json({**_known_labels(root), name: value}), _mode(root, LABELS, 0o644))


def date_labels(root: Path) -> None:
    """Have labels that an engine has written say the date that everything in the image has.

    The same build is then the same bytes. Raises FailedError for labels that no engine has written, and for a link in
    their place: what the engine wrote is then where the link leads, and not in the image.
    """
    try:
        labels = json.loads(read_file(root, LABELS, _LIMIT_BYTES))
    except (ValueError, RecursionError) as error:
        raise FailedError("is not JSON", where=LABELS) from error
    if not isinstance(labels, dict):
        raise FailedError("is not a JSON object", where=LABELS)
    labels[_DATE] = build_date()
    with new_file(root, LABELS, stat.S_IMODE(mode_of(root, LABELS) or 0o644)) as file:
        file.write(_labels_json(labels).encode())


def build_date() -> str:
    """Return the date that everything in an image has, as engines write one into the labels."""
    date = dt.datetime.fromtimestamp(EPOCH, tz=dt.UTC)
    return date.strftime("%A_%d_%B_%Y_%H:%M:%S_UTC")


def _begin(root: LayerRoot, *, replaces: bool) -> None:
    root.open_to_owner()
    for path in (*_FOLDERS, *_MOUNT_POINTS):
        place = path if path.startswith(OWN) else root.place(path)
        if place is not None:
            root.make_folder(place)
    for path, text in _LINKS.items():
        root.link(path, f"{OWN.removeprefix('/')}/{text}")
    for path in _EMPTY:
        place = root.place(path)
        if place is not None:
            _make_file(root, place, b"", 0o644, replaces=replaces)
    for name in _TEXTS:
        _make_file(root, f"{OWN}/{name}", _text(name).read_bytes(), 0o755, replaces=replaces)
    _write(root, f"{OWN}/env/94-appsbase.sh", "", _mode(root, f"{OWN}/env/94-appsbase.sh", 0o755))


def _make_file(root: LayerRoot, path: str, content: bytes, permissions: int, *, replaces: bool) -> None:
    known = None if replaces else root.read(path)
    root.write(path, content if known is None else known, permissions)


def _text(name: str) -> Traversable:
    return resources.files(__package__).joinpath("apptainer").joinpath(*name.split("/"))


def _mode(root: LayerRoot, path: str, default: int) -> int:
    """Return the permissions that a file has: what is written again keeps them."""
    seen = root.stat(path)
    return seen.permissions if seen and seen.kind is FileKind.FILE else default


def _write(root: LayerRoot, path: str, text: str, permissions: int) -> None:
    root.write(path, whole(text).encode(), permissions)


def _texts(config: Mapping[str, object], name: str) -> list[str]:
    return [typed(item, str, name, "config") for item in typed(config.get(name), list, name, "config")]


def _oci_runscript(entrypoint: Sequence[str], command: Sequence[str]) -> str:
    """Return the script that runs what an OCI image says, by its shell or as it is (SINGULARITY_NO_EVAL)."""
    prepends = {
        name: "".join(f"set -- '{_in_single_quotes(word)}' \"$@\"\n" for word in reversed(words))
        for name, words in (("Entrypoint", entrypoint), ("Cmd", command))
    }

    def chosen(found: re.Match[str]) -> str:
        name, text, other, otherwise = found.groups()
        return text if prepends[name] else otherwise if other and prepends[other] else ""

    template = _IF.sub(chosen, _text("runscript.tmpl").read_text(encoding="utf-8"))
    quoted = {
        name: _in_single_quotes(" ".join(f'"{_in_quotes(word)}"' for word in words))
        for name, words in (("OCI_ENTRYPOINT", entrypoint), ("OCI_CMD", command))
    }
    head = "".join(f"{name}='{words}'\n" for name, words in quoted.items())
    return "#!/bin/sh\n" + head + _PREPEND.sub(lambda found: prepends[found[1]], template)


def _in_quotes(text: str) -> str:
    for character in '\\"`$':
        text = text.replace(character, f"\\{character}")
    return text


def _in_single_quotes(text: str) -> str:
    return text.replace("'", "'\"'\"'")


def _export(variable: str) -> str:
    """Return the line that sets a variable of an OCI image, unless whoever runs it has; none for no name of one."""
    name, equals, value = variable.partition("=")
    if not _VARIABLE.fullmatch(name):
        return ""
    if not equals:
        return f'export {name}="${{{name}:-}}"\n'
    word = go_quote(_in_quotes(value))
    return f"export {name}={word}\n" if name == "PATH" else f'export {name}="${{{name}:-{word}}}"\n'


def _labels(root: LayerRoot, definition: EngineDefinition) -> dict[str, str]:
    """Return all labels: a definition replaces none that is there."""
    labels = _known_labels(root)
    if (added := root.read(POST_LABELS)) is not None:
        labels |= read_labels(added.decode("utf-8", "replace"))
    labels |= {
        f"{_SCHEMA}.schema-version": "1.0",
        _DATE: build_date(),
        f"{_SCHEMA}.usage.apptainer.version": VERSION,
        f"{_SCHEMA}.build-arch": "amd64",
    }
    if "help" in definition.sections:
        labels |= dict.fromkeys((f"{_SCHEMA}.usage", f"{_SCHEMA}.usage.apptainer.runscript.help"), _HELP)
    labels |= {f"{_SCHEMA}.usage.singularity.deffile.{key}": value for key, value in definition.header.items()}
    if "labels" in definition.sections:
        labels = read_labels(definition.sections["labels"].text) | labels
    return labels


def _known_labels(root: LayerRoot) -> dict[str, str]:
    content = root.read(LABELS)
    try:
        labels = json.loads(content) if content is not None else None
    except (ValueError, RecursionError) as error:
        raise FailedError("is not JSON", where=LABELS) from error
    if labels is None:
        return {}
    if not isinstance(labels, dict):
        raise FailedError("is not a JSON object", where=LABELS)
    for name, value in labels.items():
        if not isinstance(value, str | None):
            raise FailedError(f"the label {name[:40]!r} does not hold text", where=LABELS)
    return {name: value or "" for name, value in labels.items()}


def _labels_json(labels: Mapping[str, str]) -> str:
    return go_json(dict(sorted(labels.items())), indent="\t")


def _write_definition(root: LayerRoot, text: str) -> None:
    """Write the definition; the one before it goes to the history."""
    if (before := root.read(_DEFINITION)) is not None:
        number = len(root.names(_HISTORY))
        root.write(f"{_HISTORY}/Apptainer{number}", before, _mode(root, _DEFINITION, 0o644))
    # what was there has been moved away
    _write(root, _DEFINITION, text, 0o644)
