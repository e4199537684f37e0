"""The error of an object whose bytes do not hold what they should.

Owns: BadObject. Does not own: what is done about it.
"""

from __future__ import annotations


class BadObject(Exception):
    """What is stored is damaged, of a release that is not known, or of something else."""
