package bundle

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func packed(t testing.TB, files []ProgramFile) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := PackProgram(&out, files); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestProgramRoundTrip(t *testing.T) {
	t.Parallel()
	source := filepath.Join(t.TempDir(), "tool")
	if err := os.WriteFile(source, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	data := packed(t, []ProgramFile{
		{Path: "node_modules/x/bin/tool", Source: source, Executable: true}, {Path: Entry, Data: []byte("export const agents = new Map()")}, {Path: "empty", Data: []byte{}},
	})
	dir := filepath.Join(t.TempDir(), "programs", "p1")
	if err := UnpackProgram(bytes.NewReader(data), Digest(data), dir); err != nil {
		t.Fatal(err)
	}
	want := map[string]fs.FileMode{Entry: 0o644, "empty": 0o644, "node_modules/x/bin/tool": 0o755, ".": fs.ModeDir | 0o755, "node_modules/x": fs.ModeDir | 0o755}
	for name, mode := range want {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil || info.Mode() != mode {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
	if got, err := os.ReadFile(filepath.Join(dir, "node_modules/x/bin/tool")); err != nil || string(got) != "#!/bin/sh\n" {
		t.Errorf("%q %v", got, err)
	}
	if err := UnpackProgram(bytes.NewReader(data), Digest(data), dir); !errors.Is(err, fs.ErrExist) {
		t.Errorf("unpacked over what is there: %v", err)
	}
	noLeftovers(t, filepath.Dir(dir), "p1")
}

func TestPackingIsDeterministic(t *testing.T) {
	t.Parallel()
	files := []ProgramFile{{Path: "b", Data: []byte(strings.Repeat("b", 1<<20))}, {Path: "a/c", Data: []byte("c"), Executable: true}, {Path: Entry, Data: []byte("x")}}
	first := packed(t, slices.Clone(files))
	slices.Reverse(files)
	if !bytes.Equal(first, packed(t, files)) {
		t.Error("the order of the files matters")
	}
}

func noLeftovers(t *testing.T, dir string, expected ...string) {
	t.Helper()
	items, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range items {
		if !slices.Contains(expected, item.Name()) {
			t.Errorf("%s is left behind", item.Name())
		}
	}
}

// archiveOf writes headers as they are, hostile ones too.
func archiveOf(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var plain, out bytes.Buffer
	w := tar.NewWriter(&plain)
	for _, h := range headers {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, h.Size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	compress(t, &out, plain.Bytes())
	return out.Bytes()
}

func compress(t testing.TB, out *bytes.Buffer, plain []byte) {
	t.Helper()
	z, err := zstd.NewWriter(out)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestHostileProgramsAreRefused(t *testing.T) {
	t.Parallel()
	entry := tar.Header{Typeflag: tar.TypeReg, Name: Entry}
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name} }
	var trailing bytes.Buffer
	compress(t, &trailing, make([]byte, 3<<20))
	good := archiveOf(t, entry)
	for name, test := range map[string]struct {
		data []byte
		part string
	}{
		"no entry":       {archiveOf(t, file("a")), "index.mjs is missing"},
		"parent":         {archiveOf(t, file("../a")), "not a valid path"},
		"inner parent":   {archiveOf(t, file("a/../../b")), "not a valid path"},
		"absolute":       {archiveOf(t, file("/etc/passwd")), "not a valid path"},
		"dot":            {archiveOf(t, file("./a")), "not a valid path"},
		"backslash":      {archiveOf(t, file(`a\b`)), "not a valid path"},
		"deep":           {archiveOf(t, file(strings.Repeat("a/", 128)+"a")), "not a valid path"},
		"long":           {archiveOf(t, file(strings.Repeat("a", 4097))), "not a valid path"},
		"link":           {archiveOf(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "/etc"}, file("a/b")), "not a plain file"},
		"hard link":      {archiveOf(t, tar.Header{Typeflag: tar.TypeLink, Name: "a", Linkname: "/etc/passwd"}), "not a plain file"},
		"device":         {archiveOf(t, tar.Header{Typeflag: tar.TypeChar, Name: "a"}), "not a plain file"},
		"folder":         {archiveOf(t, tar.Header{Typeflag: tar.TypeDir, Name: "a/"}), "not a plain file"},
		"twice":          {archiveOf(t, file("a"), file("a")), "out of order or there twice"},
		"unsorted":       {archiveOf(t, file("b"), file("a")), "out of order or there twice"},
		"file as folder": {archiveOf(t, file("a"), file("a/b"), entry), "a"},
		"cut":            {good[:len(good)/2], "EOF"},
		"not zstd":       {[]byte("plain text"), "magic"},
		"nothing":        {nil, "index.mjs is missing"},
		"more behind":    {append(slices.Clone(good), trailing.Bytes()...), "something follows"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parent := t.TempDir()
			err := UnpackProgram(bytes.NewReader(test.data), Digest(test.data), filepath.Join(parent, "p"))
			if err == nil || !strings.Contains(err.Error(), test.part) {
				t.Errorf("error %v lacks %q", err, test.part)
			}
			noLeftovers(t, parent)
		})
	}
}

func TestOtherDigestIsRefused(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	data := archiveOf(t, tar.Header{Typeflag: tar.TypeReg, Name: Entry})
	err := UnpackProgram(bytes.NewReader(data), Digest([]byte("other")), filepath.Join(parent, "p"))
	if err == nil || !strings.Contains(err.Error(), "another digest") {
		t.Error(err)
	}
	noLeftovers(t, parent)
}

func TestPackRefusesBadFiles(t *testing.T) {
	t.Parallel()
	for name, files := range map[string][]ProgramFile{
		"parent": {{Path: "../x", Data: []byte{}}}, "twice": {{Path: "x", Data: []byte{}}, {Path: "x", Data: []byte{}}}, "gone": {{Path: "x", Source: "/no/such/file"}},
	} {
		if err := PackProgram(&bytes.Buffer{}, files); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(packed(f, []ProgramFile{{Path: Entry, Data: []byte("x")}, {Path: "a/b", Data: []byte("y")}}))
	f.Fuzz(func(t *testing.T, plain []byte) {
		// Compressed here, so that the fuzzer reaches the archive inside.
		var data bytes.Buffer
		compress(t, &data, plain)
		parent := t.TempDir()
		if err := UnpackProgram(&data, Digest(data.Bytes()), filepath.Join(parent, "p")); err != nil {
			noLeftovers(t, parent)
		}
	})
}

func TestOpenAndVerify(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m := valid()
	contents := map[string]string{ProgramMediaType: "program", ImageMediaType: "image"}
	for i := range m.Objects {
		content := contents[m.Objects[i].MediaType]
		digest := Digest([]byte(content))
		for j := range m.TemplateImages {
			if m.TemplateImages[j].Digest == m.Objects[i].Digest {
				m.TemplateImages[j].Digest = digest
			}
		}
		if m.Program.Digest == m.Objects[i].Digest {
			m.Program.Digest = digest
		}
		m.Objects[i].Digest, m.Objects[i].SizeBytes = digest, int64(len(content))
		if err := os.MkdirAll(filepath.Join(dir, ObjectsDir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, ObjectsDir, digest), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	slices.SortFunc(m.Objects, func(a, b Object) int { return strings.Compare(a.Digest, b.Digest) })
	data := encoded(t, m)
	if err := os.WriteFile(filepath.Join(dir, ManifestName), data, 0o644); err != nil {
		t.Fatal(err)
	}
	folder, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if folder.Digest != Digest(data) {
		t.Error("another digest")
	}
	if err := folder.Verify(t.Context()); err != nil {
		t.Error(err)
	}
	program := folder.ObjectPath(m.Program.Digest)
	if err := os.WriteFile(program, []byte("prograM"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := folder.Verify(t.Context()); err == nil {
		t.Error("changed content is accepted")
	}
	if err := os.WriteFile(program, []byte("longer program"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err == nil {
		t.Error("another size is accepted")
	}
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing object: %v", err)
	}
	if _, err := Open(t.TempDir()); err == nil || !strings.Contains(err.Error(), "helmr build") {
		t.Errorf("no bundle: %v", err)
	}
}
