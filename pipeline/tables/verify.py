"""`shapecast tables verify`: every file, digest, key and record, and some of them computed again."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from cache.compare import identity_difference
from cache.errors import ShapecastError, StoreError
from cache.schema import record_digest_text
from cache.store import RUNNER_NAME, StoredTable
from cache.view import TableView
from pipeline.cells import expand
from pipeline.config import load_config
from pipeline.recipe import Recipe
from stages.runners.base import ModelRunner, RunnerSpec

Specs = dict[str, RunnerSpec]


def verify_table(table: StoredTable, recompute: int, specs: Specs) -> tuple[str, list[str]]:
    """Return what a table holds, in words, and a sentence for each thing that is wrong. Changes nothing.

    Parameters
    ----------
    table : StoredTable
        What is checked.
    recompute : int
        How many of its shapes, chosen at random, are computed again and compared.
    specs : mapping
        Identity id -> spec, from a config; preferred to the note beside the table.
    """
    found = table.examine()
    problems = list(found.problems)
    files = f"{len(found.parts):,} file{'' if len(found.parts) == 1 else 's'}"
    facts = f"{sum(part.table.num_rows for part in found.parts):,} records in {files}"
    if found.quarantined:
        facts += f", {len(found.quarantined)} set aside earlier"
    try:
        view = TableView(found.parts)
        for key in view:  # A key or record that cannot be is refused when it is made.
            _ = view[key]
    except (ShapecastError, ValueError, TypeError) as error:
        return facts, [*problems, _sentence(f"A record cannot be used: {error}")]
    if recompute:
        try:
            runner = _spec(table, specs).build()
        except (ShapecastError, ImportError) as error:
            return facts, [*problems, _sentence(f"It cannot be computed again: {error}")]
        wrong = recomputed_differences(view, runner, recompute, random.SystemRandom().sample)
        problems += [_sentence(text[0].upper() + text[1:]) for text in wrong]
        facts += f", {min(recompute, len(view)):,} computed again"
    return facts, problems


def recomputed_differences(
    view: TableView, runner: ModelRunner, count: int, sample: Callable[..., list[int]]
) -> list[str]:
    """Compute `count` shapes again, and return a text for each whose record differs."""
    keys = list(view)
    differences = []
    for index in sorted(sample(range(len(keys)), min(count, len(keys)))):
        key = keys[index]
        kept, computed = view[key], runner.forward(key)
        if record_digest_text(key, kept) != record_digest_text(key, computed):
            one, two = kept.as_json(), computed.as_json()
            name = next((name for name in one if one[name] != two[name]), "the order of its breakdowns")
            differences.append(
                f"the shape ({key}) computed again differs in {name}: kept is {one.get(name)}, computed "
                f"now {two.get(name)}"
            )
    return differences


def specs_of(config: Path | None) -> Specs:
    """Return the specs of a sweep by their identity."""
    if config is None:
        return {}
    return {cell.identity.id: cell.spec for cell in expand(load_config(config))}


def _spec(table: StoredTable, specs: Specs) -> RunnerSpec:
    """Return the spec that computes a table: that of the config, else that of the table's own note.

    Raises
    ------
    StoreError
        When neither has the table's identity.
    """
    if table.identity.id in specs:
        return specs[table.identity.id]
    source = f"{table.folder}/{RUNNER_NAME}"
    try:
        recipe = Recipe.from_file(table.folder.read(RUNNER_NAME), source)
    except FileNotFoundError:
        raise StoreError(
            "no run has left a runner.json beside it; name a sweep config that uses it with --config"
        ) from None
    spec = recipe.spec()
    differences = identity_difference(table.identity, spec.identity())
    if differences:
        name, kept, now = differences[0]
        raise StoreError(
            f"what its runner.json leads to has another identity today ({name} was {kept} and is {now}), so "
            "its records are of something else; use what they were computed with, or name it with --config"
        )
    return spec


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
