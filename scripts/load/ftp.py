"""An FTP client for thousands of sessions in one process. It reads no more than it is told to."""

import asyncio
import re
import socket

BLOCK = 65_536


class Refused(Exception):
    """A reply other than the expected one."""


class Session:
    """A control connection. A wait of more than `patience` seconds is a TimeoutError."""

    def __init__(self, server, source, patience=60):
        self.server, self.source, self.patience = server, source, patience
        self.socket, self.got, self.doing = None, b"", "nothing"

    async def __aenter__(self):
        await self.open()
        return self

    async def __aexit__(self, *_):
        self.close()

    def close(self):
        if self.socket:
            self.socket.close()

    async def within(self, work):
        async with asyncio.timeout(self.patience):
            return await work

    async def connection(self, port, receive_buffer=None):
        loop, one = asyncio.get_running_loop(), socket.socket()
        try:
            one.setblocking(False)
            # One port for many peers: the number of clients is not bounded by one address's ports.
            one.setsockopt(socket.IPPROTO_IP, 24, 1)
            if receive_buffer:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            one.bind((self.source, 0))
            self.doing = f"connecting to port {port}"
            await self.within(loop.sock_connect(one, (self.server[0], port)))
            return one
        except BaseException:
            one.close()
            raise

    async def open(self, greeted=True):
        self.socket = await self.connection(self.server[1])
        if greeted:
            await self.expect("220")

    async def line(self):
        while b"\n" not in self.got:
            block = await self.within(asyncio.get_running_loop().sock_recv(self.socket, 4_096))
            if not block:
                raise ConnectionError("the server ended the session")
            self.got += block
        line, self.got = self.got.split(b"\n", 1)
        return line.decode("utf-8", "replace").rstrip("\r")

    async def reply(self):
        first = line = await self.line()
        while not (line[:3] == first[:3] and line[3:4] != "-"):
            line = await self.line()
        return line

    async def say(self, command):
        self.doing = command
        await self.within(asyncio.get_running_loop().sock_sendall(self.socket, f"{command}\r\n".encode()))

    async def expect(self, *codes):
        reply = await self.reply()
        if not reply.startswith(codes):
            raise Refused(reply)
        return reply

    async def ask(self, command, *codes):
        await self.say(command)
        return await self.expect(*codes)

    async def login(self, user="anonymous", password="soak@"):
        if (await self.ask(f"USER {user}", "331", "230")).startswith("331"):
            await self.ask(f"PASS {password}", "230")
        await self.ask("TYPE I", "200")

    async def data(self, receive_buffer=None):
        found = re.search(r"\|\|\|(\d+)\|", await self.ask("EPSV", "229"))
        return await self.connection(int(found[1]), receive_buffer)

    async def start(self, command, receive_buffer=None):
        """A transfer that has begun: its data connection."""
        data = await self.data(receive_buffer)
        try:
            await self.ask(command, "150", "125")
        except BaseException:
            data.close()
            raise
        return data

    async def get(self, command):
        """The number of bytes that came."""
        data, count = await self.start(command), 0
        with data:
            while block := await self.within(asyncio.get_running_loop().sock_recv(data, BLOCK)):
                count += len(block)
        await self.expect("226", "250")
        return count

    async def put(self, name, size):
        data = await self.start(f"STOR {name}")
        with data:
            await self.within(asyncio.get_running_loop().sock_sendall(data, bytes(size)))
        await self.expect("226", "250")
