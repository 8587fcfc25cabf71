"""How a table's records can be computed again: the runner's options and the deployment, as a run had them.

An identity cannot be turned back into a runner, since it holds digests of the model and device files. So a
run leaves `runner.json` beside the records. It is a note and no part of the identity: what it leads to is
used only if it has the table's identity.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cache.errors import ConfigError, InvalidValueError
from pipeline.cells import Cell
from stages.parallelism import Parallelism
from stages.runners.base import Deployment, RunnerOptions, RunnerSpec
from stages.runners.registry import runner_options

RECIPE_VERSION = 1


@dataclass(frozen=True)
class Recipe:
    """A runner's options and a deployment.

    Attributes
    ----------
    options : RunnerOptions
        The `runner` entry of the sweep config.
    deployment : Deployment
        Model, device and parallelism, with what paths are relative to.
    """

    options: RunnerOptions
    deployment: Deployment

    @classmethod
    def of(cls, options: RunnerOptions, cell: Cell, base_dir: Path) -> Recipe:
        """Return the recipe of a cell."""
        return cls(
            options,
            Deployment(
                cell.model, cell.device, cell.parallelism, cell.engine.num_mtp_tokens, base_dir.absolute()
            ),
        )

    def spec(self) -> RunnerSpec:
        """Return the spec.

        Raises
        ------
        ConfigError
            When a file that it needs is gone, or the runner cannot serve it.
        """
        return self.options.spec(self.deployment)

    def as_file(self) -> bytes:
        """Return the text of `runner.json`."""
        deployment = self.deployment
        content = {
            "recipe_version": RECIPE_VERSION,
            "runner": self.options.model_dump(mode="json"),
            "model": deployment.model,
            "device": deployment.device,
            "parallelism": deployment.parallelism.as_json(),
            "num_mtp_tokens": deployment.num_mtp_tokens,
            "base_dir": str(deployment.base_dir),
        }
        return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()

    @classmethod
    def from_file(cls, data: bytes, source: str) -> Recipe:
        """Return the recipe that `as_file` wrote.

        Raises
        ------
        ConfigError
            When it is none, or its runner is not installed.
        """
        try:
            content: dict[str, Any] = json.loads(data)
            options = runner_options(content["runner"]["kind"]).model_validate(content["runner"])
            deployment = Deployment(
                content["model"],
                content["device"],
                Parallelism(**content["parallelism"]),
                content["num_mtp_tokens"],
                Path(content["base_dir"]),
            )
        except (ValueError, KeyError, TypeError, ValidationError, InvalidValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ConfigError(f"{source} does not say how to compute its table ({reason}).") from error
        return cls(options, deployment)
