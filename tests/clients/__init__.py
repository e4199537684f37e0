"""Clients that hide nothing: what was asked, and what came back for it.

    blocking.py   one blocking socket, for tests of brokers in a process of their own

The asynchronous one, for brokers in the process of the test, is tests/broker/raw_client.py.
"""
