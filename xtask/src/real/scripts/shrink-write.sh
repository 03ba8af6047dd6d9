#!/bin/sh
# fio writes files with checksums and acknowledges each; the file system becomes smaller meanwhile.
# Arguments: options of fio that make a file durable.
cd "$BEDPLATE_DIR" || exit 1
for n in 1 2 3 4 5 6; do
  fio --name=v --filename=f$n --size=3M --bs=8k --rw=randwrite --verify=crc32c --do_verify=0 \
    --verify_state_save=0 --ioengine=psync --randseed=$n --output=/dev/null "$@" && echo f$n
  [ $n = 3 ] && bedplate shrink "$BEDPLATE_DIR" 96M &
  [ $n = 4 ] && rm f1
done
wait
