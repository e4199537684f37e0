"""The simulation: brokers and clients in one thread, from one seed, under faults, judged by their histories.

    loop.py      virtual time, processes that can be killed or paused at any step, the trace
    net.py       hosts, connections, cuts, resets          the five seams of broker.ports.World,
    disk.py      files, kills, power cuts, errors          in memory
    store.py     the object store behind bad lines, and the journal of what it was told
    client.py    one raw client: lines, metadata, single operations, each recorded once
    workload.py  what clients do all day: producers, consumers, group members
    operators.py what operators do: topics come, grow, move and go
    history.py   what a run leaves behind, as plain values
    metalog.py   the metadata log read from the bucket's journal, without asking a broker
    custody.py   who was bound to keep a record, and whether all of them lost it
    checks.py    the rules a client could state, replica_checks.py those of replicas and the metadata log,
                 admin_checks.py those of operators and of what brokers tell
    census.py    what every broker still holds when all clients have gone; leak_checks.py what it may
    verdict.py   all rules over one history
    salvage.py   how far a disk can be read, worked out without the broker
    inspection.py  the files after the end: recovery is exact, a second restart changes nothing
    node.py      one broker's machine and its lives
    stage.py     brokers, clients and the truth about them, on one loop
    plan.py      what a seed decides; nemesis.py carries the faults out
    scenario.py  one planned run: topics, clients, faults, healing, verdict
    run.py       many seeds, or one in full: python -m tests.sim.run --seed N

A new fault is a kind in plan.py and what it does in nemesis.py; a new promise is a rule in one of the checks
with a mutation in their tests that it catches; another broker is another Node on the same Stage.
"""
