package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
)

// TestDurability is what a disk keeps, and what does no harm to it, on real sandboxes. Its parts share one helmr.
func TestDurability(t *testing.T) {
	t.Parallel()
	h := start(t, db.SQLite)
	h.deploy("testdata/project")
	unused := h.newComputer("brief", "unused") // looked at again at the end
	t.Run("files", func(t *testing.T) { diskKeepsFiles(t, h) })
	t.Run("a full disk", func(t *testing.T) { fullDisk(t, h) })
	t.Run("out of memory", func(t *testing.T) { outOfMemory(t, h) })
	t.Run("usage", func(t *testing.T) { usage(t, h) })
	t.Run("unused computers go", func(t *testing.T) { unusedGoes(t, h, unused) })
}

// makeFiles makes one of each kind of thing that a disk may hold, in /work/kept, and changes what the image brought.
const makeFiles = `set -eu
umask 022
mkdir -p /work/kept && cd /work/kept
echo plain >plain; chmod 640 plain; chown 1234:5678 plain
cp /bin/true setuid; chmod 6755 setuid; chown 12:34 setuid; chmod 6755 setuid
mkdir sticky; chmod 1777 sticky; mkdir -p deep/er; chmod 700 deep; chown 7:8 deep
echo linked >hard; ln hard hard2; ln hard deep/er/hard3
ln -s /no/such/place dangling; ln -s plain soft; chown -h 9:10 soft
truncate -s 300M sparse; printf middle | dd of=sparse bs=1 seek=100000000 conv=notrunc status=none
mkfifo fifo; chmod 600 fifo; chown 3:4 fifo
head -c 3000000 /dev/urandom >random
printf '' >empty
name=$(printf 'odd\n\xff \xc3\xa4 name'); echo odd >"$name"
perl -e '
	my ($f, $n, $v) = ("plain", "user.note", "v\xc3\xbc\0");
	syscall(188, $f, $n, $v, length $v, 0) == 0 or die "setxattr: $!";
	$f = "deep"; $n = "user.dir"; $v = "d"; syscall(188, $f, $n, $v, 1, 0) == 0 or die "setxattr: $!";'
touch -d 1999-12-31T23:59:58.123456789Z plain; touch -h -d 2001-02-03T04:05:06.7Z soft; touch -d 1985-01-01 deep/er; touch -d 2030-05-06T07:08:09.000000001Z fifo
# The image's own: gone, replaced, renamed, and gone from a folder that was made anew.
rm /etc/debian_version; echo mine >/etc/issue; rm -r /usr/share/doc; mkdir /usr/share/doc; echo new >/usr/share/doc/new
mv /usr/share/zoneinfo /usr/share/renamed; mv /etc/skel /work/kept/skel; chmod 700 /opt; chown 5:6 /srv
mkdir /work/made; echo x >/work/made/file; mv /work/made /work/moved; echo gone >/work/kept/gone; rm /work/kept/gone
echo tmp >/tmp/kept; echo root >/root/kept; echo lost >/run/lost; echo lost >/dev/shm/lost
`

// describeFiles says all about them that must not change. What gVisor's archive of a disk does not hold is left out: the
// fractions of seconds of times (it rounds them), sockets, and values of extended attributes that are no UTF-8.
const describeFiles = `cd /work/kept
find . -mindepth 1 -print0 | sort -z | xargs -0 stat -c '%N|%F|%a|%u:%g|%h|%s|%.9Y' | awk -F'|' -v OFS='|' '{ $NF = sprintf("%.0f", $NF); print }'
find . -type f -print0 | sort -z | xargs -0 sha256sum
echo links: $(stat -c %i hard hard2 deep/er/hard3 | sort -u | wc -l)
echo sparse: $(( $(df --output=used -k / | tail -1) < 200000 ))
perl -e 'for (["plain", "user.note"], ["deep", "user.dir"]) { my ($f, $n) = @$_; my $b = " " x 64; my $l = syscall(191, $f, $n, $b, 64); print "$f $n ", unpack("H*", substr($b, 0, $l)), "\n" }'
ls -d /etc/debian_version /usr/share/zoneinfo /etc/skel /work/made /work/kept/gone 2>&1 | sort
cat /etc/issue; ls /usr/share/doc /usr/share/renamed | sort | sha256sum; find /usr/share/renamed -type f | wc -l; cat /work/moved/file
stat -c '%n %a %u:%g' /opt /srv; cat /tmp/kept /root/kept
`

func diskKeepsFiles(t *testing.T, h *helmr) {
	h, back := restartable(t, h)
	defer back()
	box := h.newComputer("box", "files")
	h.wantExit(h.sh(box, makeFiles), 0)
	want := h.wantExit(h.sh(box, describeFiles), 0)
	for _, line := range []string{"'./plain'|regular file|640|1234:5678|1|6|946684798\n", "'./setuid'|regular file|6755|12:34|", "'./sticky'|directory|1777|", "'./fifo'|fifo|600|3:4|",
		"'./soft' -> 'plain'|symbolic link|777|9:10|1|5|981173107\n", "'./deep/er'|directory|755|0:0|1|60|473385600\n", "links: 1\n", "sparse: 1\n", "plain user.note 76c3bc00\n", "deep user.dir 64\n", "/opt 700 0:0\n", "/srv 755 5:6\n"} {
		if !strings.Contains(want.stdout, line) {
			t.Errorf("before any restart %q is not in what was made", line)
		}
	}
	if t.Failed() {
		t.Fatalf("%s\n%s", want.stdout, want.stderr)
	}
	// From the Save of the first disk, and from the Save of the disk that was restored.
	for _, round := range []string{"first", "second"} {
		h.stop()
		h.run()
		got := h.wantExit(h.sh(box, describeFiles), 0)
		compareLines(t, "after the "+round+" restore", got.stdout, want.stdout)
		if e := h.wantExit(h.sh(box, "ls /run/lost /dev/shm/lost /proc/self/stat /dev/null /sys 2>&1 | grep -v ^/sys"), 0); strings.Count(e.stdout, "cannot access") != 2 || !strings.Contains(e.stdout, "/proc/self/stat\n") {
			t.Errorf("memory was kept: %s", e.stdout)
		}
		h.wantExit(h.sh(box, "echo lost >/run/lost; echo lost >/dev/shm/lost; /work/kept/setuid"), 0)
	}
}

// compareLines shows the lines that differ.
func compareLines(t *testing.T, what, got, want string) {
	t.Helper()
	if got == want {
		return
	}
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for _, line := range a {
		if !slices.Contains(b, line) {
			t.Errorf("%s: new: %q", what, line)
		}
	}
	for _, line := range b {
		if !slices.Contains(a, line) {
			t.Errorf("%s: gone: %q", what, line)
		}
	}
	t.Errorf("%s: the files differ", what)
}

// fullDisk fills the disk of a Computer: the program inside gets ENOSPC, and everything else goes on.
func fullDisk(t *testing.T, h *helmr) {
	h, back := restartable(t, h)
	defer back()
	box := h.newComputer("brief", "full") // 256 MiB
	r, err := h.CreateSession(context.Background(), api.SessionCreateRequest{Agent: "counter", Input: input("hello"), ComputerID: box})
	if err != nil {
		t.Fatal(err)
	}
	h.completed(r.SessionID, r.TurnID)
	e := h.wantExit(h.sh(box, "echo kept >/work/kept; head -c 600000000 /dev/zero | tr '\\0' x >/work/full; echo ${PIPESTATUS[1]}; stat -c %s /work/full; echo more >/work/more; cat /work/more"), 0)
	lines := strings.Fields(e.stdout)
	if !strings.Contains(e.stderr, "No space left on device") || len(lines) != 2 || lines[0] != "1" || len(lines[1]) != 9 || lines[1] > "268435456" {
		t.Errorf("%q %q", e.stdout, e.stderr)
	}
	if used := folderSize(t, filepath.Join(h.dir, "worker", "computers", box)); used > 400<<20 {
		t.Errorf("the host holds %d MiB for a disk of 256 MiB", used>>20)
	}
	// A Turn on the full disk works as far as it needs none; its Save is published all the same.
	if got := h.completed(r.SessionID, h.enqueue(r.SessionID, "hello")); got.Turns != 2 || got.Inits != 1 {
		t.Errorf("%+v", got)
	}
	h.wantExit(h.sh(h.newComputer("box", "beside"), "head -c 1000000 /dev/zero >/work/fine"), 0)
	// A full disk comes back as it was, and can be emptied.
	h.stop()
	h.run()
	h.resume(r.SessionID)
	if e := h.wantExit(h.sh(box, "stat -c %s /work/full; rm /work/full; echo fits >/work/more; cat /work/kept /work/more"), 0); e.stdout != lines[1]+"\nkept\nfits\n" {
		t.Errorf("%q, want a file of %s bytes first; %q", e.stdout, lines[1], e.stderr)
	}
	if _, err := h.CancelSession(context.Background(), r.SessionID, api.ControlRequest{}); err != nil {
		t.Fatal(err)
	}
}

func folderSize(t *testing.T, dir string) (size int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().IsRegular() {
			size += allocatedBytes(info)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return size
}

// outOfMemory has a program eat more than the Computer has: Turn and Command say so, and what to do about it.
func outOfMemory(t *testing.T, h *helmr) {
	h = with(t, h)
	r := h.create("counter", "hello")
	h.completed(r.SessionID, r.TurnID)
	s, err := h.GetSession(context.Background(), r.SessionID)
	if err != nil {
		t.Fatal(err)
	}
	bystander := h.sh(s.ComputerID, "echo up; exec sleep 1000")
	h.following(bystander, func(out string) bool { return out == "up\n" })
	eater := h.enqueue(r.SessionID, "eat")
	v := h.settled(r.SessionID, eater)
	const says = "out of memory (raise resources.memory of the Template)"
	if v.Status != "interrupted" || v.Error == nil || v.Error.Code != "computer_lost" || !strings.Contains(v.Error.Message, says) {
		t.Errorf("the Turn is %s: %+v", v.Status, v.Error)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	k, err := h.WaitCommand(ctx, bystander)
	if err != nil || k.Status != "lost" || k.Outcome.Failure.Reason != "guest_failure" || !strings.Contains(k.Outcome.Failure.Message, says) {
		t.Errorf("the Command beside it is %s: %+v %v", k.Status, k.Outcome, err)
	}
	// The Command that eats gets the same answer.
	k, err = h.WaitCommand(ctx, h.exec(s.ComputerID, api.CommandCreateRequest{Command: []string{"node", "-e", "const a = []; for (;;) a.push(Buffer.alloc(16777216, 1))"}}))
	if err != nil || k.Status != "lost" || !strings.Contains(k.Outcome.Failure.Message, says) {
		t.Errorf("the Command that eats is %s: %+v %v", k.Status, k.Outcome, err)
	}
	_, stderr, code := h.command("computer", "exec", "--id", s.ComputerID, "--", "node", "-e", "const a = []; for (;;) a.push(Buffer.alloc(16777216, 1))")
	if code != 1 || !strings.Contains(stderr, says) {
		t.Errorf("helmr computer exec ends with %d and says %q", code, stderr)
	}
	// After resume the next Turn runs, from the last Save.
	h.resume(r.SessionID)
	if got := h.completed(r.SessionID, h.enqueue(r.SessionID, "hello")); got.Recovery.Reason != "computer_lost" || got.Inits != 2 {
		t.Errorf("%+v", got)
	}
}

// usage is who occupies a Computer, the exact look-up by key, and the storage that Computers reserve.
func usage(t *testing.T, h *helmr) {
	h = with(t, h)
	ctx := context.Background()
	box := h.newComputer("box", "usage:1")
	r, err := h.CreateSession(ctx, api.SessionCreateRequest{Agent: "counter", Input: input("hello"), ComputerID: box})
	if err != nil {
		t.Fatal(err)
	}
	h.completed(r.SessionID, r.TurnID)
	k := h.sh(box, "echo up; exec sleep 1000")
	h.following(k, func(out string) bool { return out == "up\n" })
	states := func() (sessions, commands string) {
		s, err := h.ListComputerSessions(ctx, box, "", 10)
		if err != nil {
			t.Fatal(err)
		}
		c, err := h.ListComputerCommands(ctx, box, "", 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range s.Sessions {
			sessions += one.ID + " " + one.UsageState + "\n"
		}
		for _, one := range c.Commands {
			commands += one.ID + " " + one.UsageState + "\n"
		}
		return sessions, commands
	}
	h.until("the Session waits and the Command runs", func() bool {
		sessions, commands := states()
		return sessions == r.SessionID+" waiting\n" && commands == k+" running\n"
	})
	busy := h.enqueue(r.SessionID, "patient 2000")
	h.until("the Turn runs", func() bool {
		sessions, _ := states()
		return sessions == r.SessionID+" running\n"
	})
	stdout, _, code := h.command("computer", "commands", "--key", "usage:1")
	if code != 0 || !strings.Contains(stdout, k) {
		t.Errorf("%d %q", code, stdout)
	}
	if _, err := h.CancelCommand(ctx, k, api.ControlRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.CancelSession(ctx, r.SessionID, api.ControlRequest{}); err != nil {
		t.Fatal(err)
	}
	h.settled(r.SessionID, busy)
	h.until("nobody is left", func() bool {
		sessions, commands := states()
		return sessions+commands == ""
	})
	// A key is found exactly, or not at all.
	for key, want := range map[string]int{"usage:1": 1, "usage:": 0, "usage:11": 0, "USAGE:1": 0, "usage:%": 0, "usage_1": 0} {
		page, err := h.ListComputers(ctx, client.ComputerFilter{Key: key})
		if err != nil || len(page.Computers) != want || (want == 1 && page.Computers[0].ID != box) {
			t.Errorf("key %q: %+v %v", key, page.Computers, err)
		}
	}
	if _, stderr, code := h.command("computer", "get", "--key", "usage:11"); code != 1 || !strings.Contains(stderr, "usage:11") {
		t.Errorf("%d %q", code, stderr)
	}
}

// unusedGoes sees to the end a Computer that nobody ever used, and one that was used.
func unusedGoes(t *testing.T, h *helmr, unused string) {
	h = with(t, h)
	ctx := context.Background()
	used := h.newComputer("brief", "used")
	k := h.sh(used, "echo up; exec sleep 1000")
	h.following(k, func(out string) bool { return out == "up\n" })
	h.until("the Computer that nobody used is deleted", func() bool {
		c, err := h.GetComputer(ctx, unused)
		return err == nil && c.Status == "deleted"
	})
	if c, err := h.GetComputer(ctx, used); err != nil || c.Status != "available" {
		t.Fatalf("with a running Command it is %+v %v", c, err)
	}
	if _, err := h.CancelCommand(ctx, k, api.ControlRequest{}); err != nil {
		t.Fatal(err)
	}
	h.outcome(k)
	h.until("the Computer that is not used any more is deleted", func() bool {
		c, err := h.GetComputer(ctx, used)
		return err == nil && c.Status == "deleted"
	})
	if got, err := h.GetCommand(ctx, k); err != nil || got.Status != "cancelled" {
		t.Errorf("its history: %+v %v", got, err)
	}
	if _, err := h.CreateCommand(ctx, used, api.CommandCreateRequest{Command: []string{"true"}}); err == nil || !strings.Contains(err.Error(), "computer_not_found") {
		t.Errorf("a Command for it: %v", err)
	}
	h.until("nothing of it runs", func() bool { return h.sandboxPID(used) == 0 })
}

// allocatedBytes is what a file takes on the host's disk.
func allocatedBytes(info os.FileInfo) int64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Blocks * 512
	}
	return info.Size()
}
