"""The process that Spark forks its Python workers from, with all loaded that scans and judges need.

Owns what is loaded. Does not own the workers (PySpark) or what runs in them (spark).
Invariant: no worker loads any of it again, nor looks through it for garbage, which PySpark has each do after
every task; a worker that dies costs its task another try, so workers may map what they read.
"""

from __future__ import annotations

import gc

from pyspark.daemon import manager

from tools.verify.core import crc
from tools.verify.core.stores import allow_maps
from tools.verify.engines import spark

LOADED = spark.__name__

if __name__ == "__main__":
    crc.prepare()
    allow_maps()
    gc.collect()
    gc.freeze()
    manager()
