"""One class for both tiers, as somebody else might write it: segments in folders, combined objects beside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from remote.wal.managers import LocalWalStorageManager
from tests.contracts.folder_manager import FolderManager


class BothTiers(FolderManager, LocalWalStorageManager):
    """Keeps everything below the setting `dir`."""

    def __init__(self, config: Mapping[str, str]) -> None:
        FolderManager.__init__(self, {"dir": str(Path(config["dir"]) / "segments")})
        LocalWalStorageManager.__init__(self, {"dir": str(Path(config["dir"]) / "objects")})

    async def close(self) -> None:
        await LocalWalStorageManager.close(self)
