"""Results of stages, kept on disk with joblib and keyed by content.

joblib keys a result by its arguments and by the source of the one function it wraps. What that function
calls may change too, so the caller names the version of all the code behind it, and that is part of the key.

joblib keeps results as pickles, and to load a pickle runs whatever it says. So a folder that anybody else
can write to is not used.
"""

from __future__ import annotations

import hashlib
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import joblib

from cache.store import StoreWarning

Result = TypeVar("Result")


class Memo:
    """A disk cache of function results.

    Parameters
    ----------
    folder : Path or None
        Where results are kept, made for this user alone; None keeps nothing.
    code_digest : str
        Digest of the code behind the functions, see `source_digest`.
    """

    def __init__(self, folder: Path | None, code_digest: str) -> None:
        # joblib warns of entries it cannot read or write and then computes; a cache may do that.
        logging.getLogger("joblib").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", message="Unable to cache to disk")
        warnings.filterwarnings("ignore", message="Persisting input arguments took")
        private = folder if folder is not None and _made_private(folder) else None
        self._memory = joblib.Memory(private / code_digest[:16] if private is not None else None, verbose=0)

    def call(
        self,
        function: Callable[..., Result],
        *args: Any,
        check: Callable[[Any], bool] = lambda _: True,
        ignore: Sequence[str] = (),
    ) -> Result:
        """Return `function(*args)`, loaded when it has been called with equal arguments before.

        Parameters
        ----------
        function, args
            What is called.
        check : callable
            Whether what was loaded can be the result; if not, it is computed.
        ignore : sequence of str
            Parameters of the function that follow from the others, and so are neither compared nor stored:
            hashing large arguments costs more than it saves.
        """
        result: Result = self._memory.cache(function, ignore=list(ignore))(*args)
        return result if check(result) else function(*args)


def _made_private(folder: Path) -> bool:
    """Make a folder that this user alone can read and write; whether it is one now."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.name == "nt":  # A user's folders are private there.
            return True
        status = folder.stat()
        if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
            folder.chmod(0o700)
            return True
    except OSError:
        return False
    warnings.warn(
        f"Others may write to {folder}, so no plans are kept there or loaded; delete the folder.",
        StoreWarning,
        stacklevel=3,
    )
    return False


@cache
def source_digest(*files: Path) -> str:
    """Return the SHA-256 of source files, line endings made equal."""
    return digest_texts(path.read_bytes().replace(b"\r\n", b"\n") for path in files)


def digest_texts(texts: Iterable[bytes]) -> str:
    """Return the SHA-256 of several texts, each framed by its length so that no two lists collide."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(len(text).to_bytes(8, "big"))
        digest.update(text)
    return digest.hexdigest()
