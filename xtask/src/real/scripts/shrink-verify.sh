#!/bin/sh
# What was there, what the checkpoint has, every file that was acknowledged, and the size once the
# shrink was.
cd "$BEDPLATE_DIR" || exit 1
md5sum --quiet -c old.md5 || exit 1
(cd .checkpoints/c && md5sum --quiet -c old.md5) || exit 1
for f in $(grep '^f' "$BEDPLATE_ACKNOWLEDGED"); do
  [ $f = f1 ] && ! [ -e f1 ] && continue
  fio --name=v --filename=$f --size=3M --bs=8k --rw=randwrite --verify=crc32c --verify_only \
    --verify_state_save=0 --ioengine=psync --randseed=${f#f} --output=/dev/stderr || exit 1
done
if grep -q shrunk "$BEDPLATE_ACKNOWLEDGED"; then
  bedplate info "$BEDPLATE_DIR" | grep -q '^size  *96 MiB$' || exit 1
fi
