"""`shapecast optimize`: a sweep asked in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli_options import path_option
from pipeline.cli_tables import Tables

Values = list[str] | None


def _flag(name: str, text: str, metavar: str | None = None) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(name, help=text, metavar=metavar, show_default=False)
    return option


def optimize(
    model: Annotated[str, typer.Argument(help="A shipped model, or the path of a config.json.")],
    device: Annotated[list[str], _flag("--device", "Devices to compare.", "D [D ...]")],
    input_length: Annotated[int, _flag("--input-length", "Prompt tokens.", "L")],
    output_length: Annotated[int, _flag("--output-length", "Generated tokens.", "O")],
    num_devices: Annotated[
        int | None, _flag("--num-devices", "Devices of one deployment; with a ratio, of all.", "N")
    ] = None,
    max_batched_tokens: Annotated[
        Values, _flag("--max-batched-tokens", "Token budgets, auto or search. [default: auto]", "T [T ...]")
    ] = None,
    ttft_limits: Annotated[float | None, _flag("--ttft-limits", "Most time to first token.", "MS")] = None,
    tpot_limits: Annotated[float | None, _flag("--tpot-limits", "Most time per output token.", "MS")] = None,
    disagg: Annotated[
        bool, typer.Option("--disagg", help="The half with a limit: TTFT prefill, TPOT decode.")
    ] = False,
    tp_sizes: Annotated[Values, _flag("--tp-sizes", "[default: auto]", "[N ...]")] = None,
    ep_sizes: Annotated[Values, _flag("--ep-sizes", "[default: auto]", "[N ...]")] = None,
    moe_dp_sizes: Annotated[Values, _flag("--moe-dp-sizes", "[default: 1]", "[N ...]")] = None,
    num_mtp_tokens: Annotated[Values, _flag("--num-mtp-tokens", "[default: 0]", "[N ...]")] = None,
    mtp_acceptance_rate: Annotated[
        Values, _flag("--mtp-acceptance-rate", "Of each token. [default: 0.9 0.6 0.4 0.2]", "R [R ...]")
    ] = None,
    prefix_cache_hit_rate: Annotated[
        float, typer.Option("--prefix-cache-hit-rate", help="Share of the prompt that is cached.")
    ] = 0.0,
    batch_range: Annotated[
        Values, _flag("--batch-range", "Smallest and largest batch size; one alone is the largest.", "A [B]")
    ] = None,
    concurrency_search_strategy: Annotated[
        str, typer.Option("--concurrency-search-strategy", help="How batch sizes are searched.")
    ] = "exponential",
    enable_optimize_prefill_decode_ratio: Annotated[
        bool, typer.Option("--enable-optimize-prefill-decode-ratio", help="Pair prefill with decode.")
    ] = False,
    prefill_devices_per_instance: Annotated[
        int | None, _flag("--prefill-devices-per-instance", "Devices of one prefill instance.", "P")
    ] = None,
    decode_devices_per_instance: Annotated[
        int | None, _flag("--decode-devices-per-instance", "Devices of one decode instance.", "D")
    ] = None,
    jobs: Annotated[int | None, _flag("--jobs", "Threads. [default: cores]", "J")] = None,
    runner: Annotated[str, typer.Option("--runner", help="What computes forward latencies.")] = "roofline",
    emit_config: Annotated[
        str | None, _flag("--emit-config", "Also write the sweep config; - prints it and ends.", "FILE")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", parser=path_option, metavar="PATH", help="Folder of the run's files. [default: out/NAME]"
        ),
    ] = None,
    tables: Tables = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the output folder.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a different run in the folder.")] = False,
) -> None:
    """Find the best deployment of a model on a number of devices."""
    from pipeline.optimize import Question, answer

    answer(
        Question(
            model=model,
            devices=device,
            num_devices=num_devices,
            input_length=input_length,
            output_length=output_length,
            prefix_cache_hit_rate=prefix_cache_hit_rate,
            max_batched_tokens=max_batched_tokens or ["auto"],
            ttft_limit_ms=ttft_limits,
            tpot_limit_ms=tpot_limits,
            disagg=disagg,
            tp_sizes=tp_sizes or ["auto"],
            ep_sizes=ep_sizes or ["auto"],
            moe_dp_sizes=moe_dp_sizes or ["1"],
            num_mtp_tokens=num_mtp_tokens or ["0"],
            mtp_acceptance_rate=mtp_acceptance_rate,
            batch_range=batch_range,
            strategy=concurrency_search_strategy,
            ratio=enable_optimize_prefill_decode_ratio,
            prefill_devices=prefill_devices_per_instance,
            decode_devices=decode_devices_per_instance,
            runner=runner,
        ),
        emit_config,
        out,
        tables,
        jobs,
        quiet=quiet,
        force=force,
    )
