"""Checkpoints on S3 and every other store that fsspec reaches."""

from vismaze_fsspec.backend import DamagedObjectError, FsspecBackend, StoreUnavailableError

__all__ = ("DamagedObjectError", "FsspecBackend", "StoreUnavailableError")
