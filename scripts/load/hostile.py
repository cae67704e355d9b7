"""FTP servers that mean harm to a client, each for one session at a time."""

import asyncio
import contextlib

ANNOUNCED = 33_000_000
LISTED = "-rw-r--r-- 1 0 0 5 Jan 1 2024 "
NAMES = ["../escaped", "sub/../../escaped2", "/tmp/bufwise-hardness-escaped", "good"]
CONTENT = b"hello"


class Hostile:
    """Answers as a server does but for RETR, SIZE and listings, which `attack` names."""

    def __init__(self, attack):
        self.attack, self.data = attack, None
        self.port = self.server = None

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.session, "0.0.0.0", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self.server.close()

    async def session(self, reader, writer):
        with contextlib.suppress(OSError, ValueError, asyncio.CancelledError):
            await self.say(writer, "220 ready")
            while line := await reader.readline():
                command, _, argument = line.decode("utf-8", "replace").strip().partition(" ")
                if not await self.answer(command.upper(), argument, writer):
                    break
        writer.close()

    async def say(self, writer, text):
        writer.write(f"{text}\r\n".encode())
        await writer.drain()

    async def answer(self, command, argument, writer):
        """False ends the session."""
        simple = {"USER": "331 password", "PASS": "230 in", "TYPE": "200 ok", "PWD": '257 "/"', "CWD": "250 ok",
                  "NOOP": "200 ok", "OPTS": "200 ok", "SYST": "215 UNIX Type: L8", "QUIT": "221 bye", "CDUP": "250 ok",
                  "FEAT": "211-features\r\n EPSV\r\n SIZE\r\n211 end", "MDTM": "213 20240101000000"}
        if command in simple:
            await self.say(writer, simple[command])
        elif command in ("EPSV", "PASV"):
            await self.passive(command, writer)
        elif command == "SIZE":
            await self.say(writer, self.size(argument))
        elif command in ("LIST", "NLST", "MLSD", "MLST"):
            await self.listing(command, writer)
        elif command == "RETR":
            return await self.retrieve(argument, writer)
        else:
            await self.say(writer, "502 not here")
        return command != "QUIT"

    async def passive(self, command, writer):
        self.data = asyncio.get_running_loop().create_future()
        listener = await asyncio.start_server(self.taken, "0.0.0.0", 0)
        asyncio.get_running_loop().call_later(60, listener.close)
        port, own = listener.sockets[0].getsockname()[1], writer.get_extra_info("sockname")[0].replace(".", ",")
        await self.say(writer, f"229 Extended (|||{port}|)" if command == "EPSV"
                       else f"227 Passive ({own},{port // 256},{port % 256})")

    async def taken(self, _, writer):
        if not self.data.done():
            self.data.set_result(writer)

    def size(self, argument):
        return {"wrong size": "213 1000000", "more than announced": "213 1000", "less than announced": "500 what is SIZE",
                "names": f"213 {len(CONTENT)}"}.get(self.attack, f"213 {ANNOUNCED}")

    async def listing(self, command, writer):
        if command in ("MLSD", "MLST"):
            return await self.say(writer, "502 not here")
        names = NAMES if self.attack == "names" else ["file"]
        lines = [(LISTED if command == "LIST" else "") + name for name in names]
        await self.say(writer, "150 coming")
        data = await self.data
        data.write("".join(f"{line}\r\n" for line in lines).encode())
        data.close()
        await self.say(writer, "226 complete")

    async def retrieve(self, argument, writer):
        if self.attack == "names":
            sent, last = CONTENT, "226 complete"
        else:
            sent, last = {"early close": (bytes(1_000_000), None), "wrong size": (bytes(500_000), "226 complete"),
                          "more than announced": (bytes(1_000_000), "226 complete"),
                          "less than announced": (bytes(100_000), "226 complete")}.get(self.attack, (b"", None))
        await self.say(writer, f"150 coming ({ANNOUNCED} bytes)" if "announced" in self.attack else "150 coming")
        while self.attack == "endless 1xx":
            writer.write(b"150 still coming, with words that take room and say nothing at all\r\n" * 100)
            await writer.drain()
        data = await self.data
        while self.attack == "drip":
            data.write(b"x")
            await data.drain()
            await asyncio.sleep(1)
        data.write(sent)
        await data.drain()
        data.close()
        if last is None:
            return False
        await self.say(writer, last)
        return True


ATTACKS = {
    "endless 1xx": "preliminary replies without an end",
    "drip": "a byte a second",
    "early close": "1 of 33 MB, then both connections end",
    "wrong size": "500 kB of 1 MB, and 226",
    "less than announced": "100 kB of 33 MB announced by 150 alone, and 226",
    "more than announced": "1 MB of 1 kB, and 226",
    "names": "a listing with names that lead elsewhere",
}
