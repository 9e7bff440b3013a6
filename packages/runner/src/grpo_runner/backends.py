"""The checkpoint backend `local`: another folder, such as one on a shared or a slower disk (Lustre, NFS)."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from grpo_runner.files import check_name, fsync_tree, hidden, list_files, remove
from grpo_runner.folders import DamagedFolderError, UnknownSchemaError, commit_folder, sweep, verify_folder

_DATA = "data"
_DAY = 86_400.0  # seconds; a copy that was not touched for so long was cut off


@dataclass(frozen=True)
class LocalBackend:
    """Keeps each folder as `root/<name>/data`, beside a manifest of its own, committed by one rename."""

    root: str | Path

    def put(self, folder: Path, name: str) -> None:
        """Copy a folder; it is listed once all of it is on the disk. A whole folder of this name is replaced.

        Raises:
            ValueError: not a name, or a link or special file in the folder.
            OSError: nothing new stands under the name.
        """
        check_name(name)
        files = list_files(folder)

        def copy(temporary: Path) -> None:
            (temporary / _DATA).mkdir()
            for file in files:
                target = temporary / _DATA / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(folder / file, target, follow_symlinks=False)

        if not folder.is_dir():
            raise NotADirectoryError(f"{folder} is not a folder")
        commit_folder(Path(self.root), name, copy, manifest={"kind": "copy", "name": name})
        sweep(Path(self.root), 1, idle_seconds=_DAY)

    def get(self, name: str, folder: Path) -> None:
        """Copy a folder back; `folder` is whole or was not made.

        Raises:
            FileNotFoundError: nothing whole has this name.
            FileExistsError: `folder` is there already.
            DamagedFolderError: the copy is not what was put; names the file.
        """
        source = Path(self.root) / check_name(name)
        if os.path.lexists(folder):
            raise FileExistsError(f"{folder} is there already")
        if not os.path.lexists(source):
            raise FileNotFoundError(f"no {name!r} in {self.root}")
        verify_folder(source)
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = hidden(folder, "tmp")
        try:
            shutil.copytree(source / _DATA, temporary, copy_function=shutil.copyfile)
            fsync_tree(temporary)
            os.rename(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def names(self) -> list[str]:
        """Return the names whose manifest and file sizes are right, sorted."""
        root = Path(self.root)
        if not root.is_dir():
            return []
        return [name for name in sorted(os.listdir(root)) if not name.startswith(".") and self._is_whole(root / name)]

    def delete(self, name: str) -> None:
        """Delete a folder, by rename first; an unknown name is no error."""
        path = Path(self.root) / check_name(name)
        if os.path.lexists(path):
            remove(path)

    def _is_whole(self, path: Path) -> bool:
        try:
            return verify_folder(path, hashes=False).fields.get("name") == path.name
        except (DamagedFolderError, UnknownSchemaError):
            return False
