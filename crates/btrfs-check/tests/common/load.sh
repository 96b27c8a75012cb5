# What a test volume holds; runs with its mount point as the working directory.
# Everything that fsck has an opinion about should occur.
set -e
mkdir -p a/b/c d
for i in $(seq 1 400); do echo "file $i" > a/f$i; done
for i in $(seq 1 30); do dd if=/dev/urandom of=a/b/big$i bs=64k count=$i status=none; done
yes hello | head -c 3000000 > a/text
sync -f .
cp --reflink=always a/b/big20 a/b/clone20
cp --reflink=always a/b/big30 d/clone30
ln -s /some/target a/link
mkfifo a/fifo
mknod a/null c 1 3
for i in $(seq 1 "${LINKS:-300}"); do ln a/f1 "d/hardlink-with-a-quite-long-name-to-fill-the-item-$i"; done
setfattr -n user.test -v "$(printf 'x%.0s' $(seq 1 500))" a/f2
setfattr -n user.other -v 1 a/f2
fallocate -l 1M a/prealloc
dd if=/dev/urandom of=a/prealloc bs=4k count=10 seek=20 conv=notrunc status=none
touch a/keepsize
fallocate -n -l 3M a/keepsize
fallocate -p -o 64k -l 128k a/b/big25
truncate -s 10M a/sparse
dd if=/dev/urandom of=a/sparse bs=4k count=3 seek=700 conv=notrunc status=none
# Names whose hashes collide (crc32c).
mkdir collide
touch collide/ccaoacux collide/wcjifoae collide/mxwslzkr collide/pnnmgjjg
ln a/f3 collide/pbwnlavy
ln a/f3 collide/ziibfswd
setfattr -n user.ccaoacux -v one a/f3
setfattr -n user.wcjifoae -v two a/f3
sync -f .
btrfs -q subvolume create sv1
cp -r a sv1/
btrfs -q subvolume create sv1/nested
echo x > sv1/nested/x
sync -f .
btrfs -q subvolume snapshot sv1 snap1
btrfs -q subvolume snapshot -r sv1 snapro
for i in $(seq 1 50); do
    echo changed > sv1/a/f$i
    rm -f snap1/a/f$((i + 100))
done
dd if=/dev/urandom of=sv1/a/b/big10 bs=4k count=7 seek=3 conv=notrunc status=none
btrfs -q subvolume snapshot snap1 snap2
mkdir nocow
chattr +C nocow
dd if=/dev/urandom of=nocow/x bs=64k count=10 status=none
sync -f .
rm -rf a/b/big1*
mv a/text d/text2
for i in $(seq 1 200); do echo "$i" > d/t$i; done
for i in $(seq 1 2 200); do rm d/t$i; done
btrfs -q subvolume create doomed
cp -r a/b doomed/
btrfs -q subvolume snapshot doomed survivor
btrfs -q subvolume delete doomed > /dev/null
btrfs -q subvolume delete sv1/nested > /dev/null
btrfs -q subvolume delete sv1 > /dev/null
dd if=/dev/urandom of=alone bs=64k count=2 status=none
sync -f .
