"""Kinds of clients of the soak: what each does once, with which outcome. A wrong outcome is a failure of the soak."""

import asyncio
import random

import ftp

MEGABYTE = 1_000_000
PASSWORD = "soak"


async def short_session(soak, session, number):
    await session.open()
    await session.login()
    if (got := await session.get("RETR small")) != 20_000:
        soak.fail(f"small: {got} bytes")
    if number % 3 == 0:
        await session.get("LIST")
    if number % 3 == 1 and (got := await session.get("RETR middle")) != MEGABYTE:
        soak.fail(f"middle: {got} bytes")
    await session.ask("QUIT", "221")
    await asyncio.sleep(random.expovariate(1 / 8))


async def upload(soak, session, number):
    await session.open()
    await session.login()
    size = random.randrange(2 * MEGABYTE)
    await session.put(f"upload{number}", size)
    if await session.ask(f"SIZE upload{number}", "213") != f"213 {size}":
        soak.fail(f"upload{number}: not of {size} bytes")
    await session.ask(f"DELE upload{number}", "250")
    await asyncio.sleep(random.expovariate(1 / 8))


async def password(soak, session, number):
    await session.open()
    await session.ask("USER jo", "331")
    if random.random() < 0.3:
        await session.ask("PASS wrong", "530", "421")
    else:
        await session.ask(f"PASS {PASSWORD}", "230")
    await asyncio.sleep(random.expovariate(1 / 20))


async def idle_session(soak, session, number):
    await session.open()
    await session.login()
    for _ in range(random.randrange(1, 6)):
        await asyncio.sleep(random.uniform(10, 50))
        await session.ask("NOOP", "200")


async def silent_connection(soak, session, number):
    await session.open(greeted=False)
    await asyncio.sleep(random.uniform(5, 50))


async def slow_download(soak, session, number):
    await session.open()
    await session.login()
    with await session.start("RETR large", receive_buffer=16_384) as data:
        for _ in range(random.randrange(20, 300)):
            if not await session.within(asyncio.get_running_loop().sock_recv(data, 8_192)):
                raise ConnectionError("the download ended")
            await asyncio.sleep(0.2)


async def unread_download(soak, session, number):
    await session.open()
    await session.login()
    with await session.start("RETR large"):
        await asyncio.sleep(random.uniform(1, 30))


async def stalled_upload(soak, session, number):
    await session.open()
    await session.login()
    # The server may not have noticed yet that this client's last upload has ended.
    until = soak.now() + 20
    while True:
        try:
            data = await session.start(f"STOR stalled{number}")
            break
        except ftp.Refused as refused:
            if not str(refused).startswith("450") or soak.now() > until:
                raise
            await asyncio.sleep(0.5)
    with data:
        await asyncio.get_running_loop().sock_sendall(data, bytes(30_000))
        await asyncio.sleep(random.uniform(1, 30))


# Each kind of client, and its part.
KINDS = [(short_session, 5), (upload, 3), (password, 1), (idle_session, 18), (silent_connection, 6), (slow_download, 3),
         (unread_download, 3), (stalled_upload, 1)]
