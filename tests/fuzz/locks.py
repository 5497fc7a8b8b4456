"""Locks of the shipped catalogue, completed offline with invented digests; and modified locks."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import Any

import tomli_w

from lumiimg.resolve.lock import Lock, LockedLayer, locked_wheel
from lumiimg.resolve.request import Request

REQUESTS = (
    Request("rocm-6.4.4"),
    Request("rocm-6.2.4", ("pytorch",)),
    Request("rocm-6.4.4", ("rccl-tests", "osu")),
    Request("rocm-6.4.4", ("vllm",)),
    Request("rocm-6.4.4", ("julia", "netprobe")),
    Request("lumi-multitorch-u24r70", ("transformers",)),
)


def with_digests(lock: Lock) -> Lock:
    """Return a lock as `complete_lock` would leave it."""
    image = lock.bootstrap.image
    if lock.bootstrap.is_open and image is not None:
        digest = f"sha256:{_made_up(lock.bootstrap.origin)}"
        lock = replace(lock, bootstrap=replace(lock.bootstrap, image=replace(image, digest=digest)))
    return replace(
        lock, base=_layer_with_digests(lock.base), layers=tuple(map(_layer_with_digests, lock.layers)), resolved=True
    )


def _layer_with_digests(layer: LockedLayer) -> LockedLayer:
    sources = tuple(replace(one, sha256=one.sha256 or _made_up(one.location)) for one in layer.sources)
    wheels = []
    for pin in layer.pins:
        name, _, version = pin.partition("==")
        file = f"{name.partition('[')[0].replace('-', '_')}-{version}-py3-none-any.whl"
        wheels.append(locked_wheel(f"https://wheels.test/{file}", _made_up(file)))
    return replace(layer, sources=sources, wheels=tuple(wheels))


def _made_up(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def signed(data: bytes) -> bytes:
    """Return a lock with its digest replaced by that of its content."""
    head, border, body = data.partition(b"\n\n")
    line = b'digest = "sha256:%s"' % hashlib.sha256(body).hexdigest().encode()
    return re.sub(rb'(?m)^digest = "[^"]*"$', line, head, count=1) + border + body


def lock_of_document(document: dict[str, Any]) -> bytes:
    """Return the text of a lock with modified content and a matching digest."""
    head = {key: document[key] for key in ("format", "lumiimg", "digest")}
    body = {key: value for key, value in document.items() if key not in head}
    return signed(f"{tomli_w.dumps(head)}\n{tomli_w.dumps(body)}".encode())
