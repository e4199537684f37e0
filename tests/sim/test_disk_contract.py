"""The simulated disk is a file system like any other."""

from __future__ import annotations

import random

import pytest

from tests.contracts.test_files import FilesContract
from tests.sim.disk import Disk, SimFiles
from tests.sim.loop import Process, SimLoop


class TestSimFiles(FilesContract):
    @pytest.fixture
    def make_files(self) -> SimFiles:
        return Disk(random.Random(0), lambda: 1_700_000_000_000).mount(Process(SimLoop(), "p"))

    @pytest.fixture
    def root(self, make_files: SimFiles) -> str:
        make_files.makedirs("/root")
        return "/root"
