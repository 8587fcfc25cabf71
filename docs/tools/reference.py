"""The references of config, command line and JSON summary, made from the code."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator
from typing import Any

import click
import typer.main
from meanings import MEANINGS
from pydantic import BaseModel

from cache.shapes import LARGEST_COUNT
from pipeline.config_fields import LARGEST_FIGURE

PAGES = ("reference/config.md", "reference/cli.md", "reference/summary-json.md")


def pages() -> dict[str, str]:
    """Return the Markdown of each reference by its path."""
    return dict(zip(PAGES, (config_page(), cli_page(), summary_page()), strict=True))


# ---- config


def config_page() -> str:
    """Return the reference of the sweep config and of each runner's options."""
    from pipeline.config import SweepConfig
    from stages.runners.registry import runner_names, runner_options

    parts = [
        "# Sweep config",
        "Made from the code. Every field of a sweep config; one that is not listed here is refused. "
        "*One or more* means a value, or a list that is a dimension of the grid. "
        f"Whole numbers are at most {LARGEST_COUNT:,}, other numbers at most {LARGEST_FIGURE:g}. "
        "Examples are in [Sweep a grid](../guides/sweep.md).",
        *_model_parts(SweepConfig, "The file"),
        "## Runners",
        "Fields of `runner`, by its `kind`.",
    ]
    for name in runner_names():
        parts += _model_parts(runner_options(name), f"runner: {name}", level=3)
    return "\n\n".join(parts) + "\n"


def _model_parts(model: type[BaseModel], title: str, level: int = 2) -> Iterator[str]:
    schema = model.model_json_schema()
    yield f"{'#' * level} {title}"
    yield from _section(schema, schema, model.__doc__)
    for name, section in schema.get("$defs", {}).items():
        if section.get("type") == "object":
            yield f"{'#' * (level + 1)} {name}"
            yield from _section(section, schema, section.get("description"))


def _section(section: dict[str, Any], root: dict[str, Any], about: str | None) -> Iterator[str]:
    if about:
        yield " ".join(about.split("Parameters")[0].split("Attributes")[0].split())
    required = set(section.get("required", ()))
    lines = ["| field | meaning | takes | default |", "|---|---|---|---|"]
    for name, field in section.get("properties", {}).items():
        default = "*required*" if name in required else f"`{json.dumps(field.get('default'))}`"
        meaning = MEANINGS.get(f"{section.get('title')}.{name}") or field.get("description", "")
        lines.append(f"| `{name}` | {meaning} | {type_text(field, root)} | {default} |")
    if len(lines) > 2:
        yield "\n".join(lines)


def fields_without_meaning() -> list[str]:
    """Return the fields of the sweep config that the reference could not explain."""
    from pipeline.config import SweepConfig

    schema = SweepConfig.model_json_schema()
    sections = [schema, *(one for one in schema["$defs"].values() if one.get("type") == "object")]
    return [
        f"{section['title']}.{name}"
        for section in sections
        for name, field in section.get("properties", {}).items()
        if f"{section['title']}.{name}" not in MEANINGS and not field.get("description")
    ]


def type_text(field: dict[str, Any], root: dict[str, Any]) -> str:
    """Return in words what a JSON schema allows."""
    if "$ref" in field:
        name = field["$ref"].rsplit("/", 1)[1]
        target = root["$defs"][name]
        return _link(name) if target.get("type") == "object" else type_text(target, root)
    for union in ("anyOf", "oneOf"):
        if union in field:
            return ", or ".join(type_text(one, root) for one in field[union])
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if field.get("type") == "array":
        many = "one or more: " if "minItems" in field else "a list of: "
        return many + type_text(field.get("items", {}), root)
    if field.get("type") == "null":
        return "none"
    words = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}
    return words.get(field.get("type", ""), "mapping") + _bounds(field)


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"


def _bounds(field: dict[str, Any]) -> str:
    """Return the bounds of a number, but for those that hold for all and stand at the top of the page."""
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    general = (LARGEST_COUNT, LARGEST_FIGURE)
    return "".join(
        f" {sign} {field[key]:g}" for key, sign in signs.items() if field.get(key, general[0]) not in general
    )


# ---- command line


def cli_page() -> str:
    """Return the help of every command."""
    from pipeline.cli import app

    root = typer.main.get_command(app)
    parts = ["# Command line", "Made from the code: what `--help` prints."]
    for name, command in _commands(root, "shapecast"):
        context = click.Context(command, info_name=name)  # type: ignore[arg-type]
        text = command.get_help(typing.cast(Any, context))
        parts += [f"## {name}", f"```text\n{text}\n```"]
    return "\n\n".join(parts) + "\n"


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    yield name, command
    for child, found in sorted(getattr(command, "commands", {}).items()):
        yield from _commands(found, f"{name} {child}")


# ---- JSON summary


def summary_page() -> str:
    """Return the form of what `shapecast run --json` prints."""
    from pipeline.summary_json import RunSummary

    parts = [
        "# Summary as JSON",
        "Made from the code: what `shapecast run --json` prints on standard output. Fields are added without "
        "notice; a change that breaks readers raises `summary_version`.",
        *_model_parts(RunSummary, "The document"),
    ]
    return "\n\n".join(parts) + "\n"
