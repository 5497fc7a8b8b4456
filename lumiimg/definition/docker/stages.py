"""What a Dockerfile does up to a stage: its base, the steps in order with their variables replaced, the environment.

Source: the Dockerfile reference: FROM, ARG (scope), ENV, ONBUILD, SHELL, WORKDIR. A stage that starts from another
one of the file goes on with its environment, arguments and folder; so the steps of all of them are printed as one list.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lumiimg.definition.docker.dockerfile import Dockerfile, Stage
from lumiimg.definition.docker.instructions import DockerfileError, Instruction, split_words
from lumiimg.definition.docker.steps import (
    PLATFORM,
    SHELL,
    BuildPath,
    DockerStep,
    check_given,
    declared,
    mount_of,
    variables,
)
from lumiimg.definition.docker.substitution import Budget, Piece, PieceKind, Scope, Value, expand, text_of

_SIMPLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")
_EXPANDED = {"ADD", "COPY", "USER", "WORKDIR"}


def follow(dockerfile: Dockerfile, target: str | None = None, given: Mapping[str, str] | None = None) -> BuildPath:
    """Return the way to the stage `target` (the last one), with `given` as the values of arguments.

    Raises DockerfileError, BadInputError's kind, for a stage that is not there and an argument that nothing declares.
    """
    given = given or {}
    check_given(dockerfile, given)
    stage = dockerfile.stages[-1] if target is None else dockerfile.numbered(target)
    if stage is None:
        names = ", ".join(stage.label for stage in dockerfile.stages[:30])
        raise DockerfileError(f"there is no stage {str(target)[:60]!r}", where=dockerfile.path, hint=f"known: {names}")
    return _Walk(dockerfile, given).path(stage)


@dataclass(slots=True)
class _State:
    """Where a stage has come to."""

    base: str | None
    scope: Scope
    shell: tuple[str, ...] = SHELL
    folder: Value = (Piece("/"),)
    steps: tuple[DockerStep, ...] = ()
    own: list[DockerStep] = field(default_factory=list)
    """Those of the last stage alone."""
    triggers: tuple[Instruction, ...] = ()
    """ONBUILD of the last stage alone: it is not handed on twice."""


class _Walk:
    def __init__(self, dockerfile: Dockerfile, given: Mapping[str, str]) -> None:
        self._file = dockerfile
        self._given = given
        self._done: dict[int, _State] = {}
        self._images: dict[int, str] = {}
        self._budget = Budget()
        self._global = Scope({k: (Piece(given.get(k, v)),) for k, v in PLATFORM.items()}, budget=self._budget)
        for instruction in dockerfile.arguments:
            for name, value in self._pairs(instruction, self._global):
                text = given.get(name, None if value is None else text_of(value))
                self._global.values[name] = None if text is None else (Piece(text),)

    def path(self, target: Stage) -> BuildPath:
        stages = self._chain(target)
        state = self.state(target)
        needed = self._needed(stages)
        environment = {name: state.scope.values[name] or () for name in sorted(state.scope.environment)}
        return BuildPath(
            dockerfile=self._file,
            stages=tuple(stages),
            base=state.base,
            platform=text_of(self._expand(stages[0].platform or "", self._global, stages[0])) or None,
            steps=state.steps,
            arguments=tuple(declared(state.steps)),
            environment=environment,
            decided=frozenset(state.scope.decided | self._choosing(stages)),
            needed=tuple(needed),
            needed_steps=tuple(step for stage in needed for step in self.state(stage).own),
        )

    def state(self, stage: Stage) -> _State:
        """Return where a stage ends; those that it starts from are done first, each once."""
        for link in self._chain(stage):
            if link.index not in self._done:
                self._done[link.index] = self._run(link)
        return self._done[stage.index]

    def _image(self, stage: Stage) -> str:
        if stage.index in self._images:
            return self._images[stage.index]
        image = text_of(self._expand(stage.image, self._global, stage))
        if not image:
            raise DockerfileError(
                f"FROM {stage.image[:80]} names nothing",
                where=self._file.where(stage.line),
                hint="an argument in it has no value: --arg NAME=VALUE",
            )
        self._images[stage.index] = image
        return image

    def _parent(self, stage: Stage) -> Stage | None:
        return self._file.stage(self._image(stage), before=stage.index)

    def _chain(self, stage: Stage) -> list[Stage]:
        chain = [stage]
        while (parent := self._parent(chain[-1])) is not None:
            chain.append(parent)
        return chain[::-1]

    def _choosing(self, stages: Sequence[Stage]) -> set[str]:
        """Return the arguments before the first FROM that an image of the way is made of."""
        found = set().union(*(variables(stage.image) for stage in stages))
        for instruction in reversed(self._file.arguments):
            for word in split_words(instruction.text, self._file.escape):
                name, _, default = word.partition("=")
                found |= variables(default) if name in found else set()
        return found

    def _run(self, stage: Stage) -> _State:
        parent = self._parent(stage)
        if parent is None:
            image = self._image(stage)
            is_scratch = image == "scratch"
            scope = Scope(has_base=not is_scratch, budget=self._budget)
            state = _State(None if is_scratch else image, scope)
            triggers: Sequence[Instruction] = ()
        else:
            before = self._done[parent.index]
            state = _State(before.base, before.scope.copy(), before.shell, before.folder, before.steps)
            triggers = before.triggers
        for instruction in (*triggers, *stage.instructions):
            state.own.append(self._step(stage, instruction, state))
        state.steps += tuple(state.own)
        return state

    def _step(self, stage: Stage, instruction: Instruction, state: _State) -> DockerStep:
        """Do one instruction: change the state as it says, and tell what it comes to."""
        values: list[tuple[str, Value | None]] = []
        keyword = instruction.keyword
        if keyword == "ARG":
            values = [
                (name, self._argument(name, value, state.scope))
                for name, value in self._pairs(instruction, state.scope)
            ]
        elif keyword == "ENV":
            # All of one ENV see what was before it.
            values = list(self._pairs(instruction, state.scope))
            for name, value in values:
                state.scope.values[name] = value or ()
                state.scope.environment.add(name)
        elif keyword == "ONBUILD" and instruction.trigger:
            state.triggers += (instruction.trigger,)
        elif keyword == "SHELL":
            if not instruction.words:
                raise DockerfileError(
                    "SHELL takes a JSON array",
                    where=self._file.where(instruction.line),
                    hint='SHELL ["/bin/bash", "-c"]',
                )
            state.shell = instruction.words
        elif keyword in _EXPANDED:
            values = [("", value) for value in self._expanded(instruction, state.scope)]
            if keyword == "WORKDIR" and values:
                state.folder = _joined(state.folder, values[0][1] or ())
                values = [("", state.folder)]
        return DockerStep(
            stage=stage.label,
            instruction=instruction,
            values=tuple(values),
            shell=state.shell,
            reading=self._reading(instruction, state.scope) if keyword == "RUN" else "",
            sources=tuple(self._sources(stage, instruction, state.scope)),
            contents=tuple(self._contents(instruction, state.scope)) if keyword in {"ADD", "COPY"} else (),
        )

    def _expand(self, text: str, scope: Scope, at: Stage | Instruction, *, keep_quotes: bool = False) -> Value:
        return expand(text, scope, self._file.where(at.line), escape=self._file.escape, keep_quotes=keep_quotes)

    def _pairs(self, instruction: Instruction, scope: Scope) -> list[tuple[str, Value | None]]:
        words = split_words(instruction.text, self._file.escape)
        where = self._file.where(instruction.line)
        if not words:
            raise DockerfileError("a quote has no end", where=where, hint="close it")
        if instruction.keyword == "ENV" and "=" not in words[0]:
            rest = instruction.text.split(maxsplit=1)[1:]
            if not rest:
                raise DockerfileError(f"ENV {words[0][:60]} has no value", where=where, hint="write ENV NAME=VALUE")
            return [(words[0], self._expand(rest[0], scope, instruction))]
        pairs: list[tuple[str, Value | None]] = []
        for word in words:
            name, equals, value = word.partition("=")
            if not name or (not equals and instruction.keyword == "ENV"):
                hint = f"write {instruction.keyword} NAME=VALUE"
                raise DockerfileError(f"{instruction.keyword} {word[:60]!r} is not NAME=VALUE", where=where, hint=hint)
            pairs.append((name, self._expand(value, scope, instruction) if equals else None))
        return pairs

    def _argument(self, name: str, default: Value | None, scope: Scope) -> Value | None:
        if name in scope.environment:
            return scope.values[name]  # a variable of ENV always wins
        text: str | None = None
        if name in self._given:
            text = self._given[name]
        elif default is not None:
            text = text_of(default)
        elif (outer := self._global.values.get(name)) is not None:
            text = text_of(outer)
        elif scope.values.get(name) is not None:
            return scope.values[name]
        scope.values[name] = None if text is None else (Piece(text, PieceKind.ARGUMENT, name),)
        return scope.values[name]

    def _expanded(self, instruction: Instruction, scope: Scope) -> list[Value]:
        if instruction.words is not None:
            return [self._expand(word, scope, instruction) for word in instruction.words]
        if instruction.keyword in {"ADD", "COPY"}:
            words = split_words(instruction.text, self._file.escape)
            if len(words) < 2:
                raise DockerfileError(
                    f"{instruction.keyword} needs what to copy and where to, without an open quote",
                    where=self._file.where(instruction.line),
                    hint="docker build also refuses it",
                )
            return [self._expand(word, scope, instruction) for word in words]
        return [self._expand(instruction.text, scope, instruction)]

    def _reading(self, instruction: Instruction, scope: Scope) -> str:
        def known(match: re.Match[str]) -> str:
            value = scope.values.get(match[1] or match[2])
            return match[0] if value is None else text_of(value)

        text = "\n".join([instruction.text, *(heredoc.content for heredoc in instruction.heredocs)])
        reading = _SIMPLE.sub(known, text)
        self._budget.left -= max(0, len(reading) - len(text))
        if self._budget.left < 0:
            raise DockerfileError(
                "its values are too long in total", where=self._file.where(instruction.line), hint="shorten them"
            )
        return reading

    def _contents(self, instruction: Instruction, scope: Scope) -> Iterator[Value]:
        for heredoc in instruction.heredocs:
            text = heredoc.content
            if heredoc.strips_tabs:
                text = re.sub(r"^\t+", "", text, flags=re.MULTILINE)
            yield (Piece(text),) if heredoc.is_literal else self._expand(text, scope, instruction, keep_quotes=True)

    def _sources(self, stage: Stage, instruction: Instruction, scope: Scope) -> Iterator[Stage | str]:
        for name in _taken_from(instruction):
            known = text_of(self._expand(name, scope if instruction.keyword == "RUN" else self._global, instruction))
            yield self._file.numbered(known, before=stage.index) or known

    def _needed(self, stages: Sequence[Stage]) -> list[Stage]:
        seen = {stage.index for stage in stages}
        found: list[Stage] = []
        waiting = [step for stage in stages for step in self.state(stage).own]
        while waiting:
            for source in waiting.pop().sources:
                if isinstance(source, Stage):
                    for link in self._chain(source):
                        if link.index not in seen:
                            seen.add(link.index)
                            found.append(link)
                            waiting += self.state(link).own
        return sorted(found, key=lambda stage: stage.index)


def _joined(folder: Value, path: Value) -> Value:
    text = text_of(path)
    if text.startswith("/") or any(piece.kind is not PieceKind.TEXT for piece in path[:1]):
        return path
    if all(piece.kind is PieceKind.TEXT for piece in (*folder, *path)):
        return (Piece(posixpath.normpath(posixpath.join(text_of(folder), text))),)
    return (*folder, Piece("/"), *path)


def _taken_from(instruction: Instruction) -> Iterator[str]:
    for name, value in instruction.flags:
        if name == "from" and instruction.keyword == "COPY":
            yield value
        elif name == "mount" and (source := mount_of(value).get("from")):
            yield source
