"""From the one-line question of `shapecast optimize` to a sweep config, and to its run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
import yaml

from cache.errors import OutputError, UsageError
from cache.identity import content_digest
from pipeline.cli_run import run_and_print
from pipeline.config import LoadedConfig, load_config, parse_config
from pipeline.output_names import short_name
from pipeline.run import RunOptions
from stages.runners.shipped import looks_like_path
from stages.search import STRATEGIES

COMMAND = "shapecast optimize"


@dataclass(frozen=True)
class Question:
    """What the command line asks; words are as typed."""

    model: str
    devices: Sequence[str]
    num_devices: int | None
    input_length: int
    output_length: int
    prefix_cache_hit_rate: float
    max_batched_tokens: Sequence[str]
    ttft_limit_ms: float | None
    tpot_limit_ms: float | None
    disagg: bool
    tp_sizes: Sequence[str]
    ep_sizes: Sequence[str]
    moe_dp_sizes: Sequence[str]
    num_mtp_tokens: Sequence[str]
    mtp_acceptance_rate: Sequence[str] | None
    batch_range: Sequence[str] | None
    strategy: str
    ratio: bool
    prefill_devices: int | None
    decode_devices: int | None
    runner: str


def answer(
    question: Question,
    emit_config: str | None,
    out: Path | None,
    tables: str | None,
    jobs: int | None,
    *,
    quiet: bool,
    force: bool,
) -> None:
    """Run the sweep that a question stands for.

    Raises
    ------
    UsageError
        When the question contradicts itself.
    """
    _check_count("--jobs", jobs)
    content = sweep_config(question)
    if emit_config == "-":
        typer.echo(_yaml(content), nl=False)
        return
    loaded = _emitted(content, Path(emit_config)) if emit_config else parse_config(content, Path(COMMAND))
    run_and_print(
        loaded,
        RunOptions(
            out=out if out is not None else Path("out") / loaded.config.name,
            tables=tables,
            jobs=jobs,
            quiet=quiet,
            force=force,
        ),
    )


def sweep_config(question: Question) -> dict[str, Any]:
    """Return the content of the sweep config that asks the same.

    Raises
    ------
    UsageError
        When the question contradicts itself.
    """
    ratio = _ratio(question)
    config: dict[str, Any] = {
        "runner": {"kind": question.runner},
        "models": [question.model],
        "devices": list(question.devices),
        "parallelism": {"search": _parallel_search(question)},
        "modes": _modes(question),
        "workloads": [_workload(question)],
        "engine": _engine(question),
        "concurrency": _concurrency(question),
        "limits": _limits(question),
    }
    if ratio is not None:
        config["ratio"] = ratio
    # A name of its own for every question, so that one does not refuse the folder of another; the same on
    # every machine.
    named = {part: [short_name(text) for text in config[part]] for part in ("models", "devices")}
    model = "".join(letter if letter.isalnum() else "-" for letter in Path(question.model).stem).strip("-")
    return {"name": f"optimize-{model}-{content_digest({**config, **named})[:8]}", **config}


def _parallel_search(question: Question) -> dict[str, Any]:
    _check_count("--num-devices", question.num_devices)
    search: dict[str, Any] = {
        "tp_sizes": _sizes("--tp-sizes", question.tp_sizes),
        "ep_sizes": _sizes("--ep-sizes", question.ep_sizes),
        "moe_dp_sizes": _sizes("--moe-dp-sizes", question.moe_dp_sizes),
    }
    if question.ratio:
        return search
    if question.num_devices is None:
        raise UsageError("--num-devices is missing; give the number of devices of one deployment.")
    return {"num_devices": question.num_devices, **search}


def _modes(question: Question) -> list[str]:
    limits = {"prefill": question.ttft_limit_ms, "decode": question.tpot_limit_ms}
    for name, limit in (("--ttft-limits", limits["prefill"]), ("--tpot-limits", limits["decode"])):
        if limit is not None and not limit > 0:
            raise UsageError(f"{name} is {limit:g}; a limit is a number of milliseconds above 0.")
    if question.disagg and set(limits.values()) == {None}:
        raise UsageError(
            "--disagg has no limit; give --ttft-limits for prefill, --tpot-limits for decode, or both."
        )
    if question.ratio:
        return ["prefill", "decode"]
    if question.disagg:
        return [mode for mode, limit in limits.items() if limit is not None]
    return ["aggregated"]


def _limits(question: Question) -> dict[str, float]:
    limits = {"ttft_ms": question.ttft_limit_ms, "tpot_ms": question.tpot_limit_ms}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _ratio(question: Question) -> dict[str, Any] | None:
    counts = {
        "--prefill-devices-per-instance": question.prefill_devices,
        "--decode-devices-per-instance": question.decode_devices,
    }
    for flag, count in counts.items():
        _check_count(flag, count)
        if not question.ratio and count is not None:
            raise UsageError(f"{flag} belongs to --enable-optimize-prefill-decode-ratio; add that flag.")
        if question.ratio and count is None:
            raise UsageError(
                f"{flag} is missing; --enable-optimize-prefill-decode-ratio needs the devices of both halves."
            )
    if not question.ratio:
        return None
    ratio = {"prefill_devices": question.prefill_devices, "decode_devices": question.decode_devices}
    return ratio if question.num_devices is None else ratio | {"total_devices": question.num_devices}


def _workload(question: Question) -> dict[str, Any]:
    _check_count("--input-length", question.input_length)
    _check_count("--output-length", question.output_length)
    rate = question.prefix_cache_hit_rate
    if not 0 <= rate < 1:
        raise UsageError(f"--prefix-cache-hit-rate is {rate:g}; it must be at least 0 and below 1.")
    return {
        "input_length": question.input_length,
        "output_length": question.output_length,
        "prefix_cache_hit_rate": rate,
    }


def _engine(question: Question) -> dict[str, Any]:
    tokens = _sizes("--num-mtp-tokens", question.num_mtp_tokens, least=0)
    engine = {
        "max_batched_tokens": _sizes(
            "--max-batched-tokens", question.max_batched_tokens, words=("auto", "search")
        ),
        "num_mtp_tokens": tokens,
    }
    if question.mtp_acceptance_rate is None:
        return engine
    rates = [_rate(text) for text in question.mtp_acceptance_rate]
    if isinstance(tokens, list) and max(tokens) > len(rates):
        raise UsageError(
            f"--mtp-acceptance-rate has {len(rates)} rates, but --num-mtp-tokens asks for {max(tokens)}; "
            "give a rate for each token."
        )
    return engine | {"mtp_acceptance_rate": rates}


def _concurrency(question: Question) -> dict[str, Any]:
    strategy = question.strategy.replace("-", "_")
    if strategy not in STRATEGIES:
        raise UsageError(
            f"--concurrency-search-strategy is {question.strategy}; use {', '.join(STRATEGIES)}."
        )
    if question.batch_range is None:
        if strategy == "bisect":
            raise UsageError("--concurrency-search-strategy bisect has no range; add --batch-range A B.")
        return {"search": strategy}
    bounds = [_whole("--batch-range", text, 1) for text in question.batch_range]
    if len(bounds) > 2:
        raise UsageError(f"--batch-range has {len(bounds)} values; give the smallest and the largest size.")
    if len(bounds) == 1:
        bounds = [1, *bounds]
    if bounds[0] > bounds[1]:
        raise UsageError(
            f"--batch-range is {bounds[0]} {bounds[1]}, which is reversed; give the smaller size first."
        )
    return {"search": strategy, "range": bounds}


def _sizes(
    flag: str, texts: Sequence[str], least: int = 1, words: Sequence[str] = ("auto",)
) -> str | list[int]:
    if len(texts) == 1 and texts[0] in words:
        return texts[0]
    sizes = [_whole(flag, text, least, words) for text in texts]
    return list(dict.fromkeys(sizes))


def _whole(flag: str, text: str, least: int, words: Sequence[str] = ()) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        alone = f", or {' or '.join(words)} alone" if words else ""
        raise UsageError(f"{flag} is {text}; give whole numbers of at least {least}{alone}.")
    return number


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 1:
        raise UsageError(f"--mtp-acceptance-rate is {text}; give rates between 0 and 1.")
    return rate


def _check_count(flag: str, count: int | None) -> None:
    if count is not None and count < 1:
        raise UsageError(f"{flag} is {count}; it must be at least 1.")


def _emitted(content: dict[str, Any], path: Path) -> LoadedConfig:
    """Write a config and read it again, so that the run is the one that the file gives."""
    here = os.path.relpath(Path(), path.parent)
    placed = content | {
        "models": [_seen_from(here, model, (".json",)) for model in content["models"]],
        "devices": [_seen_from(here, device, (".yaml", ".yml")) for device in content["devices"]],
    }
    try:
        path.write_text(_yaml(placed), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"The config cannot be written to {path} ({error.strerror}).") from error
    return load_config(path)


def _seen_from(here: str, text: str, suffixes: tuple[str, ...]) -> str:
    """Return a relative path as it is from the config's folder; names stay as they are."""
    is_path = Path(text).exists() or looks_like_path(text, suffixes)
    if not is_path or Path(text).expanduser().is_absolute():
        return text
    return Path(here, text).as_posix()


def _yaml(content: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=100)
    return text
