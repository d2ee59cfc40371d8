"""Programs of the system that tests run."""

from __future__ import annotations

import shutil

# Debian's place for it is not on every user's PATH.
MKFS = shutil.which("mkfs.ext4") or "/usr/sbin/mkfs.ext4"
