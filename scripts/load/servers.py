"""bufwise and stock FTP servers with the same user, the same directory and the same limits, on the other host of a place.

Stock servers lie where scripts/install-ftp-servers unpacks them. The user is `jo` (nobody's number), the password `secret`.
"""

import os
import pathlib
import shutil
import subprocess
import time

import place

UNPACKED = pathlib.Path(os.environ.get("BUFWISE_FTP_SERVERS", "/opt/ftp-servers"))
USER, PASSWORD = "jo", "secret"
# `secret` as SHA-256 crypt(5), with salt and rounds of the interoperability tests.
CRYPTED = "$5$abcdefgh$gruCpC7VkOTspMQTTSAR8mtlO9Upms.fwqE5y16JVM."
NOBODY = 65_534
SESSIONS = 1_300
PORT = 2121


def program(below):
    found = UNPACKED / below
    name = found if found.exists() else shutil.which(found.name, path="/usr/sbin:/usr/bin")
    return name and pathlib.Path(name)


class Server:
    """A server that runs."""

    def __init__(self, here, bufwise, kind):
        self.here, self.address = here, (place.SERVER, PORT)
        self.home = here.home / kind
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir()
        self.home.chmod(0o755)
        self.files = self.home / "files"
        self.files.mkdir()
        os.chown(self.files, NOBODY, NOBODY)
        words = {"bufwise": lambda: self.bufwise(bufwise), "vsftpd": self.vsftpd, "proftpd": self.proftpd,
                 "pure-ftpd": self.pure_ftpd}[kind]()
        self.process = here.serve(*words, log=self.home / "log")
        self.await_port()

    def write(self, name, text):
        path = self.home / name
        path.touch(mode=0o600)
        path.write_text(text)
        return path

    def make(self, name, size):
        """A file of the user's; its bytes are zeros."""
        with open(self.files / name, "wb") as file:
            file.truncate(size)
        os.chown(self.files / name, NOBODY, NOBODY)

    def await_port(self):
        listening = self.here.server.command("ss", "-Hltn", f"sport = :{PORT}")
        for _ in range(600):
            if subprocess.run(listening, capture_output=True, check=True).stdout:
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise OSError(f"the server does not listen: {(self.home / 'log').read_text()}")

    def close(self):
        """Ends it with its sessions."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)

    def bufwise(self, binary):
        hashed = subprocess.run([binary, "serve", "--hash-password", USER], check=True, text=True, input=f"{PASSWORD}\n",
                                stdout=subprocess.PIPE).stdout
        return [binary, "serve", self.files, "--listen", f"{place.SERVER}:{PORT}", "--users", self.write("users", hashed),
                "--writable", "--run-as", "nobody", "--max-sessions", SESSIONS, "--max-sessions-per-address", SESSIONS]

    def vsftpd(self):
        (self.home / "empty").mkdir()
        pam = self.home / "pam.d"
        pam.mkdir()
        (pam / "vsftpd").write_text("auth required pam_unix.so\naccount required pam_permit.so\n"
                                    "session required pam_permit.so\n")
        self.write("passwd", pathlib.Path("/etc/passwd").read_text()
                   + f"{USER}:x:{NOBODY}:{NOBODY}::{self.files}:/bin/sh\n").chmod(0o644)
        self.write("shadow", f"{USER}:{CRYPTED}:19000:0:99999:7:::\n")
        config = self.write(
            "vsftpd.conf",
            f"listen=YES\nlisten_address={place.SERVER}\nlisten_port={PORT}\nbackground=NO\nseccomp_sandbox=NO\n"
            "anonymous_enable=NO\nlocal_enable=YES\nwrite_enable=YES\nchroot_local_user=YES\nallow_writeable_chroot=YES\n"
            f"pam_service_name=vsftpd\nsecure_chroot_dir={self.home}/empty\nmax_clients={SESSIONS}\nmax_per_ip=0\n")
        # PAM knows the user in a mount namespace only.
        mounts = " && ".join(f"mount --bind {self.home}/{name} /etc/{name}" for name in ("passwd", "shadow", "pam.d"))
        return ["unshare", "-m", "sh", "-c", f"{mounts} && exec {program('vsftpd/usr/sbin/vsftpd')} {config}"]

    def proftpd(self):
        users = self.write("users", f"{USER}:{CRYPTED}:{NOBODY}:{NOBODY}::{self.files}:/bin/false\n")
        binary = program("proftpd/usr/sbin/proftpd")
        config = self.write(
            "proftpd.conf",
            f"ServerType standalone\nServerName test\nDefaultAddress {place.SERVER}\nSocketBindTight on\nPort {PORT}\n"
            f"UseIPv6 off\nUser nobody\nGroup nogroup\nPidFile {self.home}/pid\nScoreboardFile {self.home}/scores\n"
            f"SystemLog {self.home}/system.log\nWtmpLog off\nTransferLog none\nAuthOrder mod_auth_file.c\n"
            f"AuthUserFile {users}\nRequireValidShell off\nDefaultRoot ~\nAllowOverwrite on\nMaxInstances {SESSIONS}\n"
            "UseReverseDNS off\n")
        return [binary, "-n", "-c", config]

    def pure_ftpd(self):
        users = self.write("users", f"{USER}:{CRYPTED}:{NOBODY}:{NOBODY}::{self.files}/./::::::::::::\n")
        tool = program("pure-ftpd/usr/bin/pure-pw") or "pure-pw"
        subprocess.run([tool, "mkdb", self.home / "users.pdb", "-f", users], check=True)
        return [program("pure-ftpd/usr/sbin/pure-ftpd"), "-S", f"{place.SERVER},{PORT}",
                "-l", f"puredb:{self.home}/users.pdb", "-A", "-H", "-u", "1", "-c", SESSIONS, "-C", SESSIONS,
                "-g", self.home / "pid"]


KINDS = {"bufwise": None, "vsftpd": "vsftpd/usr/sbin/vsftpd", "proftpd": "proftpd/usr/sbin/proftpd",
         "pure-ftpd": "pure-ftpd/usr/sbin/pure-ftpd"}


def installed():
    """The servers that are there."""
    return [kind for kind, below in KINDS.items() if below is None or program(below)]
