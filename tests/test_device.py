"""Device profiles: the shipped ones are complete; a bad one is named with file, field and reason."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from cache.errors import ConfigError
from configs import DEVICES_DIR
from stages.runners.device import DeviceProfile, find_device_profile, known_device_names, load_device

SHIPPED = [
    "A100-SXM-80G",
    "ATLAS-800-A2-64G",
    "ATLAS-800-A3-128G",
    "B200-SXM-180G",
    "H100-SXM-80G",
    "H200-SXM-141G",
    "L40S-48G",
    "MI300X-192G",
]


def shipped(name: str) -> dict[str, Any]:
    fields = yaml.safe_load((DEVICES_DIR / f"{name}.yaml").read_text())
    assert isinstance(fields, dict)
    return fields


def leaves(fields: dict[str, Any], at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in fields.items():
        if isinstance(value, dict):
            yield from leaves(value, (*at, key))
        else:
            yield (*at, key)


def changed(fields: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    result = copy.deepcopy(fields)
    part = result
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return result


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Any], Path]:
    def write_profile(fields: Any) -> Path:
        path = tmp_path / "mine.yaml"
        path.write_text(fields if isinstance(fields, str) else yaml.safe_dump(fields))
        return path

    return write_profile


def test_all_promised_devices_are_shipped() -> None:
    assert known_device_names() == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_profile_names_a_source_for_every_figure(name: str) -> None:
    device = load_device(find_device_profile(name)[1])
    figures = {"memory_gb", "memory_bandwidth_gb_per_s", "peak_tflops"}
    figures |= {"interconnect.intra_node", "interconnect.inter_node"}
    assert figures <= set(device.sources)
    assert all(source.strip() for source in device.sources.values())


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_device_has_plausible_proportions(name: str) -> None:
    device = load_device(find_device_profile(name)[1])
    peaks = device.peak_tflops
    # Eight-bit formats run at twice the BF16 rate on all of them; vector units are far below.
    for eight_bit in (peaks.fp8, peaks.int8):
        assert eight_bit is None or eight_bit / peaks.bf16 == pytest.approx(2, rel=0.02)
    assert peaks.vector < peaks.bf16 / 3
    links = device.interconnect
    assert links.intra_node.bandwidth_gb_per_s >= links.inter_node.bandwidth_gb_per_s
    assert links.intra_node.latency_us <= links.inter_node.latency_us


def test_memory_is_what_the_driver_reports_in_gib() -> None:
    assert load_device(DEVICES_DIR / "H100-SXM-80G.yaml").memory_gb == pytest.approx(81559 / 1024, abs=0.01)
    assert load_device(DEVICES_DIR / "B200-SXM-180G.yaml").memory_gb == pytest.approx(183359 / 1024, abs=0.01)
    assert load_device(DEVICES_DIR / "MI300X-192G.yaml").memory_gb == pytest.approx(
        206141652992 / 2**30, abs=0.01
    )


def test_an_a3_device_is_one_die_and_says_so() -> None:
    device = load_device(DEVICES_DIR / "ATLAS-800-A3-128G.yaml")
    assert device.memory_gb == 64
    assert "one die" in device.description


@pytest.mark.parametrize("text", ["H100-SXM-80G", "h100-sxm-80g"])
def test_a_shipped_name_is_found_in_any_case(text: str) -> None:
    assert find_device_profile(text) == ("H100-SXM-80G", DEVICES_DIR / "H100-SXM-80G.yaml")


def test_a_path_is_relative_to_the_base(write: Callable[[Any], Path], tmp_path: Path) -> None:
    path = write(shipped("H100-SXM-80G"))
    assert find_device_profile("mine.yaml", tmp_path) == ("mine", path)
    assert find_device_profile(str(path)) == ("mine", path)


def test_moving_a_profile_keeps_its_digest(write: Callable[[Any], Path]) -> None:
    fields = shipped("H100-SXM-80G")
    assert load_device(write(dict(reversed(fields.items())))).digest == DeviceProfile(**fields).digest


def test_an_integer_and_the_same_float_are_one_figure(write: Callable[[Any], Path]) -> None:
    fields = shipped("H100-SXM-80G")
    digest = load_device(write(fields)).digest
    assert load_device(write(fields | {"memory_bandwidth_gb_per_s": 3350.0})).digest == digest


@pytest.mark.parametrize("path", list(leaves(shipped("B200-SXM-180G"))), ids=".".join)
def test_every_field_changes_the_digest(path: tuple[str, ...], write: Callable[[Any], Path]) -> None:
    fields = shipped("B200-SXM-180G")
    value: Any = fields
    for key in path:
        value = value[key]
    if isinstance(value, str):
        other: Any = value + " and more"
    else:
        other = value * 2 if isinstance(value, int) else value / 2
    assert load_device(write(changed(fields, path, other))).digest != load_device(write(fields)).digest


def test_a_profile_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load_device(DEVICES_DIR / "H100-SXM-80G.yaml").memory_gb = 1.0  # type: ignore[misc]


def test_an_unknown_name_is_answered_with_close_ones() -> None:
    with pytest.raises(ConfigError, match=r"Unknown device 'H100': .*H100-SXM-80G.*; or give the path"):
        find_device_profile("H100")
    with pytest.raises(ConfigError, match=r"Unknown device 'ATLAS-800-A4': close names are ATLAS-800-A"):
        find_device_profile("ATLAS-800-A4")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Device profile .*nowhere.yaml does not exist; give"):
        load_device(find_device_profile("nowhere.yaml", tmp_path)[1])


def test_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=r"folder is a directory; give a YAML file or a shipped name\."):
        find_device_profile("folder", tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("memory_gb: [", r"mine.yaml is no valid YAML \(line 1, column 13\); correct the file\."),
        ("", r"mine.yaml is no YAML mapping; give a profile"),
        ("- 1", r"is no YAML mapping"),
    ],
)
def test_text_that_is_no_profile_is_refused(text: str, message: str, write: Callable[[Any], Path]) -> None:
    with pytest.raises(ConfigError, match=message):
        load_device(write(text))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("memory_gb",), 0, r"mine.yaml: field memory_gb is 0: input should be greater than 0\."),
        (("memory_gb",), "80 GB", r"field memory_gb is '80 GB': input should be a valid number\."),
        (("memory_gb",), float("inf"), r"field memory_gb is inf: input should be a finite number\."),
        (("memory_gb",), 10**400, r"field memory_gb is 10+\.\.\. \(401 characters\): "),
        (
            ("memory_gb",),
            1e300,
            r"field memory_gb is 1e\+300: input should be less than or equal to 1000000000\.",
        ),
        (("memory_size",), 3, r"field memory_size is unknown: remove it or correct its name\."),
        (("peak_tflops", "fp16"), 3, r"field peak_tflops.fp16 is unknown"),
        (("peak_tflops", "bf16"), None, r"field peak_tflops.bf16 is None"),
        (("interconnect", "devices_per_node"), 2.5, r"field interconnect.devices_per_node is 2.5: "),
        (
            ("interconnect", "intra_node", "latency_us"),
            -1,
            r"field interconnect.intra_node.latency_us is -1: ",
        ),
        (("efficiency", "compute"), 1.2, r"field efficiency.compute is 1.2: .* less than or equal to 1\."),
        (("operator_overhead_us",), -2, r"field operator_overhead_us is -2: "),
        (("sources", "colour"), "x", r"field sources is .*'colour' names no figure of a device profile\."),
    ],
)
def test_a_field_that_cannot_be_used_is_named(
    path: tuple[str, ...], value: Any, message: str, write: Callable[[Any], Path]
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_device(write(changed(shipped("H100-SXM-80G"), path, value)))


def test_a_missing_field_is_named(write: Callable[[Any], Path]) -> None:
    fields = shipped("H100-SXM-80G")
    del fields["interconnect"]["inter_node"]
    with pytest.raises(ConfigError, match=r"mine.yaml: field interconnect.inter_node is missing: it must be"):
        load_device(write(fields))


def test_a_figure_without_a_source_is_refused(write: Callable[[Any], Path]) -> None:
    fields = shipped("H100-SXM-80G")
    del fields["sources"]["memory_gb"]
    with pytest.raises(ConfigError, match=r"mine.yaml: sources must name where memory_gb is from\."):
        load_device(write(fields))
