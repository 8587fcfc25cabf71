"""A report's sentences: what was asked and what the answer is."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline.findings import nearest_stops, why, with_derived
from pipeline.ratio_mode import split_sentences
from pipeline.rows import SOURCE_KINDS
from pipeline.saved import SavedRun
from pipeline.search_summary import missed_sentences
from stages.candidate import MODES

_MOST_NAMES = 12


def asked(run: SavedRun) -> list[tuple[str, str]]:
    """Return what was asked, as pairs of a term and its values."""
    frame = run.frame
    limits = {
        name: sorted(frame[column].dropna().unique())
        for name, column in (("TTFT", "ttft_limit_ms"), ("TPOT", "tpot_limit_ms"))
    }
    limit_texts = [f"{name} at most {value:,g} ms" for name, values in limits.items() for value in values]
    return [
        ("Models", _listed(frame["model"])),
        ("Devices", _listed(frame["device"])),
        ("Workload", _listed(with_derived(frame)["workload"], "; ")),
        ("Limits", ", ".join(limit_texts) or "none"),
        ("Modes", ", ".join(mode for mode in MODES if mode in set(frame["mode"]))),
        ("Deployments", _listed(frame["parallelism"])),
        ("Latencies by", ", ".join(f"{runner} runner" for runner in frame["runner"].unique())),
        ("Tried", f"{len(frame):,} candidates, {int(frame['feasible'].sum()):,} of them feasible"),
    ]


def _listed(values: pd.Series, separator: str = ", ") -> str:
    """Return the distinct values, the first of them where they are many."""
    distinct = list(dict.fromkeys(values))
    more = len(distinct) - _MOST_NAMES
    shown = separator.join(distinct[:_MOST_NAMES])
    return f"{shown}{separator}and {more:,} more" if more > 0 else shown


def notes(run: SavedRun) -> list[str]:
    """Return what a search or a split of devices adds to the answer."""
    ratio = run.facts.config.get("ratio") or {}
    total_devices = ratio.get("total_devices")
    splits = split_sentences(run.frame, total_devices) if total_devices else []
    return [*splits, *missed_sentences(run.frame)]


def nothing_feasible(frame: pd.DataFrame) -> list[str]:
    """Return, per deployment, what stopped the candidate that is nearest to feasible."""
    return [
        f"{row['model']} on {row['device']}, {row['parallelism']}, {row['mode']}, batch {row['batch_size']}: "
        f"{why(row)}"
        for row in nearest_stops(frame)
    ]


def same_sources(frame: pd.DataFrame) -> str | None:
    """Return how the latencies came about, when that is the same for all candidates; else None."""
    shares = frame[[f"{kind}_share" for kind in SOURCE_KINDS]].drop_duplicates()
    whole = [kind for kind in SOURCE_KINDS if len(shares) and (shares[f"{kind}_share"] == 1).all()]
    return f"All latencies of all candidates are {whole[0]}." if whole else None


def config_name(run: SavedRun) -> str:
    """Return the sweep's name."""
    return str(run.facts.config["name"])


def reproduce_command(run: SavedRun) -> str:
    """Return the command that makes the run again from its config."""
    name = config_name(run)
    return f"shapecast run {shlex.quote(name + '.yaml')} --out {shlex.quote('out/' + name)}"


def config_yaml(run: SavedRun) -> str:
    """Return the config as a YAML file that `shapecast run` takes."""
    import yaml

    from pipeline.config import SweepConfig

    config = _without_nones(run.facts.config)
    first = [name for name in SweepConfig.model_fields if name in config]
    parts = [{name: config[name]} for name in [*first, *sorted(set(config) - set(first))]]
    return "".join(yaml.safe_dump(part, sort_keys=True, width=100) for part in parts)


def _without_nones(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nones(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nones(item) for item in value]
    return value
