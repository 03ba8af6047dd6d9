#!/bin/sh
# A file behind the first 120 MiB, which a checkpoint has too, and free space before it.
set -e
cd "$BEDPLATE_DIR"
dd if=/dev/zero of=filler bs=1M count=120 conv=fsync status=none
dd if=/dev/urandom of=old bs=1M count=16 conv=fsync status=none
md5sum old > old.md5
rm filler
sync
bedplate checkpoint create "$BEDPLATE_DIR" c
