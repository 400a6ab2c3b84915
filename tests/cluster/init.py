"""First process of a namespace host, and the remote shell by which mpirun on one host reaches another.

    init.py host NAME HOSTS_FILE PATH...     inside fresh namespaces: set the host up, print "ready", serve for ever
    init.py shell HOST COMMAND...            run COMMAND on HOST, pass its output and exit status on (as ssh would)

Commands travel over the host's network link, one TCP connection each: the client sends the command line and ends its
half; the server sends the output and, as the last byte, the exit status. Only the hosts' private network can
connect. This file runs without site-packages, to start quickly.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

PORT = 514  # the registered port of rsh
LOGIN = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin", "HOME": "/root", "USER": "root"}


def set_up(name: str, hosts_file: str, paths: list[str]) -> None:
    """Give this process's namespaces their host name, /etc/hosts and private /proc, /tmp and /dev/shm.

    `paths` that lie in /tmp stay visible there, so that all hosts share them.
    """
    socket.sethostname(name)
    binds = [
        f'mkdir -p "/mnt/{inside}"; mount --bind "/tmp/{inside}" "/mnt/{inside}"'
        for inside in (Path(path).relative_to("/tmp") for path in paths if Path(path).is_relative_to("/tmp"))
    ]
    script = [
        "mount --make-rprivate /",  # otherwise the mounts below would appear outside as well
        "mount -t proc proc /proc",
        "mount -t tmpfs -o mode=1777 tmpfs /dev/shm",
        f'mount --bind "{hosts_file}" /etc/hosts',
        "mount -t tmpfs -o mode=1777 tmpfs /mnt",
        *binds,
        "mount --move /mnt /tmp",
    ]
    subprocess.run(["sh", "-ec", "\n".join(script)], check=True)


def serve() -> None:
    """Run the commands that other hosts send, each in its own process."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans of this host are reaped by the kernel
    listener = socket.create_server(("", PORT))
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            answer(connection)
            os._exit(0)
        connection.close()


def answer(connection: socket.socket) -> None:
    """Run the command that arrives on `connection` in a login's environment."""
    command = connection.makefile().read()
    status = subprocess.call(
        ["sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=connection.fileno(),
        stderr=connection.fileno(),
        env=LOGIN,
        cwd=LOGIN["HOME"],
        start_new_session=True,
    )
    with contextlib.suppress(OSError):  # the other end may have gone
        connection.sendall(bytes([status % 256]))
        connection.shutdown(socket.SHUT_RDWR)  # daemons that the command left behind may still hold the socket


def remote_shell(host: str, command: str) -> int:
    """Run `command` on `host`; return its exit status, or 255 when the connection was lost."""
    with socket.create_connection((host, PORT)) as connection:
        connection.sendall(command.encode())
        connection.shutdown(socket.SHUT_WR)
        last = b""
        while chunk := connection.recv(65536):
            sys.stdout.buffer.write(last + chunk[:-1])
            sys.stdout.buffer.flush()
            last = chunk[-1:]
    return last[0] if last else 255


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    if role == "host":
        set_up(arguments[0], arguments[1], arguments[2:])
        serve()
    sys.exit(remote_shell(arguments[0], " ".join(arguments[1:])))
