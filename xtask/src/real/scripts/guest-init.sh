#!/bin/busybox sh
# What the guest does: writes in the first phase, compares in the second.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
# MODULES
disk=/sys/block/vda
queue=$disk/queue
echo "DISK $(cat $disk/size) serial=$(cat $disk/serial) queues=$(ls $disk/mq | wc -l)" \
    "lbs=$(cat $queue/logical_block_size) pbs=$(cat $queue/physical_block_size)" \
    "opt=$(cat $queue/optimal_io_size) wc=$(cat $queue/write_cache)"
content() { seq 1 200000; }
if grep -q phase=1 /proc/cmdline; then
    content | dd of=/dev/vda bs=64k conv=fsync 2>/dev/null
    (content | dd of=/dev/vda bs=4k seek=4096 conv=fsync 2>/dev/null) &
    (content | dd of=/dev/vda bs=512 seek=65536 conv=fsync 2>/dev/null) &
    wait
    blkdiscard -o 50331648 -l 1048576 /dev/vda && echo DISCARDED
    sync
    echo FLUSHED
    while true; do
        dd if=/dev/zero of=/dev/vda bs=1M seek=56 count=8 conv=fsync 2>/dev/null
    done
fi
want=$(content | md5sum)
bytes=$(content | wc -c)
for at in 0 16777216 33554432; do
    got=$(dd if=/dev/vda bs=4096 skip=$((at / 4096)) 2>/dev/null | head -c "$bytes" | md5sum)
    [ "$got" = "$want" ] && echo "SAME $at" || echo "DIFFERENT $at"
done
echo DONE
poweroff -f
