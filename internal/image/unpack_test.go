package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// layerOf makes the tar of a layer. A header without a kind is a file, or a folder when its name ends in "/".
func layerOf(t *testing.T, entries ...tarEntry) rawLayer {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, e := range entries {
		h := e.Header
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
			if strings.HasSuffix(h.Name, "/") {
				h.Typeflag = tar.TypeDir
			}
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		h.Size = int64(len(e.body))
		must(t, tw.WriteHeader(&h))
		_, err := tw.Write([]byte(e.body))
		must(t, err)
	}
	must(t, tw.Close())
	return rawLayer{open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }}
}

type tarEntry struct {
	tar.Header
	body string
}

func file(name, body string) tarEntry { return tarEntry{tar.Header{Name: name}, body} }

func special(kind byte, name, target string) tarEntry {
	return tarEntry{tar.Header{Typeflag: kind, Name: name, Linkname: target}, ""}
}

func archiveOf(t *testing.T, layers ...rawLayer) string {
	t.Helper()
	dst, err := newBlobDir(t.TempDir())
	must(t, err)
	cfg := defaultConfig()
	cfg.Config.User, cfg.Config.WorkingDir = "1000:1000", "/srv"
	p, err := pack(t.Context(), dst, rawImage{config: cfg, layers: layers}, nil, nil)
	must(t, err)
	out := filepath.Join(t.TempDir(), "image.tar")
	_, _, err = writeArchive(t.Context(), dst.layout, p, out)
	must(t, err)
	return out
}

// extracted unpacks an archive and gives a folder with what fsck.erofs reads out of the file.
func extracted(t *testing.T, archive string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("unpacking needs root: it sets owners")
	}
	dir := t.TempDir()
	out := filepath.Join(dir, "rootfs.erofs")
	cfg, err := Unpack(t.Context(), archive, out)
	must(t, err)
	if cfg.Workdir != "/srv" || cfg.User != "1000:1000" || len(cfg.Env) != 1 {
		t.Errorf("config = %+v", cfg)
	}
	left, err := os.ReadDir(dir)
	must(t, err)
	if len(left) != 1 {
		t.Errorf("left beside the file: %v", left)
	}
	to := filepath.Join(dir, "x")
	if text, err := exec.Command("fsck.erofs", "--extract="+to, "--preserve", out).CombinedOutput(); err != nil {
		t.Fatalf("fsck.erofs: %v: %s", err, text)
	}
	return to
}

func read(t *testing.T, root, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		return "error: " + err.Error()
	}
	return string(data)
}

func TestUnpackMergesLayers(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_600_000_000, 0)
	owned := tarEntry{tar.Header{Name: "bin/su", Mode: 0o4755, Uid: 0, Gid: 42, ModTime: at, PAXRecords: map[string]string{
		"SCHILY.xattr.user.note": "kept", "SCHILY.xattr.trusted.overlay.opaque": "y", "SCHILY.xattr.security.selinux": "label",
	}}, "su"}
	root := extracted(t, archiveOf(t,
		layerOf(t,
			tarEntry{tar.Header{Name: "./", Mode: 0o755}, ""},
			owned, file("etc/a", "lower a"), file("etc/b", "lower b"), file("gone/x", "x"), file("opaque/old", "old"),
			tarEntry{tar.Header{Name: "usr/lib/", Mode: 0o755}, ""}, special(tar.TypeSymlink, "lib", "usr/lib"),
			special(tar.TypeSymlink, "var/run", "/run"), file("run/pid", "1"), special(tar.TypeLink, "etc/hard", "etc/a"),
			special(tar.TypeFifo, "run/pipe", ""), special(tar.TypeChar, "dev/null", ""), file("swap", "file"), file("dir/inner", "inner"),
			tarEntry{tar.Header{Name: "home/app/", Mode: 0o1777, Uid: 1000, Gid: 1000, ModTime: at}, ""},
			special(tar.TypeSymlink, "up", "../../../../../etc"), file("empty", ""),
		),
		layerOf(t,
			file("etc/a", "upper a"), file("etc/.wh.b", ""), file(".wh.gone", ""), file("opaque/new", "new"), file("opaque/.wh..wh..opq", ""),
			file("lib/libx", "through a relative link"), file("var/run/lock", "through an absolute link"), file("up/escaped", "stays inside"),
			special(tar.TypeLink, "etc/hard2", "etc/hard"), file("swap/", ""), file("swap/now", "a folder"), file("dir", "a file"),
			tarEntry{tar.Header{Name: "etc/", Mode: 0o700}, ""}, file("a/b/c/d", "missing folders"), special(tar.TypeSymlink, "abs", "/etc/passwd"),
		),
	))
	for name, want := range map[string]string{
		"etc/a": "upper a", "etc/hard": "lower a", "etc/hard2": "lower a", "opaque/new": "new", "usr/lib/libx": "through a relative link",
		"run/lock": "through an absolute link", "run/pid": "1", "etc/escaped": "stays inside", "swap/now": "a folder", "dir": "a file",
		"a/b/c/d": "missing folders", "empty": "",
	} {
		if got := read(t, root, name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{"etc/b", "gone", "opaque/old", "dev/null", "etc/.wh.b", "opaque/.wh..wh..opq", "dir/inner"} {
		if _, err := os.Lstat(filepath.Join(root, name)); !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			t.Errorf("%s is there (%v)", name, err)
		}
	}
	var st, hard, hard2, home, etc unix.Stat_t
	must(t, unix.Lstat(filepath.Join(root, "bin/su"), &st))
	if mode := erofsMode(t, filepath.Join(filepath.Dir(root), "rootfs.erofs"), "/bin/su"); mode != 0o104755 {
		t.Errorf("bin/su: mode %o in the file", mode)
	}
	if st.Mode&0o777 != 0o755 || st.Gid != 42 || st.Mtim.Sec != at.Unix() {
		t.Errorf("bin/su: mode %o, group %d, time %d", st.Mode, st.Gid, st.Mtim.Sec)
	}
	must(t, unix.Lstat(filepath.Join(root, "home/app"), &home))
	if home.Mode&0o7777 != 0o1777 || home.Uid != 1000 || home.Mtim.Sec != at.Unix() {
		t.Errorf("home/app: mode %o, owner %d, time %d", home.Mode, home.Uid, home.Mtim.Sec)
	}
	must(t, unix.Lstat(filepath.Join(root, "etc"), &etc))
	if etc.Mode&0o7777 != 0o700 {
		t.Errorf("etc: mode %o: the upper layer's counts", etc.Mode)
	}
	must(t, unix.Lstat(filepath.Join(root, "etc/hard"), &hard))
	must(t, unix.Lstat(filepath.Join(root, "etc/hard2"), &hard2))
	if hard.Mtim != hard2.Mtim || hard.Size != hard2.Size {
		t.Errorf("hard links differ")
	}
	if info, err := os.Lstat(filepath.Join(root, "run/pipe")); err != nil || info.Mode()&fs.ModeNamedPipe == 0 {
		t.Errorf("run/pipe: %v, %v", info, err)
	}
	if target, err := os.Readlink(filepath.Join(root, "abs")); err != nil || target != "/etc/passwd" {
		t.Errorf("abs -> %q, %v", target, err)
	}
}

func TestUnpackIsDeterministic(t *testing.T) {
	t.Parallel()
	archive := archiveOf(t, layerOf(t, file("a", "1"), file("b/c", "2"), special(tar.TypeSymlink, "l", "a")), layerOf(t, file("b/d", "3")))
	var files [2][]byte
	for i := range files {
		out := filepath.Join(t.TempDir(), "rootfs")
		_, err := Unpack(t.Context(), archive, out)
		must(t, err)
		files[i], err = os.ReadFile(out)
		must(t, err)
	}
	if !bytes.Equal(files[0], files[1]) {
		t.Error("two unpacks of one archive differ")
	}
}

// gVisor refuses to open a file of EROFS that has extended attributes.
func TestUnpackDropsXattrsAndKeepsHardLinks(t *testing.T) {
	t.Parallel()
	h := tar.Header{Name: "ping", Mode: 0o755, PAXRecords: map[string]string{
		xattrRecord + "security.capability": "\x01\x00\x00\x02\x20" + strings.Repeat("\x00", 15), xattrRecord + "user.note": "dropped",
	}}
	out := filepath.Join(t.TempDir(), "rootfs")
	_, err := Unpack(t.Context(), archiveOf(t, layerOf(t, tarEntry{h, "x"}, special(tar.TypeLink, "d/again", "ping"))), out)
	must(t, err)
	text, err := exec.Command("dump.erofs", "--path=/ping", out).CombinedOutput()
	must(t, err)
	if !strings.Contains(string(text), "Links: 2") || !strings.Contains(string(text), "Xattr size: 0") {
		t.Errorf("dump.erofs says\n%s", text)
	}
}

func TestUnpackRefusesHostileArchives(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "victim"), []byte("safe"), 0o644))
	long := strings.Repeat("n", 256)
	deep := strings.Repeat("d/", maxPathDepth+1) + "f"
	loop := layerOf(t, special(tar.TypeSymlink, "l1", "l2"), special(tar.TypeSymlink, "l2", "l1"), file("l1/x", "x"))
	for name, c := range map[string]struct {
		layers []rawLayer
		want   string
	}{
		"dot dot":            {[]rawLayer{layerOf(t, file("../victim", "bad"))}, "leaves the image"},
		"dot dot deep":       {[]rawLayer{layerOf(t, file("a/../../victim", "bad"))}, "leaves the image"},
		"absolute dot dot":   {[]rawLayer{layerOf(t, file("/../"+outside+"/victim", "bad"))}, "leaves the image"},
		"hard link outside":  {[]rawLayer{layerOf(t, special(tar.TypeLink, "x", "../../etc/passwd"))}, "hard link"},
		"hard link to host":  {[]rawLayer{layerOf(t, special(tar.TypeLink, "x", filepath.Join(outside, "victim")))}, "no file of the image"},
		"hard link to dir":   {[]rawLayer{layerOf(t, file("d/", ""), special(tar.TypeLink, "x", "d"))}, "no file of the image"},
		"hard link to root":  {[]rawLayer{layerOf(t, special(tar.TypeLink, "x", "/"))}, "hard link"},
		"through a file":     {[]rawLayer{layerOf(t, file("f", "x"), file("f/g", "x"))}, "through a file"},
		"link loop":          {[]rawLayer{loop}, "too many symbolic links"},
		"long name":          {[]rawLayer{layerOf(t, file(long, "x"))}, "longer than"},
		"deep":               {[]rawLayer{layerOf(t, file(deep, "x"))}, "deeper than"},
		"root is a file":     {[]rawLayer{layerOf(t, tarEntry{tar.Header{Typeflag: tar.TypeReg, Name: "."}, "x"})}, "root is no folder"},
		"whiteout of nobody": {[]rawLayer{layerOf(t, file(".wh..", ""))}, "removes nothing"},
		"owner":              {[]rawLayer{layerOf(t, tarEntry{tar.Header{Name: "x", Uid: 1 << 33}, ""})}, "owner"},
		"link without end":   {[]rawLayer{layerOf(t, special(tar.TypeSymlink, "x", ""))}, "no usable target"},
		"odd kind":           {[]rawLayer{layerOf(t, special('Z', "x", ""))}, "unknown kind"},
		"no tar": {[]rawLayer{{open: func() (io.ReadCloser, error) {
			return io.NopCloser(strings.NewReader(strings.Repeat("junk", 512))), nil
		}}}, "no valid tar"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused(t, archiveOf(t, c.layers...), defaultLimits, c.want)
			if got := read(t, outside, "victim"); got != "safe" {
				t.Errorf("the host's file now reads %q", got)
			}
		})
	}
}

// refused unpacks and wants the archive's own fault, and nothing left.
func refused(t *testing.T, archive string, lim limits, want string) {
	t.Helper()
	dir := t.TempDir()
	tmp := filepath.Join(dir, "tmp")
	must(t, os.Mkdir(tmp, 0o700))
	_, err := unpack(t.Context(), archive, filepath.Join(dir, "rootfs"), tmp, lim)
	if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
		t.Errorf("err = %v, want ErrInvalid with %q", err, want)
	}
	if exists(filepath.Join(dir, "rootfs")) {
		t.Error("a refused archive left a root filesystem")
	}
}

// A folder that a link names may come from a lower layer; the write stays in the image.
func TestUnpackNeverFollowsLinksOnTheHost(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	root := extracted(t, archiveOf(t,
		layerOf(t, special(tar.TypeSymlink, "in", outside), special(tar.TypeSymlink, "f", filepath.Join(outside, "f"))),
		layerOf(t, file("in/evil", "x"), file("f", "replaces the link"), special(tar.TypeLink, "l", "in/evil")),
	))
	left, err := os.ReadDir(outside)
	must(t, err)
	if len(left) != 0 {
		t.Errorf("written on the host: %v", left)
	}
	if got := read(t, root, filepath.Join(outside, "evil")); got != "x" {
		t.Errorf("in the image: %q", got)
	}
	if got := read(t, root, "f"); got != "replaces the link" {
		t.Errorf("f = %q", got)
	}
}

func TestUnpackBounds(t *testing.T) {
	t.Parallel()
	bomb := archiveOf(t, layerOf(t, file("zeros", strings.Repeat("\x00", 8<<20))))
	lim := defaultLimits
	lim.bytes = 1 << 20
	refused(t, bomb, lim, "larger than 1048576 bytes uncompressed")

	var many []tarEntry
	for i := range 50 {
		many = append(many, file(fmt.Sprintf("f%d", i), ""))
	}
	lim = defaultLimits
	lim.entries = 49
	refused(t, archiveOf(t, layerOf(t, many...)), lim, "more than 49 entries")

	lim = defaultLimits
	lim.layers = 1
	refused(t, archiveOf(t, layerOf(t, file("a", "")), layerOf(t, file("b", ""))), lim, "more than 1 layers")
	lim = defaultLimits
	lim.metadata = 10
	refused(t, bomb, lim, "metadata is larger")

	// A sparse file claims a size that the archive need not have.
	if _, err := cleanPath(strings.Repeat("a/", maxPathBytes)); !errors.Is(err, ErrInvalid) {
		t.Errorf("a long path: %v", err)
	}
	var z bytes.Buffer
	enc, err := zstd.NewWriter(&z, zstd.WithWindowSize(zstd.MaxWindowSize))
	must(t, err)
	_, err = enc.Write(make([]byte, 1<<20))
	must(t, err)
	must(t, enc.Flush())
	must(t, enc.Close())
	r, err := decompress(&z, 1<<20)
	if err == nil {
		_, err = io.Copy(io.Discard, r)
	}
	if err == nil {
		t.Error("a window beyond the limit is decompressed")
	}
}

func TestUnpackRefusesBrokenArchives(t *testing.T) {
	t.Parallel()
	good, err := os.ReadFile(archiveOf(t, layerOf(t, file("a", strings.Repeat("content ", 1000)))))
	must(t, err)
	put := func(t *testing.T, data []byte) string {
		name := filepath.Join(t.TempDir(), "image.tar")
		must(t, os.WriteFile(name, data, 0o600))
		return name
	}
	edit := func(fn func(h *tar.Header, body []byte) []byte) []byte {
		var b bytes.Buffer
		tr, tw := tar.NewReader(bytes.NewReader(good)), tar.NewWriter(&b)
		for {
			h, err := tr.Next()
			if err != nil {
				break
			}
			body, err := io.ReadAll(tr)
			must(t, err)
			if body = fn(h, body); body == nil {
				continue
			}
			h.Size = int64(len(body))
			must(t, tw.WriteHeader(h))
			_, err = tw.Write(body)
			must(t, err)
		}
		must(t, tw.Close())
		return b.Bytes()
	}
	isLayer := func(body []byte) bool { return bytes.HasPrefix(body, []byte("\x28\xb5\x2f\xfd")) }
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"empty":        {nil, "no index.json"},
		"no tar":       {bytes.Repeat([]byte("x"), 4096), "no tar"},
		"cut":          {good[:len(good)/2], ""},
		"no layer":     {edit(func(_ *tar.Header, b []byte) []byte { return map[bool][]byte{false: b}[isLayer(b)] }), "is missing"},
		"longer layer": {edit(func(_ *tar.Header, b []byte) []byte { return map[bool][]byte{true: append(b, 0), false: b}[isLayer(b)] }), "bytes instead of"},
		"changed layer": {edit(func(_ *tar.Header, b []byte) []byte {
			if isLayer(b) {
				b[len(b)-1] ^= 1
			}
			return b
		}), ""},
		"index": {edit(func(h *tar.Header, b []byte) []byte {
			if h.Name == "index.json" {
				return []byte(`{"manifests":[]}`)
			}
			return b
		}), "0 images"},
		"no JSON": {edit(func(h *tar.Header, b []byte) []byte {
			if h.Name == "index.json" {
				return []byte(`{`)
			}
			return b
		}), "no JSON"},
		"config": {edit(func(_ *tar.Header, b []byte) []byte { return bytes.ReplaceAll(b, []byte(`"/srv"`), []byte(`"/etc"`)) }), "wrong content"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused(t, put(t, c.data), defaultLimits, c.want)
		})
	}
}

func TestUnpackStops(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	if _, err := Unpack(ctx, archiveOf(t, layerOf(t, file("a", "x"))), filepath.Join(dir, "rootfs")); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	left, err := os.ReadDir(dir)
	must(t, err)
	if len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// erofsMode reads a mode out of the file itself: Debian's tools neither print nor extract the set-id bits.
func erofsMode(t *testing.T, rootfs, name string) uint16 {
	t.Helper()
	text, err := exec.Command("dump.erofs", "--path="+name, rootfs).CombinedOutput()
	must(t, err)
	var nid int64
	_, rest, _ := strings.Cut(string(text), "NID: ")
	_, err = fmt.Sscan(rest, &nid)
	must(t, err)
	f, err := os.Open(rootfs)
	must(t, err)
	defer drop(f)
	var mode [2]byte
	_, err = f.ReadAt(mode[:], nid*32+4) // inodes are 32-byte slots; the mode follows two 16-bit fields
	must(t, err)
	return binary.LittleEndian.Uint16(mode[:])
}
