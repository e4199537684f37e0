import asyncio
from broker.network import Connection
from protocol.apis import Api
from protocol.errors import ErrorCode
from tests.broker.raw_client import RawClient, batch_of, create_topic, fetch_fields, produce_fields
from tests.broker.test_network import connections, until


async def test_reorder(broker):
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        await client.produce("t", batch_of(b"x" * 700_000))
        data = b""
        first = client.correlation_id + 1
        for _ in range(300):
            data += client.encode(Api.FETCH, 12, fetch_fields("t", 0))
        client.writer.write(data)
        got = []
        for _ in range(300):
            await client.receive_as(Api.FETCH, 12)
            got.append(client.answered)
        assert got == list(range(first, first + 300))


async def test_min_bytes_over_max(broker):
    await create_topic(broker, "t")
    loop = asyncio.get_running_loop()
    async with await RawClient.open(broker) as client:
        for _ in range(5):
            await client.produce("t", batch_of(b"x" * 1000))
        began = loop.time()
        await client.fetch("t", 0, min_bytes=2500, partition_max_bytes=2500, max_wait=2000)
        a = loop.time() - began
        began = loop.time()
        await client.fetch("t", 0, min_bytes=100_000, max_bytes=2000, max_wait=2000)
        b = loop.time() - began
        assert (a < 1, b < 1) == (True, True)


async def test_header_tags(broker):
    from struct import pack
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        for records in (batch_of(b"x"), batch_of(b"x"), batch_of(b"x")[:-1]):
            data = client.encode(Api.PRODUCE, 9, produce_fields("t", records))
            body = data[4:]
            at = 10 + 3
            assert body[at] == 0
            await client.send_frame(body[:at] + b"\x01\x63\x02ab" + body[at + 1:])
            r = await client.receive_as(Api.PRODUCE, 9)
            print(r.responses[0].partition_responses[0].error_code)


async def test_list_offsets_duplicates(broker):
    import time
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        parts = [{"partition_index": i, "current_leader_epoch": -1, "timestamp": -1} for i in range(5000)]
        parts.append(parts[0])
        t = time.perf_counter()
        await client.call(Api.LIST_OFFSETS, 6, replica_id=-1, isolation_level=0, topics=[{"name": "t", "partitions": parts}], timeout=0)
        d = time.perf_counter() - t
        assert d < 0.5, d
