"""Reading YAML mappings from disk, with every way to fail said in one sentence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from cache.errors import ConfigError, shown

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class _StrictLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Refuses a key that stands twice, of which YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {shown(key)} stands twice in one mapping", key_node.start_mark
                )
            if isinstance(key, str):
                seen.add(key)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def _plain_number(pattern: re.Pattern[str]) -> re.Pattern[str]:
    """Return a pattern of numbers without two traps of YAML 1.1: there 1:30:00 is 5400, and 0100 is 64.

    Both stay text, which no field takes for a number.
    """
    return re.compile(rf"(?!.*:)(?![-+]?0[0-9_]+$)(?:{pattern.pattern})", pattern.flags)


_StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, _plain_number(pattern) if tag in _NUMBERS else pattern) for tag, pattern in resolvers]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_yaml_mapping(path: Path, what: str) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Parameters
    ----------
    path : Path
        The file.
    what : str
        What it should be, for messages, e.g. "sweep config".

    Raises
    ------
    ConfigError
        When the file cannot be read, is empty, has a syntax error or holds no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"There is no {what} at {path}; give the path of a YAML file.") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"The {what} {path} cannot be read ({reason}).") from error
    try:
        content = yaml.load(text, _StrictLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"The {what} {path} is not valid YAML{_place(error)}.") from error
    except ValueError as error:  # e.g. a timestamp with month 13
        raise ConfigError(f"The {what} {path} is not valid YAML: {error}.") from error
    if content is None:
        raise ConfigError(f"The {what} {path} is empty; see configs/quickstart.yaml for an example.")
    if not isinstance(content, dict):
        raise ConfigError(
            f"The {what} {path} holds a {type(content).__name__}; expected a mapping of fields."
        )
    return content


def _place(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    if mark is None:
        return f": {problem}"
    return f" in line {mark.line + 1}, column {mark.column + 1}: {problem}"
