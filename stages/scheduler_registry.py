"""Which scheduling policies there are, by name; installed packages may add their own.

A package adds one with an entry point in the group `shapecast.schedulers`, whose value is the class.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from cache.errors import InvalidValueError, shown
from stages.scheduler import (
    DecodeFirstSlack,
    LazyScheduler,
    Scheduler,
    SchedulingPolicy,
    policy_settings,
)
from stages.step_time_budget import StepTimeBudget

ENTRY_POINT_GROUP = "shapecast.schedulers"

_BUILT_IN: dict[str, type[SchedulingPolicy]] = {
    DecodeFirstSlack.name: DecodeFirstSlack,
    StepTimeBudget.name: StepTimeBudget,
}
_registered: dict[str, SchedulingPolicy] = {}


def register_scheduler(scheduler: SchedulingPolicy) -> None:
    """Make a policy available under its name, in this process."""
    _registered[scheduler.name] = scheduler


def scheduler_names() -> list[str]:
    """Return the names that `get_scheduler` takes, plug-ins included."""
    return sorted({*_BUILT_IN, *_registered, *_plug_ins()})


def get_scheduler(scheduler: str | SchedulingPolicy) -> SchedulingPolicy:
    """Return the policy called so, without settings; a policy is returned as it is.

    Raises
    ------
    ValueError
        When there is none, or it needs settings.
    """
    if isinstance(scheduler, SchedulingPolicy):
        return scheduler
    return _registered[scheduler] if scheduler in _registered else make_scheduler(scheduler, {})


def make_scheduler(name: str, settings: Mapping[str, Any]) -> SchedulingPolicy:
    """Return the policy `name` with these settings.

    Raises
    ------
    ValueError
        When there is no such policy, its package cannot be imported, or it takes other settings.
    """
    policy = _BUILT_IN.get(name) or _plug_in(name)
    known = {one.name: one for one in policy_settings(policy)}
    for setting in settings:
        if setting not in known:
            takes = f"takes {' and '.join(known)}" if known else "takes none"
            raise InvalidValueError(f"The scheduler {name!r} has no setting {shown(setting)}; it {takes}.")
    for setting, one in known.items():
        required = one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        if required and setting not in settings:
            raise InvalidValueError(
                f"The scheduler {shown(name)} needs the setting {shown(setting)}; write "
                f"{{kind: {name}, {setting}: ...}}."
            )
    return policy(**settings)


def is_built_in(scheduler: SchedulingPolicy) -> bool:
    """Whether the policy is one of this package, whose source is known to the memo."""
    return type(scheduler) in _BUILT_IN.values()


def _plug_in(name: str) -> type[SchedulingPolicy]:
    plug_ins = _plug_ins()
    if name not in plug_ins:
        close = difflib.get_close_matches(name, scheduler_names()) or scheduler_names()
        raise InvalidValueError(f"There is no scheduler {shown(name)}; use {' or '.join(close)}.")
    place = plug_ins[name].value
    try:
        loaded = plug_ins[name].load()
    except (ImportError, AttributeError) as error:
        raise InvalidValueError(
            f"The scheduler {name!r} is registered as {place}, which cannot be imported ({error}); "
            "reinstall its package."
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, Scheduler | LazyScheduler)):
        raise InvalidValueError(
            f"The scheduler {name!r} is registered as {place}, which is no Scheduler or LazyScheduler class."
        )
    if getattr(loaded, "name", None) != name:
        raise InvalidValueError(
            f"The scheduler {name!r} is registered as {place}, whose name is "
            f"{getattr(loaded, 'name', None)!r}; both must be the same."
        )
    return loaded


def _plug_ins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
