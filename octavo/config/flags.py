"""Command-line flags, generated from the option records: a flag is one dataclass field.

`--max-model-len` and `--max_model_len` are the same flag. Whole numbers may end in k, m, g (1000s) or K, M, G, KiB,
MiB, GiB (1024s); `auto` is the value of an option that was not given. Several values may also be a JSON list. A `--config`
file holds flags, and those of the command line go before it.
"""

from __future__ import annotations

import argparse
import json
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any, NoReturn

from octavo.base.errors import ConfigError
from octavo.base.logging import get_logger
from octavo.base.naming import nearest
from octavo.config.engine import ALIASES, EngineConfig, spelled
from octavo.config.fields import range_text
from octavo.config.foreign import FOREIGN, SHORT
from octavo.config.model import ModelConfig
from octavo.config.serve import ServeConfig

ENGINE_RECORDS: tuple[Any, ...] = tuple(declared.default_factory for declared in fields(EngineConfig))
SERVE_RECORDS: tuple[type[Any], ...] = (ServeConfig,)
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30}
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, **_BINARY, **{f"{one}iB": size for one, size in _BINARY.items()}}
_WHOLE = re.compile(r"(-?\d+)(k|m|g|KiB|MiB|GiB|K|M|G|)")


_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One option as the command line sees it. kind: bool, int, float, str or dict; many: takes several values."""

    name: str
    kind: type
    many: bool
    optional: bool
    choices: tuple[str, ...]
    default: Any
    meaning: str
    range_text: str
    short: str

    @property
    def spelling(self) -> str:
        """The flag with its dashes."""
        return spell(self.name)

    @property
    def value(self) -> str:
        """What stands after the flag, for people."""
        if self.kind is bool:
            return ""
        shown = "|".join(self.choices) or {int: "N", float: "X", str: "TEXT", dict: "JSON"}[self.kind]
        return f"{shown} ..." if self.many else shown

    @property
    def default_text(self) -> str:
        """The default, for people."""
        if self.default is None or self.default == ():
            return "none"
        if self.many:
            return " ".join(self.default)
        if self.kind is bool:
            return "on" if self.default else "off"
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


def own_flags() -> frozenset[str]:
    """Return the names of all options, the server's too."""
    return frozenset(flag.name for flag in _all_flags((*ENGINE_RECORDS, *SERVE_RECORDS)))


def flags_of(record: type[Any]) -> tuple[Flag, ...]:
    """Return the flags of a record of options, in the order of its fields."""
    hints = typing.get_type_hints(record)
    return tuple(_flag(declared, hints[declared.name]) for declared in fields(record))


def _flag(declared: Field[Any], hint: Any) -> Flag:
    many = typing.get_origin(hint) is tuple
    optional = isinstance(hint, types.UnionType) and types.NoneType in typing.get_args(hint)
    if many or optional:
        hint = typing.get_args(hint)[0]
    choices = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()
    kind = str if choices else typing.get_origin(hint) or hint
    assert kind in (bool, int, float, str, dict), f"{declared.name}: no flag can be made of {hint}"
    return Flag(
        name=declared.name,
        kind=kind,
        many=many,
        optional=optional,
        choices=choices,
        default=declared.default,
        meaning=declared.metadata["help"],
        range_text=range_text(declared),
        short=declared.metadata["short"],
    )


class FlagParser(argparse.ArgumentParser):
    """argparse that takes dashes and underscores alike and answers an unknown flag with the nearest known one."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Parse as argparse does; an unknown flag ends the program with the nearest known name."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self._refuse(unknown[0])
        return parsed

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Parse as argparse does, with underscores in flag names read as dashes."""
        assert args is not None, "the command line is handed over explicitly"
        return super().parse_known_args([*self._from_file(args), *_dashed(args)], namespace)

    def _from_file(self, args: Sequence[str]) -> list[str]:
        """Return the flags of the --config file, if one is given."""
        if "--config" not in self._option_string_actions:
            return []
        finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        finder.add_argument("--config")
        path = finder.parse_known_args(list(args))[0].config
        return [] if path is None else file_arguments(path)

    def error(self, message: str) -> NoReturn:
        """End the program with status 2 and one line that says what is wrong."""
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def _refuse(self, given: str) -> NoReturn:
        name = given.split("=")[0]
        if not name.startswith("-"):
            self.error(f"unexpected argument {given!r}")
        known = self._option_string_actions.items()
        guess = nearest(
            name, [flag for flag, action in known if flag.startswith("--") and not isinstance(action, _Noted)]
        )
        self.error(f"unknown flag {name}" + (f"; did you mean {guess}?" if guess else ""))


def _dashed(arguments: Sequence[str]) -> Iterator[str]:
    for position, argument in enumerate(arguments):
        if argument == "--":
            yield from arguments[position:]
            return
        name, equals, value = argument.partition("=")
        yield name.replace("_", "-") + equals + value if name.startswith("--") else argument


def add_model(parser: argparse.ArgumentParser) -> None:
    """Let the model stand first, without its flag."""
    flag = next(flag for flag in flags_of(ModelConfig) if flag.name == "model")
    text = f"{flag.meaning} (default {flag.default_text})"
    parser.add_argument("model", nargs="?", metavar="MODEL", default=argparse.SUPPRESS, help=text)


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of EngineConfig, one group per concern. Flags not given leave no attribute behind."""
    parser.add_argument(
        "--config", metavar="FILE", help="YAML file of flags, such as `max-model-len: 8k`; flags go before it"
    )
    _add(parser, ENGINE_RECORDS)
    _add_foreign(parser)
    for alias in ALIASES:
        original = next(flag for flag in _all_flags(ENGINE_RECORDS) if flag.name == ALIASES[alias])
        parser.add_argument(
            spell(alias), type=_reader(original), dest=original.name, default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )


def add_serve_flags(parser: argparse.ArgumentParser, names: Sequence[str] | None = None) -> None:
    """Add the flags of ServeConfig, or those of these names."""
    _add(parser, SERVE_RECORDS, names)


def engine_config(parsed: argparse.Namespace) -> EngineConfig:
    """Return the engine configuration of a parsed command line; raises ConfigError for a value out of range."""
    return EngineConfig.from_options(given_options(parsed))


def serve_config(parsed: argparse.Namespace) -> ServeConfig:
    """Return the server configuration of a parsed command line; raises ConfigError for a value out of range."""
    return ServeConfig(**_given(parsed, SERVE_RECORDS))


def given_options(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the engine's options that were on the command line."""
    return _given(parsed, ENGINE_RECORDS)


def command_line(options: Mapping[str, Any]) -> list[str]:
    """Return the arguments that give these options: the inverse of parsing."""
    arguments: list[str] = []
    for name, value in options.items():
        arguments += [spell(name), *map(str, value)] if isinstance(value, tuple) else [_argument(name, value)]
    return arguments


def title_of(record: type[Any]) -> str:
    """Return what a record of options is about."""
    assert record.__doc__ is not None
    return record.__doc__.splitlines()[0].rstrip(".")


def spell(name: str) -> str:
    """Return a name as a flag."""
    return "--" + name.replace("_", "-")


def _all_flags(records: Sequence[type[Any]]) -> Iterator[Flag]:
    for record in records:
        yield from flags_of(record)


def _given(parsed: argparse.Namespace, records: Sequence[type[Any]]) -> dict[str, Any]:
    names = {flag.name for flag in _all_flags(records)}
    return {name: value for name, value in vars(parsed).items() if name in names}


def _add(parser: argparse.ArgumentParser, records: Sequence[type[Any]], names: Sequence[str] | None = None) -> None:
    for record in records:
        group = parser.add_argument_group(title_of(record))
        for flag in flags_of(record):
            if names is None or flag.name in names:
                _add_flag(group, flag)


def _add_flag(group: Any, flag: Flag) -> None:
    limits = f"; {flag.range_text}" if flag.range_text else ""
    text = f"{flag.meaning} (default {flag.default_text}{limits})".replace("%", "%%")
    if flag.kind is bool:
        group.add_argument(
            flag.spelling, action=argparse.BooleanOptionalAction, dest=flag.name, default=argparse.SUPPRESS, help=text
        )
        return
    group.add_argument(
        *([flag.short] if flag.short else []),
        flag.spelling,
        dest=flag.name,
        type=_reader(flag),
        action=_Values if flag.many else "store",
        nargs="+" if flag.many else None,
        choices=flag.choices or None,
        default=argparse.SUPPRESS,
        metavar=None if flag.choices else flag.value.removesuffix(" ..."),
        help=text,
    )


class _Values(argparse.Action):
    """Keeps several values as a tuple, as the records do."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, tuple(one for value in values for one in self._listed(value)))

    def _listed(self, value: str) -> list[str]:
        if not value.startswith("["):
            return [value]
        try:
            given = json.loads(value)
        except ValueError:
            given = None
        if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
            raise argparse.ArgumentError(self, f"must be texts, or a JSON list of them, not {value!r}")
        return given


class _Noted(argparse.Action):
    """Says what becomes of an option of vLLM's."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        on = not str(option_string).startswith("--no-")
        _log.warning("%s", FOREIGN[self.dest].check(on if self.nargs == 0 else values))


def _add_foreign(parser: argparse.ArgumentParser) -> None:
    """Take the options of vLLM's that are none of ours; they are in no help, but on a page of their own."""
    for row in FOREIGN.values():
        shorts = [short for short, name in SHORT.items() if name == row.name]
        # A command may have given a letter another meaning.
        names = [spell(row.name), *(short for short in shorts if short not in parser._option_string_actions)]
        if row.takes == "nothing":
            names.append(spell("no_" + row.name))
        nargs: Any = {"nothing": 0, "one": None, "many": "+"}[row.takes]
        parser.add_argument(
            *names, dest=row.name, action=_Noted, nargs=nargs, default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )


def _reader(flag: Flag) -> Any:
    read = {int: _whole_number, float: _number, str: str, dict: _json_object}[flag.kind]

    def read_value(text: str) -> Any:
        return None if flag.optional and text == "auto" else spelled(flag.name, read(text))

    return read_value


def file_arguments(path: str) -> list[str]:
    """Return the command line that a YAML file of flags stands for; raises ConfigError saying what is wrong with it."""
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            given = yaml.safe_load(file)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", field="config") from error
    if not isinstance(given, dict):
        raise ConfigError(f"{path} must hold flags and their values, such as `max-model-len: 8k`", field="config")
    return [_argument(str(name), value) for name, value in given.items() if value is not None]


def _argument(name: str, value: Any) -> str:
    """Return the one argument that gives an option this value."""
    if isinstance(value, bool):
        return spell(name if value else f"no_{name}")
    return f"{spell(name)}={json.dumps(value) if isinstance(value, (dict, list)) else value}"


def _whole_number(text: str) -> int:
    match = _WHOLE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}")
    return int(match[1]) * _UNITS[match[2]]


def _json_object(text: str) -> dict[str, Any]:
    try:
        value: Any = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, not {text!r}")
    return value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if value != value or value in (float("inf"), float("-inf")):
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}")
    return value
