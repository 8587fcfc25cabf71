"""Results of stages, kept on disk with joblib and keyed by content.

joblib keys a result by its arguments and by the source of the one function it wraps. What that function
calls may change too, so the caller names the version of all the code behind it, and that is part of the key.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import joblib

Result = TypeVar("Result")


class Memo:
    """A disk cache of function results.

    Parameters
    ----------
    folder : Path or None
        Where results are kept; None keeps nothing.
    code_digest : str
        Digest of the code behind the functions, see `source_digest`.
    """

    def __init__(self, folder: Path | None, code_digest: str) -> None:
        # joblib warns of entries it cannot read or write and then computes; a cache may do that.
        logging.getLogger("joblib").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", message="Unable to cache to disk")
        self._memory = joblib.Memory(folder / code_digest[:16] if folder is not None else None, verbose=0)

    def call(self, function: Callable[..., Result], *args: Any) -> Result:
        """Return `function(*args)`, loaded when it has been called with equal arguments before."""
        result: Result = self._memory.cache(function)(*args)
        return result


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
