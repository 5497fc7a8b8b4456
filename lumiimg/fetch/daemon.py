"""An image of a Docker or Podman engine on this machine, as a base."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

from lumiimg.core.errors import FailedError, MissingHereError, one_line
from lumiimg.engine.workspace import written_by_rename
from lumiimg.fetch.reference import DAEMON_SCHEME
from lumiimg.fetch.registry import LAYER_LIMIT_BYTES

_TIMEOUT_S = 600
_ID = re.compile(r"sha256:([0-9a-f]{64})")
_API = "1.40"
"""Of Docker 19.03 and of Podman; naming one keeps the client from asking before it can be closed."""


def save_from_daemon(base: str, folder: Path, on_line: Callable[[str], None]) -> Path:
    """Return an image of the engine as a docker archive in `folder`, saved there once by its id.

    Raises MissingHereError if there is no engine to ask, FailedError if it does not have the image.
    """
    try:
        import docker  # an extra, and 200 ms
        from docker.errors import DockerException, ImageNotFound
        from requests import RequestException
    except ImportError as error:
        what = "asking a Docker engine needs the package docker"
        raise MissingHereError(what, hint="pip install 'lumiimg[docker]'") from error
    name = base.removeprefix(DAEMON_SCHEME)
    try:
        with contextlib.closing(docker.from_env(version=_API, timeout=_TIMEOUT_S)) as client:
            client.api.auth = lambda request: request  # requests would add a login of ~/.netrc, without TLS too
            image = client.images.get(name)
            if (found := _ID.fullmatch(str(image.id))) is None:  # it becomes the name of a file
                raise FailedError("the engine's name for it is not a sha256 digest", where=base)
            target = folder / f"{found[1]}.tar"
            if target.is_file():
                return target
            on_line(f"saving {name} from the engine")
            folder.mkdir(parents=True, exist_ok=True)
            with written_by_rename(target) as partial, partial.open("wb") as file:
                for chunk in image.save(named=True):
                    if file.tell() + len(chunk) > LAYER_LIMIT_BYTES:
                        raise FailedError(f"is larger than {LAYER_LIMIT_BYTES} bytes", where=base)
                    file.write(chunk)
            return target
    except ImageNotFound as error:
        raise FailedError("the engine does not have it", where=base, hint=f"docker pull {name}") from error
    except (DockerException, RequestException) as error:
        raise MissingHereError(
            f"no Docker engine answers: {one_line(str(error))[:200]}",
            hint="start one, or `podman system service`, and name it: DOCKER_HOST=unix:///path",
        ) from error
