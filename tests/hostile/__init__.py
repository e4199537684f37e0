"""What one client may do to a broker, and what everybody else sees of it.

`shapes` makes the largest legal requests of every API and version from the message schemas, `attacks` names
what else a client can do, `ground` is a broker with its probe and an account of its memory. `run` measures:
`--table` the named attacks, by default every shape (`sweep`), `--cluster` three brokers with stock producers
beside the attack. The tests here are the small form.
"""
