"""The steps of a Dockerfile without its secrets: so they are drafted, shown and passed on.

What is a secret, `lumiimg.secret` says: a variable that is called like one, a login in an address, a key of a known
shape. With it goes what is made of it: a variable with its value, a step that names it. Such a step is taken out whole,
and ends the build of the draft: without the secret it would do something else.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from lumiimg.definition.docker.instructions import split_words
from lumiimg.definition.docker.leftovers import NO_EFFECT
from lumiimg.definition.docker.steps import BuildPath, DockerStep, declared, variables
from lumiimg.secret import HIDDEN, has_key, has_secret, hidden, is_secret_name, known_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lumiimg.definition.docker.substitution import Value

_SET = frozenset({"ARG", "ENV"})
_ASSIGNED = re.compile(r"(?<!\w)([A-Za-z_]\w*)=[\"']?[^\s\"';&|$`=]")
"""NAME=value, where the value is written out."""
_KNOWN_LIMIT = 100
"""Values that are looked for elsewhere, so that no file is slow."""
_OPTIONS = frozenset({"auth", "key", "pat"})
"""Of many programs: `sort --key=2`."""
_TELLING = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])")
"""A password without a digit, `postgres`, stands in other steps as a word."""
_VARIABLE_REMEDY = "give it to the job that runs the image, as a variable there"
_STEP_REMEDY = (
    "a layer keeps none: fetch what needs it before the build, and give it as a file or a source of the layer"
)


def without_secrets(path: BuildPath) -> BuildPath:
    """Return the way with what holds a secret taken out; `DockerStep.withheld` says of what."""
    steps, secret = _judged(path.steps, path.dockerfile.escape)
    needed, _ = _judged(path.needed_steps, path.dockerfile.escape)
    return replace(
        path,
        steps=steps,
        needed_steps=needed,
        arguments=tuple(declared(steps)),
        environment={name: value for name, value in path.environment.items() if name not in secret},
    )


def _judged(steps: Sequence[DockerStep], escape: str) -> tuple[tuple[DockerStep, ...], set[str]]:
    """Return the steps, and the variables that hold a secret behind the last."""
    judge = _Judge(steps, escape)
    return tuple(map(judge.step, steps)), judge.named


class _Judge:
    def __init__(self, steps: Iterable[DockerStep], escape: str) -> None:
        self.named: set[str] = set()
        """Variables that hold a secret at this place."""
        self._escape = escape
        pairs = [pair for step in steps if step.keyword in _SET for pair in step.values]
        known = (word for name, value in pairs for word in known_secrets({name: _written(value)}))
        self._known = tuple(islice((word for word in known if _TELLING.match(word)), _KNOWN_LIMIT))
        """What they hold, wherever it stands."""
        self._behind = {value[0].name for name, value in pairs if value and len(value) == 1 and is_secret_name(name)}
        """Arguments that are nothing but the value of one."""

    def step(self, step: DockerStep) -> DockerStep:
        if step.keyword in _SET:
            return self._setting(step)
        why = self._why(step)
        if why is None:
            return step
        instruction = replace(step.instruction, pieces=(HIDDEN,), flags=(), heredocs=(), words=None, trigger=None)
        what = f"{why}; {_STEP_REMEDY}"
        return replace(step, instruction=instruction, values=(), reading="", sources=(), contents=(), withheld=what)

    def _why(self, step: DockerStep) -> str | None:
        instruction = step.instruction.trigger or step.instruction
        texts = [
            instruction.text,
            " ".join(instruction.words or ()),
            " ".join(step.shell),
            *(value for _, value in instruction.flags),
        ]
        texts += [heredoc.content for heredoc in instruction.heredocs]
        read = [step.reading, *map(_written, (*(value for _, value in step.values), *step.contents))]
        if used := sorted(set().union(*map(variables, texts)) & self.named):
            return f"uses {', '.join(used)}, left out as a secret"
        if any(map(self._is_secret, (*texts, *read))):
            return "holds a secret"
        if step.keyword == "ADD" and any(map(has_key, read)):
            return "holds a key"
        # of what is a comment only, no more is lost by a stricter look
        if step.keyword in NO_EFFECT and any(hidden(text) != text for text in texts):
            return "holds a secret"
        first = re.split(r"[\s=]", instruction.text, maxsplit=1)[0]
        return "holds a secret" if instruction.keyword in _SET and is_secret_name(first) else None

    def _setting(self, step: DockerStep) -> DockerStep:
        words = split_words(step.instruction.text, self._escape)
        if len(step.values) == 1:  # `ENV NAME value` too
            words = [step.instruction.text]
        left = {
            name
            for (name, value), word in zip(step.values, words, strict=True)
            if self._is_left_out(name, value, variables(word))
        }
        self.named = (self.named - {name for name, _ in step.values}) | left
        if not left:
            return step
        shown = (
            f"{name}={HIDDEN}" if name in left else word for (name, _), word in zip(step.values, words, strict=True)
        )
        return replace(
            step,
            instruction=replace(step.instruction, pieces=(" ".join(shown),)),
            values=tuple(pair for pair in step.values if pair[0] not in left),
            withheld=f"{', '.join(sorted(left))}, left out as a secret, by name or value; {_VARIABLE_REMEDY}",
        )

    def _is_left_out(self, name: str, value: Value | None, uses: set[str]) -> bool:
        text = _written(value)
        if not text:
            return False
        is_named = is_secret_name(name) or name in self._behind
        return is_named or not uses.isdisjoint(self.named) or self._is_secret(text)

    def _is_secret(self, text: str) -> bool:
        return (
            has_secret(text)
            or any(word in text for word in self._known)
            or any(is_secret_name(name) and name not in _OPTIONS for name in _ASSIGNED.findall(text))
        )


def _written(value: Value | None) -> str:
    """Return what of a value stands in the file: of the base's variables there is only the name."""
    return "".join(piece.text for piece in value or ())
