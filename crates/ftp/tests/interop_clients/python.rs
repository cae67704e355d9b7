//! Python's ftplib.

use crate::stock::{Stock, stock, stock_with_tls};

/// Gets, resumes, puts, resumes, lists, and says so at each step.
const SCRIPT: &str = r#"
import ftplib, os, ssl, sys
host, port, tls = '127.0.0.1', int(sys.argv[1]), sys.argv[2] == 'tls'
if tls:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    ftp = ftplib.FTP_TLS(context=context, timeout=20)
else:
    ftp = ftplib.FTP(timeout=20)
ftp.connect(host, port)
ftp.login()
if tls:
    ftp.prot_p()
with open('got', 'wb') as file:
    ftp.retrbinary('RETR file', file.write)
with open('half', 'r+b') as file:
    file.seek(0, os.SEEK_END)
    ftp.retrbinary('RETR file', file.write, rest=file.tell())
with open('upload', 'rb') as file:
    assert ftp.storbinary('STOR put', file).startswith('226')
with open('upload', 'rb') as file:
    there = ftp.size('resumed')
    file.seek(there)
    ftp.storbinary('STOR resumed', file, rest=there)
assert sorted(ftp.nlst()) == ['file', 'put', 'resumed', 'tree'], ftp.nlst()
facts = dict(ftp.mlsd('tree'))
assert facts['one']['size'] == '3' and facts['below']['type'] == 'dir', facts
lines = []
ftp.retrlines('LIST tree', lines.append)
assert len(lines) == 2, lines
ftp.mkd('made "quoted"')
assert ftp.cwd('made "quoted"').startswith('250') and ftp.pwd() == '/made "quoted"', ftp.pwd()
ftp.cwd('..')
ftp.rmd('made "quoted"')
ftp.rename('put', 'renamed')
assert ftp.delete('renamed').startswith('250')
# The listing has left TYPE A behind.
try:
    raise AssertionError(ftp.transfercmd('RETR file'))
except ftplib.error_perm as refused:
    assert 'TYPE I' in str(refused), refused
ftp.voidcmd('TYPE I')
socket = ftp.transfercmd('RETR file')
socket.recv(100)
ftp.abort()
# The transfer's own reply and that to the abort, in whatever order this library reads them.
ftp.voidresp()
socket.close()
assert ftp.voidcmd('NOOP').startswith('200')
assert ftp.quit().startswith('221')
print('all done')
"#;

fn run(python: &Stock, mode: &str) {
    python.half_got("half");
    python.half_put("resumed");
    let shown = python.run(&["-c", SCRIPT, &python.port(), mode]);
    assert!(shown.contains("all done"), "{shown}");
    python.has_got("got");
    python.has_got("half");
    python.has_put("resumed");
}

#[test]
fn ftplib_does_everything_it_can() {
    let Some(python) = stock("python3") else { return };
    run(&python, "plain");
}

#[test]
fn ftplib_does_so_over_tls() {
    let Some(python) = stock_with_tls("python3") else { return };
    run(&python, "tls");
}
