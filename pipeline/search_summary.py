"""What the closing summary says of searches."""

from __future__ import annotations

import pandas as pd
from rich.console import Console
from rich.markup import escape

from pipeline.units import format_number

_MOST_LINES = 5


def print_missed(frame: pd.DataFrame, console: Console) -> None:
    """Print where bisection would have ended on less than the true best, the largest loss first."""
    for text in missed_sentences(frame):
        console.print(escape(text), soft_wrap=True)


def missed_sentences(frame: pd.DataFrame) -> list[str]:
    """Return where bisection would have ended on less than the true best, in words."""
    sentences = []
    missed = frame[frame["bisection_loss"] > 0].sort_values("bisection_loss", ascending=False, kind="stable")
    for row in missed.head(_MOST_LINES).to_dict("records"):
        where = (
            f"{row['model']} on {row['num_devices']} x {row['device']}, {row['parallelism']}, {row['mode']}"
        )
        budget = "" if row["mode"] == "decode" else f", {row['max_batched_tokens']:,} batched tokens"
        found = (
            "found nothing"
            if pd.isna(row["bisection_batch_size"])
            else f"ended on batch {int(row['bisection_batch_size'])}"
        )
        sentences.append(
            f"Bisection would have missed {100 * row['bisection_loss']:.2f}% of "
            f"{format_number(row['tokens_per_s'])} tokens/s: {where}{budget}; "
            f"batch {row['batch_size']} is best, it {found}."
        )
    if len(missed) > _MOST_LINES:
        sentences.append(f"{len(missed) - _MOST_LINES} more such searches are in the column bisection_loss.")
    return sentences
