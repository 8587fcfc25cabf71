"""What outputs call the models, devices and files of a config: never by a path of one machine.

An absolute path says where a file is on one machine, and often whose machine it is. Outputs are the same
bytes wherever a run takes place, so they hold the name of the file or folder instead. What a run is, is told
by the table identities, which hold digests of the content.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config import LoadedConfig

_CONFIG_NAME = "config.json"
_SUFFIXES = (".json", ".yaml", ".yml")
_DIGITS = 8


@dataclass(frozen=True)
class OutputNames:
    """Names for outputs, by what the config says.

    Attributes
    ----------
    models, devices : mapping
        Text in the config -> name.
    """

    models: Mapping[str, str]
    devices: Mapping[str, str]

    @classmethod
    def of(cls, loaded: LoadedConfig) -> OutputNames:
        """Return the names that a config leads to."""
        return cls(_names(loaded.config.models), _names(loaded.config.devices))

    def config(self, loaded: LoadedConfig) -> dict[str, Any]:
        """Return the config as plain JSON values, as outputs keep it."""
        content = loaded.config.as_json()
        content["models"] = [self.models[text] for text in content["models"]]
        content["devices"] = [self.devices[text] for text in content["devices"]]
        content["runner"] = [
            {field: _placeless(value) for field, value in entry.items()} for entry in content["runner"]
        ]
        return content

    def label(self, label: str, model: str, device: str) -> str:
        """Return the label of a table, in which a runner may have put the texts of the config."""
        return label.replace(model, self.models[model]).replace(device, self.devices[device])


def _names(texts: Sequence[str]) -> dict[str, str]:
    """Return a name for each text; equal names of different paths are told apart by their content."""
    names = {text: short_name(text) for text in texts}
    count = Counter(names.values())
    for text, name in names.items():
        if count[name] > 1 and _is_absolute(text):
            names[text] = f"{name}-{_content_digest(text)}"
    count = Counter(names.values())
    seen: Counter[str] = Counter()
    for text, name in names.items():
        seen[name] += 1
        if count[name] > 1 and seen[name] > 1:  # Two copies of one content.
            names[text] = f"{name} #{seen[name]}"
    return names


def short_name(text: str) -> str:
    """Return a name without folders for an absolute path, and anything else as it is."""
    if not _is_absolute(text):
        return text
    path = Path(text)
    if path.name == _CONFIG_NAME:
        path = path.parent
    name = path.name.removesuffix(path.suffix) if path.suffix.lower() in _SUFFIXES else path.name
    return name or path.anchor


def _placeless(value: Any) -> Any:
    """Return the value of a runner's field; of an absolute path its last part."""
    return Path(value).name or value if isinstance(value, str) and _is_absolute(value) else value


def _is_absolute(text: str) -> bool:
    return text.startswith("~") or Path(text).is_absolute()


def _content_digest(text: str) -> str:
    path = Path(text).expanduser()
    path = path / _CONFIG_NAME if path.is_dir() else path
    try:
        data = path.read_bytes().replace(b"\r\n", b"\n")
    except OSError:
        data = text.encode()  # A runner may understand what is no file here.
    return hashlib.sha256(data).hexdigest()[:_DIGITS]
