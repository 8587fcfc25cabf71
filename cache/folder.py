"""Folders of small files that are written whole or not at all.

The shape store needs little of a file system: list names, read a file, publish a file under its final
name, set a file aside, delete it. `LocalFolder` does that on disk.
"""

from __future__ import annotations

import errno
import os
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cache.errors import StoreError


class ReadOnlyError(StoreError):
    """The folder can be read but not written."""


class UnreachableError(StoreError):
    """The server that holds the folder does not answer."""


class Folder(ABC):
    """A flat folder of files, named by `str(folder)` in messages."""

    @abstractmethod
    def child(self, name: str) -> Folder:
        """Return the folder `name` inside this one, whether or not it exists."""

    @abstractmethod
    def child_names(self) -> list[str]:
        """Return the names of the folders inside this one, sorted."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of the files in the folder, sorted; none when the folder does not exist.

        Hidden files, unfinished ones among them, are left out.
        """

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return a file's bytes.

        Raises
        ------
        FileNotFoundError
            When it is not (or no longer) there.
        """

    @abstractmethod
    def publish(self, name: str, data: bytes) -> None:
        """Write a file so that readers see all of it or none, and a power cut keeps it.

        Raises
        ------
        ReadOnlyError
            When the folder may not be written.
        StoreError
            When it cannot be written for another reason, such as a full disk.
        """

    @abstractmethod
    def set_aside(self, name: str, into: str) -> None:
        """Move a file into the child folder `into`."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a file; no error when it is gone already."""

    @abstractmethod
    def delete_folder(self) -> None:
        """Delete the folder with all that is in it."""

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Return the size of each file of `names()`, bytes."""

    @abstractmethod
    def sweep(self) -> None:
        """Delete unfinished files that a dead process left, where there can be any."""


_PUBLISH_ATTEMPTS = 20

_STALE_S = 24 * 3600
"""An unfinished file of this age belongs to no living process."""


class LocalFolder(Folder):
    """A folder on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def child(self, name: str) -> LocalFolder:
        """Return the folder `name` inside this one."""
        return LocalFolder(self.path / name)

    def child_names(self) -> list[str]:
        """Return the names of the folders inside this one."""
        return self._listed(lambda entry: entry.is_dir())

    def names(self) -> list[str]:
        """Return the names of the files in the folder."""
        return self._listed(lambda entry: entry.is_file())

    def _listed(self, wanted: Callable[[os.DirEntry[str]], bool]) -> list[str]:
        with _mapped(self, "read"):
            try:
                with os.scandir(self.path) as entries:
                    return sorted(e.name for e in entries if not e.name.startswith(".") and wanted(e))
            except FileNotFoundError:
                return []

    def read(self, name: str) -> bytes:
        """Return a file's bytes."""
        with _mapped(self, "read"):
            return (self.path / name).read_bytes()

    def sizes(self) -> dict[str, int]:
        """Return the size of each file."""
        found = {}
        for name in self.names():
            with suppress(OSError):
                found[name] = (self.path / name).stat().st_size
        return found

    def publish(self, name: str, data: bytes) -> None:
        """Write under a temporary name, fsync, rename, fsync the folder."""
        with _mapped(self, "write"):
            for attempt in range(_PUBLISH_ATTEMPTS):
                try:
                    self._publish(name, data)
                except FileNotFoundError:
                    if attempt == _PUBLISH_ATTEMPTS - 1:
                        raise StoreError(
                            f"The table folder {self} is deleted again and again while it is written; "
                            "choose another with --tables."
                        ) from None
                else:
                    return

    def _publish(self, name: str, data: bytes) -> None:
        """Publish once.

        Raises
        ------
        FileNotFoundError
            When somebody deletes the folder meanwhile.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        temporary = self.path / f".{uuid.uuid4().hex}.tmp"
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path / name)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        _fsync_folder(self.path)

    def sweep(self) -> None:
        """Delete unfinished files that a dead process left."""
        with suppress(OSError):
            for path in self.path.glob(".*.tmp"):
                if time.time() - path.stat().st_mtime > _STALE_S:
                    path.unlink()

    def set_aside(self, name: str, into: str) -> None:
        """Move a file into the child folder `into`, under a name that is free there."""
        with _mapped(self, "write"):
            folder = self.path / into
            folder.mkdir(exist_ok=True)
            target = folder / name
            if target.exists():
                target = folder / f"{name}.{uuid.uuid4().hex[:8]}"
            (self.path / name).replace(target)

    def delete(self, name: str) -> None:
        """Delete a file."""
        with _mapped(self, "write"), suppress(FileNotFoundError):
            (self.path / name).unlink()

    def delete_folder(self) -> None:
        """Delete the folder with all that is in it."""
        with _mapped(self, "write"):
            for child in self.child_names():
                self.child(child).delete_folder()
            for path in list(self.path.iterdir()):
                path.unlink(missing_ok=True)
            self.path.rmdir()


def _fsync_folder(path: Path) -> None:
    """Make a rename survive a power cut (Windows has no such call, and needs none)."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _mapped(folder: Folder, verb: str) -> Iterator[None]:
    """Turn operating system errors into sentences; a missing file stays FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if verb == "write" and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise ReadOnlyError(f"The table folder {folder} is read-only ({error.strerror}).") from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StoreError(
                f"The disk of the table folder {folder} is full; records computed so far are kept: "
                "make room and run again."
            ) from error
        raise StoreError(
            f"Cannot {verb} the table folder {folder} ({error.strerror or error}); "
            "check the path and its permissions, or choose another with --tables."
        ) from error
