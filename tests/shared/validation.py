"""Validation of all JSON of lumiimg that tests see; within this process, by a hook (conftest.py)."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NoReturn

import pytest
from jsonschema import Draft202012Validator

from lumiimg.report import json_output
from lumiimg.report.json_output import KINDS
from lumiimg.report.schema import schema_of

WRITERS = {
    "lumiimg.host.snapshot.snapshot_text": "host",
    "lumiimg.resolve.lock_file.to_record": "plan",
    "lumiimg.host.image_manifest.to_text": "bind-manifest",
}
"""Functions that write a document to a file instead of printing it, and its schema."""


def validated(text: str | bytes, name: str) -> Any:
    """Return the content of a JSON text; fail unless it is strict JSON and matches the schema."""
    data = strictly_read(text)
    if error := fault(data, name):
        pytest.fail(f"no {name}: {error}")
    return data


def validated_output(command: str, text: str) -> Any:
    """Return the content that `lumiimg COMMAND … --json` printed; fail unless it matches a schema of this command."""
    data = strictly_read(text)
    kinds = [name for name in KINDS if f"lumiimg {command} " in whole(name)["title"]]
    faults = {name: fault(data, name) for name in kinds}
    if all(faults.values()):
        pytest.fail(f"lumiimg {command} --json is of no schema: {faults or 'there is none'}")
    return data


def strictly_read(text: str | bytes) -> Any:
    if isinstance(text, str):
        text.encode()
    return json.loads(text, parse_constant=_refuse, object_pairs_hook=_without_repetition)


def fault(data: object, name: str) -> str | None:
    """Return the first violation of a schema, or None."""
    error = next(validator(name).iter_errors(data), None)
    return error and f"{error.json_path}: {error.message[:500]}"


@cache
def whole(name: str) -> dict[str, Any]:
    return schema_of(name)


@cache
def validator(name: str) -> Draft202012Validator:
    Draft202012Validator.check_schema(whole(name))
    return Draft202012Validator(whole(name))


@contextmanager
def outputs_validated() -> Iterator[None]:
    """Validate all JSON that is printed or written in this process."""
    json_text = json_output.json_text

    def checked_output(name: str, value: object) -> str:
        text = json_text(name, value)
        validated(text, name)
        return text

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_output, "json_text", checked_output)
        for path, name in WRITERS.items():
            module, _, function = path.rpartition(".")
            patch.setattr(path, _checked(getattr(importlib.import_module(module), function), name))
        yield


def _checked(write: Callable[..., str | bytes], name: str) -> Callable[..., str | bytes]:
    def checked(*values: Any) -> str | bytes:
        text = write(*values)
        validated(text, name)
        return text

    return checked


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    assert len(data) == len(pairs), f"a key is there twice: {[key for key, _ in pairs]}"
    return data
