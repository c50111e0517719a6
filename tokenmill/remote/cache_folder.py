"""The folder of a set in the cache: of this user alone, and never behind a link.

    folder = own_folder(root, digest)            made if it is not there
    descriptor = open_own(folder)                the folder itself, and not what a link in its place leads to

What lies in a cache is trusted to be verified, so it must be this user's. In a root that several users share, each has
folders of their own: CACHE/<digest> belongs to the one who was first, the others use CACHE/<digest>.<user id>.
"""

import logging
import os
import shutil
import stat
import tempfile
import uuid
from pathlib import Path

LOG = logging.getLogger("tokenmill")
MINE_ALONE = 0o700
OLD = ".old"  # how a folder ends that is going to be deleted
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def own_folder(root: Path, digest: str) -> Path:
    """The folder of this user for the set with this digest.

    PermissionError if the root belongs to another user who could replace what is in it; ValueError if a link is in the
    folder's place; OSError if it cannot be made.
    """
    _make_root(root)
    for old in root.glob(f"{digest}*{OLD}"):  # of a process that was killed meanwhile
        shutil.rmtree(old, ignore_errors=True)
    for folder in (root / digest, root / f"{digest}.{os.geteuid()}"):
        try:
            folder.mkdir(MINE_ALONE)
        except FileExistsError:
            pass
        except OSError as error:
            raise _cannot_be_made(folder, error) from error
        if is_own(folder):
            _close_to_others(folder)
            return folder
    raise PermissionError(f"{folder}: belongs to another user; name another cache_dir, or set TOKENMILL_CACHE")


def is_own(folder: Path) -> bool:
    """Whether this is a folder of this user. ValueError if it is a link, or a file."""
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        kind = "a link" if stat.S_ISLNK(found.st_mode) else "a file"
        raise ValueError(
            f"{folder}: expected a folder of the cache, found {kind}; delete it, or name another cache_dir"
        )
    return found.st_uid == os.geteuid()


def open_own(folder: Path, within: int | None = None) -> int:
    """A descriptor of a folder of this user; if `within` is given, of the one with its name in that open folder.

    ValueError if it is a link or another user's, OSError if it cannot be opened.
    """
    try:
        # by its name alone, as an absolute path would be looked up from the root whatever `within` is
        name = folder if within is None else folder.name
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    except NotADirectoryError as error:
        raise ValueError(
            f"{folder}: expected a folder of the cache, found a link or a file, which may lead out of it; nothing is "
            "deleted or written there"
        ) from error
    if os.fstat(descriptor).st_uid != os.geteuid():
        os.close(descriptor)
        raise ValueError(f"{folder}: belongs to another user; name another cache_dir, or set TOKENMILL_CACHE")
    return descriptor


def _make_root(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_be_made(root, error) from error
    found = os.stat(root)
    if found.st_uid not in (0, os.geteuid()) and not found.st_mode & stat.S_ISVTX:
        raise PermissionError(
            f"{root}: belongs to another user (id {found.st_uid}), who can replace what is in it; name another "
            "cache_dir, or set TOKENMILL_CACHE. To share it on purpose, its owner runs chmod 1777 on it"
        )


def _close_to_others(folder: Path) -> None:
    """From now on, this user alone may read and write the folder. If others could write to it, it is begun again."""
    mode = stat.S_IMODE(os.lstat(folder).st_mode)
    if not mode & (stat.S_IRWXG | stat.S_IRWXO) or not _keeps_modes(folder.parent):
        return
    if not mode & OTHERS_WRITE:
        os.chmod(folder, MINE_ALONE)
        return
    LOG.warning("%s: other users could write to this folder of the cache, so it is begun again", folder)
    old = folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:8]}{OLD}")
    os.rename(folder, old)  # first: whatever ends this process, nobody takes what is in it
    folder.mkdir(MINE_ALONE, exist_ok=True)
    shutil.rmtree(old, ignore_errors=True)


def _keeps_modes(root: Path) -> bool:
    """Whether a folder that is made for this user alone is: some mounts give all files the same mode."""
    probe = tempfile.mkdtemp(dir=root, prefix="probe.")
    try:
        return not stat.S_IMODE(os.lstat(probe).st_mode) & (stat.S_IRWXG | stat.S_IRWXO)
    finally:
        os.rmdir(probe)


def _cannot_be_made(folder: Path, error: OSError) -> OSError:
    return type(error)(f"{folder}: cannot be made ({error.strerror}); name another cache_dir, or set TOKENMILL_CACHE")
