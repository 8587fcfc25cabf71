"""What the output folder of a run takes, refuses and survives."""

from __future__ import annotations

import contextlib
import logging
import shutil
import warnings
from pathlib import Path

import pytest

from cache.errors import OutputError
from pipeline.outputs import OutputFolder
from pipeline.run_log import RunLog


def files_of(run: str) -> dict[str, bytes]:
    return {"manifest.json": f'{{"run": "{run}"}}'.encode(), "results.parquet": run.encode()}


def test_of_two_different_runs_that_start_at_once_the_second_to_end_is_refused(tmp_path: Path) -> None:
    first, second = (OutputFolder(tmp_path, run, force=False) for run in ("a", "b"))
    first.write(files_of("a"))
    with pytest.raises(OutputError, match="already holds a different run; choose another with --out"):
        second.write(files_of("b"))
    assert (tmp_path / "results.parquet").read_bytes() == b"a"
    assert {path.name for path in tmp_path.iterdir()} == set(files_of("a"))


def test_the_same_run_twice_at_once_and_a_forced_one_are_written(tmp_path: Path) -> None:
    folders = [OutputFolder(tmp_path, "a", force=False) for _ in range(2)]
    forced = OutputFolder(tmp_path, "b", force=True)
    for folder in folders:
        folder.write(files_of("a"))
    forced.write(files_of("b"))
    assert (tmp_path / "results.parquet").read_bytes() == b"b"


def test_what_a_killed_run_left_does_not_block_the_next(tmp_path: Path) -> None:
    (tmp_path / "run.log").touch()
    (tmp_path / ".results.parquet.0123.tmp").write_bytes(b"half")
    OutputFolder(tmp_path, "b", force=False).write(files_of("b"))
    assert (tmp_path / "results.parquet").read_bytes() == b"b"


@pytest.mark.parametrize("replaced", [True, False])
def test_a_folder_that_vanishes_during_the_run_is_one_sentence_that_fits(
    tmp_path: Path, replaced: bool
) -> None:
    out = tmp_path / "out"
    folder = OutputFolder(out, "a", force=False)
    shutil.rmtree(out)
    if replaced:
        out.write_text("a file")
    with pytest.raises(
        OutputError, match="see that it is a folder that can be written and stays, or"
    ) as told:
        folder.write(files_of("a"))
    assert "make room" not in str(told.value)


needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")


@needs_full
def test_a_full_disk_says_to_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full").open
    monkeypatch.setattr(Path, "open", lambda _path, *how: full(*how))
    with pytest.raises(
        OutputError, match=r"No space left on device\); .*: make room in the folder, or choose"
    ):
        OutputFolder(tmp_path, "a", force=False).write(files_of("a"))


@needs_full
@pytest.mark.parametrize("fails", [False, True])
def test_a_log_that_cannot_be_written_warns_once_and_hides_no_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], fails: bool
) -> None:
    path = tmp_path / "run.log"
    path.symlink_to("/dev/full")
    outcome = pytest.raises(OutputError, match="why it failed") if fails else contextlib.nullcontext()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with outcome, RunLog(path):
            for _ in range(3):
                logging.getLogger("shapecast").info("a line")
            if fails:
                raise OutputError("why it failed")
    warning = f"The log {path} cannot be written (No space left on device); the results are whole."
    assert [str(one.message) for one in told] == ([] if fails else [warning])
    assert capfd.readouterr().err == ""


def test_a_log_that_is_a_folder_does_not_stop_a_run(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="The log .* cannot be written"), RunLog(tmp_path):
        logging.getLogger("shapecast").info("a line")


def test_a_log_that_can_be_written_has_every_line(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run.log"):
        logging.getLogger("shapecast").info("a line")
    assert (tmp_path / "run.log").read_text().endswith(" INFO a line\n")
