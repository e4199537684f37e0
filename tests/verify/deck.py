"""All faults there are: importing this registers them."""

from __future__ import annotations

from tests.verify import faults_log, faults_manifest, faults_model, faults_tiers, faults_told
from tests.verify.faults import FILE_FAULTS, MODEL_FAULTS

__all__ = [
    "FILE_FAULTS",
    "MODEL_FAULTS",
    "faults_log",
    "faults_manifest",
    "faults_model",
    "faults_tiers",
    "faults_told",
]
NAMES = [fault.__name__ for fault in (*MODEL_FAULTS, *FILE_FAULTS)]
