# SPDX-License-Identifier: Apache-2.0
# The first program in the guest's root: bash runs it as process 1 from the folder that the host shares. It says that the
# command begins, runs it, and says how it ended; the host reads both from files, because they are on its disk at once.
cd /run/guest
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 TERM=dumb
export PYTHONDONTWRITEBYTECODE=1
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
for name in fd stdin=fd/0 stdout=fd/1 stderr=fd/2; do
  [ "$name" = fd ] && ln -s /proc/self/fd /dev/fd || ln -s "/proc/self/${name#*=}" "/dev/${name%=*}"
done
ip link set lo up
ulimit -l unlimited
ulimit -n 65536
# No crash dumps of 2 GiB in memory, and processes of one user may look into each other, as they may on Debian.
ulimit -c 0

echo yes >started
bash ./command </dev/null >output.log 2>&1
echo $? >status.part
mv status.part status
sync
echo o >/proc/sysrq-trigger
# The kernel powers off meanwhile; without its first program it would panic.
sleep infinity
