"""Zip archives of bytes, written atomically, with a digest that is checked when they are read.

Maps and checkpoints are such archives. Members are stored, never compressed, so that the contents are never larger than
the file. The archive's comment holds a SHA-256 digest of the names and contents of all members.
"""

import contextlib
import hashlib
import os
import pathlib
import re
import struct
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

try:
    import fcntl
except ModuleNotFoundError:  # Windows: temporary files of killed processes are not removed
    fcntl = None

MOST_MEMBERS = 100_000
LARGE = 2**24  # bytes of a member that is read from the file as it is needed, and not at once
PIECE = 2**22  # bytes that are digested together
SEAL = b"hipgp sha256 "


@contextlib.contextmanager
def one_error(before: str, after: str = "") -> Iterator[None]:
    """Turn any error in reading a file into a ValueError with the message `before`, the reason, and `after`."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        reason = f"{error} is missing" if isinstance(error, KeyError) else reason
        raise ValueError(f"{before} ({reason}){after}") from None


@contextlib.contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a temporary file that is renamed to `path` once it is complete; several processes may do so at once."""
    target = pathlib.Path(path)
    _remove_leftovers(target)
    file = _temporary(target)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if fcntl is None:  # Windows cannot rename an open file; elsewhere the lock is held until then
                file.close()
            os.replace(file.name, target)
    except OSError as error:
        error.add_note(f"{target} was not changed: what was written so far is removed")
        raise
    finally:
        with contextlib.suppress(OSError):
            os.unlink(file.name)


def _prefix(target: pathlib.Path) -> str:
    return f".{target.name[:64]}."  # cut, because the length of file names is limited


def _temporary(target: pathlib.Path) -> Any:
    """A new file beside the target, locked for as long as it is open."""
    while True:
        file = open(target.with_name(f"{_prefix(target)}{os.getpid()}.{uuid.uuid4().hex}.tmp"), "wb")
        if fcntl is not None:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
        if os.path.exists(file.name):  # no other process removed it as a leftover before it was locked
            return file
        file.close()


def _remove_leftovers(target: pathlib.Path) -> None:
    """Remove this target's temporary files that no process holds a lock on: their writer was killed."""
    if fcntl is None:
        return
    made = re.compile(re.escape(_prefix(target)) + r"\d+\.[0-9a-f]{32}\.tmp")
    with contextlib.suppress(OSError):
        for old in [entry for entry in target.parent.iterdir() if made.fullmatch(entry.name)]:
            with contextlib.suppress(OSError), open(old, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                old.unlink()


def write(path: str | os.PathLike[str], members: Mapping[str, Any]) -> None:
    """Write an archive of named contents (bytes, or memoryviews of them)."""
    with atomic(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(members):
            archive.writestr(name, members[name])
        archive.comment = _seal(members)


def read(file: BinaryIO) -> dict[str, Any]:
    """Read an archive and check its sizes and digest; raises errors of any kind for other files.

    Large members are views of the file, from which the system reads what is used of them.
    """
    size = file.seek(0, os.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        listed = archive.infolist()
        if len(listed) > MOST_MEMBERS or len({i.filename for i in listed}) < len(listed):
            raise ValueError(f"expected at most {MOST_MEMBERS} members of different names, got {len(listed)}")
        if any(i.compress_type != zipfile.ZIP_STORED or i.compress_size != i.file_size for i in listed):
            raise ValueError("expected members that are stored, got compressed ones")
        if sum(i.file_size for i in listed) > size:
            raise ValueError(f"expected members of at most {size} bytes, the file's size, got more")
        members = {i.filename: _content(archive, file, i) for i in listed}
        if not archive.comment.startswith(SEAL):
            raise ValueError(
                "expected a digest of its contents, got none: another program or an early version of hipgp wrote it; "
                "fit again"
            )
        if archive.comment != _seal(members):
            raise ValueError("its contents have changed since they were written: the digest does not match")
    return members


def _content(archive: zipfile.ZipFile, file: BinaryIO, member: zipfile.ZipInfo) -> Any:
    """What a member holds: bytes, or where it is large a view of the file. The digest is checked afterwards."""
    if member.file_size < LARGE:
        return archive.read(member)
    with archive.open(member):  # checks that the header in the file is the one that is listed
        pass
    file.seek(member.header_offset + 26)  # lengths of the name and of what follows it
    name, extra = struct.unpack("<HH", file.read(4))
    begin = member.header_offset + 30 + name + extra
    view: Any = np.memmap(file, np.uint8, "r", begin, (member.file_size,))
    return memoryview(view)


def _seal(members: Mapping[str, Any]) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(members):
        label, content = name.encode(), memoryview(members[name]).cast("B")
        digest.update(f"{len(label)} {content.nbytes} ".encode() + label)
        for begin in range(0, content.nbytes, PIECE):
            digest.update(content[begin : begin + PIECE])
    return SEAL + digest.hexdigest().encode()
