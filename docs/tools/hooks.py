"""What the documentation takes from the code when it is built: the references, and which pages there are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))

import reference


def on_config(config: Any) -> Any:
    """Leave pages out of the navigation that are not there."""
    config["nav"] = _existing(config["nav"], Path(config["docs_dir"]))
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the references, made from the code."""
    for name, text in reference.pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def _existing(nav: list[Any], docs: Path) -> list[Any]:
    kept: list[Any] = []
    for entry in nav:
        ((title, target),) = entry.items()
        if isinstance(target, list):
            kept.append({title: _existing(target, docs)})
        elif target in reference.PAGES or (docs / target).exists():
            kept.append(entry)
    return kept
