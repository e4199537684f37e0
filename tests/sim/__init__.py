"""The simulation: brokers and clients in one thread, from one seed, under faults, judged by their histories.

How a seed becomes a verdict, in the order of the story:

1. The plan. run.py takes many seeds or one (python -m tests.sim.run --seed N --brokers K); journal.py notes
   which have passed, so that a run that was cut off goes on. plan.py draws from the seed what will be:
   brokers, topics, settings, clients, faults, and the times in which nobody produces. The same seed and the
   same code give the same run, byte by byte of its trace.

2. The world. Brokers are real and see only the five seams of broker.ports.World, here in memory:
       loop.py        virtual time; processes that can be killed or paused at any step; the trace
       net.py         hosts, connections, cuts, resets
       disk.py        files, kills, power cuts, errors
       store.py       the object store behind bad lines, and the journal of what it was told
       background.py  the jobs of a broker's threads, which may be held between their effect and its report
   node.py is one broker's machine with its lives, stage.py all machines and clients on one loop, and the
   truth about them, which is folded from the journal and asked of no broker.

3. The clients. client.py is one raw client: lines, metadata, single operations, each recorded once, as ok,
   fail or unknown. workload.py is what clients do all day: producers, consumers, group members. walker.py
   writes what a broker must walk for many turns of its loop. transactor.py is a producer with transactions,
   in both versions of their protocol, and its users; subscriber.py a member of a group that the server
   assigns; copier.py is both: it reads, writes and commits what it has read in one transaction. operators.py
   is what operators do: topics come, grow, move and go.

4. The faults. scenario.py starts all of it; nemesis.py commits what the plan says, to whom the moment says,
   and aims some faults at the time between what was done and the news of it, or at a coordinator some steps
   after the end of a transaction is asked for. Replicas are sampled meanwhile.

5. The end. Everything heals, and liveness counts: every broker is back, every replica in sync, every client
   comes to its end and every transaction too, a deletion in quiet is answered at once. Then all is read as a
   client reads it, and every disk is looked at:
       restart.py     opens a copy of a disk as the broker's next start would
       salvage.py     how far a disk can be read, worked out without the broker
       inspection.py  recovery is exact, and a second restart changes nothing
       census.py      what every broker still holds when all clients have gone

6. The history. history.py is what is left, as plain values: no rule looks at anything else. metalog.py reads
   the metadata log from the bucket's journal into it.

7. The verdict. verdict.py asks every rule for the ways in which it was broken:
       checks.py          what a client could state
       transaction_checks.py  what becomes of transactions, and what is read of them
       group_checks.py    who owns what in groups that the server assigns
       replica_checks.py  what replicas and the metadata log owe each other
       admin_checks.py    what operators were told, and what brokers tell
       leak_checks.py     what a broker may still hold
   custody.py says which losses are excused: who was bound to keep a record, and whether all of them lost it.
   Of a replica that counts which lies at or above its log start (history.ReplicaLog).

Beside the seeds there are plays: play.py is a script on the same stage instead of a plan, with a load and the
same verdict (test_scenarios.py, test_log_starts.py). test_transactions.py has such plays of its own.

A new fault is a kind in plan.py and what it does in nemesis.py; a new promise is a rule in one of the checks
with a mutation in their tests that it catches; another broker is another Node on the same Stage.
"""
