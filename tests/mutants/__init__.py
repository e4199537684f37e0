"""Bugs that are known to be caught: each *.toml here is one change to the source that breaks a promise, and
the tests of which at least one must fail with it. `make mutants` plants each in a copy of the tree and looks.

    title   one sentence: what is broken
    file    the file the bug is planted in
    old     text of that file, found in it exactly once
    new     the text with the bug
    tests   pytest node ids or files, and "sim: --seeds N --from M --brokers K" for simulation seeds
    seeds   if given: "--seeds N ..." of the simulation, one of which must fail with it as well
"""
