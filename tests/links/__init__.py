"""Faults on the links between real brokers, their store and stock clients, from a seed.

| file | owns |
|---|---|
| `rules.py` | the faults of a link, and what the two below have in common |
| `traffic.py`, `switch.py` | every packet between namespaces: delayed, lost or let through |
| `namespaces.py` | brokers and store in network namespaces of their own (Linux, as root) |
| `proxies.py` | the same faults by a TCP proxy for each pair, everywhere else |
| `load.py` | stock producers and a reader, when they were acknowledged and served |
| `faults.py` | the kinds of fault, and the plan that a seed makes of them |
| `report.py` | the figures as table and JSON, and the limits |
| `test_rounds.py` | the rounds themselves (`make chaos`), and one short one for every run |

A link is named by its two ends: a broker by its node id, and `STORE` and `CLIENTS`.
"""
