"""One writer at a time per table, so that runs side by side do not compute the same shapes.

The lock saves work and nothing else: no record depends on it, so where it cannot be had (a read-only folder,
a file system without locks) a run goes on without.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import IO

from cache.errors import StoreError
from cache.folder import Folder, LocalFolder

try:
    import fcntl
except ImportError:  # Windows; two runs there may compute a shape twice.
    fcntl = None  # type: ignore[assignment]

LOCK_NAME = ".lock"
CLAIMS_NAME = "claims"

BEAT_S = 3.0
SILENT_S = 15.0
"""A claim on a server is renewed so often, and is void when it has not been for so long."""


class Lock(ABC):
    """The right to compute for one table.

    Attributes
    ----------
    poll_s : float
        How long to wait between attempts, s.
    """

    poll_s: float

    @abstractmethod
    def try_acquire(self) -> bool:
        """Return whether the lock is held now; also true where there can be none."""

    @abstractmethod
    def release(self) -> None:
        """Let others have it."""


def lock_of(folder: Folder) -> Lock:
    """Return the lock of a table's folder."""
    return LocalLock(folder.path) if isinstance(folder, LocalFolder) else ServerLock(folder)


class LocalLock(Lock):
    """A lock that the operating system releases when its process dies.

    Parameters
    ----------
    path : Path
        The table's folder; made when it does not exist.
    """

    poll_s = 0.1

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None

    def try_acquire(self) -> bool:
        """Return whether the lock is held now."""
        if fcntl is None:
            return True
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            file = (self._path / LOCK_NAME).open("ab")
        except OSError:
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        except OSError:
            file.close()
            return True
        self._file = file
        return True

    def release(self) -> None:
        """Let others have it."""
        if self._file is not None:
            self._file.close()
            self._file = None


class ServerLock(Lock):
    """A claim in the folder `claims/`, renewed by a thread while its process lives.

    A claim is published first and then looked at beside the others: of two made at once, at least one sees
    the other. Whoever sees another gives way, for it may hold already, and tries again after a while of its
    own. So at most one holds, whatever the clocks say.
    """

    poll_s = 1.0

    def __init__(self, folder: Folder, beat_s: float = BEAT_S, silent_s: float = SILENT_S) -> None:
        self._claims = folder.child(CLAIMS_NAME)
        self._beat_s = beat_s
        self._silent_s = silent_s
        self._name = ""
        self._seen: dict[str, tuple[bytes, float]] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def try_acquire(self) -> bool:
        """Return whether the lock is held now."""
        try:
            if self._living():
                return False
            self._name = f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}"
            self._claims.publish(self._name, b"0")
            if self._living():
                self._claims.delete(self._name)
                time.sleep(random.uniform(0, self._beat_s))
                return False
        except StoreError:
            return True
        self._ended.clear()
        self._thread = threading.Thread(target=self._renew, args=(self._name,), daemon=True)
        self._thread.start()
        return True

    def release(self) -> None:
        """Let others have it."""
        if self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        self._thread = None
        with suppress(StoreError):
            self._claims.delete(self._name)

    def _renew(self, name: str) -> None:
        beats = 0
        while not self._ended.wait(self._beat_s):
            beats += 1
            with suppress(StoreError):
                self._claims.publish(name, str(beats).encode())

    def _living(self) -> list[str]:
        """Return the claims of others that have been renewed lately, and delete those that have not."""
        living = []
        for name in self._claims.names():
            if name == self._name:
                continue
            with suppress(FileNotFoundError):
                content, now_s = self._claims.read(name), time.monotonic()
                if self._seen.get(name, (b"", 0.0))[0] != content:
                    self._seen[name] = content, now_s
                if now_s - self._seen[name][1] < self._silent_s:
                    living.append(name)
                else:
                    self._claims.delete(name)
        return living
