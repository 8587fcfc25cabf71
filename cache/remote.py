"""Folders on a server: object stores and whatever else fsspec knows.

An object appears whole with a single put, so that is how object stores are written; elsewhere a file is put
under a temporary name and moved. Credentials come from the environment alone. Foreign error texts are
never shown, because they may quote a signed URL; the kind of the error is.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from cache.errors import StoreError, UsageError
from cache.folder import Folder, LocalFolder, ReadOnlyError, UnreachableError

_PUT_IS_WHOLE = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oci", "oss", "r2", "memory"})
"""Protocols whose put shows readers all of a file or none."""


def shown_url(url: str) -> str:
    """Return a URL without user, password, query and fragment: what may stand in messages and logs."""
    return re.sub(r"//[^/]*@", "//", re.split(r"[?#]", url, maxsplit=1)[0])


def remote_folder(url: str) -> Folder:
    """Return the folder at a URL.

    Raises
    ------
    UsageError
        When the URL's kind is unknown, or it has a password in it.
    StoreError
        When the package that talks to such servers is not installed.
    """
    shown = shown_url(url)
    if re.search(r"//[^/]*:[^/]*@", url):
        raise UsageError(
            f"The URL of the tables {shown} has a password in it, which would stay in shell histories; "
            "leave it out, and set the credentials in the environment."
        )
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        raise StoreError(
            f"The tables {shown} need a package that is not installed{_missing(url, error.name)}."
        ) from None
    except ValueError:
        raise UsageError(
            f"The URL of the tables {shown} is of an unknown kind; expected a path or a URL that fsspec "
            "knows, such as s3://bucket/prefix."
        ) from None
    if urlsplit(url).scheme in ("file", "local"):
        from pathlib import Path

        return LocalFolder(Path(path))
    return RemoteFolder(system, path.rstrip("/"), shown.rstrip("/"))


def _missing(url: str, module: str | None) -> str:
    """Return what is known of a package that is not installed, as the end of a sentence."""
    from fsspec.registry import known_implementations

    protocol = urlsplit(url).scheme
    if protocol in ("s3", "s3a"):
        return ": run pip install 'shapecast[s3]'"
    # A fixed text of fsspec, such as "Install gcsfs to access Google Storage", not one of the server's.
    hint = known_implementations.get(protocol, {}).get("err") or module
    return f" ({hint})" if hint else ""


class RemoteFolder(Folder):
    """A folder on a server.

    Parameters
    ----------
    system : fsspec.AbstractFileSystem
        How the server is reached; its listings must not be cached.
    path : str
        The folder there.
    shown : str
        Its URL without secrets.
    """

    def __init__(self, system: Any, path: str, shown: str) -> None:
        self._system = system
        self._path = path
        self._shown = shown
        protocol = system.protocol if isinstance(system.protocol, str) else system.protocol[0]
        self._put_is_whole = protocol in _PUT_IS_WHOLE

    def __str__(self) -> str:
        return self._shown

    @property
    def digest(self) -> str:
        """A short digest of where the folder is, for names of local folders that belong to it."""
        return hashlib.sha256(self._shown.encode()).hexdigest()[:16]

    def child(self, name: str) -> RemoteFolder:
        """Return the folder `name` inside this one."""
        return RemoteFolder(self._system, f"{self._path}/{name}", f"{self._shown}/{name}")

    def child_names(self) -> list[str]:
        """Return the names of the folders inside this one."""
        return sorted(name for name, entry in self._listed().items() if entry["type"] == "directory")

    def names(self) -> list[str]:
        """Return the names of the files in the folder."""
        return sorted(name for name, entry in self._listed().items() if entry["type"] == "file")

    def sizes(self) -> dict[str, int]:
        """Return the size of each file."""
        listed = self._listed()
        return {name: int(entry["size"]) for name, entry in listed.items() if entry["type"] == "file"}

    def _listed(self) -> dict[str, dict[str, Any]]:
        with self._mapped("read"):
            try:
                self._system.invalidate_cache(self._path)
                entries = self._system.ls(self._path, detail=True)
            except FileNotFoundError:
                return {}
        found = {posixpath.basename(entry["name"].rstrip("/")): entry for entry in entries}
        return {
            name: entry
            for name, entry in found.items()
            if name and not name.startswith(".") and entry["name"].rstrip("/") != self._path
        }

    def read(self, name: str) -> bytes:
        """Return a file's bytes."""
        with self._mapped("read"):
            return bytes(self._system.cat_file(f"{self._path}/{name}"))

    def publish(self, name: str, data: bytes) -> None:
        """Put a file in one piece."""
        with self._mapped("write"):
            try:
                self._put(name, data)
            except FileNotFoundError:
                raise StoreError(
                    f"The tables {self} cannot be written because their bucket or share does not exist; "
                    "create it, or choose another with --tables."
                ) from None

    def _put(self, name: str, data: bytes) -> None:
        if self._put_is_whole:
            self._system.pipe_file(f"{self._path}/{name}", data)
            return
        temporary = f"{self._path}/.{uuid.uuid4().hex}.tmp"
        self._system.makedirs(self._path, exist_ok=True)
        self._system.pipe_file(temporary, data)
        self._system.mv(temporary, f"{self._path}/{name}")

    def set_aside(self, name: str, into: str) -> None:
        """Copy a file into the child folder `into`, then delete it."""
        self.child(into).publish(name, self.read(name))
        self.delete(name)

    def delete(self, name: str) -> None:
        """Delete a file."""
        with self._mapped("write"):
            try:
                self._system.rm_file(f"{self._path}/{name}")
            except FileNotFoundError:
                return

    def delete_folder(self) -> None:
        """Delete the folder with all that is in it."""
        with self._mapped("write"):
            try:
                self._system.rm(self._path, recursive=True)
            except FileNotFoundError:
                return

    def sweep(self) -> None:
        """Do nothing: an object that is not put whole is not there."""

    @contextmanager
    def _mapped(self, verb: str) -> Iterator[None]:
        """Turn every error of the foreign packages into a sentence; a missing file stays as it is."""
        try:
            yield
        except (FileNotFoundError, StoreError):
            raise
        except PermissionError:
            if verb == "write":
                raise ReadOnlyError(f"The credentials in the environment may not write {self}.") from None
            raise StoreError(
                f"The credentials in the environment may not read {self}; set others, or choose another "
                "folder with --tables."
            ) from None
        except Exception as error:  # Each backend has errors of its own.
            kind = type(error).__name__
            if "Credential" in kind:
                raise StoreError(
                    f"There are no credentials for {self} ({kind}); set them in the environment, for S3 as "
                    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE."
                ) from None
            raise UnreachableError(
                f"The server of the tables {self} cannot be reached ({kind}); try again when it can, or "
                "choose another folder with --tables."
            ) from None
