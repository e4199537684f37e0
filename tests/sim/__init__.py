"""The simulation: brokers and clients in one thread, from one seed, under faults, judged by their histories.

    loop.py      virtual time, processes that can be killed at any step, the trace
    net.py       hosts, connections, cuts, resets          the five seams of broker.ports.World,
    disk.py      files, kills, power cuts, errors          in memory
    store.py     the object store behind a bad line
    client.py    raw producers, consumers, group members: every operation recorded once
    history.py   what a run leaves behind, as plain values
    checks.py    the rules: pure functions from a history to what it broke
    salvage.py   how far a disk can be read, worked out without the broker
    inspection.py  the files after the end: recovery is exact, a second restart changes nothing
    node.py      one broker's machine and its lives
    scenario.py  what a seed means: topics, clients, faults, healing, verdict
    run.py       many seeds, or one in full: python -m tests.sim.run --seed N

A new fault is a kind in scenario.py; a new promise is a rule in checks.py with a mutation in test_checks.py
that it catches; another broker is another Node on the same Fabric and bucket.
"""
