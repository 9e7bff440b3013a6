"""What this package offers to the vismaze project."""

from collections.abc import Callable, Mapping
from typing import Any

from vismaze_fsspec.backend import FsspecBackend
from vismaze_hooks import hookimpl


@hookimpl
def vismaze_checkpoint_backends() -> Mapping[str, Callable[..., Any]]:
    """Offer the backend `fsspec`."""
    return {"fsspec": FsspecBackend}
