"""The steps of a Dockerfile from its base image to a stage, without its secrets.

Source: the Dockerfile reference: FROM, ARG, ENV. A stage that starts from another one of the file goes on with its
variables, so the steps of all of them are one list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from lumiimg.definition.docker.dockerfile import (
    NAMED,
    ArgumentText,
    Dockerfile,
    DockerfileError,
    Instruction,
    Reference,
    Stage,
    Value,
    parse_value,
    split_words,
    text_of,
    variables,
)
from lumiimg.secret import HIDDEN, hidden, is_secret_name

TOTAL_LIMIT = 8 * 1024 * 1024
"""Characters of all values that a file comes to: each could be made of those before it."""
_SYSTEM = {"PLATFORM": "linux/amd64", "OS": "linux", "ARCH": "amd64", "VARIANT": ""}
PLATFORM = {f"{machine}{key}": value for machine in ("TARGET", "BUILD") for key, value in _SYSTEM.items()}
"""What BuildKit defines before the first FROM; the machines of the sites are all of this kind."""


class Setting(NamedTuple):
    """A variable of ARG or ENV."""

    name: str
    written: Value | None
    """As it is in the file; None for an ARG that has no value, or that of an ENV."""
    value: Value | None
    """With what is known replaced."""


@dataclass(frozen=True, slots=True)
class DockerStep(Instruction):
    """An instruction in the order of the build."""

    stage: str = ""
    """Name, or number, of where it stands."""
    index: int = 0
    """Number of that."""
    settings: tuple[Setting, ...] = ()
    reading: str = ""
    """Of RUN and ONBUILD: with what is known in the place of $A and ${A}, to be searched; never to be run."""
    sources: tuple[Stage | str, ...] = ()
    """Stages of the file, or images, that files are taken from."""
    withheld: str = ""
    """Why the step, or some of its variables, is taken out: it holds a secret."""


@dataclass(frozen=True, slots=True)
class Declared:
    """An argument, with the value that it has where it is first declared."""

    name: str
    """Of it."""
    value: Value | None
    line: int
    """Counted from 1."""
    used: tuple[int, ...]
    """Lines that use it."""

    @property
    def text(self) -> str | None:
        """Null: without a value."""
        return None if self.value is None else text_of(self.value)


@dataclass(frozen=True, slots=True)
class BuildPath:
    """The way from a base image to a stage."""

    dockerfile: Dockerfile
    stages: tuple[Stage, ...]
    """From the one that starts at the base to the target."""
    base: str | None
    """The image, its variables replaced; None for `scratch`."""
    platform: str | None
    """That FROM asks for; null where it asks for none."""
    steps: tuple[DockerStep, ...]
    """From the base to the target."""
    arguments: tuple[Declared, ...]
    """In the order of the file."""
    environment: Mapping[str, Value]
    decided: frozenset[str]
    """Arguments that an image of FROM is made of."""
    needed: tuple[Stage, ...]
    """Other stages that files are taken from."""
    seen: tuple[DockerStep, ...]
    """The steps of all stages up to the target."""

    @property
    def target(self) -> str:
        """Stage that was followed."""
        return self.stages[-1].label

    @property
    def variables(self) -> dict[str, str]:
        """That the image would have."""
        return {name: text_of(value) for name, value in self.environment.items()}


@dataclass(frozen=True, slots=True)
class _State:
    """What is known at one place of a stage; a stage that starts from another one goes on with what that has."""

    image: str
    chain: tuple[Stage, ...]
    steps: tuple[DockerStep, ...] = ()
    values: dict[str, Value] = field(default_factory=dict)
    environment: dict[str, Value] = field(default_factory=dict)
    """What ENV set."""


def mount_of(value: str) -> dict[str, str]:
    """Return the fields of RUN --mount=…; one without a value has an empty one, and the type is bind."""
    fields = (part.partition("=") for part in value.split(","))
    return {"type": "bind", **{key.strip().lower(): text for key, _, text in fields}}


def follow(dockerfile: Dockerfile, target: str | None, given: Mapping[str, str]) -> BuildPath:
    """Return the way to the stage `target` (the last one), with `given` as the values of arguments.

    Raises DockerfileError for a stage that is not there and an argument that nothing declares.
    """
    walk = _Walk(dockerfile, given)
    state = walk.states[-1] if target is None else walk.numbered(target)
    if state is None:
        known = ", ".join(stage.label for stage in dockerfile.stages[:30])
        raise DockerfileError(f"there is no stage {str(target)[:60]!r}", where=dockerfile.path, hint=f"known: {known}")
    start, numbers = state.chain[0], [stage.index for stage in state.chain]
    walked = [step for one in walk.states[: numbers[-1] + 1] for step in one.steps]
    copied = frozenset(_copied_to_secrets(walked))
    seen = [_without_secrets(step, copied) for step in walked]
    steps = [step for step in seen if step.index in numbers]
    left = {one.name for step in steps if step.keyword == "ENV" for one in step.settings}
    taken = {source.index for step in steps for source in step.sources if isinstance(source, Stage)}
    return BuildPath(
        dockerfile=dockerfile,
        stages=state.chain,
        base=None if state.image == "scratch" else state.image,
        platform=walk.outside(start.platform, dockerfile.where(start.line)) or None,
        steps=tuple(steps),
        arguments=tuple(_declared(steps)),
        environment={name: value for name, value in sorted(state.environment.items()) if name in left},
        decided=frozenset(variables(" ".join([start.image, *(one.text for one in dockerfile.arguments)]))),
        needed=tuple(stage for stage in dockerfile.stages if stage.index in taken.difference(numbers)),
        seen=tuple(seen),
    )


class _Walk:
    def __init__(self, dockerfile: Dockerfile, given: Mapping[str, str]) -> None:
        self._file, self._given, self._left = dockerfile, given, TOTAL_LIMIT
        self._outer: dict[str, Value] = {name: (given.get(name, text),) for name, text in PLATFORM.items()}
        """The variables before the first FROM."""
        self._numbers: dict[str, int] = {}
        """Of stages, by name."""
        self.states: list[_State] = []
        """Where each stage ends."""
        declared = set(PLATFORM)
        for instruction in dockerfile.arguments:
            for name, written in self._pairs(instruction):
                declared.add(name)
                if name in given or written is not None:
                    value = self._resolve(written or (), self._outer, dockerfile.where(instruction.line))
                    self._outer[name] = (given.get(name, text_of(value)),)
        for stage in dockerfile.stages:
            state = _State(self.outside(stage.image, dockerfile.where(stage.line)), (stage,))
            if (number := self._numbers.get(state.image.lower())) is not None:
                parent = self.states[number]
                self._spend(32 * (len(parent.values) + len(parent.environment)), self._file.where(stage.line))
                chain = (*parent.chain, stage)
                state = _State(parent.image, chain, (), dict(parent.values), dict(parent.environment))
            steps = tuple(self._step(stage, one, state) for one in stage.instructions)
            self.states.append(replace(state, steps=steps))
            declared |= {one.name for step in steps if step.keyword == "ARG" for one in step.settings}
            if stage.name:
                self._numbers[stage.name.lower()] = stage.index
        if unknown := sorted(given.keys() - declared):
            what, hint = f"--arg {unknown[0][:60]}: no ARG of that name", "the draft without it lists the arguments"
            raise DockerfileError(what, where=dockerfile.path, hint=hint)

    def numbered(self, name: str) -> _State | None:
        """Return a stage so far by its name or its number, as COPY --from and --target have it."""
        index = self._numbers.get(name.lower(), int(name) if re.fullmatch(r"[0-9]{1,4}", name) else len(self.states))
        return self.states[index] if index < len(self.states) else None

    def outside(self, text: str, where: str) -> str:
        """Return a text with the variables before the first FROM replaced."""
        return text_of(self._resolve(parse_value(text, where), self._outer, where))

    def _resolve(self, value: Value, known: Mapping[str, Value], where: str) -> Value:
        """Replace what is known. Raises DockerfileError where all becomes too long."""
        found: list[str | ArgumentText | Reference] = []
        for part in value:
            new = self._known(part, known, where) if isinstance(part, Reference) else (part,)
            self._spend(1 + len(text_of(new)), where)
            found += new
        return tuple(found)

    def _spend(self, size: int, where: str) -> None:
        self._left -= size
        if self._left < 0:
            what = f"its values are longer than {TOTAL_LIMIT} characters in total"
            raise DockerfileError(what, where=where, hint="shorten them")

    def _read(self, text: str, known: Mapping[str, Value], where: str) -> str:
        """Replace $A and ${A} in a text that is searched, never run. Raises DockerfileError."""

        def replaced(match: re.Match[str]) -> str:
            part = Reference(match[1] or match[2], match[0])
            return match[0] if match[2] and not match[3] else text_of(self._resolve((part,), known, where))

        return NAMED.sub(replaced, text)

    def _known(self, part: Reference, known: Mapping[str, Value], where: str) -> Value:
        value = known.get(part.name)
        if (operator := part.operator.removeprefix(":")) not in {"-", "+"}:
            # What is cut (`#`, `%`, `/`) or must be set is left to bash.
            return (part,) if value is None or operator else value
        if value is None:
            # ${PATH:-} and ${PATH:+:$PATH} are about the base's own; what else it may have set is not counted on.
            is_set = not part.word or part.name in variables(part.word)
            value = (Reference(part.name, f"${{{part.name}}}"),)
        else:
            is_set = operator == part.operator or bool(text_of(value))
        if is_set == (operator == "+"):
            return self._resolve(parse_value(part.word, where), known, where)
        return () if operator == "+" else value

    def _step(self, stage: Stage, instruction: Instruction, state: _State) -> DockerStep:
        """Return what an instruction does; what ARG and ENV set goes into the state."""
        keyword, where = instruction.keyword, self._file.where(instruction.line)
        settings: list[Setting] = []
        if keyword == "ARG":
            settings = [self._argument(name, written, state, where) for name, written in self._pairs(instruction)]
        elif keyword == "ENV":
            settings = [
                Setting(name, written, self._resolve(written or (), state.values, where))
                for name, written in self._pairs(instruction)
            ]
            # Only here, as all of one ENV see what was before it.
            state.environment.update({one.name: one.value or () for one in settings})
            state.values.update({one.name: one.value or () for one in settings})
        reading = self._read(instruction.whole, state.values, where) if keyword in {"ONBUILD", "RUN"} else ""
        own = instruction.pieces, instruction.flags, instruction.heredocs, instruction.words
        sources = tuple(self._sources(instruction))
        return DockerStep(instruction.line, keyword, *own, stage.label, stage.index, tuple(settings), reading, sources)

    def _argument(self, name: str, written: Value | None, state: _State, where: str) -> Setting:
        if name in state.environment:
            return Setting(name, None, state.environment[name])  # a variable of ENV always wins
        if name in self._given:
            written = (self._given[name],)
        elif written is None:
            written = self._outer.get(name)
        if written is None:
            state.values.setdefault(name, ())
            return Setting(name, None, None)
        value = self._resolve(written, state.values, where)
        is_known = not any(isinstance(part, Reference) for part in value)
        state.values[name] = (ArgumentText(name, text_of(value)),) if is_known else value
        return Setting(name, written, state.values[name])

    def _pairs(self, instruction: Instruction) -> list[tuple[str, Value | None]]:
        where = self._file.where(instruction.line)
        if (words := split_words(instruction.text)) is None:
            raise DockerfileError("a quote has no end", where=where, hint="close it")
        if instruction.keyword == "ENV" and "=" not in words[0] and len(words) > 1:
            return [(words[0], parse_value(instruction.text.split(maxsplit=1)[1], where))]
        pairs: list[tuple[str, Value | None]] = []
        for word in words:
            name, equals, value = word.partition("=")
            if not name or (not equals and instruction.keyword == "ENV"):
                what, hint = f"{instruction.keyword} {word[:60]!r} is not NAME=VALUE", "write NAME=VALUE"
                raise DockerfileError(what, where=where, hint=hint)
            pairs.append((name, parse_value(value, where) if equals else None))
        return pairs

    def _sources(self, instruction: Instruction) -> Iterator[Stage | str]:
        where = self._file.where(instruction.line)
        for name, value in instruction.flags:
            taken = mount_of(value).get("from", "") if name == "mount" else value if name == "from" else ""
            if taken := self.outside(taken, where):
                state = self.numbered(taken)
                yield state.chain[-1] if state else taken


def _declared(steps: Sequence[DockerStep]) -> Iterator[Declared]:
    """Yield the arguments that the steps declare, each once, with the lines that use them."""
    uses: dict[str, list[int]] = {}
    first: dict[str, tuple[Value | None, int]] = {}
    for step in steps:
        for name in variables(step.whole):
            uses.setdefault(name, []).append(step.line)
        for one in step.settings if step.keyword == "ARG" else ():
            first.setdefault(one.name, (one.value, step.line))
    for name, (value, line) in first.items():
        yield Declared(name, value, line, tuple(uses.get(name, ())))


def _copied_to_secrets(steps: Sequence[DockerStep]) -> Iterator[str]:
    """Yield the variables whose value is given to one that is called like a secret: `ENV API_KEY=$PLAIN`."""
    for one in (setting for step in steps for setting in step.settings if is_secret_name(setting.name)):
        if one.written and len(one.written) == 1 and isinstance(one.written[0], Reference):
            yield one.written[0].name


def _is_secret(text: str, copied: frozenset[str]) -> bool:
    return hidden(text) != text or any(name in copied or is_secret_name(name) for name in variables(text))


def _without_secrets(step: DockerStep, copied: frozenset[str]) -> DockerStep:
    """Take out what `lumiimg.secret` hides, and what names a variable that is called, or copied, like a secret."""
    if step.keyword not in {"ARG", "ENV"}:
        if not any(_is_secret(text, copied) for text in (f"{step.keyword} {step.whole}", step.reading)):
            return step
        what = "holds or uses a secret, and a layer keeps none: fetch what needs it before the build, and give it as a "
        what += "file or a source of the layer"
        return DockerStep(step.line, step.keyword, (HIDDEN,), stage=step.stage, index=step.index, withheld=what)
    left = {
        one.name
        for one in step.settings
        if one.name in copied
        or is_secret_name(one.name)
        or any(_is_secret(f"{one.name}={text_of(value)}", copied) for value in one[1:])
    }
    if not left:
        return step
    shown = (f"{one.name}={HIDDEN if one.name in left else text_of(one.written)}" for one in step.settings)
    what = f"{', '.join(sorted(left))}, left out as a secret, by name or value; give it to the job that runs the image"
    kept = tuple(one for one in step.settings if one.name not in left)
    return replace(step, pieces=(" ".join(shown),), settings=kept, withheld=f"{what}, as a variable there")
